"""``qsa bench`` as a command: bad arguments, what it prints and writes, exit codes, the comparison of two reports."""

import json

import pytest

from qsa.parity import cli
from qsa.parity.screen.limits import cpu
from qsa.parity.screen.results import Limits, Rate
from support import timed_kernels

KERNELS = timed_kernels.__file__
TINY = ["--op", "attend", "select", "--rows", "1", "2", "4", "--context", "64", "--seconds", "0.01"]


@pytest.fixture(autouse=True)
def known_limits(monkeypatch):
    """Rates that no kernel reaches; measuring them takes two seconds."""
    found = Limits("a machine", 1 << 20, (Rate(1 << 28, 1e6, 1e6),), 0.5, 0.001, 1e15, "the test")
    monkeypatch.setattr(cpu, "limits", lambda: found)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--op", "attnd"], ["--op = 'attnd'", "allowed are attend"]),
        (["--format", "int7"], ["--format = 'int7'"]),
        (["--rows", "0"], ["--rows = '0'", "above 0"]),
        (["--rows", "many"], ["--rows = 'many'"]),
        (["--context", "1G"], ["--context = '1G'"]),
        (["--schedule", "fast"], ["--schedule = 'fast'"]),
        (["--cache", "warm"], ["--cache = 'warm'", "hot, cold"]),
        (["--case", "attend:rows=1"], ["case 'attend:rows=1'", "must have format"]),
        (["--case", "append_index:rows=1,cache=hot", "--rows", "1"], ["--case: not together"]),
        (["--seconds", "0"], ["--seconds = 0"]),
        (["--seconds", "nan"], ["--seconds = nan"]),
        (["--arithmetic", "decimal"], ["--arithmetic = 'decimal'", "exact, float"]),
        (["--against-arithmetic", "float"], ["--against-arithmetic: goes with --against"]),
        (["--backend", "nothing_here"], ["nothing_here"]),
        (["--against", "nothing_here"], ["nothing_here"]),
        (["--tables", "--json", "-"], ["--tables"]),
        (["--json", "/proc/nowhere/x.json"], ["--json"]),
    ],
)
def test_bad_arguments_are_one_line(argv, words, capsys):
    backend = [] if "--backend" in argv else ["--backend", "cpu"]
    assert cli.main(["bench", *backend, *argv]) == 2
    text = capsys.readouterr().err
    assert text.startswith("qsa bench: error: ") and text.count("\n") == 1 and all(word in text for word in words)


def test_the_cases_are_listed(capsys):
    assert cli.main(["bench", "--backend", "cpu", "--list", *TINY]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6 and lines[0] == "attend:format=int8,rows=1,context=64,schedule=standing,cache=hot"


def test_two_backends_are_timed_and_reported(tmp_path, capsys):
    paths = {name: str(tmp_path / f"report.{name}") for name in ("json", "html", "markdown")}
    options = [word for name, path in paths.items() for word in (f"--{name}", path)]
    against = ["--backend", "cpu", "--against", f"{KERNELS}:Right"]
    assert cli.main(["bench", *against, *TINY, *options]) == 0
    out = capsys.readouterr().out
    assert "qsa bench: cpu (exact) against" in out and "12 timed" in out and "time grows as" in out
    made = json.loads((tmp_path / "report.json").read_text())
    assert [each["name"] for each in made["contestants"]] == ["cpu", "timed_kernels:Right"]
    assert len(made["timings"]) == 12 and all(one["us"] > 0 and one["floor"]["us"] > 0 for one in made["timings"])
    assert all((one["against"] is None) == (one["contestant"] == "cpu") for one in made["timings"])
    assert {one["axis"] for one in made["exponents"]} == {"rows"} and made["interrupted"] == ""
    assert made["environment"]["versions"]["numpy"] and len(made["contestants"][1]["sources"]) > 10
    assert "<svg" in (tmp_path / "report.html").read_text()
    assert "## Times" in (tmp_path / "report.markdown").read_text()
    assert cli.main(["report", "diff", paths["json"], paths["json"]]) == 0
    assert "0 slower, 0 faster, 12 unchanged" in capsys.readouterr().out


def test_a_wrong_kernel_fails_the_command(tmp_path, capsys):
    path = tmp_path / "report.json"
    argv = ["bench", "--backend", f"{KERNELS}:Wrong", "--op", "attend", "--rows", "1", "--context", "64"]
    assert cli.main([*argv, "--json", str(path)]) == 1
    [found] = json.loads(path.read_text())["timings"]
    assert found["status"] == "wrong" and found["us"] is None and found["samples"] == []
    assert "wrong       attend:format=int8,rows=1" in capsys.readouterr().out


def test_a_run_in_which_nothing_was_timed_is_no_success():
    argv = ["bench", "--backend", f"{KERNELS}:Right", "--op", "attend", "--rows", "1", "--schedule", "split"]
    assert cli.main([*argv, "--context", "64"]) == 1


def test_ctrl_c_leaves_what_was_finished(tmp_path, monkeypatch, capsys):
    from qsa.parity.screen import run

    real, calls = run.measured, []

    def measured(*given):
        calls.append(given)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(run, "measured", measured)
    path = tmp_path / "report.json"
    assert cli.main(["bench", "--backend", "cpu", *TINY, "--json", str(path)]) == 130
    made = json.loads(path.read_text())
    assert made["interrupted"] == "Ctrl-C" and len(made["timings"]) == 2
    assert "interrupted by Ctrl-C" in capsys.readouterr().err


def test_a_damaged_report_is_named(tmp_path, capsys):
    for name, text in (("a.json", '{"kind": "bench"}'), ("b.json", '{"kind": "bench", "version": 7}')):
        (tmp_path / name).write_text(text)
    assert cli.main(["report", "diff", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 2
    assert "a.json: is no report of qsa bench" in capsys.readouterr().err
