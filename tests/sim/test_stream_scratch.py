"""Which scratch a call without one gets, by device, stream and thread; what a device and its streams say stands in."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, local
from types import SimpleNamespace

import numpy as np
import pytest

from cases.attend_cases import exact_problem
from qsa.kernels.cuda import simulator
from qsa.reference.geometry import step_records
from support.plan_runs import recorded_runs

pytest.importorskip("numba.cuda.core", reason="numba-cuda is missing (extra cuda12 or cuda13)")
from qsa.kernels.cuda.toolchain import compiler

attend, select, sample = simulator.load("attend"), simulator.load("select"), simulator.load("sampler")
device = simulator.load("device.containers")
scratch, plans = simulator.load("device.scratch"), simulator.load("common.plans")
planning = simulator.load("attend_exact.plan")

DEFAULT, PER_THREAD = SimpleNamespace(ptr=0), SimpleNamespace(ptr=2)
"""CuPy's default streams, which have these handles on every device and in every thread."""


class Stream:
    """A stream that calls name; as a context it is the current one, and ``entered`` counts how often it was."""

    def __init__(self, streams, handle):
        self.streams, self.ptr, self.entered = streams, handle, 0

    def __enter__(self):
        self.before, self.streams.current = self.streams.current, self
        self.entered += 1

    def __exit__(self, *error):
        self.streams.current = self.before


@pytest.fixture
def now(monkeypatch):
    """What is current, to be set: ``device`` (an ordinal) of all threads, ``stream`` of each thread."""
    state = SimpleNamespace(device=0, streams=local())
    streams = SimpleNamespace(
        get_current_stream=lambda: getattr(state.streams, "current", DEFAULT), Stream=SimpleNamespace(ptds=PER_THREAD)
    )
    monkeypatch.setattr(compiler, "array_module", lambda: SimpleNamespace(cuda=streams))
    monkeypatch.setattr(compiler, "current_device", lambda: state.device)
    for module in (scratch, plans, attend, select, planning):
        monkeypatch.setattr(module, "stream_key", compiler.stream_key)
        if hasattr(module, "_plans"):
            monkeypatch.setattr(module, "_plans", plans.PlanCache())
    return state


def of_attend(stream=None):
    q, kv, ids, steps = exact_problem(1, [70])
    attend.attend(q, device.to_device(kv), ids, steps, arithmetic="exact", schedule="split", splits=2, stream=stream)


def of_select():
    select.select(np.zeros((1, 40), np.float32), step_records([99]), schedule="spread")


def of_sample():
    sample.argmax(np.zeros((1, 40), np.float32))


@pytest.fixture
def scratch_of(monkeypatch):
    """Function of a call that returns the scratch that its launch was given; nothing is launched."""
    given = []
    monkeypatch.setattr(sample, "launch", lambda kernel, grid, block, arguments: given.append(arguments[7]))
    runs = recorded_runs(monkeypatch, plans, launched=False)

    def scratch(call, **options):
        call(**options)
        given.extend(arrays[-1] for _, arrays in runs)
        runs.clear()
        return given.pop()

    return scratch


CALLS = pytest.mark.parametrize("call", [of_attend, of_select, of_sample])


@CALLS
def test_two_devices_share_no_scratch(now, scratch_of, call):
    """Their default streams have the same handle."""
    first = scratch_of(call)
    now.device = 1
    second = scratch_of(call)
    assert not np.shares_memory(first, second)
    assert scratch_of(call) is second
    now.device = 0
    assert scratch_of(call) is first


@CALLS
def test_streams_of_one_device_share_no_scratch(now, scratch_of, call):
    first = scratch_of(call)
    now.streams.current = SimpleNamespace(ptr=77)
    assert not np.shares_memory(first, scratch_of(call))


@pytest.mark.parametrize(
    ("stream", "shared"), [(PER_THREAD, False), (DEFAULT, True), (SimpleNamespace(ptr=78), True)], ids=str
)
@CALLS
def test_two_threads_share_the_scratch_of_a_stream_they_share(now, scratch_of, call, stream, shared):
    """The default streams of two threads have the same handle, and run beside each other."""
    both = Barrier(2)

    def run(turn):
        now.streams.current = stream
        both.wait()
        for i in range(2):
            if i == turn:
                found = scratch_of(call)
            both.wait()
        return found

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(run, range(2))
    assert (first is second) == shared and np.shares_memory(first, second) == shared


@pytest.mark.parametrize("handle", [0, 2, 79])
def test_a_stream_that_is_named_has_the_scratch_it_has_as_the_current_one(now, scratch_of, monkeypatch, handle):
    monkeypatch.setattr(planning, "kept_scratch", scratch.StreamScratch("int64", planning.UNSET))
    stream = Stream(now.streams, handle)
    now.streams.current = stream
    current = scratch_of(of_attend)
    now.streams.current = SimpleNamespace(ptr=80)
    assert scratch_of(of_attend, stream=stream) is current
    assert scratch_of(of_attend) is not current
    now.device = 1
    assert stream.entered == 0
    assert not np.shares_memory(scratch_of(of_attend, stream=stream), current)
    # On another stream the launch would not wait until it is filled.
    assert stream.entered == 1


def test_the_scratch_of_attend_is_unset_and_grows(now, scratch_of):
    """Beside the smaller one, which a captured graph may hold."""
    now.streams.current = SimpleNamespace(ptr=81)
    small = planning.kept_scratch.get((1,))
    large = scratch_of(of_attend)
    assert large is not small and large.size > small.size == 1
    for scratch in (small, large):
        assert scratch.dtype == np.int64 and (scratch == planning.UNSET).all()
