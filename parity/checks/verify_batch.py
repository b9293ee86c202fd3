"""``verify-batch``: batch windows over several slots, as verification of drafts runs them.

``window``: the scores, selected cells and attention of a window of slots x rows, against hashes made by the reference
(15 windows, so 45 hashes under each rule), the reference itself, calls of one row each, and the step kernel.
``scores``: 1 to 8 rows of one slot against one call per row. ``draft``: the draft layer's call, one row over the last
32,768 cells given as ids, against the step kernel and the reference.

Every case runs in four passes: ``standing``, with the kernels' switches at 0; ``switches``, with
``STRATA_QSA_TOPK_SCAN``, ``STRATA_QSA_SCORES_TRANSPOSED`` and ``STRATA_ATTN_MERGE_ACTIVE`` at 1; ``auto``, with all of
them unset; ``schedules``, in every schedule that the backend offers. The operations get the reference's own scores and
ids, so that one which fails does not fail the next. The float arithmetic is in ``float_window.py``.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from qsa.golden import inputs
from qsa.golden.families import verify_batch as family
from qsa.golden.families.attend import paged
from qsa.golden.families.block_scores import seen
from qsa.kernels.ops import MAX_SPLITS
from qsa.kernels.ops import OPERATIONS as TABLE
from qsa.reference import exact
from qsa.reference.geometry import REAL, RULES, step_records
from qsa.reference.index import Index
from qsa.reference.kv import PagedKV

from ..backend import Backend, UnsupportedError
from ..compare.comparison import Comparison, equal
from ..compare.localise import explain
from . import float_window
from .verify_window import AXES, check_window, switched

PASSES = ("standing", "switches", "auto", "schedules")

DRAFT_CELLS = 32768
"""Cells of the draft layer's window: 512 chunks of 64."""

OPERATIONS = {
    "window": {"pass": PASSES, **family.ALLOWED},
    "scores": {"pass": PASSES, "context": family.ALLOWED["context"], "seed": family.ALLOWED["seed"]},
    "draft": {"pass": PASSES, "context": family.ALLOWED["context"], "seed": family.ALLOWED["seed"]},
}


def cases(arithmetic: str, backend: Backend | None = None) -> Iterator[dict[str, Any]]:
    """The recipes of every case: a window's passes one after the other, as they share its inputs."""
    for context in family.CONTEXTS:
        for slots, rows in family.WINDOWS:
            for rule in RULES:
                window = {"slots": slots, "rows": rows, "context": context, "rule": rule, "seed": 7}
                yield from ({"op": "window", "pass": name, **window} for name in PASSES)
        for op in ("scores", "draft"):
            yield from ({"op": op, "pass": name, "context": context, "seed": 7} for name in PASSES)


def check(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """The comparisons of one case."""
    checks = _CHECKS if backend.arithmetic == "exact" else _FLOAT_CHECKS
    found, refused = checks[recipe["op"]](backend, recipe)
    if not found:
        raise UnsupportedError(refused[0] if refused else "window: the backend has none of its operations")
    return [found[0].noted(*(f"not offered: {text}" for text in refused)), *found[1:]]


# Scores of 1 to 8 rows


@lru_cache(maxsize=1)
def _rows(context: int, seed: int) -> tuple[np.ndarray, Index, np.ndarray, np.ndarray]:
    """(q_idx [8, 4, 128], Index, steps [8, 4], scores by the reference) of the last 8 rows of one slot."""
    index = family.index_of(family.slot_seed(seed, 0), context)
    q_idx = inputs.bell(seed, "verify_batch.rows", family.MAX_ROWS, REAL.idx_heads * REAL.idx_dim)
    q_idx = q_idx.reshape(-1, REAL.idx_heads, REAL.idx_dim)
    steps = step_records(np.arange(context - family.MAX_ROWS, context))
    return q_idx, index, steps, seen(exact.block_scores(q_idx, index, steps), steps)


def _scores(backend: Backend, recipe: dict[str, Any]) -> tuple[list[Comparison], list[str]]:
    """(comparisons, refusals) of scores of 1 to 8 rows against one call per row."""
    q_idx, index, steps, right = _rows(recipe["context"], recipe["seed"])
    schedules: tuple[str | None, ...] = TABLE["block_scores"].schedules if recipe["pass"] == "schedules" else (None,)
    found: list[Comparison] = []
    refused: list[str] = []

    def call(rows: slice, schedule: str | None) -> np.ndarray:
        return seen(backend.block_scores(q_idx[rows], index, steps[rows], schedule=schedule), steps[rows])

    with switched(recipe):
        single = np.concatenate([call(slice(row, row + 1), None) for row in range(len(q_idx))])
        for schedule in schedules:
            for rows in range(1, len(q_idx) + 1):
                label = f"scores: {rows} rows{f', {schedule}' if schedule else ''} against one call per row"
                try:
                    got = call(slice(rows), schedule)
                except UnsupportedError as unsupported:
                    refused.append(f"{rows} rows: {unsupported}")
                    continue
                found.append(equal(label, single[:rows], got, AXES["scores"]))
    if found:
        found = [equal("scores: one call per row", right, single, AXES["scores"]), *found]
    return found, refused


# The draft call


@lru_cache(maxsize=1)
def _draft_inputs(context: int, seed: int) -> tuple[np.ndarray, PagedKV, np.ndarray, np.ndarray, np.ndarray]:
    """(q [1, 24, 256], PagedKV, ids [1, n], steps [1, 4], attention by the reference): one row over its last cells."""
    ids = np.arange(max(0, context - DRAFT_CELLS), context, dtype=np.int32)[None]
    kv = paged({"format": "int8", "page": 4, "seed": seed}, ids[0].astype(np.int64), context)
    steps = step_records([context - 1])
    steps[:, 3] = ids.shape[1]
    q = inputs.bell(seed, "verify_batch.draft", 1, REAL.n_head * REAL.head_dim, 2.0)
    q = q.reshape(1, REAL.n_head, REAL.head_dim)
    return q, kv, ids, steps, exact.attend(q, kv, ids, steps)


def _draft(backend: Backend, recipe: dict[str, Any]) -> tuple[list[Comparison], list[str]]:
    """(comparisons, refusals) of the draft layer's call."""
    q, kv, ids, steps, right = _draft_inputs(recipe["context"], recipe["seed"])
    found: list[Comparison] = []
    refused: list[str] = []
    for schedule in _draft_schedules(recipe):
        keywords: dict[str, Any] = {"splits": MAX_SPLITS} if schedule == "split" else {}
        try:
            with switched(recipe):
                got = backend.attend(q, kv, ids, steps, schedule=schedule, **keywords)
        except UnsupportedError as unsupported:
            refused.append(str(unsupported))
            continue
        found.append(equal(f"draft: {schedule} against the reference", right, got))
        if not found[-1].passed:
            arguments = SimpleNamespace(q=q, kv=kv, ids=ids, steps=steps)
            found[-1] = found[-1].noted(*explain(backend, arguments, right, got))
    return found, refused


def _draft_schedules(recipe: dict[str, Any]) -> tuple[str, ...]:
    return TABLE["attend"].schedules if recipe["pass"] == "schedules" else ("batch", "step")


# The float arithmetic


def _float_scores(backend: Backend, recipe: dict[str, Any]) -> tuple[list[Comparison], list[str]]:
    q_idx, index, steps, _ = _rows(recipe["context"], recipe["seed"])
    return float_window.check_scores(backend, q_idx, index, steps, recipe)


def _float_draft(backend: Backend, recipe: dict[str, Any]) -> tuple[list[Comparison], list[str]]:
    q, kv, ids, steps, _ = _draft_inputs(recipe["context"], recipe["seed"])
    arguments = SimpleNamespace(q=q, kv=kv, ids=ids, steps=steps)
    return float_window.check_draft(backend, arguments, recipe, _draft_schedules(recipe))


_CHECKS: dict[str, Callable[[Backend, dict[str, Any]], tuple[list[Comparison], list[str]]]] = {
    "window": check_window,
    "scores": _scores,
    "draft": _draft,
}

_FLOAT_CHECKS: dict[str, Callable[[Backend, dict[str, Any]], tuple[list[Comparison], list[str]]]] = {
    "window": float_window.check_window,
    "scores": _float_scores,
    "draft": _float_draft,
}
