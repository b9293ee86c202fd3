"""``qsa parity`` while editing: filters, the first failure, interruptions and what is left of them, progress."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from qsa.parity import cli, progress, report, report_changes, suite
from qsa.parity.backend import Backend
from qsa.parity.running import compiling, runs
from support.interruptible import started

SELECT = "selection:op=select,rule=blocks,scores=levels,context=2048,rows=1,tail=1,seed=1"
CELLS = SELECT.replace("rule=blocks", "rule=cells")
SLOW = SELECT.replace("context=2048", "context=4096")
ATTEND = "accuracy:op=attend,format=int8,scores=ordinary,context=60,rows=1,tail=3,seed=1"

KERNEL = """
import os, time
import numpy as np

declaration = {"arithmetic": "exact"}


def select(scores, steps, *, rule="blocks"):
    n_kv = int(steps[0, 1])
    if n_kv > 4000:
        open("slow", "w").close()
        SLOWLY
    ids = np.full((len(scores), 2051), -1, np.int32)
    for row, (_, n_kv, n_bid, width) in enumerate(steps.tolist()):
        best = np.argsort(-scores[row, :n_bid], kind="stable")[: 512 if rule == "blocks" else 513]
        cells = (best[:, None] * 4 + np.arange(4)).ravel()
        ids[row, :width] = np.sort(np.concatenate([np.arange(n_bid * 4, n_kv), cells])[:width])
    return ids


def attend(q, kv, ids, steps, slots=None, out=None):
    return np.zeros(q.shape, np.float32)
"""


def write_kernel(folder, slowly):
    (folder / "kernel.py").write_text(KERNEL.replace("SLOWLY", slowly))


def command(*arguments):
    return [sys.executable, "-m", "qsa.parity.cli", "parity", "--backend", "kernel.py", *arguments]


def named(*cases):
    return [part for case in cases for part in ("--case", case)]


def run(capsys, *arguments):
    try:
        code = cli.main(["parity", *map(str, arguments)])
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_filters_choose_the_cases_and_go_with_modules(capsys):
    code, out, _ = run(capsys, "--list", "--op", "attend", "--format", "int8", "--where", "rows=4", "split")
    assert code == 0 and out and all("op=attend" in line and "int8" in line for line in out.splitlines())
    assert out.count("rows=4") == len(out.splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--op", "atend", "--list"], "--op = 'atend'"),
        (["--where", "rows", "--list"], "--where = 'rows': must be key=value"),
        (["--op", "attend", "--case", ATTEND], "not together with --case"),
        (["--slowest", "-1"], "--slowest = -1: must be at least 0"),
        (["--resume", "none.json", "--case", SELECT], "none.json"),
    ],
)
def test_bad_options_are_named(capsys, arguments, message):
    code, out, err = run(capsys, "--backend", "exact", *arguments)
    assert (code, out) == (2, "") and message in err and err.count("\n") == 1


def test_the_first_failure_ends_the_run_when_asked(tmp_path):
    write_kernel(tmp_path, "pass")
    options = ("-x", "--slowest", "2", "--json", "report.json", *named(SELECT, ATTEND, CELLS))
    done = subprocess.run(command(*options), cwd=tmp_path, capture_output=True, text=True, timeout=120)
    found = json.loads((tmp_path / "report.json").read_text())
    assert done.returncode == 1 and [case["case"] for case in found["cases"]] == [SELECT, ATTEND]
    assert found["interrupted"] == "the first failure" and "interrupted by the first failure" in done.stdout
    slowest = [line for line in done.stdout.splitlines() if line.startswith("  slowest:")]
    assert len(slowest) == 2 and float(slowest[0].split()[1]) >= float(slowest[1].split()[1])
    # When it is the last case nothing was left out.
    options = ("-x", "--json", "report.json", *named(SELECT, ATTEND))
    subprocess.run(command(*options), cwd=tmp_path, capture_output=True, timeout=120)
    assert "interrupted" not in json.loads((tmp_path / "report.json").read_text())


@pytest.mark.parametrize(("sent", "code", "name"), [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")])
def test_what_was_finished_is_reported_and_the_rest_can_be_run(tmp_path, sent, code, name):
    """Known-faults-2 N10: Ctrl-C after minutes lost all of it. The earlier promise, that an interrupted run leaves the
    report before it, holds only where no case was finished."""
    write_kernel(tmp_path, "time.sleep(60)")
    (tmp_path / "report.json").write_text("the report before")
    options = ("--json", "report.json", "--junit", "junit.xml", "--markdown", "report.md")
    with started(
        command(*options, *named(SELECT, SLOW, CELLS)), cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as process:
        for _ in range(1200):
            if (tmp_path / "slow").exists() or process.poll() is not None:
                break
            time.sleep(0.05)
        process.send_signal(sent)
        _, err = process.communicate(timeout=20)
    assert process.returncode == code and "Traceback" not in err and f"interrupted by {name}" in err
    found = json.loads((tmp_path / "report.json").read_text())
    assert (found["interrupted"], found["passed"]) == (name, 1) and [one["case"] for one in found["cases"]] == [SELECT]
    assert SELECT in (tmp_path / "junit.xml").read_text() and name in (tmp_path / "report.md").read_text()
    before = found["cases"][0]

    # The kernel is what it was: another source would be another kernel.
    source = (tmp_path / "kernel.py").read_text()
    (tmp_path / "kernel.py").write_text(source + "# other\n")
    again = ("--resume", "report.json", "--json", "report.json")
    done = subprocess.run(command(*again, *named(SELECT)), cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "sources was" in done.stderr and "run all cases anew" in done.stderr
    (tmp_path / "kernel.py").write_text(source)
    cases = named(SELECT, CELLS)
    done = subprocess.run(command(*again, *cases), cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "1 of 2 cases are not in report.json" in done.stdout and "2 passed" in done.stdout
    found = json.loads((tmp_path / "report.json").read_text())
    assert "interrupted" not in found and [one["case"] for one in found["cases"]] == [SELECT, CELLS]
    assert found["cases"][0] == before


def test_a_crash_of_the_judges_process_leaves_what_was_finished(tmp_path):
    write_kernel(tmp_path, "os.abort()")
    options = ("--in-process", "--json", "report.json", *named(SELECT, SLOW, CELLS))
    done = subprocess.run(command(*options), cwd=tmp_path, capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGABRT
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["interrupted"] == "a crash" and [one["case"] for one in found["cases"]] == [SELECT]


def test_a_slow_case_says_that_it_runs(tmp_path, monkeypatch, capsys):
    def slow(case, backend, repeats):
        time.sleep(0.3)
        return suite.Result(case, "passed", 0.3)

    monkeypatch.setattr(suite, "run_case", slow)
    shown = progress.shown
    monkeypatch.setattr(runs.progress, "shown", lambda what, work: shown(what, interval=0.1, work=work))
    runs.Run(Backend("exact"), runs.console())([suite.parse(SELECT), suite.parse(CELLS)])
    lines = capsys.readouterr().err.splitlines()
    assert any(SELECT in line and "0 % done" in line for line in lines)
    assert any(CELLS in line and "50 % done" in line for line in lines)


def test_a_line_comes_at_least_every_ten_seconds():
    assert progress.INTERVAL < 10


def test_a_result_comes_back_from_a_report_as_it_was(tmp_path):
    cases = [suite.parse(text) for text in (SELECT, ATTEND)]
    write_kernel(tmp_path, "pass")
    tally = suite.run(cases, Backend(str(tmp_path / "kernel.py")))
    assert [result.status for result in tally.results] == ["passed", "failed"]
    report.write_json(str(tmp_path / "report.json"), report.as_json(tally, {}))
    found = report_changes.load(tmp_path / "report.json")
    back = [report.restored(case) for case in found.cases]
    assert [result.as_dict() for result in back] == [result.as_dict() for result in tally.results]
    assert [list(result.lines(None)) for result in back] == [list(result.lines(None)) for result in tally.results]


def test_reasons_of_what_is_unsupported_are_counted(capsys):
    """Known-faults-2 N8: 150 lines of one reason."""
    cases = [suite.parse(text) for text in (SELECT, CELLS, ATTEND)]
    reasons = ["no select", "no select", ""]
    results = [suite.Result(case, "unsupported", 0.0, reason=why) for case, why in zip(cases, reasons, strict=True)]
    lines = list(runs.conclusion(suite.Tally(results)))
    assert lines[:3] == [
        "0 passed, 0 failed, 3 unsupported",
        "  unsupported, 2 cases: no select",
        "  unsupported, 1 case: no reason given",
    ]


def test_the_table_fits_80_columns():
    """Known-faults-2 N8: tables were cut."""
    from rich.console import Console

    from qsa.parity.compare.comparison import verdict

    (case, *_) = suite.collect(["verify-batch"], "exact")
    error = verdict("x", 123456789.0, 1.25e-06, "why", kind="error", size=5)
    count = verdict("x", 1234567, 0, "why", kind="equal", size=5)
    for one in (error, count):
        results = [suite.Result(case, "failed", 1234.5, (one,)) for _ in range(1234)]
        console = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
        console.print(report.table(suite.Tally(results), suite.MODULES))
        text = console.export_text()
        assert "…" not in text and "1523373.0" in text and "verify-batch" in text
        assert all(len(line) <= 80 for line in text.splitlines())


def test_compilation_is_a_step_of_its_own_and_in_no_case(tmp_path, monkeypatch, capsys):
    """Known-faults-2 N6: the first case was booked with 22 s of compilation."""
    asked = []
    monkeypatch.setattr(compiling, "compile_missing", lambda what, jobs: asked.append((what, jobs)) or 12.34)
    code, _, _ = run(capsys, "--backend", "cpu", "--case", SELECT, "--json", str(tmp_path / "report.json"))
    assert code == 0 and asked == [("qsa parity", ["cells"])]
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["environment"]["seconds"] == {"compiling kernels": 12.3}
    run(capsys, "--backend", "exact", "--case", SELECT)
    assert len(asked) == 1
