"""Reads cells from the pools: offsets of a row's cells, their codes and scales; products over a tile of cells.

A pool is addressed as ``codes`` [pages * n_head_kv * page_size, bytes] uint8 and ``scale`` [the same, groups] uint16
(float16 bits). The first index, the offset of a cell, is int64: a pool can hold 2^31 codes and more.
"""

import numpy as np

from qsa.reference.formats import GROUP as FORMAT_GROUP
from qsa.reference.kv import Side

from .jit import kernel
from .scalar import half_to_float, rotate

INT8, Q4_0, FP16 = range(3)
CODINGS = {"int8": INT8, "q4_0": Q4_0, "fp16": FP16}

GROUP, HALF = FORMAT_GROUP["int8"], FORMAT_GROUP["q4_0"]
"""Dims that share a scale."""

ALONE = 1 << 14
"""Attention of fewer pairs of a query head and a cell runs on one thread: starting the others would cost as much."""

NUMBERS = np.arange(64)
"""Row numbers of codes written out for a tile."""

TILE = 64
"""Cells widened to floats at a time: 64 cells * 64 dims * 8 bytes fill an ordinary L1 cache once. Even in the float
arithmetic no bit depends on it alone: a chunk has 64 cells."""


def flat(side: Side) -> tuple[np.ndarray, np.ndarray, int]:
    """(codes uint8 [cells, bytes], scale uint16 [cells, groups], coding) of a pool's :class:`Side`, as views.

    Arrays that are not contiguous are copied; for reading only.
    """
    codes, scale = np.ascontiguousarray(side.codes), np.ascontiguousarray(side.scale)
    cells = codes.shape[0] * codes.shape[1] * codes.shape[2]
    return (
        codes.view(np.uint8).reshape(cells, -1),
        scale.view(np.uint16).reshape(cells, scale.shape[-1]),
        CODINGS[side.coding],
    )


@kernel
def locate(ids, start, stop, table, page_size, n_head_kv, head, offsets):
    """Fill ``offsets`` with the pool offsets of the resident cells ids[start:stop] of a KV head; returns their count.

    The ids have been checked against the capacity.
    """
    count = 0
    for i in range(start, stop):
        cell = np.int64(ids[i])
        if cell < 0:
            continue
        page = np.int64(table[cell // page_size])
        if page >= 0:
            offsets[count] = (page * n_head_kv + head) * page_size + cell % page_size
            count += 1
    return count


@kernel
def fill(x, group, groups, out):
    """out [64] = the group's elements of x [dim], then what ``out`` held."""
    size = x.size // groups
    for d in range(size):
        out[d] = x[group * size + d]


@kernel
def addresses(codes, rows, places):
    """Fill ``places`` [n] int64 with the addresses of the rows numbered ``rows`` [up to n] of ``codes`` [all, bytes].

    Places behind the last row get its address: what is read there is not used.
    """
    base, size = codes.ctypes.data, codes.shape[1]
    for c in range(rows.size):
        places[c] = base + rows[c] * size
    places[rows.size :] = places[rows.size - 1]


@kernel
def write_out(codes, offsets, group, coding, out):
    """Fill out [cells, 64] int8 with a group's codes of the cells at ``offsets``, q4_0 as far as its group reaches.

    Of every 32 dims of q4_0, element j is the low nibble of byte j, element 16 + j the high one. Indices are unsigned:
    those that may be negative keep a loop from being vectorised, and a part of an array costs as much as a cell.
    """
    half, size = np.uint64(HALF // 2), np.uint64(GROUP)
    if coding == Q4_0:
        first = np.uint64(group) * half
        for c in range(offsets.size):
            cell = np.uint64(offsets[c])
            for j in range(half):
                byte = codes[cell, first + j]
                out[c, j] = np.int8((byte & 15) - 8)
                out[c, half + j] = np.int8((byte >> 4) - 8)
    else:
        first = np.uint64(group) * size
        for c in range(offsets.size):
            cell = np.uint64(offsets[c])
            for d in range(size):
                out[c, d] = np.int8(codes[cell, first + d])


@kernel
def complement(mu, codes):
    """Complement, ~code, the codes [cells, 64] of the cells with a negative ``mu`` [cells].

    A code's negative would not do: of -128 it is no int8.
    """
    for c in range(mu.size):
        if mu[c] < 0:
            for d in range(GROUP):
                codes[c, d] = ~codes[c, d]


@kernel
def scales_of(scale, offsets, out):
    """Fill out [groups, n] float32 with the scales of the cells at ``offsets`` [up to n]."""
    cells, groups = offsets.size, scale.shape[1]
    bits = np.empty((groups, cells), np.uint16)
    for c in range(cells):
        for group in range(groups):
            bits[group, c] = scale[offsets[c], group]
    for group in range(groups):
        source, target = bits[group], out[group]
        for c in range(cells):
            target[c] = half_to_float(source[c])


@kernel
def scale_of(scale, offset, group):
    """float32 scale of a cell's group of dims."""
    return half_to_float(scale[offset, group])


@kernel
def turn(q, coding, turned, finite):
    """Copy query heads q [heads, dim] to ``turned``, rotated where K's coding is; finite [heads] says which are finite
    then."""
    for head in range(len(q)):
        source, target, whole = q[head], turned[head], True
        for d in range(target.size):
            target[d] = source[d]
        if coding == Q4_0:
            rotate(target)
        for d in range(target.size):
            whole = whole and abs(target[d]) < np.inf
        finite[head] = whole


@kernel
def dots_of(q, keys, dots, first, dims, cells):
    """dots [heads, cells] = dot products of q [heads, first : first + dims] and keys [dims, cells]."""
    for head in range(q.shape[0]):
        row, x = dots[head], q[head]
        for c in range(cells):
            row[c] = 0.0
        for d in range(0, dims, 8):
            q0, q1, q2, q3 = x[first + d], x[first + d + 1], x[first + d + 2], x[first + d + 3]
            q4, q5, q6, q7 = x[first + d + 4], x[first + d + 5], x[first + d + 6], x[first + d + 7]
            k0, k1, k2, k3 = keys[d], keys[d + 1], keys[d + 2], keys[d + 3]
            k4, k5, k6, k7 = keys[d + 4], keys[d + 5], keys[d + 6], keys[d + 7]
            for c in range(cells):
                low = q0 * k0[c] + q1 * k1[c] + q2 * k2[c] + q3 * k3[c]
                high = q4 * k4[c] + q5 * k5[c] + q6 * k6[c] + q7 * k7[c]
                row[c] += low + high


@kernel
def accumulate(w, values, sums, first, dims, cells):
    """sums [heads, first : first + dims] += w [heads, cells] times values [cells, dims]."""
    for head in range(w.shape[0]):
        row, weight = sums[head, first : first + dims], w[head]
        for c in range(0, cells, 8):
            w0, w1, w2, w3 = weight[c], weight[c + 1], weight[c + 2], weight[c + 3]
            w4, w5, w6, w7 = weight[c + 4], weight[c + 5], weight[c + 6], weight[c + 7]
            v0, v1, v2, v3 = values[c], values[c + 1], values[c + 2], values[c + 3]
            v4, v5, v6, v7 = values[c + 4], values[c + 5], values[c + 6], values[c + 7]
            for d in range(dims):
                low = w0 * v0[d] + w1 * v1[d] + w2 * v2[d] + w3 * v3[d]
                high = w4 * v4[d] + w5 * v5[d] + w6 * v6[d] + w7 * v7[d]
                row[d] += low + high
