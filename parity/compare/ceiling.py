"""What the exact arithmetic may be off by, derived from the inputs: a ceiling that no right output passes.

With u = 2^-24, S = sum |t_g| of a cell's group terms in log2 units and G groups of K, step by step of design section 4:

=======  =============================================================================================================
step 1   a query is off by 2^(e-23) in every dim, a turned one besides by 8u of its norm: the butterfly
step 3   float32(D_g), its product, G - 1 sums, the constant and the last product: (G + 3) u S
step 5   exp2: 1.2054e-7; r * mu: u
step 6   half a unit of an integer: of the mass n 2^-31 of L, which is 2^30 at least; of a weight as its unit says
step 8   float32(O), float32(L) and the quotient: 3u; an output that is turned back 8u of its norm
=======  =============================================================================================================

An error of a score changes mass and weight alike, and moves the output along (v - out); the others do not. The bound is
of first order but for exp: errors of scores enter as e^x - 1. Where it is above what any weights could be off by, that
is the bound: a mean of values is never further from another than the furthest value.
"""

from typing import Any

import numpy as np

from qsa.reference.attend import selected_cells
from qsa.reference.exact.scalar import fixed_point
from qsa.reference.formats import GROUP, rotate
from qsa.reference.kv import Cells, PagedKV

ROUNDING = 2.0**-24

EXP2_ERROR = 1.2054e-7
"""Largest relative error of the contract's exp2 over all float32 (design section 4)."""

BUTTERFLIES = 8
"""Additions on the way of a number through the rotation of 256 dims."""

LOG2_E = float(np.log2(np.e))

REASON = "derived from the inputs: the roundings of every step of the exact arithmetic, to first order"


def exact_ceiling(w: Any, expected: np.ndarray, heads: np.ndarray) -> np.ndarray:
    """float64 [rows]: the largest relative error (norm of a head) that the exact arithmetic may have in one head of
    every row.

    w         arguments of ``attend`` as attributes ``q``, ``kv`` (a PagedKV of codes with scales), ``ids``, ``steps``
    expected  float64 [rows, n_head, dim], the truth
    heads     int [rows], the head of every row
    """
    bounds = np.zeros(len(expected))
    for row, width in enumerate(w.steps[:, 3].tolist()):
        cells = selected_cells(w.kv, w.ids[row], width)
        size = float(np.linalg.norm(expected[row, heads[row]]))
        if len(cells.resident) and size:
            bounds[row] = _head(np.asarray(w.q[row, heads[row]]), cells, w.kv, int(heads[row]), size) / size
    return bounds


def _head(q: np.ndarray, cells: Cells, kv: PagedKV, head: int, size: float) -> float:
    """The norm of the error of one head's ``q`` [dim], whose output has the norm ``size``."""
    pool = kv.pool
    turned = q.astype(np.float64)
    lost = 0.0
    if pool.k.coding == "q4_0":
        turned, lost = rotate(turned), BUTTERFLIES * ROUNDING * float(np.linalg.norm(turned))
    unit = float(np.ldexp(1.0, int(fixed_point(turned.astype(np.float32))[1]) - 23))
    side = _Side(cells, head // pool.geometry.group, pool.k.coding)
    bound = side.bound(turned, unit, lost)
    # The rotation back keeps norms.
    return bound + (BUTTERFLIES * ROUNDING * size if pool.v.coding == "q4_0" else 0.0)


class _Side:
    """The selected cells of one KV head: K and V [n, dim] float64."""

    def __init__(self, cells: Cells, side: int, coding: str) -> None:
        own = type(cells)(*(x[:, [side]] if x.ndim > 1 else x for x in cells))
        self.k, self.v = (np.ascontiguousarray(x[:, 0]) for x in own.values())
        self.size = GROUP[coding]
        scale = np.abs(own.v_scale[:, 0].astype(np.float64))
        self.mu, self.exponent = np.frexp(scale)
        codes = np.abs(own.v_codes[:, 0].astype(np.float64))
        self.codes = codes.reshape(len(codes), scale.shape[1], -1).sum(axis=0)

    def bound(self, q: np.ndarray, unit: float, lost: float) -> float:
        """The norm of the error of a query head ``q`` [dim]; ``unit`` is what fixed point takes from every dim at most,
        ``lost`` what a rotation takes from the norm."""
        n, dim = self.k.shape
        to_log2 = LOG2_E * dim**-0.5
        terms = (self.k * q).reshape(n, -1, self.size).sum(axis=2)
        groups = terms.shape[1]
        s = terms.sum(axis=1) * to_log2
        off = (groups + 3) * ROUNDING * np.abs(terms).sum(axis=1) * to_log2
        off += (unit * np.abs(self.k).sum(axis=1) + lost * np.linalg.norm(self.k, axis=1)) * to_log2
        top = float(np.floor(s).max()) + 1
        p = np.exp2(s - top + 31)
        mass = float(p.sum())
        p /= mass
        common = np.expm1(np.minimum(off / LOG2_E, 1)) + EXP2_ERROR
        mean = p @ self.v
        moved = (p * common) @ np.abs(self.v - mean) / max(1 - float(p @ common), 0.5)
        most = np.maximum(self.v.max(axis=0) - mean, mean - self.v.min(axis=0))
        apart = ROUNDING * (p @ np.abs(self.v)) + (n * 2.0**-31 + 3 * ROUNDING) * np.abs(mean)
        apart += self._units(s, top, mass)
        return float(min(np.linalg.norm(moved), np.linalg.norm(most)) + np.linalg.norm(apart))

    def _units(self, s: np.ndarray, top: float, mass: float) -> np.ndarray:
        """float64 [dim]: what half a unit in every integer weight makes of the output."""
        levels = np.where(self.mu > 0, np.floor(s)[:, None] + self.exponent, -np.inf).max(axis=0)
        # floor(s) may be one too high or low where s is next to an integer.
        unit = np.where(np.isfinite(levels), np.exp2(np.where(np.isfinite(levels), levels, 0) + 2 - top), 0) / mass
        return (0.5 * unit[:, None] * self.codes).reshape(-1)
