"""The built-in wrong kernels: a few of each operation are caught here, all of them by ``qsa prove``."""

import types
from collections import Counter
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest

from qsa.parity import suite, wrong_outputs
from qsa.parity.backend import Backend
from qsa.parity.commands import prove as command
from qsa.parity.contract import Kernel, declared
from qsa.parity.prove import run, tables
from qsa.parity.prove.mutant import Mutant, backend_of
from qsa.parity.prove.mutants import CATALOGUE
from qsa.parity.readable import junit, markdown
from qsa.reference import exact

CODED = "index_format=int16,"
AGAIN = "pages:op=again,operation=select,argument=scores,seed=61"


def few(arithmetic, operation):
    """The cheap cases of an operation."""
    cases = suite.collect(suite.OPERATION_MODULES, arithmetic, backend=backend_of(arithmetic, {}))
    return [case for case in cases if operation in run.operations_of(case) and run.cost(case) < 6000]


def test_the_catalogue_is_large_and_its_names_are_unique():
    assert len(CATALOGUE) >= 150
    assert max(Counter((one.operation, one.name) for one in CATALOGUE).values()) == 1
    for arithmetic in ("exact", "float"):
        assert {one.operation for one in run.chosen(arithmetic)} == {
            "attend", "select", "block_scores", "append_kv", "append_index"
        }  # fmt: skip
        assert len(run.chosen(arithmetic)) >= 150


@pytest.mark.parametrize("arithmetic", ["exact", "float"])
@pytest.mark.parametrize("operation", ["block_scores", "append_kv", "append_index"])
def test_mutants_are_caught(arithmetic, operation):
    mutants = [one for one in run.chosen(arithmetic) if "fp32" in one.index_formats]
    some = [one for one in mutants if one.operation == operation][::9]
    verdicts = run.prove(some, arithmetic, few(arithmetic, operation))
    assert [one.mutant.name for one in verdicts if not one.caught] == []
    assert all(one.check and one.case and one.measure > one.bound for one in verdicts)


@pytest.mark.parametrize("arithmetic", ["exact", "float"])
def test_wrong_kernels_of_encoded_keys_are_caught_by_cases_of_encoded_keys(arithmetic):
    cases = suite.collect(suite.OPERATION_MODULES, arithmetic, backend=backend_of(arithmetic, {}))
    cases = [case for case in cases if case.recipe.get("index_format") == "int16"]
    some = [one for one in run.chosen(arithmetic) if one.index_formats == ("int16",)]
    assert len(some) >= 70
    assert [one.mutant.name for one in run.prove(some, arithmetic, cases) if not one.caught] == []
    assert list(run.right_kernels(arithmetic, cases)) == []


def test_a_mutant_is_put_under_the_cases_of_its_index_format_alone():
    (verdict,) = run.prove(
        [Mutant("harmless", "block_scores", "none", lambda right, a: right(a), index_formats=("int16",))],
        "exact",
        [suite.parse(f"pages:op=again,operation=block_scores,argument=q_idx,{name}seed=61") for name in ("", CODED)],
    )
    assert verdict.cases == 1


@pytest.mark.parametrize("arithmetic", ["exact", "float"])
def test_the_right_kernels_pass(arithmetic):
    cases = few(arithmetic, "block_scores")[::30] + few(arithmetic, "attend")[::30] + few(arithmetic, "append_kv")[::20]
    assert list(run.right_kernels(arithmetic, cases)) == []


def test_what_is_not_caught_is_told_and_fails_the_command():
    harmless = Mutant("harmless", "select", "none", lambda right, a: right(a))
    (verdict,) = run.prove([harmless], "exact", [suite.parse(AGAIN)])
    assert not verdict.caught and verdict.cases == 1
    row = tables.Row("harmless", "none", verdict.caught, verdict.check)
    table = tables.Table(
        "kernels", "exact", 0.0, [row, tables.Row("other", "none", True, "attend", "a case", 2.0, 1.0)]
    )
    assert table.lost == [row]
    proof = tables.Proof(1, 0.0, {}, [table])
    made = command.document(proof)
    assert made.verdict == "failed" and [line.status for line in made.tables[0].rows] == ["failed", "passed"]
    assert "NOT CAUGHT" in markdown.text(made)


def test_every_table_is_made_and_told(capsys, monkeypatch, tmp_path):
    from qsa.parity.cli import main

    def code(job, on_step, on_total):
        on_total(1)
        on_step("one")
        return [tables.Row("one", "kind", job.arithmetic != "float", "check")], {}

    monkeypatch.setattr(tables, "TABLES", dict.fromkeys(tables.TABLES, code))
    monkeypatch.setattr(command, "_made", lambda jobs: [tables.make(job) for job in jobs])
    files = [str(tmp_path / name) for name in ("proof.json", "junit.xml")]
    assert main(["prove", "--json", files[0], "--junit", files[1]]) == 1
    root = ElementTree.parse(files[1]).getroot()
    assert root.get("name") == "qsa prove" and len(root) == 7
    assert [one.get("failures") for one in root] == ["0", "1", "0", "1", "0", "0", "0"]
    found = msgspec.json.decode((tmp_path / "proof.json").read_bytes(), type=tables.Proof)
    assert found.failed == 2 and len(found.tables) == 7
    assert "2 were not caught" in capsys.readouterr().out
    assert main(["prove", "--arithmetic", "exact"]) == 0
    assert "everything wrong was caught" in capsys.readouterr().out


def test_junit_has_a_test_case_for_everything_wrong():
    rows = [
        tables.Row("caught", "kind", True, "attend", "a case", 2.0, 1.0),
        tables.Row("lost", "kind", False, "", "", detail="passed 12 cases"),
        tables.Row("attend: the right kernels fail", "control", False, "", "pages:op=attend", detail="one\ntwo"),
    ]
    counts = {"zero failed": 3, "scaled failed": 2, "scaled passed": 1, "permuted unchanged": 1}
    passed = [tables.Row("scaled", "outputs", False, "", "split:op=tiles", detail="passed")]
    made = (tables.Table("kernels", "exact", 1.5, rows), tables.Table("outputs", "float", 0.5, passed, counts))
    text = junit.text("qsa prove", [command.suite(table) for table in made], {"cpu": "one"})
    kernels, outputs = ElementTree.fromstring(text.partition("\n")[2])
    assert kernels.attrib == {
        "name": "kernels, exact arithmetic", "tests": "3", "failures": "2", "errors": "0", "skipped": "0",
        "time": "1.500",
    }  # fmt: skip
    assert [one.get("name") for one in kernels.iter("testcase")] == [row.name for row in rows]
    lost, control = kernels.iter("failure")
    assert lost.get("message") == "NOT CAUGHT: passed 12 cases"
    assert control.get("message") == "NOT CAUGHT: pages:op=attend" and "one\ntwo" in control.text
    assert {one.get("name"): one.find("failure") is not None for one in outputs.iter("testcase")} == {
        "permuted": False, "scaled": True, "zero": False
    }  # fmt: skip
    assert "split:op=tiles" in outputs.find("testcase/failure").text and outputs.get("failures") == "1"
    assert [one.get("value") for one in outputs.iter("property")] == ["one"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["kernel"], "TABLE = 'kernel': allowed are kernels, outputs"),
        (["--operation", "sort"], "--operation = 'sort': allowed are append_kv"),
        (["cheats", "--operation", "attend"], "goes with the tables kernels and outputs"),
        (["--arithmetic", "double"], "--arithmetic = 'double'"),
    ],
)
def test_bad_arguments(arguments, words, capsys):
    from qsa.parity.cli import main

    assert main(["prove", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_small_table_in_processes_of_their_own(capsys):
    from qsa.parity.cli import main

    assert main(["prove", "kernels", "--sample", "--operation", "append_index"]) == 0
    out = capsys.readouterr().out
    assert "kernels, exact arithmetic: " in out and "kernels, float arithmetic: " in out


def test_a_mutant_that_raises_is_no_catch():
    def broken(right, a):
        raise RuntimeError("a fault of the mutant")

    with pytest.raises(run.MutantError, match="a fault of the mutant"):
        run.prove([Mutant("broken", "select", "none", broken)], "exact", [suite.parse(AGAIN)])


def test_a_changed_input_is_a_catch():
    def writes(right, a):
        out = right(a)
        a.scores[0, 0] = 7
        return out

    (verdict,) = run.prove([Mutant("writes", "select", "J1", writes)], "exact", [suite.parse(AGAIN)])
    assert verdict.caught and "ChangedInputError" in verdict.reason


def selecting(function, **declaration):
    module = types.SimpleNamespace(declaration=declaration, select=function)
    return Backend("test", None, Kernel(module, declared(module)))


def test_a_fault_of_one_call_in_nine_needs_repeats():
    calls = []

    def select(scores, steps, *, rule="blocks"):
        calls.append(0)
        out = exact.select(scores, steps, rule=rule)
        if len(calls) % 9 == 8:
            out[0, :8] = out[0, 8:16]
        return out

    case = suite.parse(AGAIN)
    assert suite.run_case(case, selecting(select, arithmetic="exact")).status == "passed"
    result = suite.run_case(case, selecting(select, arithmetic="exact"), repeats=9)
    assert result.status == "failed" and any(", time " in one.name for one in result.comparisons if not one.passed)


@pytest.mark.parametrize("invariance", [[], ["repeat"]])
def test_other_bytes_of_equal_worth_fail_where_the_invariance_is_declared(invariance):
    calls = []

    def block_scores(q_idx, index, steps):
        calls.append(0)
        dots = np.maximum(index.pooled @ q_idx.transpose(0, 2, 1), 0).sum(-1, dtype=np.float32)
        return dots * np.float32(1 + 2.0**-22) if len(calls) % 4 == 0 else dots

    module = types.SimpleNamespace(declaration={"invariance": invariance}, block_scores=block_scores)
    backend = Backend("test", None, Kernel(module, declared(module)))
    case = suite.parse("pages:op=again,operation=block_scores,argument=q_idx,seed=61")
    result = suite.run_case(case, backend, repeats=3)
    assert result.status == ("failed" if invariance else "passed")
    assert backend.results is None


def test_fresh_cases_have_other_seeds_and_goldens_have_none():
    case, golden = (
        suite.parse(AGAIN),
        suite.parse("select:rule=blocks,scores=continuous,context=1024,rows=1,tail=0,seed=7"),
    )
    (fresh,) = suite.fresh([case, golden])
    assert fresh.recipe["seed"] != 61 and {**fresh.recipe, "seed": 61} == case.recipe
    assert suite.parse(fresh.text) == fresh
    assert suite.run_case(fresh, backend_of("exact", {})).status == "passed"


def test_a_kernel_that_knows_the_public_cases_is_called_memorised(tmp_path, monkeypatch, capsys):
    from qsa.parity.cli import main

    path = tmp_path / "memorised.py"
    path.write_text(
        "import numpy as np\n"
        "from qsa.reference import exact\n"
        "declaration = {'arithmetic': 'exact'}\n"
        "def select(scores, steps, *, rule='blocks'):\n"
        "    out = exact.select(scores, steps, rule=rule)\n"
        f"    known = {_first_score()!r}\n"
        "    return out if float(abs(scores[0, 0])) == known else out * 0\n"
    )
    assert main(["parity", "--backend", str(path), "--in-process", "--case", AGAIN, "--fresh"]) == 1
    assert "memorised" in capsys.readouterr().out


def _first_score():
    seen = []

    def select(scores, steps, *, rule="blocks"):
        seen.append(float(abs(scores[0, 0])))
        return exact.select(scores, steps, rule=rule)

    suite.run_case(suite.parse(AGAIN), selecting(select, arithmetic="exact"))
    return seen[0]


def test_an_input_that_is_written_to_fails_a_sample_of_the_cases():
    for arithmetic in ("exact", "float"):
        cases = few(arithmetic, "append_index")[::15] + few(arithmetic, "select")[::40]
        counts = Counter()
        found = wrong_outputs.passing(
            cases, backend_of(arithmetic, {}), lambda case, kind, status, counts=counts: counts.update([kind])
        )
        assert found == [] and set(counts) == set(wrong_outputs.KINDS)


def test_the_command_lists(capsys):
    from qsa.parity.cli import main

    assert main(["prove", "--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(CATALOGUE)
