"""What the device's containers do on the host's side, without a device."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from qsa.kernels.cuda import simulator

device, checks = simulator.load("device"), simulator.load("common.checks")
graphs, scratches = simulator.load("device.graphs"), simulator.load("device.scratch")


class Stream:
    """Notes what it is given, in order."""

    def __init__(self, ptr, said):
        self.ptr, self.said = ptr, said

    def record(self):
        self.said.append(("record", self.ptr))
        return f"event of {self.ptr}"

    def wait_event(self, event):
        self.said.append((self.ptr, "waits for", event))

    def synchronize(self):
        raise AssertionError("the host waits")


@pytest.mark.parametrize("current", [1, 2], ids=["another stream", "the graph's own"])
def test_a_replay_waits_for_the_current_stream_and_the_host_for_nothing(current, monkeypatch):
    said = []
    graph, stream = device.Graph.__new__(device.Graph), Stream(current, said)
    graph.stream = Stream(2, said)
    graph._graph = SimpleNamespace(launch=lambda stream: said.append(("launch", stream.ptr)))
    streams = SimpleNamespace(get_current_stream=lambda: stream)
    monkeypatch.setattr(graphs, "array_module", lambda: SimpleNamespace(cuda=streams))
    graph.replay()
    waits = [("record", 1), (2, "waits for", "event of 1")] if current == 1 else []
    assert said == [*waits, ("launch", 2)]


class Branch:
    """A stream that notes what is ordered with what; events have the number of the stream that recorded them."""

    def __init__(self, ptr, said):
        self.ptr, self.said = ptr, said

    def __enter__(self):
        self.said.append(("current", self.ptr))

    def __exit__(self, *_):
        self.said.append(("current", 0))

    def record(self, event):
        event.append(self.ptr)

    def wait_event(self, event):
        self.said.append((self.ptr, "waits for", event[-1]))


def test_calls_of_a_captured_program_are_branches_that_begin_and_end_in_its_stream(monkeypatch):
    said, made = [], []

    def stream(non_blocking):
        made.append(Branch(len(made) + 1, said))
        return made[-1]

    streams = SimpleNamespace(Stream=stream, Event=lambda **_: [], runtime=SimpleNamespace(getDevice=lambda: 0))
    monkeypatch.setattr(graphs, "array_module", lambda: SimpleNamespace(cuda=streams))
    monkeypatch.setattr(graphs, "_sides", {})
    calls = [partial(said.append, name) for name in "abcdefghij"]
    graphs.together(calls[:3])
    assert said == ["a", "b", "c"]  # nothing is captured
    said.clear()
    monkeypatch.setattr(graphs._captured, "stream", Branch(0, said))
    graphs.together(calls[:1])
    graphs.together(calls[:3])
    begun = [(1, "waits for", 0), ("current", 1), "b", ("current", 0)]
    begun += [(2, "waits for", 0), ("current", 2), "c", ("current", 0)]
    assert said == ["a", *begun, "a", (0, "waits for", 1), (0, "waits for", 2)]
    said.clear()
    graphs.together(calls)
    assert [each for each in said if isinstance(each, str)] == list("bjcdefghai")
    assert len(made) == graphs.BRANCHES - 1 and said[-7:] == [(0, "waits for", i) for i in range(1, 8)]


def test_a_scratch_is_kept_for_each_stream_and_grows(monkeypatch):
    scratch, stream = device.StreamScratch(), [0]
    monkeypatch.setattr(scratches, "stream_key", lambda given=None: stream[0] if given is None else given)
    first = scratch.get((2, 5))
    assert first.dtype == np.int32 and not first.any()
    assert scratch.get((1, 3)) is first
    stream[0] = 1
    other = scratch.get((2, 5))
    assert other is not first
    stream[0] = 0
    larger = scratch.get((1, 9))
    assert larger.shape == (2, 9) and scratch.get((2, 5)) is larger


def test_what_is_no_array_on_the_device_is_named():
    with pytest.raises(ValueError, match="steps: list: must be an array on the device"):
        checks.check_array("steps", [[0, 1, 0, 1]], "int32", (1, 4))
