"""The command of the gate: exit status, reports, its table, progress and interruption, with checks made up here."""

import json
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from qsa.parity import cli, gate, gate_table, progress
from qsa.parity.commands import gate as gate_command
from qsa.parity.evidence import process


@pytest.fixture
def checks(monkeypatch):
    """Checks of every outcome; ``bad`` breaks after its first verdict."""

    def bad(run):
        yield gate.verdict("bad", "first", "failed", "why\x1b it failed")
        raise RuntimeError("the check broke")

    found = {
        "good": lambda run: [
            gate.verdict("good", "a", "passed"),
            gate.verdict("good", "b", "unsupported", "no device"),
        ],
        "old": lambda run: [gate.verdict("old", "h200", "stale", "changed kernels/a.py")],
        "bad": bad,
    }
    monkeypatch.setattr(gate, "CHECKS", found)
    monkeypatch.setattr(gate_table, "CHECKS", found)


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


def test_markdown_and_one_standard_output(checks, tmp_path, capsys):
    path = tmp_path / "gate.md"
    assert cli.main(["gate", "--markdown", str(path)]) == 1
    text = path.read_text()
    assert text.startswith("# Gate: failed\n") and "| good | 1 | 0 | 1 | 0 | 0:00 |" in text
    assert "| stale | `h200` | changed kernels/a.py |" in text and "RuntimeError: the check broke" in text
    assert "\x1b" not in text
    capsys.readouterr()
    assert cli.main(["gate", "--only", "good", "--markdown", "-"]) == 0
    assert capsys.readouterr().out.startswith("# Gate: passed\n")
    assert cli.main(["gate", "--json", "-", "--markdown", "-"]) == 2
    assert "--json = '-', --markdown = '-': only one of them" in capsys.readouterr().err


def test_html_has_the_checks_what_was_timed_and_commands_that_repeat(monkeypatch, tmp_path):
    def speed(run):
        one = {"verdict": "SLOWER", "ratio": 1.3, "noise": 0.01, "floor": 0.05, "p": 1e-4, "base": 10.0, "change": 13.0}
        run.notes["speed"] = {
            "base": "abc", "backend": "cpu", "false_alarm_rate": 0.004, "timings_us": {"rounds": [1] * 99},
            "judgements": {"select": {**one, "reason": "SLOWER: 30 %"}},
        }  # fmt: skip
        yield gate.verdict("speed", "select", "failed", "SLOWER: 30 %", share=0.3, floor=0.05)
        yield gate.verdict("speed", "attend", "unsupported", "refused")

    good = [gate.verdict("good", "a", "passed", again="qsa parity --case a")]
    found = {"good": lambda run: good, "speed": speed}
    monkeypatch.setattr(gate, "CHECKS", found)
    monkeypatch.setattr(gate_table, "CHECKS", found)
    outcome = gate.run(found, run=(run := gate.Run()))
    page = gate_table.document(outcome, run.notes)
    assert (page.title, page.verdict, page.good) == ("qsa gate", "failed", False)
    tables = {one.title: one for one in page.tables}
    assert list(tables) == ["Checks", "Speed", "Cases", "Unsupported"]
    assert [(row.cells[0], row.status) for row in tables["Checks"].rows] == [("good", "passed"), ("speed", "failed")]
    assert tables["Speed"].rows[0].cells == ("SLOWER", "select", "10.0", "13.0", "+30.0 %", "1.0 %", "5.0 %", "0.0001")
    commands = [row.copy for row in tables["Cases"].rows]
    assert commands == ["qsa gate --only speed", "qsa gate --only speed", "qsa parity --case a"]
    assert page.environment["speed"] == "base abc, backend cpu, false alarm rate 0.004"
    path = tmp_path / "gate.html"
    assert cli.main(["gate", "--html", str(path)]) == 1
    assert path.read_text().startswith("<!doctype html>") and "SLOWER" in path.read_text()


def test_html_needs_jinja2_and_help_has_the_exit_codes(checks, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        cli.main(["gate", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for part in ("0 when something passed and nothing failed", "1 when something failed", "2 on bad arg", "130 after"):
        assert part in said
    monkeypatch.setattr(gate_command.html.importlib.util, "find_spec", lambda name: None)
    assert cli.main(["gate", "--html", "x.html"]) == 2
    assert "jinja2 is missing" in capsys.readouterr().err


def test_the_table_fits_80_columns_and_shows_the_time_on_the_wall(capsys, monkeypatch):
    """The seconds of tests that ran side by side add up to more than passed."""

    def slow(run):
        yield from (gate.verdict("sim", f"t{number}", "passed", seconds=500.0) for number in range(1000))

    found = {name: slow for name in gate.CHECKS}
    monkeypatch.setattr(gate, "CHECKS", found)
    monkeypatch.setattr(gate_table, "CHECKS", found)
    assert cli.main(["gate"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > len(found) and max(map(len, lines)) <= gate_table.WIDTH == 80
    row = next(line.split() for line in lines if line.strip().startswith("sim"))
    assert row[1] == "8000" and row[-1] == "0:00"


def test_what_is_unsupported_is_told_once_for_each_reason(capsys, monkeypatch):
    def skips(run):
        yield gate.verdict("ptx", "ran", "passed")
        for number in range(150):
            yield gate.verdict("ptx", f"test_{number}", "unsupported", "numba-cuda is missing (extra cuda12)")
        yield gate.verdict("ptx", "other", "unsupported", "ptxas is missing")

    monkeypatch.setattr(gate, "CHECKS", {"ptx": skips})
    assert cli.main(["gate"]) == 0
    said = capsys.readouterr().out
    assert "unsupported ptx: 150 cases\n  numba-cuda is missing (extra cuda12)\n" in said
    assert "unsupported ptx: other\n  ptxas is missing\n" in said and said.count("numba-cuda") == 1
    assert cli.main(["gate", "--verbose"]) == 0
    assert capsys.readouterr().out.count("numba-cuda") == 150


def test_an_interrupted_run_reports_what_is_finished(capsys, monkeypatch, tmp_path):
    def interrupted(run):
        yield gate.verdict("sim", "first", "passed")
        raise KeyboardInterrupt

    asked = []
    found = {"sim": interrupted, "ptx": lambda run: asked.append("ptx") or []}
    monkeypatch.setattr(gate, "CHECKS", found)
    path = tmp_path / "gate.json"
    assert cli.main(["gate", "--json", str(path)]) == 130
    report = json.loads(path.read_text())
    assert (report["passed"], report["failed"], asked) == (1, 1, [])
    assert report["cases"][1]["detail"]["reason"] == "interrupted before its end" and report["interrupted"] == "Ctrl-C"
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "device", "timed"),
    [(None, False, "cpu"), (None, True, "cuda"), ("cpu", True, "cpu"), ("cuda", True, "cuda"), ("cuda", False, None)],
)
def test_speed_is_of_the_device_where_there_is_one(monkeypatch, asked, device, timed):
    facts = ({"device": {"name": "NVIDIA H200"}}, "") if device else (None, "no driver")
    monkeypatch.setattr(gate, "_facts", lambda: facts)
    monkeypatch.setattr(gate.speed, "verdicts", lambda run, backend: [gate.verdict("speed", backend, "passed")])
    (one,) = gate.CHECKS["speed"](gate.Run(backend=asked))
    expected = ("cuda", "unsupported", "no driver") if timed is None else (timed, "passed", "")
    assert (one.case.text, one.status, one.reason) == expected


def test_a_base_that_is_no_commit_is_told_before_the_work(checks, capsys):
    if not (process.ROOT / ".git").exists():
        pytest.skip("not a checkout of the repository")
    assert cli.main(["gate", "--base", "no-such-commit"]) == 2
    said = capsys.readouterr()
    assert "--base = 'no-such-commit': must be a commit" in said.err and said.out == ""


def test_the_order_and_what_is_left_out():
    assert list(gate.CHECKS) == ["parity", "goldens", "hashes", "prove", "sim", "ptx", "evidence", "speed"]
    assert gate.chosen(None, ["speed", "sim"]) == ["parity", "goldens", "hashes", "prove", "ptx", "evidence"]
    assert gate.chosen(["speed", "goldens"]) == ["goldens", "speed"]
    with pytest.raises(ValueError, match="check 'benchmark': allowed are parity"):
        gate.chosen(None, ["benchmark"])


@pytest.mark.parametrize("floor", ["0", "-1", "nan", "inf"])
def test_a_floor_must_be_above_zero(checks, capsys, floor):
    assert cli.main(["gate", f"--floor={floor}"]) == 2
    assert "--floor = " in capsys.readouterr().err


def test_progress_names_the_check_that_runs(capsys, monkeypatch):
    def slow(run):
        time.sleep(0.3)
        yield gate.verdict("sim", "a", "passed")

    monkeypatch.setattr(gate, "CHECKS", {"sim": slow})
    monkeypatch.setattr(gate_table, "CHECKS", gate.CHECKS)
    shown = progress.shown
    monkeypatch.setattr(progress, "shown", lambda what, work: shown(what, interval=0.05, work=work))
    assert cli.main(["gate"]) == 0
    said = capsys.readouterr()
    assert "qsa gate: sim, 0:00 passed" in said.err and "qsa gate: sim" not in said.out
