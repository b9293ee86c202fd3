"""No case passes with outputs that are grossly wrong, and bounds and comparisons that prove nothing are refused."""

import math

import numpy as np
import pytest

from qsa.kernels import cpu
from qsa.parity import suite, wrong_outputs
from qsa.parity.checks import attend_inputs as data
from qsa.parity.checks import pages, split
from qsa.parity.compare.comparison import Comparison, equal, error, most, verdict
from qsa.parity.compare.twin import slack
from support.mutants import ATTEND, KEYS, backend, run

__all__ = ["backend"]  # a fixture is used by its name


@pytest.mark.parametrize("arithmetic", ["exact", "float"])
def test_a_sample_of_all_cases_fails_on_zeros_on_a_factor_and_on_permuted_heads(arithmetic):
    # All cases take minutes (`wrong_outputs.survivors` of `suite.collect`); this is one of every stratum.
    cases = wrong_outputs.sample(suite.collect(wrong_outputs.MODULES, arithmetic))
    results = []
    survivors = wrong_outputs.survivors(cases, "cpu", arithmetic, lambda *what: results.append(what))
    assert survivors == []
    for name in wrong_outputs.MODULES:
        for kind in wrong_outputs.KINDS:
            statuses = [status for case, one, status in results if (case.module, one) == (name, kind)]
            # A selection of absent ids alone gives 0 whatever the kernel does.
            unchanged = [
                case for case, one, status in results if (case.module, one, status) == (name, kind, "unchanged")
            ]
            unchanged = [case for case in unchanged if case.recipe.get("absent") != "all"]
            assert "failed" in statuses and len(unchanged) <= 1 + len(statuses) // 10, (name, kind)


def test_the_sample_has_every_operation_and_format_of_every_module():
    for arithmetic in ("exact", "float"):
        cases = suite.collect(wrong_outputs.MODULES, arithmetic)

        def strata(some):
            keys = ("op", "family", "format", "schedule", "pass", "scores")
            return {(one.module, *(one.recipe.get(key) for key in keys)) for one in some}

        assert strata(wrong_outputs.sample(cases)) == strata(cases)


def test_a_case_that_cannot_fail_is_a_survivor(monkeypatch):
    case = suite.parse(ATTEND["split"])
    monkeypatch.setattr(split, "check", lambda backend, recipe: [_passing(backend, recipe)])
    assert wrong_outputs.survivors([case], "cpu", "exact") == [
        (case.text, kind) for kind in wrong_outputs.KINDS if kind != "input"
    ]


def _passing(backend, recipe):
    w = data.attend_inputs({key: recipe[key] for key in ("format", "context", "rows", "tail", "seed")})
    got = backend.attend(w.q, w.kv, w.ids, w.steps)
    return equal("itself", got, got)


@pytest.mark.parametrize("recipe", [recipe for recipe in pages.cases("float") if recipe["op"] == "attend"])
def test_bounds_of_pages_are_finite_in_every_row_and_those_of_an_unused_row_are_the_slack(recipe):
    """J2: one row of width 0 made the bound of all rows infinite."""
    w = data.attend_inputs({**recipe, "rows": 2})
    w = pages._with_unused_row(w)
    bound, _ = data.float_bound(w, data.truth(w))
    assert bound.shape == (3, 1) and bound[1] == slack("float32")
    # A plain kernel that adds 300 cells one after the other is off by some 3e-6.
    assert (bound < 2e-5).all() and (bound >= slack("float32")).all()


@pytest.mark.parametrize("key", ["split", "step", "multi", "mixed"])
def test_a_backend_that_is_wrong_in_every_schedule_alike(key, backend):
    def zeros(q, kv, ids, steps, slots=None, *, schedule="batch", splits=1, arithmetic="exact"):
        return np.zeros(q.shape, np.float32)

    found = run(ATTEND[key], backend(attend=zeros)).comparisons
    assert [one.name for one in found if not one.passed] == ["attend: batch"] * (len(found) // 2)


@pytest.mark.parametrize("op", ["window", "draft"])
def test_a_float_backend_that_is_wrong_in_every_schedule_alike(op, backend):
    def off(q, kv, ids, steps, slots=None, *, schedule="batch", splits=1, arithmetic="float"):
        return cpu.attend(q, kv, ids, steps, slots, arithmetic="float") * np.float32(1 + 1e-4)

    window = {"slots": 2, "rows": 2, "rule": "blocks"} if op == "window" else {}
    text = suite.Case.of("verify-batch", {"op": op, "pass": "standing", **window, "context": 1024, "seed": 7}).text
    mutant = backend(attend=off)
    mutant.arithmetic = "float"
    bad = [one.name for one in run(text, mutant).comparisons if not one.passed]
    names = {"window": ["attention", "attention: one call per row"], "draft": ["draft: standing path against float64"]}
    assert bad[: len(names[op])] == names[op] and not any(name.startswith(("ids", "scores")) for name in bad)


@pytest.mark.parametrize("bound", [math.inf, math.nan, -math.inf, -1e-9])
def test_a_bound_that_is_no_bound_is_a_fault_of_the_suite(bound):
    truth = np.ones((2, 3, 4))
    with pytest.raises(ValueError, match=r"^x: bound = .*: must be a finite number, 0 or more"):
        Comparison("x", "error", 0, bound, "why", 1)
    for one in (bound, np.array([[1e-3], [bound]])):
        with pytest.raises(ValueError, match=r"^x: bound = "):
            error("x", truth, truth, one, "why")


@pytest.mark.parametrize(
    "found",
    [
        equal("x", np.zeros((0, 3)), np.zeros((0, 3))),
        error("x", np.zeros((0, 3, 4)), np.zeros((0, 3, 4)), 1.0, "why"),
        error("x", np.zeros((0, 3, 4)), np.zeros((0, 3, 4)), np.zeros((0, 1)), "why"),
        verdict("x", 0, 1, "why"),
    ],
)
def test_nothing_compared_is_not_passed(found):
    assert not found.passed and "  nothing was compared" in list(found.lines())


def test_a_case_that_compares_nothing_fails(monkeypatch, backend):
    for found in ([], [verdict("x", 0, 1, "why")], [verdict("x", 0, 1, "why", size=1), verdict("y", 0, 1, "why")]):
        monkeypatch.setattr(split, "check", lambda backend, recipe, found=found: found)
        assert run(ATTEND["split"], backend()).status == "failed"


@pytest.mark.parametrize("text", [KEYS.replace("66", "2"), KEYS.replace("66", "64")])
def test_a_context_without_open_cells_or_without_blocks_is_compared_in_what_it_has(text, backend):
    result = run(text, backend())
    assert result.status == "passed" and len(result.comparisons) == 2


def test_every_vector_has_its_own_bound():
    truth = np.ones((2, 3, 4))
    got, bound = truth.copy(), np.array([[1e-3], [1.0]])
    got[1, 2] *= 1.5
    found = error("x", truth, got, bound, "why")
    assert found.passed and (found.measure, found.bound, found.share) == (0.5, 1.0, 0.5)
    got[0, 1, 3] *= 1.01
    found = error("x", truth, got, bound, "why")
    assert not found.passed and found.bound == 1e-3 and found.bad == 1 and found.first.coordinate == (0, 1, 3)


def test_a_measure_that_is_no_number_is_the_worst():
    measure, bound = most("x", np.array([2.0, np.nan, 0.5]), np.array([1.0, 3.0, 1.0]))
    assert math.isnan(measure) and bound == 3.0
    assert most("x", np.array([0.0, 1e-9]), 0.0) == (1e-9, 0.0)
    assert not verdict("x", math.nan, 1, "why", size=1).passed
