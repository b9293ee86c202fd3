"""Attention that takes two neighbouring rows together where most of their cells are the same, as a window's rows are,
and mixes them up. Rows that have little in common it takes one by one, and rightly."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..mutant import EXACT, Right, mutant
from .attention_arithmetic import staged
from .changes import but, kv_of

SHARED = "a pass that neighbouring rows share"


def _selected(a: Any, row: int) -> np.ndarray:
    """The ids of a row, absent ones left out."""
    ids = a.ids[row, : a.steps[row, 3]]
    return ids[ids >= 0]


def _pairs(a: Any) -> Iterator[tuple[int, int]]:
    """Neighbouring rows of one slot that have half of their cells in common or more."""
    for row in range(0, len(a.q) - 1, 2):
        one, other = _selected(a, row), _selected(a, row + 1)
        least = min(len(one), len(other))
        if least and kv_of(a, row) is kv_of(a, row + 1) and 2 * len(np.intersect1d(one, other)) >= least:
            yield row, row + 1


def _with_rows(a: Any, changed: dict[int, np.ndarray]) -> Any:
    """The arguments ``a`` with other ids of some rows, of which there may be more than there were."""
    cap = max([a.ids.shape[1], *(len(ids) for ids in changed.values())])
    ids, steps = np.full((len(a.ids), cap), -1, np.int32), a.steps.copy()
    ids[:, : a.ids.shape[1]] = a.ids
    for row, found in changed.items():
        ids[row], steps[row, 3] = -1, len(found)
        ids[row, : len(found)] = found
    return but(a, ids=ids, steps=steps)


@mutant("attend", "rows that share a pass: a cell of one row has a weight in both", SHARED)
def _union(right: Right, a: Any) -> Any:
    changed = {}
    for row, other in _pairs(a):
        changed[row] = changed[other] = np.union1d(_selected(a, row), _selected(a, other))
    return right(_with_rows(a, changed))


@mutant("attend", "rows that share a pass: the second has the cells of the first alone too", SHARED)
def _first_into_second(right: Right, a: Any) -> Any:
    changed = {other: np.union1d(_selected(a, row), _selected(a, other)) for row, other in _pairs(a)}
    return right(_with_rows(a, changed))


@mutant("attend", "rows that share a pass: the cells of the second row alone are left out", SHARED)
def _second_cut(right: Right, a: Any) -> Any:
    changed = {other: np.intersect1d(_selected(a, row), _selected(a, other)) for row, other in _pairs(a)}
    return right(_with_rows(a, changed))


@mutant("attend", "rows that share a pass: the last of the second row's own cells is left out", SHARED)
def _one_cut(right: Right, a: Any) -> Any:
    changed = {}
    for row, other in _pairs(a):
        ids = _selected(a, other)
        own = np.flatnonzero(~np.isin(ids, _selected(a, row)))
        changed[other] = np.delete(ids, own[-1:])
    return right(_with_rows(a, changed))


@mutant("attend", "rows that share a pass: what the first row has twice counts twice in the second", SHARED)
def _twice_in_both(right: Right, a: Any) -> Any:
    changed = {}
    for row, other in _pairs(a):
        one, ids = _selected(a, row), _selected(a, other)
        values, counts = np.unique(one, return_counts=True)
        changed[other] = np.concatenate([ids, np.intersect1d(values[counts > 1], ids)])
    return right(_with_rows(a, changed))


@mutant("attend", "rows that share a pass: the second has the scores of the first's query", SHARED)
def _one_query(right: Right, a: Any) -> Any:
    q = a.q.copy()
    for row, other in _pairs(a):
        q[other] = q[row]
    return right(but(a, q=q))


@mutant("attend", "rows that share a pass: a NaN in one row's query makes both NaN", SHARED)
def _both_poisoned(right: Right, a: Any) -> Any:
    out = right(a)
    for row, other in _pairs(a):
        bad = ~np.isfinite(a.q[[row, other]]).all(axis=-1).all(axis=0)
        out[row, bad] = out[other, bad] = np.nan
    return out


@mutant("attend", "rows that share a pass: maxima over the cells of both rows", SHARED, EXACT)
def _joint_maxima(right: Right, a: Any) -> Any:
    out = right(a)
    for row, other in _pairs(a):
        both = np.union1d(_selected(a, row), _selected(a, other))
        for one in (row, other):
            part = but(
                a,
                q=a.q[one : one + 1],
                kv=kv_of(a, one),
                slots=None,
                ids=a.ids[one : one + 1],
                steps=a.steps[one : one + 1],
            )
            out[one] = staged(part, top=_maxima_over(part, both))[0]
    return out


def _maxima_over(part: Any, cells: np.ndarray) -> Any:
    """A hook that takes the maxima over ``cells`` instead of the row's own."""

    def top(highest: Any, s: Any, found: Any) -> Any:
        steps = part.steps.copy()
        steps[0, 3] = len(cells)
        wider = but(part, ids=cells[None].astype(np.int32), steps=steps)
        kept = []

        def keep(of: Any, *rest: Any) -> Any:
            kept.append(of)
            return of

        staged(wider, top=keep)
        return kept[0]

    return top
