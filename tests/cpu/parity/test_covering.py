"""Cases by design: every pair of values occurs, and the list of case strings is a golden."""

from itertools import combinations

import pytest

from qsa.parity import case_list, suite
from qsa.parity.checks.designs import append_cover, attention_cover, score_cover, selection_cover
from qsa.parity.checks.designs.covering import cover, pairs_of


def allowed(case):
    return not (case.get("a") == 1 and case.get("c") == "x")


def test_every_allowed_pair_occurs_and_no_other():
    values = {"a": (1, 2, 3), "b": tuple(range(7)), "c": ("x", "y"), "d": (True, False)}
    found = cover(values, allowed)
    assert all(allowed(case) for case in found) and len(found) <= 30
    seen = {pair for case in found for pair in pairs_of(case, list(values))}
    wanted = {
        (a, x, b, y) for a, b in combinations(values, 2) for x in values[a] for y in values[b] if allowed({a: x, b: y})
    }
    assert seen == wanted


def test_a_pair_that_no_case_may_have_is_left_out():
    def never(case):
        # No value of c goes with a = 1 and b = 1.
        return not (case.get("a") == 1 and case.get("b") == 1 and "c" in case)

    found = cover({"a": (1, 2), "b": (1, 2), "c": (1, 2)}, never)
    assert {(case["a"], case["b"]) for case in found} == {(1, 2), (2, 1), (2, 2)}


def test_a_parameter_without_values_is_refused():
    with pytest.raises(ValueError, match=r"^b: has no values"):
        cover({"a": (1,), "b": ()})


@pytest.mark.parametrize(
    ("recipes", "names", "may"),
    [
        (
            lambda: attention_cover.cases("exact"),
            ("schedule", "rows", "format", "absent", "query"),
            attention_cover._together,
        ),
        (
            lambda: attention_cover.cases("float"),
            ("schedule", "page", "widths", "absent", "unused"),
            attention_cover._together,
        ),
        (lambda: selection_cover.cases(), ("rule", "scores", "rows", "schedule", "cells"), selection_cover._together),
        (lambda: score_cover.cases(), ("keys", "blocks", "rows", "schedule", "tail"), score_cover._together),
        (lambda: append_cover.cases("exact"), ("format", "values", "rows", "slots", "missing"), append_cover._together),
    ],
    ids=["attend exact", "attend float", "select", "block_scores", "append_kv"],
)
def test_the_pairs_of_the_suite(recipes, names, may):
    cases = [case for case in recipes() if case["op"] in ("cover", "cut", "score_cover", "kv_cycle")]
    # The crowded bins and the limits of codes are no part of the design.
    cases = [case for case in cases if not str(case.get("scores")).startswith("crowded")]
    cases = [case for case in cases if case.get("keys") != score_cover.LIMITS]
    values = {name: dict.fromkeys(case[name] for case in cases) for name in names}
    seen = {pair for case in cases for pair in pairs_of(case, names)}
    for a, b in combinations(names, 2):
        for x in values[a]:
            for y in values[b]:
                if may({a: x, b: y}) and (a, b) != ("format", "slots"):
                    assert (a, x, b, y) in seen


def test_every_corner_meets_every_schedule_and_every_number_of_splits_every_tile():
    found = [case for case in attention_cover.cases("exact") if case["op"] == "cover"]
    for schedule in attention_cover.SCHEDULES:
        mine = [case for case in found if case["schedule"] == schedule]
        assert {case["query"] for case in mine} == set(attention_cover.QUERIES)
        assert {case["absent"] for case in mine} == set(attention_cover.ABSENT)
        assert {case["rows"] for case in mine} == set(attention_cover.ROWS)
    tiled = [case for case in attention_cover.cases("exact") if case["op"] == "tiles" and case["schedule"] == "split"]
    assert {case["splits"] for case in tiled} == set(range(1, 21))


def test_the_list_of_case_strings_is_the_stored_one():
    stored = case_list.PATH.read_text(encoding="utf-8").splitlines()
    assert case_list.lines() == stored, "after a change of cases: python -m qsa.parity.case_list"


def test_every_case_string_reads_back():
    for line in case_list.PATH.read_text(encoding="utf-8").splitlines():
        _, text = line.split(" ", 1)
        case = suite.parse(text)
        assert case.text == text
