"""Which simple mistakes (``causes.py``) a wrong output of attention is consistent with.

Those are named that are as near to the output as rounding allows. It is a hint, not a proof: two mistakes may give one
output.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from qsa.reference.formats import GROUP

from ..contract.number_types import NUMBER_TYPES, rounded
from .causes import FAMILIES, Candidates, Head
from .ranges import left_out_or_doubled

CLOSE = 1e-4
"""Relative distance within which an output counts as consistent with a mistake: far above rounding, far below the
effect of the mistakes on ordinary inputs."""

EXPLAINED = 0.25
"""Share of the error that a cause may leave unexplained."""

SHOWN = 3
"""Causes that a failure names at most, where several fit equally well."""


def _off(a: np.ndarray, b: np.ndarray) -> float:
    """The norm of a - b; infinite where only one of them has a NaN or an infinity."""
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return np.inf
    finite = np.isfinite(a)
    return float(np.linalg.norm(a[finite] - b[finite]))


def likely(
    w: Any, row: int, head: int, expected: np.ndarray, got: np.ndarray, tolerance: float = CLOSE, output: str = ""
) -> str | None:
    """The simple mistakes that give ``got`` [rows, heads, dim] at ``row`` and ``head``, or None.

    tolerance  relative distance that rounding alone may have: :data:`CLOSE`, or the bound of a narrower type
    output     the declared type of the output: that one is no mistake
    """
    right, wrong = expected[row, head].astype(np.float64), got[row, head].astype(np.float64)
    with np.errstate(all="ignore"):
        found = _plain(expected, got, row, head, output)
        return found or _searched(w, row, head, expected, got, right, wrong, max(tolerance, CLOSE))


def _plain(expected: np.ndarray, got: np.ndarray, row: int, head: int, output: str) -> str | None:
    """Causes that can be told from the outputs alone."""
    wrong = got[row, head].astype(np.float64)
    if not wrong.any():
        return "zeros: nothing was written or nothing was selected"
    if np.isfinite(wrong).all() and (wrong == wrong[0]).all() and abs(wrong[0]) > 2.0**80:
        return "the filling of the buffer: nothing was written"
    size = np.linalg.norm(expected[row, head].astype(np.float64))
    off = _off(wrong, expected[row, head].astype(np.float64))
    for name, kind in NUMBER_TYPES.items():
        # The narrowest type that has all its values, by which it is off at most.
        narrow = name not in ("float32", output) and np.array_equal(rounded(wrong, name), wrong)
        if narrow and 0 < off <= 2.0**-kind.precision * size:
            return f"the output rounded to {name}"
    for other in np.ndindex(expected.shape[:2]):
        if other != (row, head) and _off(expected[other], wrong) <= CLOSE * np.linalg.norm(wrong):
            same = "row" if other[1] == head else "head" if other[0] == row else "row and head"
            return f"the output of another {same}: row {other[0]}, head {other[1]}"
    return None


def _searched(
    w: Any,
    row: int,
    head: int,
    expected: np.ndarray,
    got: np.ndarray,
    right: np.ndarray,
    wrong: np.ndarray,
    tolerance: float,
) -> str | None:
    h, error = Head(w, row, head), _off(wrong, right)
    hits: list[tuple[float, Callable[[Head], Candidates], str]] = []
    if len(h.p):
        # A mistake that changes nothing here explains nothing.
        truth, least = h.softmax(h.scores), error / 2 if np.isfinite(error) else 0.0
        for family in FAMILIES:
            for text, out in family(h):
                distance = _off(wrong, out)
                near = distance <= tolerance * np.linalg.norm(out[np.isfinite(out)])
                if near and not distance > EXPLAINED * error and _off(out, truth) > least:
                    hits.append((distance, family, text))
    if hits:
        best = min(distance for distance, _, _ in hits)
        within = max(3 * best, 0.02 * error) if np.isfinite(error) else 3 * best
        hits = [hit for hit in hits if hit[0] <= within]
        if len(hits) > 1:
            # Of causes that are alike here, those first that fit the other heads of the row too.
            hits.sort(key=lambda hit: not _fits_row(w, row, expected, got, hit[1], hit[2], tolerance))
        text = "; or ".join(dict.fromkeys(text for _, _, text in hits[:SHOWN]))
        return f"NaN throughout, as with: {text}" if np.isnan(wrong).all() else text
    if np.isnan(wrong).all():
        return "NaN throughout: a value outside the selection was read, or a maximum over nothing"
    if not np.isfinite(wrong).all() or not len(h.p):
        return None
    found = left_out_or_doubled(h, wrong, error, tolerance) or _one_cell(h, right, wrong)
    return found or _factor(h, right, wrong, tolerance)


def _fits_row(
    w: Any, row: int, expected: np.ndarray, got: np.ndarray, family: Callable[..., Any], text: str, tolerance: float
) -> bool:
    """Whether the cause ``text`` (but for the number of the head in it) fits every head of the row."""

    def plain(words: str) -> str:
        return " ".join(word for word in words.split() if not word.isdigit())

    for head in range(expected.shape[1]):
        wrong = got[row, head].astype(np.float64)
        outs = [out for words, out in family(Head(w, row, head)) if plain(words) == plain(text)]
        if not any(_off(wrong, out) <= tolerance * np.linalg.norm(out) for out in outs):
            return False
    return True


def _factor(h: Head, right: np.ndarray, wrong: np.ndarray, tolerance: float) -> str | None:
    """A factor on the output, on one of its value groups, or nothing but rounding."""
    size, off = np.linalg.norm(right), np.linalg.norm(wrong - right)
    factor = float(wrong @ right / (right @ right)) if right.any() else 0.0
    if factor and off > CLOSE * size and np.linalg.norm(wrong - factor * right) <= tolerance * abs(factor) * size:
        return "the opposite sign" if abs(factor + 1) < CLOSE else f"a factor of {factor:.6g} on the output"
    if off > CLOSE * size:
        # In V's own basis a wrong scale stays in its group.
        a, b = (h.back(x).reshape(-1, GROUP.get(h.kv.pool.v.coding, 64)) for x in (right, wrong))
        away = np.linalg.norm(b - a, axis=1)
        group = int(np.argmax(away))
        factor = float(b[group] @ a[group] / (a[group] @ a[group])) if a[group].any() else 0.0
        rest = np.linalg.norm(np.delete(away, group))
        if rest <= EXPLAINED * off and np.linalg.norm(b[group] - factor * a[group]) <= EXPLAINED * off:
            return f"a factor of {factor:.6g} on value group {group}"
    if off <= tolerance * size:
        return "the right cells: off by rounding alone"
    return None


def _one_cell(h: Head, right: np.ndarray, wrong: np.ndarray) -> str | None:
    """The cell whose weight alone being wrong explains the difference, if there is one."""
    off, base = h.back(wrong - right), h.back(right)
    # A weight too large by d moves a weighted mean along (value - mean).
    away = h.v - base
    size = np.linalg.norm(away, axis=1)
    along = np.abs(away @ off) / np.where(size > 0, size, np.inf)
    best = int(np.argmax(along)) if len(along) else -1
    if best < 0 or not off.any() or along[best] < (1 - CLOSE) * np.linalg.norm(off):
        return None
    # out' - out = d (v - out'), with d the added weight as a share of the sum.
    to = h.v[best] - h.back(wrong)
    times = 1 + float(off @ to / (to @ to)) / (h.p[best] / h.p.sum()) if to.any() and h.p[best] > 0 else np.inf
    cell = int(h.present[best])
    if abs(times) < 0.01:
        return f"cell {cell} left out"
    if abs(times - 2) < 0.01:
        return f"cell {cell} counted twice"
    return f"a wrong weight of one cell, {cell} ({times:.4g} times the right one)"
