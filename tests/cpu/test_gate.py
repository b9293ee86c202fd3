"""The gate: its decisions on recorded data, and its checks on small folders of our own."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from evidence_records import row, wrong

from qsa.golden import evidence
from qsa.golden.families import produce
from qsa.golden.store import Store
from qsa.kernels.switches import ARITHMETICS
from qsa.parity import cli, gate, suite

DEVICE = {
    "name": "NVIDIA H200",
    "compute_capability": "9.0",
    "multiprocessors": 132,
    "memory": 150 << 30,
    "l2": 60 << 20,
}
FILES = {"kernels": "0" * 32, "reference": "0" * 32, "files": {"kernels/a.py": "1" * 16}}


def record(found=(), name="h200-2026-11-30", clocks=None, **changes):
    step = {
        "name": "timings",
        "date": "2026-11-30",
        "driver": "580.1",
        "status": "passed",
        "reason": "",
        "seconds": 1.0,
        "command": "python",
        "results": {"rows": list(found), "clocks": {"end": clocks}},
        **changes,
    }
    return evidence.make(name, "exact-1", DEVICE, {}, FILES, {"benchmark": evidence.section([step])})


def test_the_benchmark_is_held_to_the_record():
    clocks = {"sm_mhz": 1980, "max_sm_mhz": 1980, "throttled": []}
    hot = {**clocks, "sm_mhz": 1400, "throttled": ["hardware slowdown"]}
    report = {"rows": [row("a", 12.0), row("b")], "clocks": {"end": hot}, "unsupported": {"c": "refused"}}
    old = record([row("a"), row("b"), row("c")], clocks=clocks)
    found = {one.case.text: one for one in gate.judge_benchmark(old, report, lambda names: report)}
    assert {name: one.status for name, one in found.items()} == {"a": "failed", "b": "passed", "c": "failed"}
    assert "clocks were throttled in this run: hardware slowdown" in found["a"].reason
    assert "clocks" not in found["b"].reason
    assert found["c"].reason.splitlines()[0].endswith("was not measured in this run: refused")


def test_the_newest_record_of_each_device_counts():
    made = [record(name=name) for name in ("h200-2026-11-29", "h200-2026-11-30")]
    assert evidence.newest(made)["NVIDIA H200"]["name"] == "h200-2026-11-30"


def test_evidence_is_fresh_stale_or_failed():
    assert gate.judge_evidence(record(), FILES).status == "passed"
    other = {**FILES, "files": {"kernels/a.py": "2" * 16}}
    stale = gate.judge_evidence(record(), other)
    assert (stale.status, stale.reason) == ("stale", "changed kernels/a.py")
    failed = gate.judge_evidence(record(status="failed", reason="died of SIGSEGV"), FILES)
    assert (failed.status, failed.reason) == ("failed", "benchmark/timings: died of SIGSEGV")


def test_evidence_that_is_missing_or_damaged(tmp_path, monkeypatch):
    records = evidence.records
    monkeypatch.setattr(evidence, "records", lambda: records(tmp_path))
    (one,) = gate.CHECKS["evidence"]()
    assert one.status == "unsupported" and one.reason.startswith("missing")
    (tmp_path / "h200.json").write_text("{}")
    (one,) = gate.CHECKS["evidence"]()
    assert one.status == "failed" and "h200.json: contract: is missing" in one.reason


def test_goldens(tmp_path, monkeypatch):
    text = "select:rule=blocks,scores=levels,context=64,rows=1,tail=0,seed=7"
    store = Store(tmp_path)
    for name in ("good", "bad"):
        store.regenerate({name: text}, produce)
        store.accept(name, "a test")
    path = tmp_path / "bad.json"
    path.write_text(path.read_text().replace('"axes": 1', '"axes": 0'))
    monkeypatch.setattr(gate, "Store", lambda: store)
    monkeypatch.setattr(gate, "grid", lambda: {"good": text, "none": text})
    found = {one.case.text: one for one in gate.CHECKS["goldens"]()}
    assert {name: one.status for name, one in found.items()} == {"good": "passed", "bad": "failed", "none": "failed"}
    assert "bad.json" in found["bad"].reason and "no record" in found["none"].reason


def test_hashes_run_on_the_device_too(monkeypatch):
    asked = []
    cases = [suite.Case("verify-batch", f"verify_batch:op={op}", {"op": op}) for op in ("window", "draft")]

    def run_case(one, backend):
        asked.append(backend)
        return suite.Result(
            one, "passed" if backend == "cpu" else "failed", 0.1, reason="" if backend == "cpu" else "no"
        )

    monkeypatch.setattr(gate, "_facts", lambda: ({"device": DEVICE}, ""))
    monkeypatch.setattr(gate, "Backend", lambda name, arithmetic: name if arithmetic in ARITHMETICS else None)
    monkeypatch.setattr(suite, "collect", lambda names, arithmetic: cases if names == ["verify-batch"] else [])
    monkeypatch.setattr(suite, "run_case", run_case)
    monkeypatch.setattr(suite, "command", lambda text, backend: f"qsa parity --backend {backend}")
    found = [(one.case.text, one.status) for one in gate.CHECKS["hashes"]()]
    assert found == [("cpu verify_batch:op=window", "passed"), ("cuda verify_batch:op=window", "failed")]
    monkeypatch.setattr(gate, "_facts", lambda: (None, "none"))
    assert len(list(gate.CHECKS["hashes"]())) == 1


TESTS = """
import os, pytest
def test_good(): pass
def test_bad(): assert 1 == 2, "two"
@pytest.mark.skip(reason="no wheel")
def test_skipped(): pass
"""


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    (tmp_path / "tests" / "sim").mkdir(parents=True)
    monkeypatch.setattr(gate.process, "ROOT", tmp_path)
    monkeypatch.setattr(gate.importlib.util, "find_spec", lambda name: None if name == "xdist" else name)
    return tmp_path / "tests" / "sim" / "test_x.py"


def test_a_verdict_for_every_test(checkout):
    checkout.write_text(TESTS)
    found = {one.case.text.rpartition("::")[2]: one for one in gate.CHECKS["sim"]()}
    assert {name: one.status for name, one in found.items()} == {
        "test_good": "passed",
        "test_bad": "failed",
        "test_skipped": "unsupported",
    }
    assert "two" in found["test_bad"].reason and "no wheel" in found["test_skipped"].reason


@pytest.mark.parametrize("text", ["import os; os._exit(7)", "import os\ndef test_a(): os._exit(7)", ""])
def test_tests_that_end_without_a_report_fail(checkout, text):
    checkout.write_text(text)
    (one,) = gate.CHECKS["sim"]()
    assert one.status == "failed" and f"exit status {7 if text else 5}" in one.reason


WHEELS = 'import pytest\npytest.skip("numba-cuda is missing (extra cuda12 or cuda13)", allow_module_level=True)\n'


@pytest.mark.parametrize("workers", [False, True])
def test_files_skipped_as_a_whole_are_unsupported(checkout, monkeypatch, workers):
    """The tests of PTX on an installation without the CUDA wheels: pytest runs no test and ends with 5."""
    if workers:
        pytest.importorskip("xdist")
        monkeypatch.setattr(gate.importlib.util, "find_spec", lambda name: name)
    checkout.write_text(WHEELS)
    checkout.with_name("test_y.py").write_text(WHEELS)
    found = {one.case.text.rpartition(".")[2]: (one.status, one.reason) for one in gate.CHECKS["sim"]()}
    missing = "unsupported", "numba-cuda is missing (extra cuda12 or cuda13)"
    assert found == {"test_x": missing, "test_y": missing}


@pytest.mark.parametrize("text", ["", "def helper(): pass"])
@pytest.mark.parametrize("other", [WHEELS, "def test_good(): pass"])
def test_a_file_without_tests_fails_beside_others(checkout, text, other):
    checkout.write_text(other)
    checkout.with_name("test_y.py").write_text(text)
    found = [one for one in gate.CHECKS["sim"]() if one.status == "failed"]
    assert len(found) == 1 and ("test_y.py" in found[0].case.text or "exit status 5" in found[0].reason)


@pytest.mark.parametrize("text", ["import a_module_that_is_missing", "def broken(:"])
def test_a_file_that_cannot_be_collected_fails(checkout, text):
    checkout.write_text(WHEELS)
    checkout.with_name("test_y.py").write_text(text)
    assert any(one.status == "failed" and "test_y" in one.case.text for one in gate.CHECKS["sim"]())


def test_every_file_of_ptx_checks_is_the_gates(monkeypatch):
    """All of tests/cpu that read what the compiler makes of a kernel, or say PTX in their names."""
    root, patterns = Path(__file__).parents[2], []
    monkeypatch.setattr(gate, "_tests", lambda check, pattern: patterns.append(pattern))
    gate.CHECKS["ptx"]()
    files = {
        path
        for path in root.glob("tests/cpu/test_*.py")
        if "ptx" in path.name or re.search(r"^from .* import .*\bptxcheck\b", path.read_text(), re.MULTILINE)
    }
    assert len(files) > 1 and files == set(root.glob(*patterns))


def test_a_checkout_without_the_files_of_a_check_fails(checkout):
    (one,) = gate.CHECKS["ptx"]()
    assert one.status == "failed" and one.case.text == "tests/cpu/test_*ptx*.py"


def test_without_a_checkout_nothing_is_claimed(checkout, monkeypatch, tmp_path):
    monkeypatch.setattr(gate.process, "ROOT", tmp_path / "installed")
    (one,) = gate.CHECKS["ptx"]()
    assert one.status == "unsupported" and "run from a checkout" in one.reason


def test_benchmark_without_a_device_or_a_record(monkeypatch):
    monkeypatch.setattr(gate, "_facts", lambda: (None, "no driver"))
    (one,) = gate.CHECKS["benchmark"]()
    assert (one.status, one.reason) == ("unsupported", "no driver")
    monkeypatch.setattr(gate, "_facts", lambda: ({"device": DEVICE}, ""))
    monkeypatch.setattr(evidence, "records", lambda: [])
    monkeypatch.setattr(gate, "measure", lambda: {"rows": [row("a"), wrong("b")]})
    assert [one.status for one in gate.CHECKS["benchmark"]()] == ["unsupported", "failed"]
    monkeypatch.setattr(gate, "measure", lambda: json.loads("{"))
    (one,) = gate.CHECKS["benchmark"]()
    assert one.status == "failed"


@pytest.fixture
def checks(monkeypatch):
    """Checks of every outcome; ``bad`` breaks after its first verdict."""

    def bad():
        yield gate.verdict("bad", "first", "failed", "why\x1b it failed")
        raise RuntimeError("the check broke")

    found = {
        "good": lambda: [gate.verdict("good", "a", "passed"), gate.verdict("good", "b", "unsupported", "no device")],
        "old": lambda: [gate.verdict("old", "h200", "stale", "changed kernels/a.py")],
        "bad": bad,
    }
    monkeypatch.setattr(gate, "CHECKS", found)


@pytest.mark.parametrize(
    ("only", "code"), [(["good"], 0), (["good", "old"], 0), (["bad"], 1), (["old"], 1), ([], 1), (["none"], 2)]
)
def test_exit_status(checks, only, code, capsys):
    assert cli.main(["gate", *(["--only", *only] if only else [])]) == code
    if code == 2:
        assert "check 'none': allowed are good, old, bad" in capsys.readouterr().err


def test_reports(checks, tmp_path, capsys):
    files = [str(tmp_path / "deep" / name) for name in ("gate.json", "gate.xml")]
    assert cli.main(["gate", "--json", files[0], "--junit", files[1]]) == 1
    said = capsys.readouterr().out
    assert "stale       old: h200" in said and "again: qsa gate --only bad" in said and "passed      good" not in said
    report = json.loads(Path(files[0]).read_text())
    assert [report[status] for status in gate.STATUSES] == [1, 2, 1, 1]
    assert report["cases"][-1]["detail"]["reason"] == "RuntimeError: the check broke"
    suites = {one.get("name"): one for one in ElementTree.parse(files[1]).getroot()}
    counts = {name: tuple(one.get(key) for key in ("tests", "failures", "skipped")) for name, one in suites.items()}
    assert counts == {"good": ("2", "0", "1"), "old": ("1", "0", "1"), "bad": ("2", "2", "0")}
    assert suites["old"].find("testcase/skipped").get("message") == "changed kernels/a.py"


def test_list_and_unwritable_report(checks, tmp_path, capsys):
    assert cli.main(["gate", "--list"]) == 0
    assert capsys.readouterr().out.split() == ["good", "old", "bad"]
    assert cli.main(["gate", "--json", str(tmp_path)]) == 2
    assert "--json" in capsys.readouterr().err


def test_measure_needs_a_report(monkeypatch):
    asked = []

    def run(command, seconds):
        asked.append(command)
        Path(command[command.index("--json") + 1]).write_text('{"rows": []}')
        return SimpleNamespace(reason="")

    monkeypatch.setattr(gate.process, "run", run)
    assert gate.measure(["a", "b"]) == {"rows": []}
    assert asked[0][-3:] == ["--cases", "a", "b"]
    monkeypatch.setattr(gate.process, "run", lambda command, seconds: SimpleNamespace(reason="died of SIGSEGV"))
    with pytest.raises(ValueError, match="died of SIGSEGV"):
        gate.measure()
