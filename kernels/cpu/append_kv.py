"""``append_kv``: codes exact to the bit, written where a page is resident and always into the host copy.

Source: design section 7; the codes are those of ``reference/formats.py``. Everything is encoded before anything is
written.
"""

from collections.abc import Sequence

import numpy as np

from qsa.reference.append_kv import encoded_rows, rows_by_slot, write_cells
from qsa.reference.formats import GROUP
from qsa.reference.formats import rotate as check_rotation
from qsa.reference.kv import PagedKV, Side, encode

from ..ops import refuse
from .common.jit import kernel
from .common.scalar import ZERO, float_to_half, half_to_float, rint, rotate

HALF_INFINITY = 0x7C00


@kernel
def _finite(half):
    return half & 0x7FFF < HALF_INFINITY


@kernel
def _int8_group(x, codes):
    """Fill codes [64] uint8 of x [64]; returns the scale's bits."""
    amax = ZERO
    for i in range(x.size):
        # Every comparison with a NaN is false: a NaN replaces the number before it and is itself never replaced.
        amax = amax if abs(x[i]) <= amax or amax != amax else abs(x[i])
    if not amax < np.inf:
        return np.uint16(HALF_INFINITY)
    scale = float_to_half(amax / np.float32(127))
    stored = half_to_float(scale)
    for i in range(x.size):
        code = np.int64(rint(np.float64(x[i] / stored))) if stored > ZERO and _finite(scale) else 0
        codes[i] = np.uint8(np.int8(min(max(code, -127), 127)))
    return scale


@kernel
def _q4_0_group(x, codes):
    """Fill codes [16] uint8, two nibbles each, of x [32], already rotated; returns the scale's bits."""
    high, low = x[0], x[0]
    for i in range(x.size):
        if not abs(x[i]) < np.inf:
            return np.uint16(HALF_INFINITY)
        high, low = max(high, x[i]), min(low, x[i])
    d = (high if high >= -low else low) / np.float32(-8)
    scale = float_to_half(d)
    inverse = np.float32(1) / d
    if half_to_float(scale) == ZERO:
        scale, inverse = np.uint16(0), ZERO
    half = x.size // 2
    for i in range(half):
        low_code = np.int64(x[i] * inverse + np.float32(8.5))
        high_code = np.int64(x[i + half] * inverse + np.float32(8.5))
        codes[i] = np.uint8(min(max(low_code, 0), 15) | min(max(high_code, 0), 15) << 4)
    return scale


@kernel
def _encode(x, q4_0, codes, scale):
    """Codes [rows, heads, bytes] uint8 and scales [rows, heads, groups] uint16 of x [rows, heads, dim].

    Returns the first row with a scale that is not finite, -1 when there is none.
    """
    rows, heads, dim = x.shape
    groups = scale.shape[2]
    dims, size = dim // groups, codes.shape[2] // groups
    vector = np.empty(dim, np.float32)
    for row in range(rows):
        for head in range(heads):
            for d in range(dim):
                vector[d] = x[row, head, d]
            if q4_0:
                rotate(vector)
            for group in range(groups):
                part = vector[group * dims : (group + 1) * dims]
                target = codes[row, head, group * size : (group + 1) * size]
                bits = _q4_0_group(part, target) if q4_0 else _int8_group(part, target)
                if not _finite(bits):
                    return row
                scale[row, head, group] = bits
    return -1


def _encoded(x: np.ndarray, side: Side) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales of x [rows, heads, dim] as ``side`` stores them."""
    if side.coding not in GROUP:
        return encode(x, side.coding)
    dim = x.shape[-1]
    q4_0 = side.coding == "q4_0"
    if q4_0:
        check_rotation(np.zeros(dim, np.float32))
    values = np.ascontiguousarray(x, np.float32)
    codes = np.empty((*x.shape[:2], dim // 2 if q4_0 else dim), np.uint8)
    scale = np.empty((*x.shape[:2], dim // GROUP[side.coding]), np.uint16)
    bad = _encode(values, q4_0, codes, scale)
    if bad >= 0:
        encode(x[bad], side.coding)  # raises the reference's error
    return codes.view(side.codes.dtype), scale.view(np.float16)


def append_kv(
    k: np.ndarray, v: np.ndarray, kv: PagedKV | Sequence[PagedKV], steps: np.ndarray, slots: np.ndarray | None = None
) -> bool:
    """Write the cell at ``pos`` of every row; arguments and errors as ``reference.append_kv``.

    k, v   [rows, n_head_kv, head_dim] float32, finite; K already normed and rotated by position
    kv     a PagedKV, or a list of them with ``slots`` [rows] int32 naming each row's
    steps  [rows, 4] int32; a row with pos -1 writes nothing; the positions of one slot are distinct

    Returns True; False, with nothing written, for the format f64. Raises ValueError and IndexError as
    ``reference.append_kv`` does; nothing is written then.
    """
    found = rows_by_slot(k, v, kv, steps, slots)
    if any(target.pool.format == "f64" for target, _, _ in found):
        return refuse("append_kv", "format")
    # All is encoded before anything is written: an error leaves the pages as they were.
    writes = [(target, pos, encoded_rows(k, v, rows, target.pool, _encoded)) for target, rows, pos in found]
    for target, pos, coded in writes:
        write_cells(target, pos, coded)
    return True
