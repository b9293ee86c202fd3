"""Wrong engines and wrong judges: every one is found by the checks that its table names, and the tables can fail."""

from types import ModuleType, SimpleNamespace

import pytest

from qsa.engine import request
from qsa.engine.draws import sampling
from qsa.kernels.cpu import speculative
from qsa.parity import suite
from qsa.parity.compare import twin
from qsa.parity.prove import engine_mutants, suite_mutants
from qsa.parity.prove.patching import CONTROL, CodeMutant, FoundError, edit, edits, patch, run
from qsa.parity.prove.sentinels.verdicts import SENTINELS
from support.mutants import ATTEND, attend, backend
from support.mutants import run as run_case

__all__ = ["backend"]  # a fixture is used by its name

TABLES = {"engine": engine_mutants, "suite": suite_mutants}


@pytest.mark.parametrize("table", TABLES)
def test_one_mutant_of_every_kind_is_found(table):
    shown = []
    rows = TABLES[table].rows(sample=True, on_result=shown.append)
    assert shown == rows and rows[0].kind == CONTROL
    assert [row.kind for row in rows[1:]] == list(dict.fromkeys(mutant.kind for mutant in TABLES[table].MUTANTS))
    assert [(row.name, row.detail) for row in rows if not row.caught_by] == []


@pytest.mark.parametrize("table", TABLES)
def test_every_mutant_is_found(table):
    rows = TABLES[table].rows()
    assert [(row.name, row.detail) for row in rows if not row.caught_by] == []
    assert len(rows) == 1 + len(TABLES[table].MUTANTS)


@pytest.mark.parametrize(("table", "fewest"), [("engine", 120), ("suite", 120)])
def test_the_tables_are_long_and_their_names_are_their_own(table, fewest):
    mutants, checks = TABLES[table].MUTANTS, TABLES[table].CHECKS
    names = [mutant.name for mutant in mutants]
    assert len(names) >= fewest and len(set(names)) == len(names)
    assert all(mutant.checks and set(mutant.checks) <= set(checks) for mutant in mutants)


def test_every_verdict_occurs_among_the_sentinels():
    found = [sentinel.status for sentinel in SENTINELS.values()]
    assert {status: found.count(status) >= 10 for status in suite.STATUSES} == dict.fromkeys(suite.STATUSES, True)


def double(x):
    """A function to change."""
    return 2 * x


HELD = {"double": double}


def here():
    """This module, by which tests of changes are found whatever its name."""
    module = ModuleType("qsa.changed")
    vars(module).update(double=double, other_name=double, HELD=HELD, number=4)
    return module


@pytest.fixture
def module(monkeypatch):
    import sys

    found = here()
    monkeypatch.setitem(sys.modules, "qsa.changed", found)
    return found


def check_double():
    if HELD["double"](3) != 6:
        raise FoundError(f"double of 3 is {HELD['double'](3)}")


def test_a_changed_function_is_changed_wherever_it_was_imported_and_only_for_a_time(module):
    with edit(module, "double", ("2 * x", "3 * x"))():
        assert module.double(1) == module.other_name(1) == HELD["double"](1) == 3
    assert module.double is module.other_name is HELD["double"] is double


def test_what_is_no_function_is_changed_in_its_module_alone(module):
    with patch(module, number=5)():
        assert module.number == 5 and 4 in (4,) and twin.FACTOR == 4
    assert module.number == 4


@pytest.mark.parametrize(
    ("owner", "name", "old", "new", "call", "before", "after"),
    [
        (request.Drafting, "rows", "min(self.spec, self.max_t)", "7", lambda: request.Drafting(3).rows, 3, 7),
        (sampling, "_recent", "history if options", "[1] if options",
         lambda: sampling._recent([5], SimpleNamespace(repeat=2, last_n=-1)), [5], [1]),
        (speculative, "match", "==", "!=", lambda: speculative.match([1], [1]).tolist(), [True], [False]),
    ],
)  # fmt: skip
def test_functions_methods_and_properties_are_changed_by_their_words(owner, name, old, new, call, before, after):
    assert call() == before
    with edit(owner, name, (old, new))():
        assert call() == after
    assert call() == before


def test_a_mutant_that_is_not_found_fails_and_so_does_a_check_that_fails_without_one(module):
    wrong = edits(
        "arithmetic", module, "double", ("thrice", "2 * x", "3 * x", "double"), ("again", "2 * x", "x + x", "double")
    )
    control, thrice, again = run(wrong, {"double": check_double})
    assert control.caught_by and control.kind == CONTROL and thrice.caught_by == "double"
    assert "double of 3 is 9" in thrice.detail
    assert again.caught_by == "" and again.detail == "not found by: double"
    checks = {"double": check_double, "broken": lambda: 1 / 0}
    control, row = run(wrong[:1], checks)
    assert control.caught_by == "" and "broken: ZeroDivisionError" in control.detail and row.caught_by == "double"


def test_every_named_check_must_find_a_mutant_by_itself(module):
    wrong = edits("arithmetic", module, "double", ("thrice", "2 * x", "3 * x", "double", "idle"))
    _, row = run(wrong, {"double": check_double, "idle": lambda: None})
    assert row.caught_by == "" and row.detail == "not found by: idle"


@pytest.mark.parametrize(
    ("name", "old", "words"),
    [
        ("double", "4 * x", "'4 * x' occurs 0 times"),
        ("double", "x", "occurs 2 times"),
        ("gone", "x", "has no such name"),
    ],
)
def test_a_mutant_whose_words_are_gone_is_not_caught_and_says_so(module, name, old, words):
    _, row = run(edits("arithmetic", module, name, ("stale", old, "1", "double")), {"double": check_double})
    assert row.caught_by == "" and "must be written anew" in row.detail and words in row.detail
    assert HELD["double"] is double


def test_a_mutant_that_is_no_program_is_an_error(module):
    with pytest.raises(NameError, match="nothing_of_this_name"):
        run(edits("arithmetic", module, "double", ("no name", "2 * x", "nothing_of_this_name", "double")),
            {"double": check_double})  # fmt: skip
    assert HELD["double"] is double


def test_an_unlike_patch_of_several_kinds_is_sampled_by_kind(module):
    def one(name, kind):
        return CodeMutant(name, kind, edit(module, "double", ("2 * x", "3 * x")), ("double",))

    rows = run(
        [one("a", "x"), one("b", "x"), one("c", "y")], {"double": check_double, "idle": lambda: None}, sample=True
    )
    assert [row.name for row in rows] == ["unchanged code", "a", "c"]


def test_attention_of_another_shape_is_one_comparison_that_names_both(backend):
    """Found by the sentinel "exact flat": the shape was reported as a broadcast error of NumPy."""

    def flat(*arguments, **keywords):
        return attend(*arguments, **keywords).reshape(2, -1)

    result = run_case(ATTEND["int8"], backend(attend=flat))
    assert result.status == "failed" and not result.reason
    assert "got float32 [2, 6144]" in "\n".join(result.lines(None))
