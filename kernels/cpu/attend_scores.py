"""The score pass of exact attention, steps 1 to 4 of design section 4: 16 cells are to a query what 16 outputs are to a
row of a linear layer."""

import numpy as np

from qsa.reference.exact.attend import NO_CELL
from qsa.reference.exact.scalar import QUERY_BITS

from .common.gather import NUMBERS, Q4_0, addresses, fill, scales_of, write_out
from .common.jit import kernel
from .common.scalar import SCORE_LIMIT, floor, scaled
from .products.form import GROUP, TILE_BYTES, WIDE
from .products.records import fixed_row
from .products.tile import RECORD, pack, tile_1_1, tile_2_1, tile_4_1, transpose

MINUS_ZERO = np.float32(-0.0)


@kernel
def padded(cells):
    """``cells`` rounded up to whole tiles."""
    return (cells + WIDE - 1) // WIDE * WIDE


@kernel
def score_part(q, offsets, k, log2_units, s, top):
    """Steps 1 to 4 of one row, KV head and part: scores into s [heads, padded(cells)], of which those behind the cells
    mean nothing, and the largest floor into top [heads]."""
    k_codes, k_scale, coding = k
    heads, dim = q.shape
    groups = k_scale.shape[1]
    records = np.empty((groups, heads, RECORD), np.uint8)
    factor = np.empty(heads, np.float32)
    numbers, group_numbers = np.empty(dim, np.int32), np.zeros(GROUP, np.int32)
    for head in range(heads):
        e, _ = fixed_row(q[head], numbers)
        factor[head] = scaled(log2_units, e - QUERY_BITS)
        for group in range(groups):
            fill(numbers, group, groups, group_numbers)
            pack(group_numbers.ctypes.data, records[group, head].ctypes.data)
    scale = np.zeros((groups, s.shape[1]), np.float32)
    scales_of(k_scale, offsets, scale)
    codes = np.empty(TILE_BYTES, np.uint8)
    places, spare = np.empty(WIDE, np.int64), np.zeros((WIDE, GROUP), np.int8)
    # The sum of a first term and -0 is that term, whatever its sign.
    s[:] = MINUS_ZERO
    for start in range(0, offsets.size, WIDE):
        mine = offsets[start : start + WIDE]
        if coding != Q4_0:
            addresses(k_codes, mine, places)
        for group in range(groups):
            if coding == Q4_0:
                write_out(k_codes, mine, group, coding, spare)
                addresses(spare, NUMBERS[: mine.size], places)
            transpose(places.ctypes.data, 0 if coding == Q4_0 else GROUP * group, codes.ctypes.data)
            _add_products(codes, records[group], scale[group, start:], s[:, start:])
    for head in range(heads):
        top[head] = _clamp(s[head, : offsets.size], factor[head])


@kernel
def _clamp(s, factor):
    """s [cells] = s * factor within +-SCORE_LIMIT; returns the largest floor, NO_CELL of no cell."""
    highest = np.int32(NO_CELL)
    for c in range(s.size):
        x = s[c] * factor
        # In this form a NaN becomes the limit, as fmin and fmax make it.
        x = x if x < SCORE_LIMIT else SCORE_LIMIT
        x = x if x > -SCORE_LIMIT else -SCORE_LIMIT
        s[c] = x
        highest = max(highest, floor(x))
    return highest


@kernel
def _add_products(codes, records, scale, total):
    """total [heads, 16 and more] += float32(query times code) * scale of 16 cells; records [heads, RECORD] of one
    group."""
    heads, line = len(records), total.strides[0]
    x, sums = records.ctypes.data, total.ctypes.data
    code, factor = codes.ctypes.data, scale.ctypes.data
    head = 0
    while head < heads:
        a, out = x + RECORD * head, sums + line * head
        left = heads - head
        if left >= 4:
            tile_4_1(code, 0, (a, a + RECORD, a + 2 * RECORD, a + 3 * RECORD), factor, 0, out, line)
            head += 4
        elif left >= 2:
            tile_2_1(code, 0, (a, a + RECORD), factor, 0, out, line)
            head += 2
        else:
            tile_1_1(code, 0, (a,), factor, 0, out, line)
            head += 1
