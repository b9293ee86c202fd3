"""Parts of a selection: the cuts that kernels make, and which neighbouring cells an output lacks or counts twice."""

from collections.abc import Iterator
from typing import Any

import numpy as np

TILES = (16, 32, 64, 128, 256)
"""Cells of a tile that kernels read at once."""

SPLITS = range(2, 21)
"""Parts in which kernels split a row."""

NEIGHBOURS = 12
"""Candidates that are tried around the place where a projection fits best."""


def parts(n: int) -> Iterator[tuple[str, np.ndarray]]:
    """(text, cuts int64 ascending from 0 to n) of the usual ways to cut ``n`` cells."""
    for tile in TILES:
        if tile < n:
            yield f"tiles of {tile}", np.append(np.arange(0, n, tile), n)
    for splits in SPLITS:
        if splits <= n:
            yield f"{splits} parts", np.linspace(0, n, splits + 1).astype(np.int64)
            each = -(-n // splits)
            yield f"{splits} parts", np.append(np.arange(0, n, each), n)
            tiles = -(-n // 64)
            each = -(-tiles // splits) * 64
            if each < n:
                yield f"{splits} parts of whole tiles", np.append(np.arange(0, n, each), n)


def _described(n: int, first: int, end: int) -> str:
    """Which part of which cut the cells ``first`` to ``end`` - 1 of a selection are, if they are one."""
    for text, cuts in parts(n):
        at = int(np.searchsorted(cuts, first))
        if at + 1 < len(cuts) and cuts[at] == first and cuts[at + 1] == end:
            return f" (part {at} of {text})"
    return ""


def left_out_or_doubled(h: Any, wrong: np.ndarray, error: float, tolerance: float) -> str | None:
    """The run of neighbouring cells of the selection that is missing in the output ``wrong`` [dim], or counted twice.

    ``h`` is a ``causes.Head``, ``error`` the distance of ``wrong`` from the right output. With C the sums of weight
    times value up to each cell and m those of the weights, F = C - wrong m: the output lacks cells a to b - 1 where
    F_b - F_a = F_n, and counts them twice where it is -F_n. One projection of F is sorted to find the pairs.
    """
    target = h.back(wrong)
    steps = h.p[:, None] * (h.v - target)
    f = np.concatenate([np.zeros((1, steps.shape[1])), np.cumsum(steps, axis=0)])
    # Along F_n itself the difference is largest.
    line = f @ f[-1]
    order = np.argsort(line, kind="stable")
    for sign, text in ((1, "left out"), (-1, "counted twice")):
        near = np.searchsorted(line[order], line + sign * line[-1])
        best = (np.inf, 0, 0)
        for shift in range(-NEIGHBOURS, NEIGHBOURS):
            end = order[np.clip(near + shift, 0, len(order) - 1)]
            off = np.linalg.norm(f[end] - f - sign * f[-1], axis=1)
            off[end <= np.arange(len(f))] = np.inf
            # All cells together are F_n by definition.
            off[0] = np.inf if end[0] == len(h.p) else off[0]
            at = int(np.argmin(off))
            best = min(best, (float(off[at]), at, int(end[at])))
        off, first, last = best
        if not np.isfinite(off):
            continue
        mass = h.p.sum() - sign * h.p[first:last].sum()
        if mass > 0 and off / mass <= min(tolerance * np.linalg.norm(target), 0.25 * error):
            cells = f"cell {h.present[first]}" if last == first + 1 else f"cells {first} to {last - 1} of the selection"
            return f"{cells} {text}{_described(len(h.p), first, last) if last > first + 1 else ''}"
    return None
