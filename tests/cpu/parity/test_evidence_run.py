"""The run behind the evidence, with children of our own in place of a device's, and its command line."""

import json
import time
from pathlib import Path

import pytest

from qsa.golden import device_records as evidence
from qsa.golden import sources
from qsa.parity import cli
from qsa.parity.bench import device
from qsa.parity.evidence import process, readers
from qsa.parity.evidence import run as evidence_run
from qsa.parity.evidence.run import Step
from support.evidence_records import FACTS, FINGERPRINT, ROW, plain, record, step


def child(name, code, read=None, **options):
    return Step(name, ("-c", code, "{out}"), read or (lambda path, finished: ("passed", "", {})), **options)


WRITES = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text('{}');"


def test_a_crash_costs_one_step(tmp_path):
    plan = {
        "parity": [
            child("good", WRITES),
            child("crash", f"{WRITES} import os; os.abort()"),
            # The grandchild holds the output open, and must die with the child.
            child("hang", f"{WRITES} import subprocess; subprocess.run(['sleep', '60'])", seconds=1.0),
            child("silent", "print('first'); raise SystemExit(3)"),
            child("garbage", f"{WRITES}", read=readers.read_parity),
            child("nonsense", WRITES, read=lambda path, finished: ("passed", "", {"reasons": []})),
            child("no tool", WRITES, tool=("no-such-sanitizer", "--tool", "memcheck")),
        ],
        "tests": [child("after", WRITES)],
    }
    path, seen = tmp_path / "h200-2026-11-30.json", []
    started = time.perf_counter()

    def on_step(section, step):
        # The record holds every finished step at any time.
        steps = [one.name for found in evidence.load(path).sections.values() for one in found.steps]
        seen.append(step.name)
        assert steps == seen

    made = evidence_run.run(plan, path, FACTS, on_step=on_step)
    assert time.perf_counter() - started < 30
    found = {one.name: (one.status, one.reason) for one in made.sections["parity"].steps}
    assert found["good"] == ("passed", "")
    assert found["crash"] == ("failed", "died of SIGABRT")
    assert found["hang"] == ("failed", "stopped at its limit after 1 s")
    assert found["silent"] == ("failed", "exit status 3\nfirst")
    assert found["garbage"][0] == "failed" and "KeyError in its report: 'cases'" in found["garbage"][1]
    assert found["nonsense"][0] == "failed" and "results.reasons: is []" in found["nonsense"][1]
    assert found["no tool"] == ("unsupported", "no-such-sanitizer is not installed")
    assert made.sections["tests"].status == "passed"
    assert evidence.load(path) == made
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_time_spent_leaves_steps_not_started(tmp_path):
    plan = {"parity": [child("long", f"{WRITES} import time; time.sleep(60)"), child("next", WRITES)]}
    made = evidence_run.run(plan, tmp_path / "h200.json", FACTS, seconds=1.0)
    reasons = [one.reason for one in made.sections["parity"].steps]
    assert reasons == ["stopped at its limit after 1 s", evidence.NOT_STARTED]


def test_steps_run_together_but_for_the_benchmark(tmp_path):
    def meets(name, other):
        """A child that ends well only when the other one runs at the same time."""
        code = (
            f"import sys, pathlib, time; here = pathlib.Path({str(tmp_path)!r}); (here / {name!r}).touch()\n"
            f"while not (here / {other!r}).exists(): time.sleep(0.01)\n{WRITES}"
        )
        return child(name, code, seconds=20.0)

    order = []
    plan = {"tests": [meets("a", "b"), meets("b", "a")], "benchmark": [child("alone", WRITES)]}
    path = tmp_path / "records" / "h200.json"
    made = evidence_run.run(plan, path, FACTS, jobs=2, on_step=lambda section, step: order.append(section))
    assert made.sections["tests"].status == "passed"
    assert order == ["benchmark", "tests", "tests"]


def test_an_interrupted_run_stops_its_children(tmp_path):
    def interrupted(section, step):
        raise KeyboardInterrupt

    plan = {"tests": [child("quick", WRITES), *(child(str(i), "import time; time.sleep(300)") for i in range(3))]}
    path, started = tmp_path / "h200.json", time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        evidence_run.run(plan, path, FACTS, jobs=2, on_step=interrupted)
    assert time.perf_counter() - started < 60 and not process._running
    assert [one.name for one in evidence.load(path).sections["tests"].steps] == ["quick"]


SANITIZER = {
    "memcheck": "========= COMPUTE-SANITIZER\npassed\n========= ERROR SUMMARY: 0 errors\n",
    "racecheck": "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n",
}


@pytest.mark.parametrize(
    ("output", "code", "status"),
    [
        (SANITIZER["memcheck"], 0, "passed"),
        (SANITIZER["racecheck"], 0, "passed"),
        (SANITIZER["memcheck"], 1, "failed"),
        (SANITIZER["memcheck"].replace("0 errors", "10 errors"), 0, "failed"),
        (SANITIZER["racecheck"].replace("0 warnings", "1 warning"), 0, "failed"),
        (SANITIZER["racecheck"].replace("0 hazards", "2 hazards"), 0, "failed"),
        ("========= COMPUTE-SANITIZER\n", 0, "failed"),
        ("========= COMPUTE-SANITIZER\n========= Error: Device not supported. Please refer\n", 255, "unsupported"),
    ],
)
def test_the_sanitizer_passes_on_its_own_verdict_alone(output, code, status):
    got, _, results = readers.read_sanitizer(None, process.Finished(code, output, 1.0))
    assert got == status
    assert all("SUMMARY" in line for line in results["verdict"])


def test_reports_become_counts(tmp_path):
    path, ended = tmp_path / "report", process.Finished(1, "", 1.0)
    detail = {"reason": "", "comparisons": [{"name": "attend", "measure": 3, "passed": False}]}
    cases = [
        {"case": "a", "status": "passed", "share": 0.5, "detail": {"reason": "", "comparisons": []}},
        {"case": "b", "status": "failed", "share": 2.0, "detail": detail},
        {"case": "c", "status": "unsupported", "share": None, "detail": {"reason": "none", "comparisons": []}},
    ]
    path.write_text(json.dumps({"cases": cases}))
    status, _, results = readers.read_parity(path, ended)
    assert (status, results["passed"], results["failed"], results["worst_share"]) == ("failed", 1, 1, 2.0)
    assert results["failures"] == [{"case": "b", "reason": "attend: 3"}] and results["reasons"] == {"none": 1}
    path.write_text(json.dumps({"rows": [{**ROW, "correct": False}], "limits": {}, "clocks": {}, "unsupported": {}}))
    assert readers.read_benchmark(path, ended)[:2] == ("failed", "wrong results: attend:rows=1")
    path.write_text(
        '<testsuites><testsuite><testcase classname="t" name="a"/><testcase classname="t" name="b"><failure '
        'message="no"/></testcase><testcase name="c"><skipped message="why"/></testcase></testsuite></testsuites>'
    )
    status, reason, results = readers.read_tests(path, ended)
    assert (status, reason, results["passed"], results["failures"]) == (
        "failed",
        "",
        1,
        [{"case": "t::b", "reason": "no"}],
    )
    # pytest that was interrupted is not a run whose tests passed.
    path.write_text("<testsuites><testsuite><testcase name='a'/></testsuite></testsuites>")
    assert readers.read_tests(path, process.Finished(2, "stopped", 1.0))[0] == "failed"
    # A run that was cut off has said nothing of the cases behind its end.
    path.write_text(json.dumps({"cases": cases[:1], "interrupted": "a crash"}))
    status, reason, _ = readers.read_parity(path, ended)
    assert status == "failed" and reason.startswith("interrupted by a crash: ")


@pytest.mark.parametrize(("code", "status"), [(0, "passed"), (1, "failed")])
def test_figures_are_kept_whether_the_texts_agree_or_not(tmp_path, code, status):
    figures = {"cuda, math-greedy, 8 slots, 4 drafts": {"tokens/s": 9000.0, "times": 1.6}}
    (tmp_path / "figures.json").write_text(json.dumps(figures))
    found, _, results = readers.read_figures(tmp_path / "figures.json", process.Finished(code, "", 1.0))
    assert found == status and results == {"figures": figures}


def test_records_hold_no_folders_of_the_machine():
    text = f"{Path.cwd()}/kernels/x.py and {Path.home()}/y"
    assert str(Path.cwd()) not in process.impersonal(text) and process.impersonal(text).startswith("./kernels/x.py")


def test_every_section_has_steps_that_can_be_asked_for():
    plan = evidence_run.chosen(["repeats", "sanitizer/memcheck-exact"])
    assert [step.name for step in plan["repeats"]] == ["exact", "float"]
    assert [step.name for step in plan["sanitizer"]] == ["memcheck-exact"]
    assert set(evidence_run.chosen(None)) == set(evidence_run.SECTIONS)
    for names in (["none"], ["parity/none"]):
        with pytest.raises(ValueError, match="section"):
            evidence_run.chosen(names)


@pytest.fixture
def still(monkeypatch):
    """The sources as they were when the tests began, whoever edits them meanwhile."""
    monkeypatch.setattr(sources, "fingerprint", lambda: FINGERPRINT)


@pytest.fixture
def fake_device(monkeypatch):
    monkeypatch.setattr(evidence_run, "device_facts", lambda: FACTS)
    good = child("good", WRITES)
    bad = child("bad", f"{WRITES} raise SystemExit('broken')", lambda path, finished: ("failed", finished.reason, {}))
    monkeypatch.setattr(evidence_run, "SECTIONS", {"parity": lambda: [good, bad], "tests": lambda: [good]})


def test_the_command_writes_merges_and_shows(still, fake_device, tmp_path, capsys):
    out = str(tmp_path / "h200-run.json")
    assert cli.main(["evidence", "run", "--sections", "parity", "--out", out]) == 1
    assert "failed      parity/bad" in capsys.readouterr().out
    assert cli.main(["evidence", "run", "--sections", "tests", "--out", out]) == 2
    assert "--merge adds to it" in capsys.readouterr().err
    assert cli.main(["evidence", "run", "--sections", "tests", "--out", out, "--merge"]) == 0
    assert set(evidence.load(out).sections) == {"parity", "tests"}
    other = str(tmp_path / "h200-other.json")
    assert cli.main(["evidence", "run", "--sections", "parity/good", "--out", other]) == 0
    both = str(tmp_path / "h200-both.json")
    assert cli.main(["evidence", "merge", out, other, "--out", both]) == 0
    capsys.readouterr()
    assert cli.main(["evidence", "show", both]) == 0
    shown = capsys.readouterr().out
    assert "NVIDIA H200" in shown and "parity/bad" in shown and "broken" in shown and "fresh" in shown


def test_merge_overwrites_no_record_but_its_own(tmp_path, capsys):
    paths = {name: tmp_path / f"h200-{name}.json" for name in ("a", "b", "other")}
    for name, path in paths.items():
        evidence.write(path, record(f"h200-{name}", {"tests": evidence.section([step(name)])}))
    before = paths["other"].read_bytes()
    merge = ["evidence", "merge", str(paths["a"]), str(paths["b"]), "--out"]
    assert cli.main([*merge, str(paths["other"])]) == 2
    error = capsys.readouterr().err
    assert "h200-other.json': exists" in error and error.count("\n") == 1
    assert paths["other"].read_bytes() == before
    # What is no record would be lost as well; another spelling of an input's name is that input.
    paths["other"].write_text("notes")
    assert cli.main([*merge, str(paths["other"])]) == 2 and paths["other"].read_text() == "notes"
    assert cli.main([*merge, str(tmp_path / ".." / tmp_path.name / "h200-b.json")]) == 0
    assert [one.name for one in evidence.load(paths["b"]).sections["tests"].steps] == ["a", "b"]


def test_show_prints_no_time_of_a_wrong_result(tmp_path, capsys):
    wrong = {**ROW, **dict.fromkeys(("median_us", "p10_us", "p90_us", "limit_us", "share")), "correct": False}
    right = {**ROW, "case": "select:rows=1", "median_us": 33.25}
    path = tmp_path / "h200-2026-11-30.json"
    results = {"rows": [wrong, right], "unsupported": {}}
    evidence.write(path, record(sections={"benchmark": evidence.section([step(results=results)])}))
    assert cli.main(["evidence", "show", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not any("{} unsupported" in line for line in lines)
    assert any("attend:rows=1" in line and "wrong result" in line and "%" not in line for line in lines)
    assert any("select:rows=1" in line and "33.25" in line for line in lines)


@pytest.mark.parametrize(("field", "value"), [("failures", ["a"]), ("reasons", []), ("verdict", [1])])
def test_show_of_a_sealed_but_malformed_record_names_file_and_field(tmp_path, capsys, field, value):
    path = tmp_path / "h200-2026-11-30.json"
    # ``record`` seals what it is given: the seal alone does not find this.
    path.write_text(json.dumps(plain(record(sections={"tests": evidence.section([step(results={field: value})])}))))
    assert cli.main(["evidence", "show", str(path)]) == 2
    error = capsys.readouterr().err
    assert f"{path}: sections.tests.steps[0].results.{field}" in error and error.count("\n") == 1


def test_show_counts_what_it_does_not_name(tmp_path, capsys):
    failures = [{"case": f"case {i}", "reason": "no"} for i in range(20)]
    results = {"passed": 1, "failed": 50, "unsupported": 2, "failures": failures, "reasons": {"refused: format": 2}}
    path = tmp_path / "h200-2026-11-30.json"
    evidence.write(path, record(sections={"parity": evidence.section([step("x", "failed", results=results)])}))
    assert cli.main(["evidence", "show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "1 passed, 50 failed, 2 unsupported" in shown and "case 5: no" in shown and "case 6" not in shown
    assert "and 44 more" in shown and "unsupported, 2 times: refused: format" in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "--sections", "none"], "section 'none'"),
        (["run", "--seconds", "0"], "--seconds = 0.0"),
        (["run", "--out", "No Name.json"], "name 'No Name'"),
        (["show", "none.json"], "none.json: there is no such evidence"),
    ],
)
def test_bad_arguments_are_said_on_one_line(arguments, says, capsys):
    assert cli.main(["evidence", *arguments]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1


LEAST = {"benchmark": 2, "repeats": 2, "tests": 12, "sanitizer": 8, "parity": 15}
"""Section -> steps that a whole run has at least."""


@pytest.mark.parametrize("section", LEAST)
def test_a_whole_run_has_every_step_of_its_sections(section):
    """A pattern that finds no file, or a table that lost a line, would leave a record that looks whole."""
    steps = list(evidence_run.SECTIONS[section]())
    assert len({step.name for step in steps}) == len(steps) >= LEAST[section]
    if section == "tests":
        files = {path.stem.removeprefix("test_") for path in (process.ROOT / "tests" / "gpu").rglob("test_*.py")}
        assert {step.name for step in steps} == files


def test_a_machine_without_a_device_says_why(monkeypatch, capsys):
    gone = process.Finished(1, "the CUDA backend needs a CUDA device and its driver: none was found\n", 1.0)
    monkeypatch.setattr(process, "run", lambda command, seconds: gone)
    assert cli.main(["evidence", "run"]) == 2
    assert "none was found" in capsys.readouterr().err


def test_clocks_of_nvidia_smi():
    assert device.parse_clocks("1980", "1980", "0x0000000000000001")["throttled"] == []
    found = device.parse_clocks("1400", "1980", "0x0000000000000044")
    assert found == {
        "sm_mhz": 1400,
        "max_sm_mhz": 1980,
        "throttled": ["software power cap", "hardware thermal slowdown"],
    }
    assert device.parse_clocks("[N/A]", "1980", "[N/A]") == {"sm_mhz": None, "max_sm_mhz": 1980, "throttled": []}
