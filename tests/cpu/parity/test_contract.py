"""The contract of a backend under test: float kernels held to bounds, forms of ids, refusals.

Rows J3, J4, J5 and J7 of the known faults are named where they are held.
"""

import functools
import types

import ml_dtypes
import numpy as np
import pytest

from qsa.parity import Unsupported, suite
from qsa.parity.backend import Backend
from qsa.parity.contract import UnsupportedError, rounded, unit
from qsa.parity.contract.ids import to_blocks, to_cells
from qsa.reference import exact, step_records
from qsa.reference.geometry import REAL
from support.float_kernel import FloatKernel
from support.judged import backend_of, failed, run

ATTEND = "accuracy:op=attend,format=own,scores=ordinary,context=500,rows=2,tail=2,seed=1"
SCORES = "accuracy:op=block_scores,context=1024,rows=2,tail=2,seed=6"
INDEXER = "selection:op=indexer,rule=blocks,context=3072,rows=3,tail=1,seed=4"
KEYS = "accuracy:op=append_index,context=66,seed=5"
TIES = "selection:op=select,rule=blocks,scores=equal,context=8192,rows=2,tail=3,seed=2"
LEVELS = "selection:op=select,rule=cells,scores=levels,context=8192,rows=2,tail=3,seed=2"


__all__ = ["backend_of"]  # a fixture is used by its name


# Float kernels


@pytest.mark.parametrize("text", [ATTEND, SCORES, INDEXER, KEYS, TIES, LEVELS])
def test_j3_a_float_kernel_of_thirty_lines_is_green(text, backend_of):
    """J3: no float kernel could be green: block scores and keys were held to bytes, exactness was the default."""
    backend = backend_of(FloatKernel())
    assert backend.arithmetic == "float"
    result = run(text, backend)
    assert result.status == "passed", "\n".join(result.lines(backend))


def test_j3_every_module_of_a_float_kernel_has_no_failure(backend_of):
    backend = backend_of(FloatKernel())
    cases = [case for case in suite.collect(["pages", "split"], "float", backend=backend)]
    results = [suite.run_case(case, backend) for case in cases]
    assert [result.case.text for result in results if result.status == "failed"] == []
    assert any(result.status == "passed" for result in results)


@pytest.mark.parametrize(
    ("text", "wrong", "word"),
    [
        (
            ATTEND,
            {"attend": lambda right, q, kv, ids, steps: right(q, kv, ids, steps - [0, 0, 0, 1])},
            "attend: kernel",
        ),
        (ATTEND, {"attend": lambda right, *given: right(*given) * np.float32(1.0001)}, "attend: kernel"),
        (ATTEND, {"attend": lambda right, *given: np.roll(right(*given), 1, axis=1)}, "attend: kernel"),
        (SCORES, {"block_scores": lambda right, *given: right(*given) * np.float32(1.0001)}, "block_scores: row 0"),
        (KEYS, {"index_read": lambda right, *given: right(*given) * np.float32(1.001)}, "index_append: pooled"),
        (LEVELS, {"select": lambda right, scores, steps, rule: right(-scores, steps, rule)}, "wrong"),
    ],
)
def test_j3_its_wrong_twins_are_not(text, wrong, word, backend_of):
    kernel = FloatKernel()
    for name, change in wrong.items():
        right = getattr(kernel, name)
        setattr(kernel, name, functools.wraps(right)(functools.partial(change, right)))
    failed(text, backend_of(kernel), word)


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
@pytest.mark.parametrize("scores", ["flat", "ordinary", "peaked"])
def test_j4_outputs_of_a_narrow_type_are_held_to_bounds_of_that_type(kind, scores, backend_of):
    """J4: bf16 outputs were 7,000 times over the bound though right to their type."""
    text = f"accuracy:op=attend,format=own,scores={scores},context=600,rows=2,tail=1,seed=1"
    types_ = dict.fromkeys(("query", "kv", "scores", "weights", "output"), kind)

    class Narrow(FloatKernel):
        def __init__(self):
            self.declaration = {"types": types_}

        def append(self, cache, k, v, positions):
            super().append(cache, rounded(k, kind), rounded(v, kind), positions)

        def attend(self, q, kv, ids, steps):
            assert q.dtype == {"bf16": ml_dtypes.bfloat16, "fp16": np.float16}[kind]
            return super().attend(q.astype(np.float32), kv, ids, steps).astype(q.dtype)

    right = run(text, backend_of(Narrow()))
    assert right.status == "passed" and right.worst.bound < 200 * unit(kind), right

    class Off(Narrow):
        def attend(self, q, kv, ids, steps):
            return (super().attend(q, kv, ids, steps).astype(np.float32) * np.float32(1 + 60 * unit(kind))).astype(
                q.dtype
            )

    if scores == "flat":
        failed(text, backend_of(Off()), "attend: kernel")
    # A kernel that keeps the secret of its types is held to float32.
    secret = Narrow()
    secret.declaration = {"types": {"query": kind}}
    assert run(text, backend_of(secret)).status == "failed"


@pytest.mark.parametrize("missing", ["page=512,order=identity,missing=first", "page=4,order=identity,missing=all"])
def test_an_append_without_a_resident_page_is_held_in_float_by_the_host_s_copy(missing):
    result = run(f"pages:op=append_kv,format=int8,{missing},rows=21,seed=3", Backend("cpu", "float"))
    assert result.status == "passed", result


# Ids


class Ties(FloatKernel):
    """Ties go to the higher index."""

    def select(self, scores, steps, rule):
        flipped = []
        for row, (_, n_kv, n_bid, width) in zip(scores, steps.tolist(), strict=True):
            order = np.argsort(-row[:n_bid][::-1], kind="stable")
            blocks = (n_bid - 1 - order)[:513]
            cells = (blocks[:, None] * 4 + np.arange(4)).ravel()
            flipped.append(np.concatenate([np.arange(n_bid * 4, n_kv), cells])[:width])
        return flipped


@pytest.mark.parametrize("text", [TIES, LEVELS])
def test_j5_a_tie_is_a_failure_only_where_lowest_is_declared(text, backend_of):
    """J5: a tie broken otherwise was classified as a tie and still failed."""
    result = run(text, backend_of(Ties()))
    assert result.status == "passed" and result.worst.figures["tie"] >= 0
    lowest = Ties()
    lowest.declaration = {"ties": "lowest"}
    failed(text, backend_of(lowest), "ties go to the lower index, as declared")


FORMS = {
    "unsorted": lambda rows: [row[::-1] for row in rows],
    "int64": lambda rows: [row.astype(np.int64) for row in rows],
    "uint16": lambda rows: [row.astype(np.uint16) for row in rows],
    "padded": lambda rows: np.array([np.r_[row, np.full(3000 - len(row), -7)] for row in rows], np.int64),
    "padded first": lambda rows: np.array([np.r_[np.full(3000 - len(row), -1), row] for row in rows], np.int32),
    "garbage behind": lambda rows: np.array([np.r_[row, np.full(3000 - len(row), 1 << 30)] for row in rows]),
    "narrow": lambda rows: np.array([row[: min(map(len, rows))] for row in rows]),
}


@pytest.mark.parametrize("form", FORMS)
def test_j5_every_form_of_ids_is_taken(form, backend_of):
    """J5: unsorted ids, int64 ids, a narrower array and other padding failed."""
    text = "selection:op=select,rule=blocks,scores=continuous,context=8192,rows=1,tail=1,seed=2"

    class Formed(FloatKernel):
        def select(self, scores, steps, rule):
            return FORMS[form](super().select(scores, steps, rule))

    backend = backend_of(Formed())
    result = run(text, backend)
    assert result.status == "passed", "\n".join(result.lines(backend))


@pytest.mark.parametrize("rule", ["blocks", "cells"])
def test_j5_block_ids_are_taken_where_declared(rule, backend_of):
    text = f"selection:op=select,rule={rule},scores=continuous,context=8192,rows=2,tail=1,seed=2"

    class Blocks(FloatKernel):
        def __init__(self):
            self.declaration = {"ids": "blocks", "rules": ["blocks"]}

        def select(self, scores, steps):
            return np.argsort(-scores[:, : steps[:, 2].min()])[:, :512]

    result = run(text, backend_of(Blocks()))
    assert result.status == ("passed" if rule == "blocks" else "unsupported")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda row: np.r_[row[:-1], row[:1]], "selected twice"),
        (lambda row: row[:-1], "-1 among the first"),
        (lambda row: np.r_[row[:-1], 1 << 20], "among the first"),
        (lambda row: np.r_[row[1:], 1500], "tail"),
    ],
)
def test_a_selection_that_is_malformed_fails_whatever_its_ties(change, word, backend_of):
    class Wrong(FloatKernel):
        def select(self, scores, steps, rule):
            return [change(row) for row in super().select(scores, steps, rule)]

    failed("selection:op=select,rule=blocks,scores=equal,context=8192,rows=2,tail=1,seed=2", backend_of(Wrong()), word)


def test_to_blocks_and_back():
    steps = step_records([4098, 41])
    ids = np.full((2, REAL.max_width), -1, np.int32)
    ids[0, :2051] = np.r_[np.arange(2048) * 1 + 1024, 4096, 4097, 4098]
    ids[1, :42] = np.arange(42)
    blocks = to_blocks(ids, steps)
    assert blocks[0].tolist() == list(range(256, 768)) and blocks[1, :11].tolist() == [*range(10), -1]
    assert (to_cells(list(blocks), steps, "blocks") == ids).all()
    with pytest.raises(UnsupportedError, match="not whole blocks"):
        to_blocks(ids[:1] + 1, steps[:1])


# Refusals


def refusing(result):
    def attend(q, kv, ids, steps):
        if isinstance(result, Exception):
            raise result
        return result

    return attend


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Unsupported("attend: not on Tuesdays"), "not on Tuesdays"),
        (NotImplementedError("only sm_90"), "only sm_90"),
        (NotImplementedError(), "NotImplementedError without a reason"),
        (False, "returned False, without a reason"),
        (np.False_, "returned False, without a reason"),
    ],
)
def test_j7_three_ways_to_refuse_mean_unsupported(answer, reason, backend_of):
    """J7: NotImplementedError counted as failed, a bare False gave `no reason given`."""
    kernel = FloatKernel()
    kernel.attend = refusing(answer)
    result = run(ATTEND, backend_of(kernel))
    assert (result.status, reason in result.reason) == ("unsupported", True), result


@pytest.mark.parametrize("policy", ["raise", "ignore"])
def test_j7_an_error_policy_of_the_backend_changes_nothing_for_the_judge(policy, backend_of):
    """J7: numpy.seterr of a backend broke the suite's own corner case."""
    right = Backend("exact")
    text = "accuracy:op=corners,format=int8,rows=3,seed=7"

    def attend(q, kv, ids, steps):
        found = exact.attend(q, kv, ids, steps)
        np.seterr(all=policy)
        return found

    before = np.geterr()
    kernel = types.SimpleNamespace(attend=attend, declaration={"arithmetic": "exact"})
    assert run(text, backend_of(kernel)).status == run(text, right).status == "passed"
    assert np.geterr() == before
    np.seterr(all="raise")
    try:
        assert run(text, right).status == "passed"
    finally:
        np.seterr(**before)
