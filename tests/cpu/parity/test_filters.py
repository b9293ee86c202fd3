"""Filters of ``qsa parity`` over the parameters of cases, and the cases of a first look."""

import pytest

from qsa.parity import suite
from qsa.parity.running import filters


@pytest.fixture(scope="module")
def cases():
    return suite.collect([], "exact")


def test_values_of_one_parameter_are_alternatives_and_all_parameters_must_fit(cases):
    wanted = filters.wanted(["attend"], ["int8", "q4_0"], ["rows=4", "tail=3"])
    assert wanted == {"op": ["attend"], "format": ["int8", "q4_0"], "rows": ["4"], "tail": ["3"]}
    found = filters.chosen(cases, wanted)
    expected = [
        case
        for case in cases
        if case.recipe.get("op", case.recipe.get("family")) == "attend"
        and case.recipe.get("format") in ("int8", "q4_0")
        and (case.recipe.get("rows"), case.recipe.get("tail")) == (4, 3)
    ]
    assert found == expected and {case.recipe["format"] for case in found} == {"int8", "q4_0"}


def test_a_goldens_operation_is_its_family(cases):
    found = filters.chosen(cases, {"op": ["attend"], "format": ["int8"]})
    assert {case.module for case in found} == {"accuracy", "split", "pages", "goldens"}
    assert all("int8" in case.text and "attend" in case.text for case in found) and len(found) > 50


def test_without_filters_nothing_is_left_out(cases):
    assert filters.chosen(cases, filters.wanted([], [], [])) == cases


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"op": ["atend"]}, r"--op = 'atend': no case has it: there are .*append_kv, attend"),
        ({"format": ["int9"]}, "--format = 'int9': no case has it: there are fp16, int8"),
        ({"row": ["4"]}, "--where row: no case has the parameter 'row': there are .*rows"),
        ({"rows": ["11"]}, "--where rows = '11': no case has it: there are 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, "),
        ({"op": ["select"], "format": ["int8"]}, "op = select, format = int8: no case has all of these"),
    ],
)
def test_what_no_case_has_is_named_with_what_there_is(cases, wanted, message):
    with pytest.raises(ValueError, match=message):
        filters.chosen(cases, wanted)


@pytest.mark.parametrize("pair", ["rows", "rows=", "=4", ""])
def test_a_pair_has_a_key_and_a_value(pair):
    with pytest.raises(ValueError, match=r"--where = .*: must be key=value"):
        filters.wanted([], [], [pair])


@pytest.mark.parametrize("arithmetic", ["exact", "float"])
def test_a_first_look_has_all_of_the_operations_and_a_little_of_the_texts(arithmetic):
    first, everything = suite.collect([], arithmetic), suite.collect([], arithmetic, full=True)
    on_operations = suite.collect(suite.ON_OPERATIONS, arithmetic)
    assert first[: len(on_operations)] == on_operations
    texts = first[len(on_operations) :]
    counts = {name: sum(case.module == name for case in texts) for name in ("seven", "spec", "nll", "needle")}
    assert counts == {"seven": 3 if arithmetic == "exact" else 1, "spec": 0, "nll": 1, "needle": 1}
    for case in texts:
        assert suite.parse(case.text) == case
    # By its name a module is what it was, and everything is more.
    assert len(suite.collect(["seven"], arithmetic)) == (66 if arithmetic == "exact" else 1)
    named = {case.text for name in suite.MODULES for case in suite.collect([name], arithmetic)}
    assert named <= {case.text for case in everything}
