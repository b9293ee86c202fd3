"""The order of the processes of ``qsa ab``, and what it makes of arms that are wrong, die, hang or are interrupted."""

import json

import jsonschema
import pytest

from qsa.kernels.sources import root
from qsa.parity import cli, progress
from qsa.parity.ab import run, table
from qsa.parity.ab.structs import Parity
from qsa.parity.commands import ab as command
from qsa.parity.readable import markdown
from qsa.parity.running.interruption import Terminated
from qsa.parity.speed.compare import FLOORS
from support.ab_runs import MadeUp, arm_run, checks, scores, sides

CHECKS = ["parity A", "parity B", "checks A", "checks B"]


def made(processes, arms=None):
    """The report on made-up processes."""
    arms = sides() if arms is None else arms
    found = run.measure(arms, processes)
    return run.report(arms, found, "tiny", FLOORS["cuda"], {"cpu": "made up"}, 1.0)


def check(report, name):
    return next(one for one in report.checks if one.name == name)


def test_checks_first_then_a_b_b_a():
    processes = MadeUp()
    report = made(processes)
    assert sorted(processes.started[:2]) + sorted(processes.started[2:4]) == CHECKS
    assert processes.started[4:] == ["arm 1 A", "arm 2 B", "arm 3 B", "arm 4 A"]
    assert (report.verdict, report.reasons) == ("right", [])
    assert {one.status for one in report.checks} == {"passed"}


TABLES = """# qsa ab: right

A: no switch is set (backend cpu)
B: STRATA_QSA_SPLIT_ATTN=1 (backend cpu)
order A B B A, a fresh process for each arm; screens of size tiny
8 of 8 texts of the screens have equal hashes in A and B

## Speed

| figure | A: arm 1 / arm 4 → mean | B: arm 2 / arm 3 → mean | change | noise | verdict |
|---|---:|---:|---:|---:|---|
| decode, tokens/s | 70.00 / 69.86 → 69.93 | 73.68 / 73.45 → 73.57 | +5.2 % | 0.3 % | FASTER |
| ms per verify round | 40.00 / 40.08 → 40.04 | 38.00 / 38.12 → 38.06 | -4.9 % | 0.3 % | FASTER |
| device ms per verify round | 20.00 / 20.04 → 20.02 | 19.00 / 19.06 → 19.03 | -4.9 % | 0.3 % | FASTER |
| tokens per round | 2.800 / 2.800 → 2.800 | 2.800 / 2.800 → 2.800 | equal | 0.0 % | SAME |
| acceptance, % | 45.00 / 45.00 → 45.00 | 45.00 / 45.00 → 45.00 | equal | 0.0 % | SAME |
| maths, tokens/s | 100.00 / 99.80 → 99.90 | 105.3 / 104.9 → 105.1 | +5.2 % | 0.3 % | FASTER |
| code, tokens/s | 50.00 / 49.90 → 49.95 | 52.63 / 52.47 → 52.55 | +5.2 % | 0.3 % | FASTER |
| short questions, tokens/s | 40.00 / 39.92 → 39.96 | 42.11 / 41.97 → 42.04 | +5.2 % | 0.3 % | FASTER |
| long prompt, tokens/s | 60.00 / 59.88 → 59.94 | 63.16 / 62.96 → 63.06 | +5.2 % | 0.3 % | FASTER |
| first token of 100, ms | 100.0 / 100.2 → 100.1 | 95.00 / 95.30 → 95.15 | -4.9 % | 0.3 % | FASTER |
| first token of 200, ms | 200.0 / 200.4 → 200.2 | 190.0 / 190.6 → 190.3 | -4.9 % | 0.3 % | FASTER |
| first token of 400, ms | 400.0 / 400.8 → 400.4 | 380.0 / 381.2 → 380.6 | -4.9 % | 0.3 % | FASTER |
| first token of 800, ms | 800.0 / 801.6 → 800.8 | 760.0 / 762.4 → 761.2 | -4.9 % | 0.3 % | FASTER |
| total, s | 3.000 / 3.006 → 3.003 | 2.850 / 2.859 → 2.854 | -4.9 % | 0.3 % | FASTER |

## Outputs

| check | rule | A | B | verdict |
|---|---|---|---|---|
| parity | no case fails | 19 passed, 0 failed, 1 unsupported | 19 passed, 0 failed, 1 unsupported | passed |
| seven computations | equal to the goldens | 2 of 2 equal | 2 of 2 equal | passed |
| seven, A and B | equal hashes |  | 2 of 2 hashes equal | passed |
| NLL of math, 64 tokens | B minus A below 0.005 nats, equal logits | 5.9878 nats | 0, equal logits | passed |
| needles | all are found | 1 of 1 | 1 of 1 | passed |
| screens, arm against arm of a side | equal hashes, where exact | 8 of 8 hashes equal | 8 of 8 hashes equal | passed |
| screens, A and B | equal hashes |  | 8 of 8 hashes equal | passed |

## Seven computations

| text | A | B | A and B |
|---|---|---|---|
"""


def test_the_tables_of_made_up_arms():
    speed = {1: arm_run(1.0), 2: arm_run(0.95), 3: arm_run(0.953), 4: arm_run(1.002)}
    text = markdown.text(table.document(made(MadeUp(speed=speed))))
    # Two blanks end a line of the summary.
    assert "\n".join(map(str.rstrip, text.splitlines())).startswith(TABLES)


@pytest.mark.parametrize(
    ("processes", "broken"),
    [
        (MadeUp(parity={"B": Parity(18, 1, 0, ["accuracy:op=attend"])}), "parity"),
        (MadeUp(parity={"B": Parity(0, 0, 19, [])}), "parity"),
        (MadeUp(checks={"B": checks((1, 9, 3), "first wrong token: 1")}), "seven computations, seven, A and B"),
        (MadeUp(checks={"B": checks((1, 9, 3))}), "seven, A and B"),
        (MadeUp(checks={"B": checks(found=False)}), "needles"),
        (MadeUp(scores={"B": scores(1e-6)}), "NLL of math, 64 tokens"),
    ],
)
def test_a_wrong_side_is_not_timed(processes, broken):
    report = made(processes)
    assert report.reasons == [f"the outputs of B are wrong ({broken}): no speed is given"]
    assert (report.verdict, report.rows, report.runs) == ("wrong", [], [])
    assert not [one for one in processes.started if one.startswith("arm")]
    text = markdown.text(table.document(report))
    assert "# qsa ab: wrong" in text and "## Speed" not in text and "tokens/s" not in text


def test_both_sides_may_be_wrong():
    bad = Parity(18, 1, 0, ["accuracy:op=attend"])
    report = made(MadeUp(parity={"A": bad, "B": bad}))
    assert [reason[:17] for reason in report.reasons] == ["the outputs of A ", "the outputs of B "]
    assert check(report, "parity").detail == ["A: accuracy:op=attend", "B: accuracy:op=attend"]


def test_texts_that_differ_are_named_and_have_no_speed():
    """Where both sides are exact over the same codes; the screens have texts that no golden knows."""
    report = made(MadeUp(speed={"B": arm_run(0.5, {7: 99})}))
    assert (report.verdict, report.rows) == ("wrong", [])
    assert check(report, "screens, A and B").detail == ["code: first differing token: 7"]
    assert "first differing token: 7" in markdown.text(table.document(report))


def test_arms_of_one_side_that_differ():
    report = made(MadeUp(speed={4: arm_run(1.0, {3: 99})}))
    found = check(report, "screens, arm against arm of a side")
    assert (found.wrong, found.detail) == (["A"], ["A: code: first differing token: 3"])
    assert report.rows == []


def test_rounding_that_differs_is_told_and_timed():
    """In the float arithmetic a switch may move a near tie: the proposals report how many texts stay equal."""
    side = checks((1, 9, 3), None, arithmetic="float")
    first = checks(golden=None, arithmetic="float")
    runs = {side: arm_run(factor, change, "float") for side, factor, change in (("A", 1.0, None), ("B", 0.9, {7: 99}))}
    report = made(MadeUp(checks={"A": first, "B": side}, scores={"B": scores(1e-4)}, speed=runs))
    assert report.verdict == "right" and {row.verdict for row in report.rows} == {"FASTER", "SAME"}
    told = {one.name: (one.b, one.status) for one in report.checks if not one.status}
    assert told == {
        "seven, A and B": ("1 of 2 hashes equal", ""),
        "screens, A and B": ("7 of 8 hashes equal", ""),
    }
    assert check(report, "seven, A and B").detail == ["prompt-2k: first differing token: 1"]
    assert check(report, "NLL of math, 64 tokens").b.startswith(("+0.00000 ±", "-0.00000 ±"))


def test_nll_beyond_the_bound():
    floats = checks(golden=None, arithmetic="float")
    report = made(MadeUp(checks={"A": floats, "B": floats}, scores={"B": scores(5.0)}))
    assert check(report, "NLL of math, 64 tokens").wrong == ["B"]


def test_other_codes_or_drafts_need_not_give_the_same_texts():
    speed = {"B": arm_run(0.5, {7: 99})}
    assert made(MadeUp(speed=speed), sides(b="--kv-format q4_0")).verdict == "right"
    assert made(MadeUp(speed=speed), sides("--acceptance rejection", "--acceptance rejection --spec 3")).rows
    assert made(MadeUp(speed=speed), sides("--acceptance rejection", "--acceptance rejection")).verdict == "wrong"


def test_an_arm_that_gives_nothing():
    report = made(MadeUp(speed={3: run.ArmError("arm 3 (B) gave nothing: died of SIGSEGV")}))
    assert (report.verdict, report.rows, len(report.runs)) == ("incomplete", [], 2)
    assert report.reasons == ["arm 3 (B) gave nothing: died of SIGSEGV"]
    assert {one.name for one in report.checks} >= {"parity", "needles"}


@pytest.mark.parametrize(("error", "name"), [(KeyboardInterrupt(), "Ctrl-C"), (Terminated(), "SIGTERM")])
def test_what_is_finished_survives_an_interruption(error, name):
    report = made(MadeUp(speed={2: error}))
    assert (report.verdict, report.interrupted, len(report.runs)) == ("incomplete", name, 1)
    assert report.reasons == [f"interrupted by {name}: only what was finished is here"]


@pytest.mark.parametrize(
    ("body", "limit", "said"),
    [
        ("import os\nos.abort()", 60.0, r"arm 1 \(A\) gave nothing: died of SIGABRT"),
        ("import time\ntime.sleep(600)", 3.0, r"arm 1 \(A\) gave nothing: stopped at its limit after 3 s"),
        ("1 / 0", 60.0, r"(?s)arm 1 \(A\) gave nothing: exit status 1.*ZeroDivisionError"),
    ],
)
def test_a_process_that_dies_or_hangs(body, limit, said, tmp_path):
    (tmp_path / "kernel.py").write_text(f"def attend(*arguments):\n    pass\n\n{body}\n")
    arm, _ = sides(backend=str(tmp_path / "kernel.py"))
    with pytest.raises(run.ArmError, match=said):
        run.Processes("tiny", "tiny", limit).speed(arm, 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--size", "huge"], "--size = 'huge': allowed are tiny, small, medium, full"),
        (["--checks", "huge"], "--checks = 'huge': allowed are tiny, small, medium, full"),
        (["--floor", "0"], "--floor = 0: must be above 0 and finite"),
        (["--timeout", "nan"], "--timeout = nan: must be above 0 and finite"),
        (["--a", "--slots 0"], "--a = '--slots 0': --slots = 0: must be an integer, from 1 to 8"),
    ],
)
def test_bad_arguments(words, said, capsys):
    assert cli.main(["ab", "--a", "", "--b", "", "--backend", "cpu", *words]) == 2
    assert said in capsys.readouterr().err


def test_the_command_writes_its_reports(monkeypatch, tmp_path, capsys):
    processes = MadeUp(speed={"B": arm_run(0.9)})
    monkeypatch.setattr(run, "Processes", lambda *given: processes)
    monkeypatch.setattr(command, "compile_missing", lambda name: 0.0)
    files = {kind: tmp_path / f"report.{kind}" for kind in ("json", "markdown", "html")}
    options = [word for kind, path in files.items() for word in (f"--{kind}", str(path))]
    words = ["ab", "--a", "", "--b", "STRATA_QSA_SPLIT_ATTN=1", "--backend", "cpu", "--size", "tiny", *options]
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    assert files["markdown"].read_text() in said and "| -10.0 % | 0.0 % | FASTER |" in said
    assert "FASTER" in files["html"].read_text()
    report = json.loads(files["json"].read_text())
    schema = json.loads((root() / "docs" / "schema" / "ab.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(report)
    assert (report["verdict"], report["b"]["environment"]) == ("right", {"STRATA_QSA_SPLIT_ATTN": "1"})
    assert len(report["runs"]) == 4 and report["environment"]["cpu"]
    processes.given = {"B": Parity(0, 1, 0, ["x"])}, {}, {}, {}
    assert cli.main(words) == 1
    processes.given = {}, {}, {}, {1: KeyboardInterrupt()}
    assert cli.main(words) == 130


def test_progress_names_the_arm():
    work = progress.Work("qsa ab")
    told = []

    class Told(MadeUp):
        def speed(self, arm, number):
            told.append(work.note)
            return super().speed(arm, number)

    run.measure(sides(), Told(), work)
    assert told == ["arm 1 of 4 (A)", "arm 2 of 4 (B)", "arm 3 of 4 (B)", "arm 4 of 4 (A)"]
