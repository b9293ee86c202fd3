"""``qsa report diff`` and ``merge``."""

import json

import pytest

from qsa.parity import cli, gate, report, suite

ENVIRONMENT = {"backend": "cpu", "cpu": "a processor", "gpu": "none"}


def case(name, status="passed", seconds=0.1, module="selection", reason=""):
    detail = {"reason": reason, "comparisons": []}
    figures = dict.fromkeys(("measure", "bound", "share"))
    return {"module": module, "case": name, "status": status, "seconds": seconds, "detail": detail, **figures}


def made(*cases, **environment):
    counts = {status: sum(one["status"] == status for one in cases) for status in suite.STATUSES}
    return {**counts, "environment": {**ENVIRONMENT, **environment}, "cases": list(cases)}


@pytest.fixture
def qsa(tmp_path, capsys):
    """Function(verb, reports, more words) -> (exit status, standard output, standard error)."""

    def run(verb, *reports, words=()):
        paths = []
        for number, one in enumerate(reports):
            paths.append(tmp_path / f"{number}.json")
            paths[-1].write_text(one if isinstance(one, str) else json.dumps(one))
        code = cli.main(["report", verb, *map(str, paths), *map(str, words)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


BEFORE = made(
    case("a"), case("b"), case("c", "failed"), case("d"), case("e", "unsupported"), case("f", "failed"), case("gone")
)
NOW = made(
    case("a"),
    case("b", "failed", reason="why\nit failed"),
    case("c"),
    case("d", "unsupported", reason="refused"),
    case("e", "failed"),
    case("f", "failed"),
    case("new"),
    case("bad", "failed", module="split"),
)


def test_what_newly_fails_is_told(qsa):
    code, out, _ = qsa("diff", BEFORE, NOW)
    lines = out.splitlines()
    assert code == 1
    assert [line.split()[-1] for line in lines if line.startswith("newly fails")] == ["b", "e", "bad"]
    assert lines[lines.index("newly fails   selection: b") + 1 :][:2] == ["  why", "  it failed"]
    assert "not checked   selection: d" in lines and "  refused" in lines and "mended        selection: c" in lines
    assert "added         2 cases of selection, split" in lines and "gone          1 cases of selection" in lines
    assert lines[-1] == "3 newly fail, 1 are checked no longer, 1 are mended, 0 slower, 2 unchanged"


def test_equal_reports_and_an_old_failure_are_no_news(qsa):
    assert qsa("diff", BEFORE, BEFORE)[:2] == (
        0,
        "0 newly fail, 0 are checked no longer, 0 are mended, 0 slower, 7 unchanged\n",
    )
    assert qsa("diff", made(case("a", "failed")), made(case("a")))[0] == 0


@pytest.mark.parametrize(
    ("before", "now", "slower"),
    [(1.0, 1.6, True), (1.0, 1.4, False), (10.0, 14.9, False), (10.0, 15.1, True), (0.1, 0.5, False), (0.1, 0.7, True)],
)
def test_what_got_slower_is_told_and_fails_nothing(qsa, before, now, slower):
    code, out, _ = qsa("diff", made(case("a", seconds=before)), made(case("a", seconds=now)))
    assert code == 0 and (f"slower        selection: a: {before} s became {now} s" in out) == slower


def test_the_factor_is_the_callers(qsa):
    reports = made(case("a", seconds=10.0)), made(case("a", seconds=12.0))
    assert "1 slower" in qsa("diff", *reports, words=("--factor", "1.1"))[1]
    for bad in ("1", "0", "nan", "inf"):
        code, _, err = qsa("diff", *reports, words=("--factor", bad))
        assert code == 2 and "factor = " in err


def test_a_case_that_did_not_run_is_not_faster_or_slower(qsa):
    reports = made(case("a", "unsupported", 0.0)), made(case("a", seconds=9.0))
    assert "0 slower" in qsa("diff", *reports)[1]


def test_another_environment_is_told(qsa):
    code, out, _ = qsa("diff", made(case("a")), made(case("a"), backend="cuda", seconds={"sim": 1.0}))
    assert code == 0 and "environment   backend: cpu became cuda" in out and "seconds:" not in out


def test_the_changes_as_json(qsa, tmp_path):
    path = tmp_path / "changes.json"
    assert qsa("diff", BEFORE, NOW, words=("--json", path))[0] == 1
    found = json.loads(path.read_text())
    assert [one["case"] for one in found["failed"]] == ["b", "e", "bad"] and found["unchanged"] == 2
    assert found["failed"][0]["reason"] == ["why", "it failed"]
    assert json.loads(qsa("diff", BEFORE, NOW, words=("--json", "-"))[1])["gone"][0]["case"] == "gone"


@pytest.mark.parametrize("text", ["", "{", "[1]", "{}", json.dumps({**BEFORE, "passed": "many"})])
@pytest.mark.parametrize("verb", ["diff", "merge"])
def test_what_is_no_report_is_one_line(qsa, verb, text, tmp_path):
    words = ("--out", tmp_path / "out.json") if verb == "merge" else ()
    code, out, err = qsa(verb, BEFORE, text, words=words)
    assert (code, out, err.count("\n")) == (2, "", 1) and "1.json" in err and not (tmp_path / "out.json").exists()


def test_a_missing_file_is_one_line(qsa, tmp_path):
    code, _, err = qsa("diff", BEFORE, words=(tmp_path / "none.json",))
    assert code == 2 and "none.json" in err and err.count("\n") == 1


def test_parts_of_a_run_make_one_report(qsa, tmp_path):
    path = tmp_path / "out.json"
    parts = made(case("a"), case("b", "failed")), made(case("c", "unsupported"), module="x")
    del parts[1]["environment"]["module"]
    code, out, _ = qsa("merge", *parts, words=("--out", path))
    assert code == 0 and "2 reports merged into" in out and "1 passed, 1 failed, 1 unsupported" in out
    merged = json.loads(path.read_text())
    assert [one["case"] for one in merged["cases"]] == ["a", "b", "c"] and merged["environment"] == ENVIRONMENT
    assert (merged["passed"], merged["failed"], merged["unsupported"]) == (1, 1, 1) and "stale" not in merged
    assert qsa("diff", merged, made(*parts[0]["cases"], *parts[1]["cases"]))[0] == 0


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_failure_is_not_tried_away(qsa, order):
    reports = [made(case("a", "failed", reason="first")), made(case("a"))]
    out = json.loads(qsa("merge", *(reports[number] for number in order), words=("--out", "-"))[1])
    assert [one["status"] for one in out["cases"]] == ["failed"] and (out["passed"], out["failed"]) == (0, 1)


def test_reports_of_different_environments_do_not_merge(qsa, tmp_path):
    code, _, err = qsa("merge", made(case("a")), made(case("b"), backend="cuda"), words=("--out", tmp_path / "x.json"))
    assert code == 2 and "reports[1]: backend is 'cuda': must be 'cpu'" in err and not (tmp_path / "x.json").exists()


def test_reports_of_the_gate_are_read_and_merged(qsa):
    def of_gate(verdicts, seconds):
        outcome = gate.Outcome(verdicts)
        return report.as_json(outcome, {**ENVIRONMENT, "seconds": seconds}, gate.STATUSES)

    one = of_gate([gate.verdict("evidence", "h200", "stale", "changed kernels/a.py")], {"evidence": 1.5, "sim": 1.0})
    two = of_gate(
        [gate.verdict("speed", "select", "failed", "SLOWER: 30.0 %", share=0.3, floor=0.05)],
        {"speed": 60.0, "sim": 2.0},
    )
    out = json.loads(qsa("merge", one, two, words=("--out", "-"))[1])
    assert (out["stale"], out["failed"]) == (1, 1)
    assert out["environment"]["seconds"] == {"evidence": 1.5, "sim": 3.0, "speed": 60.0}
    code, text, _ = qsa("diff", one, two)
    assert code == 1 and "newly fails   speed: select\n  SLOWER: 30.0 %" in text
