"""Where the error of an attention comes from: a budget by stage, and maps by place.

The budget follows one head from K and V as they were given to its output, one stage after the other: each stage's part
is how far it moves the output, as a norm relative to the truth. In the exact arithmetic the stages are its own; a float
kernel's are those of a plain kernel of its types (``twin.py``), for its own cannot be seen.
"""

import importlib
from itertools import pairwise
from typing import Any

import numpy as np

from qsa.reference.attend import selected_cells, softmax_attention
from qsa.reference.exact.scalar import exp2
from qsa.reference.formats import rotate
from qsa.reference.kv import Cells, PagedKV

from ..contract.number_types import rounded
from .comparison import relative_error
from .twin import StageTypes, in_order, paged

_exact = importlib.import_module("qsa.reference.exact.attend")

STAGES = ("storage", "dot", "exponential", "weights", "merge", "output")
"""storage: K and V as they are stored; dot: scores; exponential; weights: their rounding to a type or to integers;
merge: the sums over cells, of a float kernel with the quotient; output: rotation back, the type of the output, and in
the exact arithmetic the quotient."""

SPLIT = 64
"""Blocks in a part of the map by split and block, where a call has no splits of its own."""


def budget(w: Any, row: int, head: int, types: StageTypes | None) -> dict[str, tuple[float, float]]:
    """Stage -> (what it moves the output by, its share of the sum of all stages) of one head.

    w      arguments of ``attend`` and what K and V were stored from: ``cells`` [n], ``k``, ``v`` [n, kv heads, dim]
    types  number types of a float kernel, None in the exact arithmetic
    """
    kv = paged(w.kv)
    width = int(w.steps[row, 3])
    cells = selected_cells(kv, w.ids[row], width)
    ids = w.ids[row, :width]
    present = ids[kv.locate(ids)[0] >= 0]
    if not len(present):
        return {}
    side = head // kv.pool.geometry.group
    at = np.searchsorted(w.cells, present)
    q = np.asarray(w.q[row, [head]], np.float64)
    given = softmax_attention(q, w.k[at][:, [side]], w.v[at][:, [side]])[0]
    path = _exact_path if types is None else _float_path
    outputs = [given, *path(np.asarray(w.q[row]), head, cells, kv, types)]
    size = np.linalg.norm(outputs[1]) or 1.0
    moves = [float(np.linalg.norm(b - a) / size) for a, b in pairwise(outputs)]
    total = sum(moves) or 1.0
    return {stage: (move, move / total) for stage, move in zip(STAGES, moves, strict=True)}


def _back(out: np.ndarray, kv: PagedKV) -> np.ndarray:
    return rotate(out) if kv.pool.v.coding == "q4_0" else out


def _exact_path(q: np.ndarray, head: int, cells: Cells, kv: PagedKV, types: StageTypes | None) -> list[np.ndarray]:
    """Outputs [dim] of one head after each stage but the first, in the exact arithmetic."""
    g, pool = kv.pool.geometry, kv.pool
    turned = rotate(q) if pool.k.coding == "q4_0" else q
    q64 = rotate(q.astype(np.float64)) if pool.k.coding == "q4_0" else q.astype(np.float64)
    k, v = (x[:, head // g.group] for x in cells.values())
    s = _exact.scores(turned, cells, g)
    top = _exact.maxima(s, cells, g)
    mass, weights = _exact.weights(s, cells, top, g)
    total = _exact.sums(mass, weights, cells, g)
    s64 = s[head].astype(np.float64)

    def over(scores: np.ndarray, factor: Any = 1.0) -> np.ndarray:
        p = np.exp2(scores - scores.max()) * factor
        return _back(p @ v / p.sum(), kv)

    r, n = exp2(s[head])
    power = np.exp2(s64 - n)
    truth = over(k @ q64[head] * (g.head_dim**-0.5 * np.log2(np.e)))
    groups = top.group.shape[1]
    summed = total.value[head].reshape(groups, -1) * np.exp2(top.group[head] - top.floor[head] + 0.0)[:, None]
    whole = _back(summed.reshape(-1) / total.mass[head], kv)
    final = _exact.output(total, top)[head]
    final = rotate(final) if pool.v.coding == "q4_0" else final
    # Integer sums have no order, and no error.
    return [truth, over(s64), over(s64, r / power), whole, whole, final.astype(np.float64)]


def _float_path(q: np.ndarray, head: int, cells: Cells, kv: PagedKV, types: StageTypes | None) -> list[np.ndarray]:
    """Outputs [dim] of one head after each stage but the first, of a plain kernel of these types."""
    assert types is not None
    g, side = kv.pool.geometry, head // kv.pool.geometry.group
    rotated = kv.pool.k.coding == "q4_0"
    q64 = (rotate(q.astype(np.float64)) if rotated else q.astype(np.float64))[head]
    q32 = (rotate(q.astype(np.float32)) if rotated else q.astype(np.float32))[[head]]
    k, v = (x[:, [side]].astype(np.float64) for x in cells.values())
    steps = in_order(q32, k.astype(np.float32), v.astype(np.float32), types)
    values = v[:, 0]

    def over(p: np.ndarray, mass: np.ndarray | None = None) -> np.ndarray:
        p = p.astype(np.float64)
        return _back(p @ values / (p if mass is None else mass.astype(np.float64)).sum(), kv)

    s64 = k[:, 0] @ q64 * g.head_dim**-0.5
    s, p, weights, result = (part.reshape(-1) for part in steps)
    last = rotate(result) if kv.pool.v.coding == "q4_0" else result
    after_dot = np.exp(s.astype(np.float64) - s.max())
    merged = _back(result.astype(np.float64), kv)
    final = rounded(last, types.output).astype(np.float64)
    return [over(np.exp(s64 - s64.max())), over(after_dot), over(p), over(weights, p), merged, final]


def row_head_map(expected: np.ndarray, got: np.ndarray, bound: np.ndarray | float) -> list[list[float]]:
    """[rows][heads]: the share of its bound that every head's error uses."""
    errors = relative_error(expected, got)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(errors == 0, 0.0, errors / np.broadcast_to(bound, errors.shape)).tolist()


def split_block_map(
    w: Any, row: int, head: int, expected: np.ndarray, got: np.ndarray, splits: int | None = None
) -> list[list[float]]:
    """[splits][blocks of the split]: the share of a head's error (0 to 1, of its square) that one factor on the weights
    of that block alone explains; parts of :data:`SPLIT` blocks where ``splits`` is None.

    A weight that is wrong moves the output along (value - output), so the block at fault has 1, and the others what
    their directions have in common with its.
    """
    kv = paged(w.kv)
    g = kv.pool.geometry
    width = int(w.steps[row, 3])
    cells = selected_cells(kv, w.ids[row], width)
    ids = w.ids[row, :width]
    present = ids[kv.locate(ids)[0] >= 0]
    off = np.asarray(got[row, head], np.float64) - expected[row, head]
    if not len(present) or not np.isfinite(off).all() or not off.any():
        return []
    q = np.asarray(w.q[row, head], np.float64)
    q = rotate(q) if kv.pool.k.coding == "q4_0" else q
    k, v = (x[:, head // g.group] for x in cells.values())
    s = k @ q * g.head_dim**-0.5
    p = np.exp(s - s.max())
    p /= p.sum()
    moves = p[:, None] * (v - p @ v)
    starts = np.flatnonzero(np.diff(present // g.ratio, prepend=-1))
    along = np.add.reduceat(moves, starts, axis=0)
    off = _back(off, kv)
    size = np.linalg.norm(along, axis=1) * np.linalg.norm(off)
    shares = np.where(size > 0, (along @ off) / np.where(size > 0, size, 1), 0) ** 2
    parts = splits or max(1, -(-len(shares) // SPLIT))
    return [part.tolist() for part in np.array_split(shares, parts)]
