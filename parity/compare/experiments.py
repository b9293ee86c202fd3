"""Where an attention without taps goes wrong, by experiment: the judge calls it again with less, and says what matters.

The row alone, then with other pages, then over fewer cells (halving between a selection that is right and one that is
wrong), then with one group of the query's dims at a time. Every statement is about calls that were made, and each of
them is held to truth; it is a place, not a proof of a cause.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from qsa.reference import exact
from qsa.reference.attend import attend
from qsa.reference.formats import GROUP
from qsa.reference.kv import PagedKV, Pool

from ..contract.kernel import UnsupportedError
from ..contract.storage import OwnKV
from .comparison import relative_error
from .twin import attention_bound, paged

GROUP_DIMS = 64
"""Dims of a group where the coding has no scales."""


def experiments(backend: Any, w: Any, row: int) -> tuple[str, ...]:
    """Lines about a row that is wrong; none where nothing could be tried.

    w  the arguments of the call as attributes ``q``, ``kv``, ``ids``, ``steps``
    """
    lines: list[str] = []
    try:
        for line in _tried(backend, w, row):
            lines.append(f"by experiment: {line}")
    except UnsupportedError:
        pass
    except Exception as error:
        # An experiment is a help, no part of the verdict.
        lines.append(f"by experiment: a call with less ended with {type(error).__name__}: {error}")
    return tuple(lines)


def _tried(backend: Any, w: Any, row: int) -> Iterator[str]:
    own = SimpleNamespace(q=w.q[[row]], kv=w.kv, ids=w.ids[[row]], steps=w.steps[[row]])
    if not _wrong(backend, w)[row].any():
        yield "the same call again, in the standing schedule, is right: schedule, earlier calls or chance matter"
        return
    heads = np.flatnonzero(_wrong(backend, own)[0])
    if not len(heads):
        yield f"row {row} alone is right: it depends on the other rows of the call"
        return
    total = w.q.shape[1]
    which = "every head" if len(heads) == total else f"heads {_short(heads)} of {total}"
    yield f"row {row} alone is wrong too, in {which}"
    if not isinstance(w.kv, OwnKV):
        yield from _pages(backend, own)
    if backend.declaration.attend_ids == "cells":
        yield from _cells(backend, own)
    yield from _groups(backend, own)


def _wrong(backend: Any, w: Any) -> np.ndarray:
    """Which heads of a call are wrong, bool [rows, heads]."""
    got = backend.attend(w.q, w.kv, w.ids, w.steps)
    if backend.arithmetic == "exact":
        right = exact.attend(w.q, w.kv, w.ids, w.steps)
        return np.asarray(((got != right) & ~(np.isnan(got) & np.isnan(right))).any(axis=-1))
    truth = attend(w.q, paged(w.kv), w.ids, w.steps)
    bound, _ = attention_bound(w, truth, backend.declaration.types)
    return ~(relative_error(truth, got) <= bound)


def _short(numbers: np.ndarray) -> str:
    """``numbers``, ascending, as ranges: 0 to 3, 7."""
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


def _pages(backend: Any, own: Any) -> Iterator[str]:
    """The same cells one to a page and in order."""
    sizes = backend.declaration.shapes.page_sizes
    if own.kv.pool.page_size == 1 or (sizes is not None and 1 not in sizes):
        return
    ids = own.ids[0, : int(own.steps[0, 3])]
    cells = np.unique(ids[ids >= 0])
    physical, at = own.kv.locate(cells)
    cells, physical, at = (x[physical >= 0] for x in (cells, physical, at))
    table = np.full(own.kv.capacity, -1, np.int32)
    table[cells] = np.arange(len(cells))
    pool = Pool(own.kv.pool.format, max(1, len(cells)), 1, own.kv.pool.geometry)
    for side, given in ((pool.k, own.kv.pool.k), (pool.v, own.kv.pool.v)):
        side.codes[: len(cells), :, 0] = given.codes[physical, :, at]
        side.scale[: len(cells), :, 0] = given.scale[physical, :, at]
    if not _wrong(backend, SimpleNamespace(**{**vars(own), "kv": PagedKV(pool, table)})).any():
        yield f"right with a page for every cell, in order: pages of {own.kv.pool.page_size} are read wrongly"


def _over(own: Any, ids: np.ndarray) -> Any:
    """The row over the cells ``ids`` alone."""
    steps, row = own.steps.copy(), np.full_like(own.ids, -1)
    steps[0, 3], row[0, : len(ids)] = len(ids), ids
    return SimpleNamespace(q=own.q, kv=own.kv, ids=row, steps=steps)


def _cells(backend: Any, own: Any) -> Iterator[str]:
    """Fewer cells, from the first on."""
    ids = own.ids[0, : int(own.steps[0, 3])]

    def wrong(some: np.ndarray) -> bool:
        return bool(_wrong(backend, _over(own, some)).any())

    if len(ids) < 2:
        return
    if wrong(ids[:1]):
        alone = [cell for cell in ids[[len(ids) // 2, -1]] if not wrong(np.array([cell]))]
        others = f"; cell {alone[0]} alone is right" if alone else ", as over others"
        yield f"wrong over the first selected cell alone, {ids[0]}{others}"
        return
    right, bad = 1, len(ids)
    while bad - right > 1:
        middle = (right + bad) // 2
        right, bad = (right, middle) if wrong(ids[:middle]) else (middle, bad)
    size = paged(own.kv).pool.page_size
    page = "" if isinstance(own.kv, OwnKV) else f", in page {ids[right] // size}"
    said = "wrong" if wrong(ids[right : right + 1]) else "right"
    multiple = next((f", a multiple of {size}," for size in (256, 128, 64, 32, 16) if right % size == 0), "")
    yield (
        f"right over the first {right}{multiple} cells of the selection, wrong with the next, cell {ids[right]}{page}; "
        f"that cell alone is {said}"
    )


def _groups(backend: Any, own: Any) -> Iterator[str]:
    """The query in one group of dims, 0 in the others: the scores are those of that group."""
    coding = paged(own.kv).pool.k.coding
    if coding == "q4_0":
        # The rotation mixes all dims.
        return
    size, dim = GROUP.get(coding, GROUP_DIMS), own.q.shape[-1]
    bad = []
    for group in range(dim // size):
        q = np.zeros_like(own.q)
        at = slice(group * size, (group + 1) * size)
        q[..., at] = own.q[..., at]
        if _wrong(backend, SimpleNamespace(**{**vars(own), "q": q})).any():
            bad.append(group)
    if len(bad) < dim // size:
        which = f"of K groups {_short(np.array(bad))} alone" if bad else "of no K group alone"
        yield f"scores {which} make it wrong, of {dim // size}"
