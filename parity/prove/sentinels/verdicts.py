"""The sentinels: each kernel with its case and its verdict."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...backend import Backend
from ...contract import Types
from ..patching import Check
from . import kernels, selections
from .kernels import ANYTHING, backend
from .sentinel import (
    ATTEND,
    CORNERS,
    FAILED,
    GATED,
    GOLDEN,
    INDEXER,
    KERNEL,
    KEYS,
    LITTLE,
    MUCH,
    OWN,
    OWN_STORED,
    PAGES,
    PASSED,
    ROWS,
    SCORES,
    SELECT,
    SPECIAL,
    SPLIT,
    STEP,
    STORED,
    UNSUPPORTED,
    Sentinel,
)
from .sentinel import exact_sentinel as _exact
from .sentinel import float_sentinel as _float
from .sentinel import remote_sentinel as _remote


def _buffers(stale: bool) -> Backend:
    return backend("float", attend=kernels.same_buffer(stale))


_TYPES = {"output": "bf16"}
_BF16 = Types(output="bf16")
_EVERY = {"domain": ANYTHING}


def _attention() -> dict[str, Sentinel]:
    """Attention: error bounds, bytes, pages, schedules, buffers."""
    right, exactly, off, changed = kernels.right, kernels.exactly, kernels.off, kernels.changed
    zeros = {"declaration": _EVERY, "attend": right}
    return {
        "float right": _float(ATTEND, PASSED, (KERNEL, 0.0, 0.1), attend=right),
        "float 0.8": _float(ATTEND, PASSED, (KERNEL, *LITTLE), attend=off(0.8)),
        "float 1.2": _float(ATTEND, FAILED, (KERNEL, *MUCH), attend=off(1.2)),
        "float one head 1.2": _float(ATTEND, FAILED, (KERNEL, *MUCH), attend=off(1.2, "head")),
        "float one element 1.2": _float(ATTEND, FAILED, (KERNEL, *MUCH), attend=off(1.2, "element")),
        "float one row 1.2": _float(ROWS, FAILED, (KERNEL, *MUCH), attend=off(1.2, "row")),
        "float total": _float(ATTEND, FAILED, ("attend: total", 0.9, 1.5), attend=off(3.0)),
        "float bf16 0.8": _float(
            ATTEND, PASSED, (KERNEL, *LITTLE), declaration={"types": _TYPES}, attend=off(0.8, types=_BF16)
        ),
        "float bf16 1.2": _float(
            ATTEND, FAILED, (KERNEL, *MUCH), declaration={"types": _TYPES}, attend=off(1.2, types=_BF16)
        ),
        "bf16 queries": _float(ATTEND, PASSED, declaration={"types": {"query": "bf16"}}, attend=_narrow_queries),
        "float one NaN": _float(ATTEND, FAILED, (KERNEL, np.inf, np.inf), attend=changed(right, _one_nan)),
        "float zeros": _float(ATTEND, FAILED, (KERNEL, 1e4, 1e9), attend=changed(right, np.zeros_like)),
        "float a row short": _float(ATTEND, FAILED, None, "shape and dtype", attend=changed(right, lambda x: x[:1])),
        "twice the output": _exact(ATTEND, FAILED, None, "a factor of 2 on", attend=changed(exactly, lambda x: 2 * x)),
        "exact right": _exact(ATTEND, PASSED, ("attend: bytes", 0, 0), attend=exactly),
        "exact 0.8": _exact(ATTEND, FAILED, (KERNEL, *LITTLE), attend=off(0.8)),
        "exact 1.2": _exact(ATTEND, FAILED, (KERNEL, *MUCH), attend=off(1.2)),
        "ceiling 0.8": _exact(ATTEND, FAILED, ("attend: ceiling", *LITTLE), attend=kernels.near_ceiling(0.8)),
        "ceiling 1.2": _exact(ATTEND, FAILED, ("attend: ceiling", *MUCH), attend=kernels.near_ceiling(1.2)),
        "exact one ULP": _exact(ATTEND, FAILED, ("attend: bytes", np.inf, np.inf), attend=changed(exactly, _one_ulp)),
        "exact one NaN": _exact(ATTEND, FAILED, attend=changed(exactly, _one_nan)),
        "exact float64": _exact(
            ATTEND, FAILED, None, "shape and dtype", attend=changed(exactly, lambda x: x.astype(np.float64))
        ),
        "exact flat": _exact(
            ATTEND, FAILED, None, "shape and dtype", attend=changed(exactly, lambda x: x.reshape(2, -1))
        ),
        "corners right": _exact(CORNERS, PASSED, attend=exactly),
        "corners numbers for NaN": _exact(CORNERS, FAILED, attend=changed(exactly, _no_nan)),
        "corners other zeros": _exact(
            CORNERS, FAILED, ("attend: corners", np.inf, np.inf), attend=changed(exactly, _zeros)
        ),
        "corners other NaN": _exact(CORNERS, FAILED, None, "bits of the NaN", attend=changed(exactly, _nan)),
        "errors raised": _float(ROWS, PASSED, attend=changed(right, lambda x: np.seterr(all="raise") and None)),
        "pages right": _float(PAGES.format(page=4, missing="middle"), PASSED, **zeros),
        "pages none": _float(PAGES.format(page=4, missing="all"), PASSED, **zeros),
        "pages none, something": _float(
            PAGES.format(page=4, missing="all"), FAILED, declaration=_EVERY, attend=changed(right, _little)
        ),
        "pages read beside": _float(
            PAGES.format(page=64, missing="none"), FAILED, declaration=_EVERY, attend=kernels.reads(kernels.beside)
        ),
        "ids read behind": _float(
            PAGES.format(page=64, missing="none"), FAILED, declaration=_EVERY, attend=kernels.reads(kernels.behind)
        ),
        "absent pages as zeros": _float(
            PAGES.format(page=4, missing="middle"), FAILED, declaration=_EVERY, attend=kernels.absent_as_zero
        ),
        "unused row computed": _float(
            PAGES.format(page=4, missing="none"), FAILED, declaration=_EVERY, attend=kernels.unused_as_first
        ),
        "step 0.8": _float(STEP, PASSED, ("attend: step", *LITTLE), attend=off(0.8, "step")),
        "step 1.2": _float(STEP, FAILED, ("attend: step", *MUCH), attend=off(1.2, "step")),
        "exact step one ULP": _exact(STEP, FAILED, ("attend: step", np.inf, np.inf), attend=_step_ulp),
        "wrong in every schedule": _exact(STEP, FAILED, ("attend: batch", np.inf, np.inf), attend=_all_ulp),
        "gated 0.8": _float(GATED, PASSED, ("attend_gated", *LITTLE), attend_gated=kernels.gated(6.58)),
        "gated 1.2": _float(GATED, FAILED, ("attend_gated", *MUCH), attend_gated=kernels.gated(9.87)),
        "one buffer": Sentinel(partial(_buffers, False), SPLIT, PASSED),
        "one stale buffer": Sentinel(partial(_buffers, True), SPLIT, FAILED),
        "written outside": _float(ATTEND, FAILED, None, "wrote outside its output", attend=kernels.outside),
    }


def _narrow_queries(q: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray) -> np.ndarray:
    if q.dtype == np.float32:
        raise TypeError("q: is float32: must be bf16, as declared")
    return kernels.right(q.astype(np.float32), kv, ids, steps)


def _one_nan(x: np.ndarray) -> None:
    x[0, 3, 9] = np.nan


def _little(x: np.ndarray) -> None:
    x[0, 3, 9] += 1e-9


def _no_nan(x: np.ndarray) -> np.ndarray:
    return np.nan_to_num(x, copy=True, nan=1.0)


def _nan(x: np.ndarray) -> None:
    x.view(np.uint32)[np.isnan(x)] ^= 1


def _zeros(x: np.ndarray) -> np.ndarray:
    return np.where(x == 0, -x, x)


def _one_ulp(x: np.ndarray) -> None:
    x[0, 3, 9] = np.nextafter(x[0, 3, 9], np.float32(np.inf))


@kernels.in_schedules
def _step_ulp(q: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray, slots: Any, schedule: str) -> np.ndarray:
    out = kernels.exactly(q, kv, ids, steps)
    if schedule == "step":
        _one_ulp(out)
    return out


@kernels.in_schedules
def _all_ulp(q: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray, slots: Any, schedule: str) -> np.ndarray:
    out = kernels.exactly(q, kv, ids, steps)
    out[...] = np.nextafter(out, np.float32(np.inf))
    return out


def _index() -> dict[str, Sentinel]:
    """Scores, pooled keys, storage, selection."""
    ties = {"declaration": {"ties": "lowest"}}
    scores, keys, selects, own = kernels.scores_off, kernels.keys_off, selections.selects, kernels.own_storage
    declared = {"storage_error": 0.01}
    narrow = {"types": {"kv": "bf16"}, "storage_error": 0.01}
    row, bf16 = "block_scores: row 0", {"declaration": {"types": {"index_scores": "bf16"}}}
    return {
        "scores right": _float(SCORES, PASSED, (row, 0.0, 0.5), block_scores=scores(0.0)),
        "scores 0.8": _float(SCORES, PASSED, (row, 0.65, 0.95), block_scores=scores(0.8)),
        "scores 1.2": _float(SCORES, FAILED, (row, 1.05, 1.35), block_scores=scores(1.2)),
        "exact scores 0.8": _exact(SCORES, PASSED, (row, 0.7, 0.9), block_scores=scores(-0.8)),
        "exact scores 1.2": _exact(SCORES, FAILED, (row, 1.1, 1.3), block_scores=scores(-1.2)),
        "scores NaN": _float(SCORES, FAILED, block_scores=_score_nan),
        "keys 0.8": _float(KEYS, PASSED, ("append_index: pooled", 0.65, 0.95), append_index=keys(0.8)),
        "keys 1.2": _float(KEYS, FAILED, ("append_index: pooled", 1.05, 1.35), append_index=keys(1.2)),
        "tail wrong": _float(KEYS, FAILED, ("append_index: tail", np.inf, np.inf), append_index=keys(0.0, "tail")),
        "dead key wrong": _float(KEYS, FAILED, ("append_index: dead", 99, 1e6), append_index=keys(0.0, "dead")),
        "stored right": _float(STORED, PASSED, ("append_kv: k", 0.87, 0.93), append_kv=kernels.scales_off(1.0)),
        "stored 1.002": _float(STORED, FAILED, ("append_kv: k", 1.1, 1.18), append_kv=kernels.scales_off(1.002)),
        "exact stored": _exact(STORED, FAILED, append_kv=kernels.scales_off(1.002)),
        "own storage 0.8": _float(OWN_STORED, PASSED, ("append: k", *LITTLE), declaration=declared, **own(0.8)),
        "own storage 1.2": _float(OWN_STORED, FAILED, ("append: k", *MUCH), declaration=declared, **own(1.2)),
        "own storage read": _float(OWN, PASSED, (KERNEL, 0.0, 0.5), declaration=narrow, **own(0.8)),
        "own storage written": _float(
            OWN, FAILED, ("attend: own storage", np.inf, np.inf), declaration=declared, **own(0.5, attend="write")
        ),
        "selected right": _float(SELECT, PASSED, ("select", 0, 0), select=selects(lambda *_: None)),
        "tie taken": _float(SELECT, PASSED, None, "tie 16, ", select=selects(selections.other_tie)),
        "tie declared lowest": _float(SELECT, FAILED, None, "row 0: tie", **ties, select=selects(selections.other_tie)),
        "exact tie": _exact(SELECT, FAILED, None, "tie", select=selects(selections.other_tie)),
        "a block that scores less": _float(SELECT, FAILED, None, "wrong", select=selects(selections.worst_block)),
        "a tie and a wrong block": _float(SELECT, FAILED, None, "wrong", select=selects(selections.tie_and_worse)),
        "a cell twice": _float(SELECT, FAILED, None, "selected twice", select=selects(selections.twice)),
        "a cell of the tail left out": _float(
            SELECT, FAILED, None, "of the tail is not selected", select=selects(selections.without_tail)
        ),
        "indexer 0.8": _float(INDEXER, PASSED, None, "rounding 24, wrong 0", **bf16, indexer=selections.indexer(0.8)),
        "indexer 1.2": _float(INDEXER, FAILED, None, "rounding 0, wrong 24", **bf16, indexer=selections.indexer(1.2)),
        "golden right": _exact(GOLDEN, PASSED, ("golden", 0, 0), select=selects(lambda *_: None)),
        "golden wrong": _exact(GOLDEN, FAILED, ("golden", np.inf, np.inf), select=selects(_swapped)),
    }


def _score_nan(q_idx: np.ndarray, index: Any, steps: np.ndarray) -> np.ndarray:
    out = kernels.scores_off(0.0)(q_idx, index, steps)
    out[0, 3] = np.nan
    return out


def _swapped(cells: np.ndarray, scores: np.ndarray, step: np.ndarray) -> None:
    cells[:2] = cells[1::-1]


def _refusals() -> dict[str, Sentinel]:
    """What is not declared is not called, what is refused is unsupported, what changes its inputs fails."""

    def never(*arguments: Any, **keywords: Any) -> Any:
        raise RuntimeError("called outside what is declared")

    def refuses(q: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray) -> Any:
        return False

    def lacks(q: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray) -> Any:
        raise NotImplementedError("no such heads here")

    def fails(q: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray) -> Any:
        raise RuntimeError("on purpose")

    def writes(what: str) -> Callable[..., np.ndarray]:
        def attend(q: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray) -> np.ndarray:
            out = kernels.right(q, kv, ids, steps)
            target = {"q": q, "pool": kv.pool.v.codes, "table": kv.table, "steps": steps}[what]
            target.setflags(write=True) if not target.flags.writeable and target.base is None else None
            target.reshape(-1)[-1] += 1
            return out

        return attend

    def limited(**declaration: Any) -> dict[str, Any]:
        return {"declaration": declaration, "attend": never}

    some = {name: dict(ANYTHING) | {name: False} for name in ANYTHING}
    first = PAGES.format(page=4, missing="first")
    return {
        "refused": _float(ATTEND, UNSUPPORTED, None, "without a reason", attend=refuses),
        "not implemented": _float(ATTEND, UNSUPPORTED, None, "no such heads", attend=lacks),
        "nothing offered": _float(ATTEND, UNSUPPORTED, None, "the backend has none", select=never),
        "an exception": _float(ATTEND, FAILED, None, "RuntimeError: on purpose", attend=fails),
        "no absent pages": _float(first, UNSUPPORTED, None, "absent_pages", **limited(domain=some["absent_pages"])),
        "no NaN": _float(SPECIAL, PASSED, declaration={"domain": some["nan"]}, block_scores=_finite_scores),
        "no long context": _float(ATTEND, UNSUPPORTED, None, "shapes.context", **limited(shapes={"context": 20})),
        "no such rows": _float(ATTEND, UNSUPPORTED, None, "shapes.rows", **limited(shapes={"rows": 1})),
        "no such heads": _float(ATTEND, UNSUPPORTED, None, "shapes.heads", **limited(shapes={"heads": [[8, 2]]})),
        "no such format": _float(ATTEND, UNSUPPORTED, None, "formats", **limited(formats=["fp16"])),
        "no such rule": _float(
            SELECT.replace("blocks", "cells"),
            UNSUPPORTED,
            None,
            "rules",
            declaration={"rules": ["blocks"]},
            select=never,
        ),
        "q changed": _float(ATTEND, FAILED, None, "changed its input q", attend=writes("q")),
        "pool changed": _float(ATTEND, FAILED, None, "changed its input kv.pool.v.codes", attend=writes("pool")),
        "table changed": _float(ATTEND, FAILED, None, "changed its input kv.table", attend=writes("table")),
    }


def _finite_scores(q_idx: np.ndarray, index: Any, steps: np.ndarray) -> np.ndarray:
    n_bid = int(steps[:, 2].max())
    if not np.isfinite(index.pooled[:n_bid]).all():
        raise RuntimeError("called with keys outside the domain that is declared")
    return kernels.scores_off(0.0)(q_idx, index, steps)


def _isolated() -> dict[str, Sentinel]:
    """Backends in a process of their own."""
    return {
        "child right": _remote("PlainKernel", OWN, PASSED),
        "child ends": _remote("Ends", OWN, FAILED, "ended with exit status 3"),
        "child hangs": _remote("Slow", OWN, FAILED, "no answer within 5 s"),
        "child changes its inputs": _remote("Changes", OWN, FAILED, "changed its input q"),
        "child refuses": _remote("Refuses", OWN, UNSUPPORTED, "not today"),
        "child raises": _remote("Raises", OWN, FAILED, "on purpose"),
    }


SENTINELS = _attention() | _index() | _refusals() | _isolated()
"""Name -> sentinel."""

CHECKS: dict[str, Check] = {name: sentinel.check for name, sentinel in SENTINELS.items()}
"""Name -> check of what the suite says about a sentinel."""
