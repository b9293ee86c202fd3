"""Faults that look like no simple mistake, in kernels without taps: the judge calls them again with less, and says what
matters."""

import numpy as np
import pytest

from qsa.parity import suite
from qsa.parity.contract import UnsupportedError
from qsa.parity.prove.mutant import backend_of

CASE = "accuracy:op=attend,format={},scores=ordinary,context=300,rows=2,tail=2,seed=1"


def scrambled(out):
    """Another result, which no simple mistake gives."""
    return out * (1 + np.sin(np.arange(out.size, dtype=np.float32)).reshape(out.shape) / 4)


def rows_of(a):
    return [a.ids[row, : a.steps[row, 3]] for row in range(len(a.q))]


def only(when):
    """A kernel whose rows are scrambled for which ``when(ids, a)`` holds."""

    def change(right, a):
        out = right(a)
        for row, ids in enumerate(rows_of(a)):
            if when(ids, a):
                out[row] = scrambled(out[row])
        return out

    return change


def heads(right, a):
    out = right(a)
    out[:, 3:6] = scrambled(out[:, 3:6])
    return out


def group(right, a):
    out = right(a)
    return scrambled(out) if a.q[..., 128:192].any() else out


def first_call(right, a):
    a.memory["calls"] = a.memory.get("calls", 0) + 1
    return scrambled(right(a)) if a.memory["calls"] == 1 else right(a)


FAULTS = {
    "depends on earlier calls": (first_call, "int8", ["schedule, earlier calls or chance matter"]),
    "depends on other rows": (
        only(lambda ids, a: len(a.q) > 1), "int8", ["alone is right: it depends on the other rows of the call"]
    ),
    "some heads": (heads, "int8", ["alone is wrong too, in heads 3 to 5 of 24"]),
    "pages of four": (
        only(lambda ids, a: a.kv.pool.page_size == 4), "q4_0", ["right with a page for every cell, in order"]
    ),
    "one cell": (
        only(lambda ids, a: 77 in ids), "int8",
        ["right over the first 77 cells of the selection, wrong with the next, cell 77, in page 19", "alone is wrong"],
    ),
    "more cells than a tile": (
        only(lambda ids, a: len(ids) > 128), "k8v4",
        ["right over the first 128, a multiple of 128, cells of the selection", "that cell alone is right"],
    ),
    "every cell": (only(lambda ids, a: True), "int8", ["every head", "wrong over the first selected cell alone, 0"]),
    "one group of K": (group, "int8", ["scores of K groups 2 alone make it wrong, of 4"]),
}  # fmt: skip


@pytest.mark.parametrize("arithmetic", ["exact", "float"])
@pytest.mark.parametrize("fault", FAULTS)
def test_what_matters_is_named(fault, arithmetic):
    change, format, words = FAULTS[fault]
    backend = backend_of(arithmetic, {"attend": change})
    result = suite.run_case(suite.parse(CASE.format(format)), backend)
    report = "\n".join(result.lines(backend))
    assert result.status == "failed" and "consistent with none" in report, report
    for word in words:
        assert word in report, report


def test_a_simple_mistake_and_a_right_kernel_are_not_called_again():
    calls = []

    def zeros(right, a):
        calls.append(0)
        return right(a) * 0

    result = suite.run_case(suite.parse(CASE.format("int8")), backend_of("float", {"attend": zeros}))
    assert result.status == "failed" and len(calls) == 1
    assert "by experiment" not in "\n".join(result.lines(None))


@pytest.mark.parametrize("error", [ZeroDivisionError, UnsupportedError])
def test_a_kernel_that_fails_with_less_keeps_its_verdict(error):
    def fails(right, a):
        if len(a.q) == 1:
            raise error("no single rows")
        return scrambled(right(a))

    result = suite.run_case(suite.parse(CASE.format("int8")), backend_of("float", {"attend": fails}))
    report = "\n".join(result.lines(None))
    assert result.status == "failed" and result.comparisons
    assert ("a call with less ended with ZeroDivisionError" in report) == (error is ZeroDivisionError)
