"""What the relations of attention and of the indexer's operations have in common (``relations.py``)."""

from collections.abc import Iterator

import numpy as np

from ...backend import Backend
from ...compare.comparison import Comparison, equal, verdict

ROWS = 64
"""Rows of a call that is made again in windows."""

WINDOWS = ((0, 1), (5, 2), (11, 3), (3, 4), (40, 5), (20, 7), (8, 8), (31, 9), (2, 16), (17, 33))
"""(first, rows) of the windows in which rows of a call of 64 are computed again."""

SEEN = 0.5
"""Share of heads, rows or blocks in which a plain kernel with a fault of the kind must be seen at least."""

Pair = tuple[str, np.ndarray, np.ndarray]
"""What is compared: a name, what the relation makes of the first result, the other result."""


def same(backend: Backend, name: str, pairs: Iterator[Pair], axes: tuple[str, ...]) -> Iterator[Comparison]:
    """Equality of bytes of every pair."""
    reason = "exact" if backend.arithmetic == "exact" else "declared"
    for label, expected, got in pairs:
        yield equal(f"{name}: {label}", expected, got, axes, f"{reason}: no rounding knows of it")


def shown(name: str, seen: np.ndarray) -> Comparison:
    """Fails where a plain kernel with a fault of the kind is ``seen`` (bool) in too few places."""
    weak = 1 - float(np.mean(seen)) if seen.size else 1.0
    reason = "inputs on which a wrong kernel looks right prove nothing; a plain one with such a fault is tried on them"
    return verdict(f"{name}: a variant kernel would be seen", weak, 1 - SEEN, reason, kind="error", size=seen.size)


def plain(out: np.ndarray) -> np.ndarray:
    """A result as float32 without -0: the sign of a zero has no meaning here."""
    return np.asarray(out, np.float32) + np.float32(0)


def windows(rows: int) -> Iterator[slice]:
    """Windows of a call of ``rows`` rows."""
    for first, count in WINDOWS:
        if count < rows:
            yield slice(first % (rows - count + 1), first % (rows - count + 1) + count)


def rows_of(backend: Backend) -> int:
    """Rows of a call for windows: :data:`ROWS`, or as many as the backend takes."""
    return min(ROWS, backend.declaration.shapes.rows or ROWS)
