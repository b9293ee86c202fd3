"""Two selections of cells compared: what differs, and how far from the cut.

A difference at the cut is a ``tie`` when the two blocks score the same, ``rounding`` when their scores differ by no
more than the stated tolerance, else ``wrong``. What is no question of the cut (a missing tail, a cell twice, the wrong
number of cells, another order) is ``wrong`` too, and named.
"""

from typing import NamedTuple

import numpy as np

from qsa.reference.geometry import REAL


class Margins(NamedTuple):
    """Differing cells by class, and a line for each differing row (a few of them)."""

    tie: int
    rounding: int
    wrong: int
    notes: tuple[str, ...]


SHOWN = 4
"""Rows whose difference gets a line."""


def margins(
    expected: np.ndarray,
    got: np.ndarray,
    scores: np.ndarray,
    steps: np.ndarray,
    ratio: int = REAL.ratio,
    tolerance: np.ndarray | None = None,
) -> Margins:
    """Classes of the cells in which ``got`` differs from ``expected``.

    expected, got  [rows, cap] int32: a row's cells, then -1
    scores         [rows, blocks] float: those that ``expected`` was selected by
    tolerance      [rows, blocks] float: by how much each score may be off, 0 unless given
    """
    counts, notes = dict.fromkeys(("tie", "rounding", "wrong"), 0), []
    for row in np.flatnonzero((expected != got).any(axis=1)):
        own = np.zeros_like(scores[row]) if tolerance is None else tolerance[row]
        kind, cells, text = _row(expected[row], got[row], scores[row], own, steps[row], ratio)
        counts[kind] += cells
        notes.append(f"row {row}: {kind}: {text}")
    rest = [f"and {len(notes) - SHOWN} rows more"] if len(notes) > SHOWN else []
    return Margins(**counts, notes=tuple(notes[:SHOWN] + rest))


def _row(
    expected: np.ndarray, got: np.ndarray, scores: np.ndarray, tolerance: np.ndarray, step: np.ndarray, ratio: int
) -> tuple[str, int, str]:
    """(class, differing cells, words) of one row."""
    _, n_kv, n_bid, width = (int(x) for x in step)
    differing = np.setxor1d(expected[:width], got[:width])
    count = max(1, len(differing))
    fault = _malformed(got, n_kv, n_bid, width, ratio)
    if fault:
        return "wrong", count, fault
    if not len(differing):
        return "wrong", count, "the right cells in another order"
    missing, extra = np.setdiff1d(expected[:width], got[:width]), np.setdiff1d(got[:width], expected[:width])
    low, high = missing // ratio, extra // ratio
    words = f"{len(missing)} cells differ; without cell {missing[0]} (block {low[0]})"
    words += f", with cell {extra[0]} (block {high[0]})"
    rank = _ranks(scores)
    # The weakest block wrongly taken against the strongest wrongly left.
    left, taken = low[np.argmax(rank[low])], high[np.argmin(rank[high])]
    a, b = scores[left], scores[taken]
    words += f"; scores {a:.9g} and {b:.9g}"
    if rank[left] == rank[taken]:
        return "tie", count, f"{words}: equal, the lower block goes first"
    slack = tolerance[left] + tolerance[taken]
    if slack and np.isfinite(a) and np.isfinite(b) and abs(a - b) <= slack:
        return "rounding", count, f"{words}: {abs(a - b):.3g} apart, {slack:.3g} is rounding"
    return "wrong", count, words


def _malformed(got: np.ndarray, n_kv: int, n_bid: int, width: int, ratio: int) -> str | None:
    """What is wrong with a row of ids by itself, or None."""
    cells = got[:width]
    if (cells < 0).any() or (cells >= n_kv).any():
        bad = cells[(cells < 0) | (cells >= n_kv)][0]
        return f"id {bad} among the first {width}: cells are 0 to {n_kv - 1}"
    if (got[width:] != -1).any():
        return f"id {got[width:][got[width:] != -1][0]} behind the width of {width}: must be -1"
    if len(np.unique(cells)) != width:
        return f"{width - len(np.unique(cells))} cells are selected twice"
    tail = np.arange(n_bid * ratio, n_kv)
    if not np.isin(tail, cells).all():
        return f"cell {tail[~np.isin(tail, cells)][0]} of the tail is not selected"
    return None


def _ranks(scores: np.ndarray) -> np.ndarray:
    """int64 [blocks] in the order of preference: equal where scores tie (-0 and +0 do), all NaN below everything."""
    _, rank = np.unique(np.where(np.isnan(scores), -np.inf, scores) + 0.0, return_inverse=True)
    return np.where(np.isnan(scores), -1, rank)
