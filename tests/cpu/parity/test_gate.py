"""The gate: its decisions on recorded data, and its checks on small folders of our own."""

import json
import re
from pathlib import Path

import msgspec
import pytest

from qsa.golden import device_records as evidence
from qsa.golden.families import produce
from qsa.golden.store import Store
from qsa.parity import cli, gate, suite
from qsa.parity.prove import tables

DEVICE = evidence.Device(
    name="NVIDIA H200",
    compute_capability="9.0",
    multiprocessors=132,
    memory=150 << 30,
    l2=60 << 20,
)
FILES = {"kernels": "0" * 32, "reference": "0" * 32, "files": {"kernels/a.py": "1" * 16}}


def record(name="h200-2026-11-30", **changes):
    step = {
        "name": "timings",
        "date": "2026-11-30",
        "driver": "580.1",
        "status": "passed",
        "reason": "",
        "seconds": 1.0,
        "command": "python",
        "results": {"rows": []},
        **changes,
    }
    return evidence.make(name, "exact-1", DEVICE, {}, FILES, {"benchmark": evidence.section([evidence.Step(**step)])})


def test_the_newest_record_of_each_device_counts():
    made = [record(name=name) for name in ("h200-2026-11-29", "h200-2026-11-30")]
    assert evidence.newest(made)["NVIDIA H200"].name == "h200-2026-11-30"


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
    (one,) = gate.CHECKS["evidence"](gate.Run())
    assert one.status == "unsupported" and one.reason.startswith("missing")
    (tmp_path / "h200.json").write_text("{}")
    (one,) = gate.CHECKS["evidence"](gate.Run())
    assert one.status == "failed" and "h200.json: contract: is missing" in one.reason


def test_goldens(tmp_path, monkeypatch):
    text = "select:rule=blocks,scores=levels,context=64,rows=1,tail=0,seed=7"
    store = Store(tmp_path / "records")
    for name in ("good", "bad"):
        store.regenerate({name: text}, produce)
        store.accept(name, "a test")
    path = store.folder / "bad.json"
    path.write_text(path.read_text().replace('"axes": 1', '"axes": 0'))
    monkeypatch.setattr(gate, "Store", lambda: store)
    monkeypatch.setattr(gate, "grid", lambda: {"good": text, "none": text})
    monkeypatch.setenv("QSA_CACHE", str(tmp_path / "cache"))
    computed = []
    for fresh in (False, False, True):
        run = gate.Run(fresh=fresh)
        found = {one.case.text: one for one in gate.CHECKS["goldens"](run)}
        assert {name: one.status for name, one in found.items()} == {
            "good": "passed",
            "bad": "failed",
            "none": "failed",
        }
        assert "bad.json" in found["bad"].reason and "no record" in found["none"].reason
        computed.append(run.notes["goldens"]["computed"])
    # The second run takes what the first one computed; `qsa golden check` looks in the same place.
    assert computed == [1, 0, 1]
    assert cli.main(["golden", "--folder", str(store.folder), "check", "good"]) == 0


CASES = [
    {
        "case": "accuracy:op=attend,rows=1",
        "status": "passed",
        "seconds": 0.5,
        "detail": {"reason": "", "comparisons": []},
    },
    {
        "case": "verify_batch:op=window,slots=2",
        "status": "failed",
        "seconds": 0.25,
        "detail": {
            "reason": "",
            "comparisons": [
                {"name": "scores", "passed": True, "measure": 0.0, "bound": 0.0},
                {"name": "out", "passed": False, "measure": 3.0, "bound": 0.0},
            ],
        },
    },
    {"case": "x:op=y", "status": "unsupported", "seconds": 0.0, "detail": {"reason": "refused", "comparisons": []}},
]


@pytest.fixture
def parity(monkeypatch):
    """(the commands of ``qsa parity`` that were run, a function that sets their exit status and cases)."""
    commands, given = [], {"code": 1, "cases": CASES}

    def run(command, seconds, where=None):
        commands.append(command[command.index("parity") + 1 :])
        if given["cases"] is not None:
            Path(command[command.index("--json") + 1]).write_text(json.dumps({"cases": given["cases"]}))
        return gate.process.Finished(given["code"], "Traceback\nboom", 2.0)

    monkeypatch.setattr(gate.process, "run", run)
    monkeypatch.setattr(gate, "_facts", lambda: (None, "none"))
    return commands, given.update


def test_parity_on_operations(parity, monkeypatch):
    found = list(gate.CHECKS["parity"](gate.Run()))
    assert [one.status for one in found] == ["passed", "failed", "unsupported"]
    assert found[1].reason == "out: 3.0 of 0.0" and found[2].reason == "refused" and found[0].seconds == 0.5
    (command,) = parity[0]
    assert command[: len(gate.QUICK)] == list(gate.QUICK) and set(gate.QUICK) <= set(suite.MODULES)
    assert command[command.index("--backend") + 1] == "cpu" and command[command.index("--arithmetic") + 1] == "exact"
    monkeypatch.setattr(gate, "_facts", lambda: ({"device": {"name": DEVICE.name}}, ""))
    list(gate.CHECKS["parity"](gate.Run()))
    assert parity[0][1][parity[0][1].index("--backend") + 1] == "cuda"


@pytest.mark.parametrize(("code", "cases"), [(0, None), (-11, CASES), (None, CASES), (2, CASES), (1, [])])
def test_parity_without_a_whole_report_fails(parity, code, cases):
    parity[1](code=code, cases=cases)
    for check in ("parity", "hashes"):
        (one,) = gate.CHECKS[check](gate.Run())
        assert one.status == "failed" and "gave no report" in one.reason and "boom" in one.reason


def test_hashes_are_of_windows_and_run_on_the_device_too(parity, monkeypatch):
    found = list(gate.CHECKS["hashes"](gate.Run()))
    assert [(one.case.text, one.status) for one in found] == [("cpu verify_batch:op=window,slots=2", "failed")]
    monkeypatch.setattr(gate, "_facts", lambda: ({"device": {"name": DEVICE.name}}, ""))
    assert [one.case.text.split()[0] for one in gate.CHECKS["hashes"](gate.Run())] == ["cpu", "cuda"]
    assert {command[0] for command in parity[0]} == {"verify-batch"}


def test_the_report_of_parity_is_read_as_it_is_written(monkeypatch):
    """A real child, on few cases."""
    monkeypatch.setattr(gate, "_facts", lambda: (None, "none"))
    monkeypatch.setattr(
        gate, "QUICK", ("--case", "selection:op=select,rule=blocks,scores=levels,context=2048,rows=1,tail=1,seed=1")
    )
    (one,) = gate.CHECKS["parity"](gate.Run())
    assert one.status == "passed" and one.seconds >= 0


def test_prove_has_a_verdict_for_each_table(monkeypatch):
    lost = tables.Row("late", "control", False, "", "a case", detail="passed 3 cases")
    found = [tables.Table("kernels", "exact", 2.0, []), tables.Table("cheats", "", 3.0, [lost])]

    def run(command, seconds, code=1):
        assert command[3:5] == ["prove", "--sample"]
        Path(command[-1]).write_bytes(msgspec.json.encode(tables.Proof(1, 5.0, {}, found)))
        return gate.process.Finished(code, "", 5.0)

    monkeypatch.setattr(gate.process, "run", run)
    first, second = gate.CHECKS["prove"](gate.Run())
    assert (first.case.text, first.status, first.seconds) == ("kernels, exact arithmetic", "passed", 2.0)
    assert second.status == "failed" and second.reason == "not caught: late: a case passed 3 cases"


@pytest.mark.parametrize("code", [0, 1, None, -9])
def test_prove_without_a_report_failed(code, monkeypatch):
    monkeypatch.setattr(gate.process, "run", lambda c, s: gate.process.Finished(code, " ".join(c), 1.0))
    (one,) = gate.CHECKS["prove"](gate.Run())
    assert one.status == "failed" and "gave no report" in one.reason


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
    found = {one.case.text.rpartition("::")[2]: one for one in gate.CHECKS["sim"](gate.Run())}
    assert {name: one.status for name, one in found.items()} == {
        "test_good": "passed",
        "test_bad": "failed",
        "test_skipped": "unsupported",
    }
    assert "two" in found["test_bad"].reason and "no wheel" in found["test_skipped"].reason


@pytest.mark.parametrize("text", ["import os; os._exit(7)", "import os\ndef test_a(): os._exit(7)", ""])
def test_tests_that_end_without_a_report_fail(checkout, text):
    checkout.write_text(text)
    (one,) = gate.CHECKS["sim"](gate.Run())
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
    found = {one.case.text.rpartition(".")[2]: (one.status, one.reason) for one in gate.CHECKS["sim"](gate.Run())}
    missing = "unsupported", "numba-cuda is missing (extra cuda12 or cuda13)"
    assert found == {"test_x": missing, "test_y": missing}


@pytest.mark.parametrize("text", ["", "def helper(): pass"])
@pytest.mark.parametrize("other", [WHEELS, "def test_good(): pass"])
def test_a_file_without_tests_fails_beside_others(checkout, text, other):
    checkout.write_text(other)
    checkout.with_name("test_y.py").write_text(text)
    found = [one for one in gate.CHECKS["sim"](gate.Run()) if one.status == "failed"]
    assert len(found) == 1 and ("test_y.py" in found[0].case.text or "exit status 5" in found[0].reason)


@pytest.mark.parametrize("text", ["import a_module_that_is_missing", "def broken(:"])
def test_a_file_that_cannot_be_collected_fails(checkout, text):
    checkout.write_text(WHEELS)
    checkout.with_name("test_y.py").write_text(text)
    assert any(one.status == "failed" and "test_y" in one.case.text for one in gate.CHECKS["sim"](gate.Run()))


def test_every_file_of_ptx_checks_is_the_gates(monkeypatch):
    """All that read what the compiler makes of a kernel, or say PTX in their names, but for those of a device."""
    root, patterns = Path(__file__).parents[3], []
    monkeypatch.setattr(gate, "_tests", lambda check, pattern: patterns.append(pattern))
    gate.CHECKS["ptx"](gate.Run())
    files = {
        path
        for path in (root / "tests").rglob("test_*.py")
        if (path.parent.name != "gpu" and "ptx" in path.name)
        or re.search(r"^from .* import .*\bptxcheck\b", path.read_text(), re.MULTILINE)
    }
    assert len(files) > 1 and files <= set(root.glob(*patterns)) and patterns == ["tests/ptx/test_*.py"]


@pytest.mark.parametrize(("check", "least"), [("sim", 20), ("ptx", 4)])
def test_a_check_runs_all_its_test_files_of_this_checkout(monkeypatch, check, least):
    """A pattern that finds nothing, or one file of many, would pass without looking at the others."""
    started = []

    def run(command, seconds, where=None):
        started.extend(Path(part) for part in command if Path(part).name.startswith("test_"))
        return gate.process.Finished(5, "", 0.0)

    monkeypatch.setattr(gate.process, "run", run)
    list(gate.CHECKS[check](gate.Run()))
    folder = Path(__file__).parents[2] / check
    assert len(started) >= least and {path.resolve() for path in started} == set(folder.rglob("test_*.py"))


def test_a_checkout_without_the_files_of_a_check_fails(checkout):
    (one,) = gate.CHECKS["ptx"](gate.Run())
    assert one.status == "failed" and one.case.text == "tests/ptx/test_*.py"


def test_without_a_checkout_nothing_is_claimed(checkout, monkeypatch, tmp_path):
    monkeypatch.setattr(gate.process, "ROOT", tmp_path / "installed")
    (one,) = gate.CHECKS["ptx"](gate.Run())
    assert one.status == "unsupported" and "run from a checkout" in one.reason
