"""The run of the gate's speed with processes of our own: their order, what cannot be compared, verdicts and reports."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field

import pytest

from qsa.kernels.sources import root
from qsa.parity.speed import check, measure
from qsa.parity.speed import compare as comparing
from qsa.parity.speed.base import NoBaseError
from qsa.parity.speed.compare import FLOORS, ArmError, compare
from qsa.parity.speed.verdict import AMBIGUOUS, FASTER, NOISE_ROUNDS, ROUNDS, SAME, SLOWER, Floors
from qsa.parity.verdicts import Run

FLOOR = Floors(relative=0.05, absolute=1.0)
CASES = ("same", "slow", "fast")
LOG = []


@dataclass
class FakeArm:
    """An arm whose processes give ``times``, a thousandth more each time; ``changes`` are of the reports by number."""

    name: str
    times: dict
    contract: str = "quartile"
    changes: dict = field(default_factory=dict)
    calls: int = 0

    def measure(self, backend, cases, seconds):
        assert seconds == (comparing.PROCESS_SECONDS if self.calls else comparing.COMPILE_SECONDS)
        LOG.append((self.name, tuple(cases)))
        self.calls += 1
        report = {
            "sources": self.name,
            "times": {case: self.times[case] * (1 + self.calls / 1e5) for case in cases if case in self.times},
            "outputs": {case: "0" for case in cases},
            "contract": dict.fromkeys(cases, self.contract),
            "missing": {case: "refused" for case in cases if case not in self.times},
            "throttled": [],
        }
        return {**report, **self.changes.get(self.calls, {})}


@pytest.fixture(autouse=True)
def log():
    LOG.clear()


def arms(**changes):
    base = FakeArm("base", dict.fromkeys(CASES, 100.0))
    return base, FakeArm("change", {"same": 100.0, "slow": 130.0, "fast": 70.0} | changes)


def verdicts(found):
    return {case: one.verdict for case, one in found.judgements.items()}


def test_the_arms_alternate_and_only_what_is_slower_is_measured_again():
    found = compare(*arms(), "cpu", CASES, FLOOR)
    assert verdicts(found) == {"same": SAME, "slow": SLOWER, "fast": FASTER} and not found.missing
    names = [name for name, _ in LOG]
    turn = ["base", "change", "change", "base"]
    assert names[:2] == ["base", "change"] and names[2 : 2 + 4 * NOISE_ROUNDS] == ["base"] * 4 * NOISE_ROUNDS
    assert names[2 + 4 * NOISE_ROUNDS :] == turn * 2 * ROUNDS
    cases = [chosen for _, chosen in LOG]
    assert set(cases[: -4 * ROUNDS]) == {CASES} and set(cases[-4 * ROUNDS :]) == {("slow",)}
    assert len(found.timings.rounds["same"]) == len(found.timings.again["slow"]) == ROUNDS
    assert len(found.timings.noise["fast"]) == NOISE_ROUNDS and "same" not in found.timings.again


def test_what_was_slower_once_is_ambiguous():
    base, change = arms()
    first = 1 + 2 * ROUNDS  # its first process compiles
    changed = {"times": {"slow": 100.0}}
    change.changes = {number: changed for number in range(first + 1, first + 1 + 2 * ROUNDS)}
    found = compare(base, change, "cpu", CASES, FLOOR)
    assert verdicts(found)["slow"] == AMBIGUOUS and "slower at first" in found.judgements["slow"].reason


def test_a_lowered_clock_in_any_process_makes_all_ambiguous():
    for number in (3, 2 * NOISE_ROUNDS + 5):
        base, change = arms()
        base.changes = {number: {"throttled": ["hardware slowdown"]}}
        found = compare(base, change, "cpu", CASES, FLOOR)
        assert set(verdicts(found).values()) == {AMBIGUOUS}
        assert "hardware slowdown" in found.judgements["slow"].reason


def test_what_cannot_be_compared_says_why():
    base, change = arms()
    del change.times["slow"], base.times["fast"]
    found = compare(base, change, "cpu", (*CASES, "new"), FLOOR)
    assert list(found.judgements) == ["same"] and set(found.missing) == {"slow", "fast", "new"}
    assert found.missing["slow"] == "not measured in the change: refused"
    assert found.missing["fast"] == "not measured in the base: refused"
    base, change = arms()
    change.contract = "mean"
    found = compare(base, change, "cpu", CASES, FLOOR)
    assert not found.judgements and "times were measured otherwise: quartile, now mean" in found.missing["same"]
    assert len(LOG) == 2 + 4 * (NOISE_ROUNDS + ROUNDS) + 2  # after the first two nothing more is measured
    base, change = arms()
    change.changes = {1: {"outputs": {"same": "1", "slow": "0", "fast": "0"}}}
    assert "are of other results: 0, now 1" in compare(base, change, "cpu", CASES, FLOOR).missing["same"]


def test_a_case_that_only_some_processes_measure_has_no_verdict():
    base, change = arms()
    change.changes = {4: {"times": {"same": 100.0, "fast": 70.0}, "missing": {"slow": "MemoryError: "}}}
    found = compare(base, change, "cpu", CASES, FLOOR)
    assert set(found.judgements) == {"same", "fast"} and "MemoryError" in found.missing["slow"]


@pytest.mark.parametrize("side", [0, 1])
def test_a_tree_that_is_edited_meanwhile_has_no_verdict(side):
    both = arms()
    both[side].changes = {5: {"sources": "edited"}}
    with pytest.raises(ArmError, match=f"{both[side].name}: its sources changed while it was measured"):
        compare(*both, "cpu", CASES, FLOOR)


def test_an_edit_of_a_tree_shows(tmp_path):
    for name in ("reference", "kernels"):
        (tmp_path / name / "cpu").mkdir(parents=True)
        (tmp_path / name / "cpu" / "a.py").write_text("x = 1\n")
    before = measure.sources_hash(tmp_path)
    (tmp_path / "kernels" / "cpu" / "a.nbi").write_text("compiled")
    assert measure.sources_hash(tmp_path) == before
    for path in ("kernels/cpu/a.py", "reference/cpu/a.py"):
        (tmp_path / path).write_text("x = 2\n")
        assert measure.sources_hash(tmp_path) != before
        (tmp_path / path).write_text("x = 1\n")
    (tmp_path / "kernels" / "b.py").touch()
    assert measure.sources_hash(tmp_path) != before


def test_progress_counts_the_processes():
    steps = []
    compare(*arms(slow=100.0), "cpu", CASES, FLOOR, lambda *step: steps.append(step))
    assert [done for _, done, _, _ in steps] == list(range(2 + 4 * (NOISE_ROUNDS + ROUNDS)))
    assert Counter(what for what, *_ in steps) == {
        "compiling": 2,
        "noise": 4 * NOISE_ROUNDS,
        "comparing": 4 * ROUNDS,
    }


def test_a_process_without_a_report_is_told(tmp_path):
    with pytest.raises(ArmError, match=r"(?s)other: a process that measures gave no times: exit status 1.*qsa.kernels"):
        comparing.Arm("other", tmp_path).measure("cpu", ["append_index:rows=64"])


def test_floors_of_the_backends():
    assert check.floors("cpu") == FLOORS["cpu"] and check.floors("cuda").relative < check.floors("cpu").relative
    changed = check.floors("cuda", 0.1)
    assert changed.relative == 0.1 and changed.absolute == FLOORS["cuda"].absolute
    assert set(FLOORS) == set(measure.CASES)


@pytest.fixture
def two_arms(monkeypatch):
    base, change = arms()
    monkeypatch.setattr(check, "arms", lambda checkout, revision: (base, change))
    monkeypatch.setattr(check, "CASES", {"cpu": CASES})
    return base, change


def test_the_verdicts_of_the_check(two_arms):
    run = Run(floor=0.05)
    found = {one.case.text: one for one in check.verdicts(run, "cpu")}
    assert {case: one.status for case, one in found.items()} == {"same": "passed", "slow": "failed", "fast": "passed"}
    assert found["slow"].reason.startswith("SLOWER: 30.0 %") and found["fast"].reason.startswith("FASTER: ")
    as_dict = found["slow"].as_dict()
    assert as_dict["measure"] == pytest.approx(0.3, abs=1e-3) and as_dict["bound"] == 0.05
    assert as_dict["share"] == pytest.approx(6, abs=0.02)
    notes = json.loads(json.dumps(run.notes["speed"]))
    assert notes["judgements"]["slow"]["verdict"] == "SLOWER" and len(notes["timings_us"]["again"]["slow"]) == ROUNDS


def test_an_ambiguous_time_fails_nothing(two_arms):
    two_arms[0].changes = {3: {"throttled": ["software power cap"]}}
    found = list(check.verdicts(Run(), "cpu"))
    assert {one.status for one in found} == {"unsupported"} and found[0].reason.startswith("AMBIGUOUS: ")


def test_nothing_is_timed_while_something_is_wrong(two_arms):
    (one,) = check.verdicts(Run(failed={"goldens", "parity"}), "cpu")
    assert one.status == "unsupported" and "goldens, parity failed" in one.reason and LOG == []


def test_no_base_is_unsupported_and_a_dead_process_fails(monkeypatch):
    def no_base(checkout, revision):
        raise NoBaseError("a shallow clone")

    monkeypatch.setattr(check, "arms", no_base)
    (one,) = check.verdicts(Run(), "cpu")
    assert (one.status, one.reason) == ("unsupported", "a shallow clone")

    def dead(*arguments):
        raise ArmError("base: died of SIGSEGV")

    monkeypatch.setattr(check, "arms", lambda checkout, revision: arms())
    monkeypatch.setattr(comparing, "compare", dead)
    (one,) = check.verdicts(Run(), "cpu")
    assert (one.status, one.reason) == ("failed", "base: died of SIGSEGV")


def test_the_cases_of_a_cpu_run_on_these_kernels():
    """Every one gives an output, and the operations and arithmetics are all there."""
    for text in measure.CPU_CASES:
        operation, given = measure.parameters(text)
        if given.get("rows") == 4 and operation == "attend" and given["arithmetic"] == "exact":
            continue  # the same function on more rows takes long
        assert measure.cpu_call(text)() is not False, text
    assert {measure.parameters(text)[0] for text in measure.CPU_CASES} == {
        "append_kv",
        "append_index",
        "block_scores",
        "select",
        "attend",
    }


def test_a_process_measures_the_tree_that_it_is_given(tmp_path):
    """Another tree than the installed one; and an operation that it lacks is missing, not fatal."""
    for name in ("reference", "kernels"):
        shutil.copytree(root() / name, tmp_path / name)
    out = tmp_path / "report.json"
    texts = ["append_index:rows=512", "append_kv:format=none,rows=64"]
    command = [sys.executable, "-P", measure.__file__, "--tree", str(tmp_path), "--backend", "cpu"]
    subprocess.run([*command, "--json", str(out), "--cases", *texts], check=True, capture_output=True, text=True)
    report = json.loads(out.read_text())
    assert set(report["times"]) == {texts[0]} and report["times"][texts[0]] > 0
    assert "none" in report["missing"][texts[1]] and set(report["outputs"]) == {texts[0]}
    assert report["sources"] == measure.sources_hash(root())


def test_a_tree_is_measured_in_a_process_of_its_own(tmp_path):
    with pytest.raises(ValueError, match="imported already"):
        measure.use_tree(tmp_path)


def test_the_report_of_a_device_is_read():
    rows = [
        {"case": "a", "correct": True, "median_us": 12.5, "contract": "hot"},
        {"case": "b", "correct": False, "median_us": None, "contract": "not timed"},
    ]
    clocks = {"start": {"throttled": []}, "end": {"throttled": ["hardware slowdown"]}}
    found = {"rows": rows, "unsupported": {"c": "refused"}, "clocks": clocks}
    assert measure.read_benchmark(found, {"d": "no such case"}) == {
        "times": {"a": 12.5},
        "contract": {"a": "hot"},
        "missing": {"b": "wrong result: it has no speed", "c": "refused", "d": "no such case"},
        "throttled": ["hardware slowdown"],
    }


def test_a_lower_quartile_is_near_the_fast_runs(monkeypatch):
    now, calls = [0.0], [0]

    def call():
        calls[0] += 1
        now[0] += 0.02 if calls[0] % 3 else 0.5  # two of three calls are undisturbed

    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(measure, "WARM_UP", 2)
    assert measure.lower_quartile(call) == pytest.approx(20000.0)
