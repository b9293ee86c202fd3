"""``attend`` in the float arithmetic: partial softmax per piece of a row's cells, merged by log-sum-exp in their order.

A piece is 64 consecutive entries of the row's ids in the standing path (design section 8), and one split in the split
schedule. Cells that are not selected (id -1, page not resident) keep their entry and take no part. Everything is
float32 in one order that depends on the row and the piece alone, so neither the batch nor the threads change a bit.
Exponentials are exp2 of scores in log2 units, as in the exact arithmetic: no mathematical library is called.
"""

import numpy as np

from qsa.reference.geometry import Geometry
from qsa.reference.kv import PagedKV

from .common.gather import (
    ALONE,
    FP16,
    GROUP,
    Q4_0,
    TILE,
    accumulate,
    dots_of,
    flat,
    locate,
    scale_of,
    turn,
    write_out,
)
from .common.jit import kernel
from .common.scalar import NAN, SCORE_LIMIT, ZERO, exp2_fraction, floor, half_to_float, rotate, scaled
from .common.threads import share
from .products.form import WIDE
from .products.tile import transpose_words

ONE = np.uint64(1)
CHUNK = 64
"""Cells of a piece in the standing path."""


@kernel
def _exp2(x):
    """float32 2^x for x from -2^25 to 0."""
    n = floor(x)
    return scaled(exp2_fraction(x, n), np.int64(n))


@kernel
def _values(side, offsets, codes, values):
    """Fill values [TILE, dim and more] float32 with what the cells at ``offsets`` [up to TILE] hold, dequantised, in
    the coding's own basis; ``codes`` [TILE, 64] int8 is scratch. Indices are unsigned as in ``gather.write_out``."""
    stored, scale, coding, dim = side
    if coding == FP16:
        for c in range(offsets.size):
            cell = np.uint64(offsets[c])
            for d in range(np.uint64(dim)):
                low = stored[cell, np.uint64(2) * d]
                values[c, d] = half_to_float(np.uint16(low) | np.uint16(stored[cell, np.uint64(2) * d + ONE]) << 8)
        return
    groups = scale.shape[1]
    dims = np.uint64(dim // groups)
    for group in range(groups):
        first = np.uint64(group) * dims
        if coding == Q4_0:
            write_out(stored, offsets, group, coding, codes)
        for c in range(offsets.size):
            cell, factor = np.uint64(offsets[c]), scale_of(scale, offsets[c], group)
            if coding == Q4_0:
                for d in range(dims):
                    values[c, first + d] = np.float32(codes[c, d]) * factor
            else:
                for d in range(dims):
                    values[c, first + d] = np.float32(np.int8(stored[cell, first + d])) * factor


@kernel
def _columns(values, cells, keys):
    """keys [dim and more, TILE] = the values [TILE, dim and more] of ``cells`` cells, a cell a column."""
    width = values.shape[1]
    for c in range(0, cells, WIDE):
        for d in range(0, width, WIDE):
            source, target = values.ctypes.data + 4 * (c * width + d), keys.ctypes.data + 4 * (d * TILE + c)
            transpose_words(source, 4 * width, target, 4 * TILE)


@kernel
def _scaled(dots, factor, s, top):
    """s [cells] = dots * factor within +-SCORE_LIMIT; returns the largest of them and ``top``.

    Of integers in the order of floats: the compiler compares them in vectors, which it may not do with floats.
    """
    highest = _ordered(top)
    for c in range(s.size):
        x = dots[c] * factor
        # In this form a NaN becomes the limit.
        x = x if x < SCORE_LIMIT else SCORE_LIMIT
        x = x if x > -SCORE_LIMIT else -SCORE_LIMIT
        s[c] = x
        highest = max(highest, _ordered(x))
    return np.int32(highest ^ np.int32((highest >> 31) & 0x7FFFFFFF)).view(np.float32)


@kernel
def _ordered(x):
    """int32 of a float32, so that the greater one has the greater integer."""
    bits = np.int32(np.float32(x).view(np.int32))
    return np.int32(bits ^ np.int32((bits >> 31) & 0x7FFFFFFF))


@kernel
def _masses(s, count, mass):
    """mass [heads] = the sums of s [heads, first ``count``] in the order of the cells: of four heads side by side, each
    of which waits for its last sum."""
    heads = len(mass)
    for head in range(0, heads, 4):
        last = heads - 1
        a, b, c, d = s[head], s[min(head + 1, last)], s[min(head + 2, last)], s[min(head + 3, last)]
        m0, m1, m2, m3 = ZERO, ZERO, ZERO, ZERO
        for i in range(count):
            m0 += a[i]
            m1 += b[i]
            m2 += c[i]
            m3 += d[i]
        mass[head], mass[min(head + 1, last)], mass[min(head + 2, last)], mass[min(head + 3, last)] = m0, m1, m2, m3


@kernel
def _piece(q, offsets, k, v, factor, top, mass, acc):
    """Largest score into top [heads], sums of weights into mass [heads], of weighted values into acc [heads, dim].

    At least one cell. Scores are clamped to +-2^24, as in the exact arithmetic.
    """
    heads, dim = q.shape
    count, width = offsets.size, (dim + WIDE - 1) // WIDE * WIDE
    s = np.empty((heads, (count + 7) // 8 * 8), np.float32)
    values, keys = np.empty((TILE, width), np.float32), np.empty((width, TILE), np.float32)
    dots, codes = np.empty((heads, TILE), np.float32), np.empty((TILE, GROUP), np.int8)
    top[:] = -SCORE_LIMIT
    for start in range(0, count, TILE):
        mine = offsets[start : start + TILE]
        _values(k, mine, codes, values)
        _columns(values, mine.size, keys)
        dots_of(q, keys, dots, 0, dim, mine.size)
        for head in range(heads):
            top[head] = _scaled(dots[head], factor, s[head, start : start + mine.size], top[head])
    for head in range(heads):
        row, highest = s[head], top[head]
        for c in range(count):
            row[c] = _exp2(row[c] - highest)
        row[count:] = ZERO
    _masses(s, count, mass)
    acc[:] = ZERO
    for start in range(0, count, TILE):
        mine = offsets[start : start + TILE]
        padded = (mine.size + 7) // 8 * 8
        _values(v, mine, codes, values)
        values[mine.size : padded] = ZERO
        accumulate(s[:, start:], values, acc, 0, dim, padded)


@kernel
def _pieces(begin, end, job, q, k, v, factor, found, finite, sums):
    """Work items ``begin`` to ``end``: each a piece of a row."""
    rows, lengths, n_head_kv, heads, ids, widths, table, page_size = job
    top, mass, acc = sums
    pieces = found.shape[2]
    for item in range(begin, end):
        i, g, piece = item // (n_head_kv * pieces), item // pieces % n_head_kv, item % pieces
        start = min(widths[rows[i]], piece * lengths[i])
        stop = min(widths[rows[i]], start + lengths[i])
        offsets = np.empty(stop - start, np.int64)
        count = locate(ids[rows[i]], start, stop, table, page_size, n_head_kv, g, offsets)
        found[i, g, piece] = count
        if count == 0:
            continue
        mine = slice(g * heads, (g + 1) * heads)
        query = q[rows[i], mine]
        turned = np.empty(query.shape, np.float32)
        turn(query, k[2], turned, finite[i, piece, mine])
        _piece(turned, offsets[:count], k, v, factor, top[i, piece, mine], mass[i, piece, mine], acc[i, piece, mine])


@kernel
def _merge(job, coding, found, finite, sums, out):
    """Fold the pieces that hold cells in ascending order; rotated back and poisoned where that applies."""
    rows, heads = job[0], job[3]
    top, mass, acc = sums
    for i in range(len(rows)):
        for head in range(out.shape[1]):
            row, g = out[rows[i], head], head // heads
            row[:] = ZERO
            highest, total, whole = -SCORE_LIMIT, ZERO, True
            for piece in range(found.shape[2]):
                if found[i, g, piece]:
                    highest = max(highest, top[i, piece, head])
                    whole = whole and finite[i, piece, head]
            if not whole:
                row[:] = NAN
                continue
            for piece in range(found.shape[2]):
                if found[i, g, piece]:
                    weight = _exp2(top[i, piece, head] - highest)
                    total += mass[i, piece, head] * weight
                    for d in range(row.size):
                        row[d] += acc[i, piece, head, d] * weight
            if total > 0:
                for d in range(row.size):
                    row[d] /= total
                if coding == Q4_0:
                    rotate(row)


def row_bytes(geometry: Geometry, width: int, splits: int | None) -> int:
    """Bytes of scratch that :func:`attend_rows` needs for a row, about."""
    return 4 * geometry.n_head * (geometry.head_dim + 4) * (splits or -(-width // CHUNK))


def attend_rows(
    q: np.ndarray,
    kv: PagedKV,
    rows: np.ndarray,
    ids: np.ndarray,
    widths: np.ndarray,
    splits: int | None,
    out: np.ndarray,
) -> None:
    """Float attention of the rows numbered ``rows`` [n] int64, all of ``kv``.

    ``splits`` cuts each row's chunks of 64 cells into that many pieces of equal length (the last ones may be empty);
    None makes every chunk a piece. The rest as ``attend_exact.attend_rows``.
    """
    g = kv.pool.geometry
    k, v = (*flat(kv.pool.k), g.head_dim), (*flat(kv.pool.v), g.head_dim)
    chunks = -(-widths[rows] // CHUNK)
    pieces = int(chunks.max()) if splits is None else splits
    lengths = CHUNK * (np.ones_like(chunks) if splits is None else -(-chunks // splits))
    job = rows, lengths, g.n_head_kv, g.group, ids, widths, kv.table, kv.pool.page_size
    n = len(rows)
    found = np.empty((n, g.n_head_kv, pieces), np.int64)
    finite = np.empty((n, pieces, g.n_head), np.bool_)
    top, mass = np.empty((2, n, pieces, g.n_head), np.float32)
    sums = top, mass, np.empty((n, pieces, g.n_head, g.head_dim), np.float32)
    factor = np.float32(np.log2(np.e) / np.sqrt(g.head_dim))
    alone = n * g.n_head * int(widths[rows].max()) < ALONE
    share(alone, found.size, _pieces, job, q, k, v, factor, found, finite, sums)
    _merge(job, v[2], found, finite, sums, out)
