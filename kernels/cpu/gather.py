"""Cells out of the pools: where a row's cells lie, their codes as numbers, their scales.

A pool is addressed as ``codes`` [pages * n_head_kv * page_size, bytes] uint8 and ``scale`` [the same, groups] uint16
(float16 bits). Places are int64: a pool of 2^31 codes and more is ordinary.
"""

import numba
import numpy as np

from .jit import kernel
from .scalar import half_to_float


def flat(side):
    """(codes uint8 [places, bytes], scale uint16 [places, groups], whether q4_0) of a pool's :class:`Side`, as views.

    A pool whose arrays are not contiguous is copied; read only.
    """
    codes, scale = np.ascontiguousarray(side.codes), np.ascontiguousarray(side.scale)
    places = codes.shape[0] * codes.shape[1] * codes.shape[2]
    return (
        codes.view(np.uint8).reshape(places, -1),
        scale.view(np.uint16).reshape(places, scale.shape[-1]),
        side.coding == "q4_0",
    )


@kernel(parallel=True)
def first_bad_row(ids, widths, capacity):
    """The first row with an id below -1 or beyond its ``capacity`` [rows] among its first ``widths`` [rows]; -1 when
    there is none."""
    rows = widths.size
    bad = np.zeros(rows, np.uint8)
    for row in numba.prange(rows):
        low, high = 0, -1
        for i in range(widths[row]):
            low, high = min(low, ids[row, i]), max(high, ids[row, i])
        bad[row] = low < -1 or high >= capacity[row]
    for row in range(rows):
        if bad[row]:
            return row
    return -1


@kernel
def locate(ids, start, stop, table, page_size, n_head_kv, head, places):
    """Fill ``places`` with the pool places of the resident cells ids[start:stop] for one KV head; returns their count.

    The ids have been checked against the capacity.
    """
    count = 0
    for i in range(start, stop):
        cell = np.int64(ids[i])
        if cell < 0:
            continue
        page = np.int64(table[cell // page_size])
        if page >= 0:
            places[count] = (page * n_head_kv + head) * page_size + cell % page_size
            count += 1
    return count


@kernel
def code(codes, place, dim, q4):
    """The code at ``dim`` of a cell, as an integer."""
    if q4:
        # Of every 32 dims, element j is the low nibble of byte j, element 16 + j the high one.
        byte = np.int64(codes[place, (dim >> 5) * 16 + (dim & 15)])
        return ((byte >> ((dim & 16) >> 2)) & 15) - 8
    return np.int64(np.int8(codes[place, dim]))


@kernel
def scale_of(scale, place, group):
    """float32 scale of a cell's group of dims."""
    return half_to_float(scale[place, group])
