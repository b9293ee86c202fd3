"""``attend``, exact: the sums that a schedule may cut are integer sums, so no schedule can change a byte.

Source: design section 4, whose step numbers are used here. Integers are held in float64 where a matrix product forms
them: every product and partial sum stays below 2^53, so BLAS computes them exactly in any order.
"""

from collections.abc import Sequence
from itertools import pairwise
from numbers import Integral
from typing import NamedTuple

import numpy as np

from ..attend import check_attend, selected_cells
from ..formats import EXACT_FORMATS, rotate
from ..geometry import Geometry
from ..kv import Cells, PagedKV, Pool
from .scalar import NAN, SCORE_LIMIT, exp2, fixed_point, rounded, scale

NO_CELL = -(1 << 28)
"""Stands for the maximum over no cell; far below every exponent, and sums with one stay in int32."""

CHUNK = 16384
"""Cells in one float64 product of weights and codes: 16384 * 2^31 * 2^7 = 2^52."""


class Maxima(NamedTuple):
    """Largest floor of the scores [n_head] (m is one more), and M_j [n_head, V groups]; NO_CELL over no cell."""

    floor: np.ndarray
    group: np.ndarray


class Sums(NamedTuple):
    """L [n_head] and O [n_head, head_dim], int64."""

    mass: np.ndarray
    value: np.ndarray


def scores(q: np.ndarray, cells: Cells, geometry: Geometry) -> np.ndarray:
    """Steps 1 to 3: scores in log2 units, float32 [n_head, n], of one row's ``q`` [n_head, head_dim] float32.

    A head whose query is not finite scores 0 throughout.
    """
    g = geometry
    n, groups = len(cells.k_codes), cells.k_scale.shape[-1]
    qi, e = fixed_point(q)
    qi = qi.reshape(g.n_head_kv, g.group, groups, -1).transpose(0, 2, 1, 3).astype(np.float64)
    codes = cells.k_codes.reshape(n, g.n_head_kv, groups, g.head_dim // groups).transpose(1, 2, 3, 0).astype(np.float64)
    dots = (qi @ codes).astype(np.float32)
    total: np.ndarray | None = None
    with np.errstate(over="ignore", invalid="ignore"):
        for group in range(groups):
            product = dots[:, group] * cells.k_scale[:, :, group].T[:, None]
            total = product if total is None else total + product
        assert total is not None, "K has at least one group of dims"
        log2_units = np.float32(np.log2(np.e) / np.sqrt(g.head_dim))
        s = total.reshape(g.n_head, n) * scale(log2_units, e - 22)[:, None]
    return np.fmax(np.fmin(s, SCORE_LIMIT), -SCORE_LIMIT)


def value_scale(cells: Cells, geometry: Geometry) -> tuple[np.ndarray, np.ndarray]:
    """Step 5's split of |V scale| = mu * 2^v: float32 mu and int v [n_head, groups, n], mu 0 where the scale is 0."""
    mu, v = np.frexp(np.abs(cells.v_scale))
    mu, v = (np.repeat(x.transpose(1, 2, 0), geometry.group, axis=0) for x in (mu, v))
    return mu, v


def maxima(s: np.ndarray, cells: Cells, geometry: Geometry) -> Maxima:
    """Steps 4 and 5: the two maxima over these cells; the maxima of two sets of cells are their elementwise maximum."""
    n = exp2(s)[1]
    mu, v = value_scale(cells, geometry)
    group = np.where(mu > 0, n[:, None] + v, NO_CELL)
    return Maxima(n.max(axis=-1, initial=NO_CELL), group.max(axis=-1, initial=NO_CELL))


def weights(s: np.ndarray, cells: Cells, top: Maxima, geometry: Geometry) -> tuple[np.ndarray, np.ndarray]:
    """Step 6: mass p [n_head, n] and weights w [n_head, groups, n], int64 from 0 to 2^31."""
    r, n = exp2(s)
    mu, v = value_scale(cells, geometry)
    p = rounded(r, 30 + n - top.floor[:, None])
    w = rounded(r[:, None] * mu, np.where(mu > 0, 30 + n[:, None] + v - top.group[..., None], -2))
    return p, w


def sums(p: np.ndarray, w: np.ndarray, cells: Cells, geometry: Geometry) -> Sums:
    """Step 7: L and O over these cells; the sums of two sets of cells are their sum."""
    g = geometry
    n, groups = len(cells.v_codes), w.shape[1]
    w = w.reshape(g.n_head_kv, g.group, groups, n).transpose(0, 2, 1, 3).astype(np.float64)
    signed = cells.v_codes.reshape(n, g.n_head_kv, groups, g.head_dim // groups)
    signed = signed * np.where(cells.v_scale < 0, -1.0, 1.0)[..., None]
    signed = signed.transpose(1, 2, 0, 3)
    value = np.zeros((g.n_head_kv, groups, g.group, signed.shape[-1]), np.int64)
    for start in range(0, n, CHUNK):
        part = slice(start, start + CHUNK)
        value += (w[..., part] @ signed[:, :, part]).astype(np.int64)
    return Sums(p.sum(axis=-1), value.transpose(0, 2, 1, 3).reshape(g.n_head, g.head_dim))


def output(total: Sums, top: Maxima) -> np.ndarray:
    """Step 8: float32 [n_head, head_dim], one rounded division; 0 where nothing was selected."""
    groups = top.group.shape[1]
    value = total.value.reshape(len(total.mass), groups, -1).astype(np.float32)
    numerator = scale(value, (top.group - top.floor[:, None])[..., None])
    mass = total.mass.astype(np.float32)[:, None, None]
    return np.where(mass > 0, numerator / np.where(mass > 0, mass, 1), 0).reshape(total.value.shape).astype(np.float32)


def _parts(cells: Cells, splits: int) -> list[Cells]:
    cuts = np.linspace(0, len(cells.resident), splits + 1).astype(int)
    return [type(cells)(*(x[a:b] for x in cells)) for a, b in pairwise(cuts)]


def attend(
    q: np.ndarray,
    kv: PagedKV | Sequence[PagedKV],
    ids: np.ndarray,
    steps: np.ndarray,
    slots: np.ndarray | None = None,
    out: np.ndarray | None = None,
    *,
    splits: int = 1,
) -> np.ndarray:
    """Attention of every row over its selected cells; arguments and errors as ``reference.attend``.

    ``q`` is float32, the result float32 [rows, n_head, head_dim]. ``splits`` cuts a row's cells into that many parts,
    which are folded by the two maxima and the two sums; the bytes are the same for every cut. A query that is not
    finite (after the rotation that a q4_0 K asks for) makes its own row and head NaN, unless nothing is selected.

    Raises ValueError besides when the format is outside the exact arithmetic, or splits is no integer of at least 1.
    """
    if not isinstance(splits, Integral) or splits < 1:
        raise ValueError(f"splits = {splits}: must be an integer of at least 1")
    kvs, slots, out = check_attend(q, kv, ids, steps, slots, out, np.float32)
    q = np.asarray(q, np.float32)
    for slot in kvs:
        if not slot.exact:
            raise ValueError(f"kv: format {slot.pool.format!r}: the exact arithmetic covers {', '.join(EXACT_FORMATS)}")
    for row, width in enumerate(steps[:, 3].tolist()):
        own = kvs[slots[row]]
        out[row] = attend_row(q[row], selected_cells(own, ids[row], width), own.pool, splits)
    return out


def attend_row(q: np.ndarray, cells: Cells, pool: Pool, splits: int = 1) -> np.ndarray:
    """One row of :func:`attend`: ``q`` [n_head, head_dim] float32 over ``cells``, coded as ``pool`` codes them."""
    g = pool.geometry
    turned = rotate(q) if pool.k.coding == "q4_0" else q
    parts = [(scores(turned, part, g), part) for part in _parts(cells, splits)]
    tops = [maxima(s, part, g) for s, part in parts]
    top = Maxima(*(np.maximum.reduce(x) for x in zip(*tops, strict=True)))
    partial = [sums(*weights(s, part, top, g), part, g) for s, part in parts]
    total = Sums(*(np.add.reduce(x) for x in zip(*partial, strict=True)))
    result = output(total, top)
    result = rotate(result) if pool.v.coding == "q4_0" else result
    # A zero has one sign: that of an output which rounds to 0 would hang on sums far below the range of a float32.
    result = result + np.float32(0)
    poisoned = ~np.isfinite(turned).all(axis=-1) & (total.mass > 0)
    result[poisoned] = NAN
    return result
