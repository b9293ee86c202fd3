"""Timing and its rows with a device of our own, the limit's kernel as PTX, repeats on backends that misbehave."""

import json
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from qsa.golden.device_records import check_row
from qsa.kernels import cpu
from qsa.kernels.ops import OPERATIONS
from qsa.parity.backend import Backend
from qsa.parity.evidence import repeats

pytest.importorskip("numba.cuda", reason="numba-cuda is missing (extra cuda12 or cuda13)")
limits = pytest.importorskip("qsa.parity.bench.limits", reason="numba-cuda is missing", exc_type=ImportError)
from qsa.golden import case  # noqa: E402 - what follows needs numba-cuda
from qsa.kernels.cuda.toolchain.compiler import compile_ptx  # noqa: E402
from qsa.parity.bench import operation_cases as benchmark_cases  # noqa: E402
from qsa.parity.bench import operations as benchmark  # noqa: E402
from qsa.parity.bench import timing  # noqa: E402
from qsa.parity.speed import measure as speed  # noqa: E402


class Clock:
    """A device whose replays take 50 microseconds a launch in the graph, and 30 more when the caches were emptied."""

    def __init__(self):
        self.now, self.empty, self.floods = 0.0, False, 0

    def graph(self, record):
        self.count = 0
        assert record() is not False
        launches = self.count
        return SimpleNamespace(stream=self, replay=lambda: self.replay(launches))

    def replay(self, launches):
        self.now += 50e-3 * launches + 30e-3 * self.empty
        self.empty = False

    def launch(self):
        self.count += 1

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def fill(self, value):
        self.now += 5.0
        self.empty, self.floods = True, self.floods + 1

    def module(self):
        def event():
            one = SimpleNamespace(at=None, synchronize=lambda: None)
            one.record = lambda stream=None: setattr(one, "at", self.now)
            return one

        def zeros(count, dtype):
            # Twice an L2 cache of 60 MB.
            assert (count, dtype) == (30_000_000, "int32")
            return self

        def elapsed(start, end):
            return end.at - start.at

        return SimpleNamespace(zeros=zeros, cuda=SimpleNamespace(Event=event, get_elapsed_time=elapsed))


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(timing, "Graph", found.graph)
    properties = SimpleNamespace(l2=60_000_000)
    monkeypatch.setattr(timing, "compiler", SimpleNamespace(array_module=found.module, properties=lambda: properties))
    return found


def test_hot_is_a_share_of_a_graph_and_cold_a_whole_one(clock):
    hot = timing.hot(clock.launch, launches=10, replays=7)
    assert hot.median == pytest.approx(50) and hot.contract == "hot, graph of 10 launches, median of 7"
    assert clock.floods == 0
    cold = timing.cold(clock.launch, replays=5)
    # What empties the cache is not in the time.
    assert cold.median == pytest.approx(80) and cold.contract == "cold, graph of 1 launch, median of 5"
    assert clock.floods == 5 + timing.WARM_UP


def test_a_refusal_is_not_timed(clock):
    with pytest.raises(AssertionError):
        timing.hot(lambda: False)


def test_percentiles():
    found = timing.Timing.of(range(1, 102), "hot")
    assert (found.p10, found.median, found.p90) == (11, 51, 91)
    for times in ([], [1.0, 0.0]):
        with pytest.raises(ValueError, match="must be microseconds above 0"):
            timing.Timing.of(times, "hot")


def test_rows_are_as_evidence_wants_them():
    taken, limit = timing.Timing(20.0, 19.0, 22.0, "hot"), timing.Timing(5.0, 4.9, 5.1, "hot")
    row = timing.row("select:rows=1", taken, limits.READ, limit)
    assert check_row(row, "file", "row") == row and row["share"] == 0.25 and row["limit_us"] == 5.0
    wrong = timing.wrong("select:rows=1", limits.READ)
    assert check_row(wrong, "file", "row") == wrong and "20.0" not in benchmark.line(wrong)
    with pytest.raises(ValueError, match="must be the same"):
        timing.row("select:rows=1", taken, limits.READ, timing.Timing(5.0, 4.9, 5.1, "cold"))


def test_a_wrong_result_is_not_timed(clock, monkeypatch):
    text = benchmark_cases.cases()[0]
    ready = {"call": clock.launch, "limit": (limits.GATHER, clock.launch)}
    clock.count = 0
    for correct, share in ((True, 1.0), (False, None)):
        one = benchmark_cases.Prepared(correct=lambda correct=correct: correct, **ready)
        monkeypatch.setattr(benchmark, "prepare", lambda text, one=one: one)
        row = benchmark.measure(text)
        assert (row["correct"], row["share"]) == (correct, share)
    refused = benchmark_cases.Prepared(lambda: False, lambda: True, ready["limit"])
    monkeypatch.setattr(benchmark, "prepare", lambda text: refused)
    assert benchmark.measure(text) == "refused"


def test_the_report_survives_a_case_that_breaks(monkeypatch, tmp_path, capsys):
    names = benchmark_cases.cases()[:3]
    right = timing.row(names[0], timing.Timing(2.0, 1.9, 2.1, "hot"), "a read", timing.Timing(1.0, 1.0, 1.0, "hot"))

    def measure(text):
        if text == names[1]:
            raise RuntimeError("an illegal memory access")
        return right if text == names[0] else "refused"

    monkeypatch.setattr(benchmark, "measure", measure)
    monkeypatch.setattr(benchmark, "measured_limits", lambda: {})
    monkeypatch.setattr(benchmark, "clocks_under_load", lambda: {})
    path = tmp_path / "report.json"
    assert benchmark.main(["--json", str(path), "--cases", *names]) == 1
    report = json.loads(path.read_text())
    assert report["rows"] == [right]
    assert report["unsupported"] == {names[1]: "RuntimeError: an illegal memory access", names[2]: "refused"}
    with pytest.raises(SystemExit) as caught:
        benchmark.main(["--cases", "none"])
    assert caught.value.code == 2


def test_clocks_are_read_while_the_device_works(monkeypatch):
    moved, asked = [], []

    def clocks(address):
        # Answers only once there is load.
        while not moved:
            time.sleep(0.001)
        asked.append(address)
        return {"sm_mhz": 1980}

    runtime = SimpleNamespace(getDevice=lambda: 0, deviceGetPCIBusId=str, deviceSynchronize=lambda: None)
    module = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setattr(benchmark, "array_module", lambda: module)
    monkeypatch.setattr(limits, "copy", lambda: (lambda: moved.append(1), 8))
    monkeypatch.setattr(benchmark.device, "clocks", clocks)
    assert benchmark.clocks_under_load() == {"sm_mhz": 1980} and asked == ["0"]


def test_cases_read_back_and_differ():
    texts = benchmark_cases.cases()
    assert len(set(texts)) == len(texts)
    for text in texts:
        operation, recipe = case.parse(text)
        assert operation in benchmark_cases.PREPARE and recipe["cache"] in ("hot", "cold")
        assert recipe.get("schedule", OPERATIONS[operation].schedules[0]) in OPERATIONS[operation].schedules


def test_the_gate_times_cases_of_the_benchmark(monkeypatch):
    """What a process of the gate's speed reports of a device, through the benchmark itself."""
    assert set(speed.CUDA_CASES) <= set(benchmark_cases.cases())
    good, bad, refused = speed.CUDA_CASES[:3]
    rows = {good: timing.row(good, timing.Timing(9.5, 9, 10, "hot"), "a read", timing.Timing(2, 2, 2, "hot"))}
    rows |= {bad: timing.wrong(bad, "a read"), refused: "refused"}
    monkeypatch.setattr(benchmark, "measure", rows.__getitem__)
    monkeypatch.setattr(benchmark, "measured_limits", lambda: {})
    monkeypatch.setattr(benchmark, "clocks_under_load", lambda: {"throttled": ["software power cap"]})
    found = speed.measured_cuda([good, bad, refused, "attend:new=1"])
    assert found["times"] == {good: 9.5} and found["contract"] == {good: "hot"} and found["outputs"] == {}
    assert found["throttled"] == ["software power cap"] and found["missing"] == {
        bad: "wrong result: it has no speed",
        refused: "refused",
        "attend:new=1": "the benchmark of this tree has no such case",
    }


def test_the_limit_reads_what_attention_must(monkeypatch):
    seen = {}
    monkeypatch.setattr(limits, "reader", lambda nbytes, starts, size: seen.update(n=nbytes, starts=starts, size=size))
    ids = np.array([[0, 1, 2, 3, 8, 9], [4, 5, 6, 7, -1, -1]], np.int32)
    # int8: K and V codes of 256 dims, and 4 scales of 2 bytes each.
    limits.gather(ids, slots=[0, 1], n_slots=2, capacity=12, n_head_kv=2, cell=2 * (256 + 8))
    assert seen["size"] == 132 and seen["n"] == 2 * 3 * 2 * 132 * 16
    assert seen["starts"].tolist() == [132 * place for place in (0, 1, 4, 5, 8, 9)]


def test_pieces_lie_in_the_buffer(monkeypatch):
    monkeypatch.setattr(limits, "array_module", lambda: None)
    for starts, size in (([0, 61], 4), ([0], 257), ([0], 0)):
        with pytest.raises(ValueError, match="pieces of"):
            limits.reader(64 * 16, starts, size)


def test_the_limits_kernel_keeps_its_loads():
    signature = "void(int32[::1], int32[::1], int32, int32, int32[::1])"
    assert compile_ptx(limits._read_pieces, signature, (9, 0)).count("ld.global.v4") == 8


# Repeats

FEW = [one for one in repeats.cases("exact", reduced=True) if one.operation == "select"][:1]


def backend_of(monkeypatch, select):
    module = SimpleNamespace(__name__="their_kernel", select=select, declaration=cpu.declaration)
    monkeypatch.setitem(sys.modules, "their_kernel", module)
    return Backend("their_kernel")


def test_repeats_of_a_right_kernel(monkeypatch):
    row = repeats.run(FEW[0], backend_of(monkeypatch, cpu.select), 5)
    assert row["status"] == "passed" and list(row["digests"].values()) == [5]


def test_repeats_see_a_changed_input(monkeypatch):
    def changing(scores, steps, **keywords):
        found = cpu.select(scores, steps, **keywords)
        scores[0, 1] = 7
        return found

    row = repeats.run(FEW[0], backend_of(monkeypatch, changing), 2)
    assert row["status"] == "failed" and "select: changed its input scores: first at [0, 1]: given " in row["reason"]


def test_repeats_see_a_race_and_a_steady_error(monkeypatch):
    calls = []

    def racing(scores, steps, *, rule):
        calls.append(rule)
        ids = cpu.select(scores, steps, rule=rule)
        ids[0, 0] += len(calls) == 3
        return ids

    row = repeats.run(FEW[0], backend_of(monkeypatch, racing), 5)
    assert row["status"] == "failed" and row["reason"] == "2 different results in 5 repeats"
    assert sorted(row["digests"].values()) == [1, 4]

    def steady(scores, steps, *, rule):
        return cpu.select(scores, steps, rule=rule)[:, ::-1]

    row = repeats.run(FEW[0], backend_of(monkeypatch, steady), 3)
    assert (row["status"], row["reason"]) == ("failed", "the bytes are not the reference's")


def test_repeats_of_what_refuses_or_breaks(monkeypatch):
    def broken(scores, steps, *, rule):
        raise RuntimeError("no")

    refusing = backend_of(monkeypatch, lambda scores, steps, *, rule: False)
    assert repeats.run(FEW[0], refusing, 2)["status"] == "unsupported"
    row = repeats.run(FEW[0], backend_of(monkeypatch, broken), 2)
    assert (row["status"], row["reason"]) == ("failed", "RuntimeError: no")


def test_repeats_cover_every_schedule_and_the_signs_of_zero_count():
    found = {(one.operation, one.schedule) for one in repeats.cases("exact")}
    assert found == {(name, schedule) for name, one in OPERATIONS.items() for schedule in one.schedules}
    assert repeats.digest(np.array([0.0])) != repeats.digest(np.array([-0.0]))
    assert {one.recipe["format"] for one in repeats.cases("float")} == {"int8", "q4_0", "k8v4", "fp16"}
