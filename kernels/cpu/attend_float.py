"""``attend`` in the float arithmetic: partial softmax per piece of a row's cells, merged by log-sum-exp in their order.

A piece is 64 consecutive entries of the row's ids in the standing path (design section 8), and one split in the split
schedule. Cells that are not selected (id -1, page not resident) keep their entry and take no part. Everything is
float32 in one order that depends on the row and the piece alone, so neither the batch nor the threads change a bit.
Exponentials are exp2 of scores in log2 units, as in the exact arithmetic: no mathematical library is called.
"""

import numpy as np

from qsa.reference.geometry import Geometry
from qsa.reference.kv import PagedKV

from .gather import ALONE, FP16, Q4_0, TILE, accumulate, code, dots_of, flat, locate, scale_of, turn
from .jit import kernel
from .scalar import NAN, SCORE_LIMIT, ZERO, exp2_fraction, floor, half_to_float, rotate, scaled
from .threads import share

CHUNK = 64
"""Cells of a piece in the standing path."""


@kernel
def _exp2(x):
    """float32 2^x for x from -2^25 to 0."""
    n = floor(x)
    return scaled(exp2_fraction(x, n), np.int64(n))


@kernel
def _values(side, offset, x):
    """Fill x [dim] float32 with the dequantised values of one cell, in the coding's own basis."""
    codes, scale, coding = side
    if coding == FP16:
        for d in range(x.size):
            x[d] = half_to_float(np.uint16(codes[offset, 2 * d]) | np.uint16(codes[offset, 2 * d + 1]) << 8)
        return
    dims = x.size // scale.shape[1]
    for group in range(scale.shape[1]):
        factor = scale_of(scale, offset, group)
        for d in range(group * dims, (group + 1) * dims):
            x[d] = np.float32(code(codes, offset, d, coding)) * factor


@kernel
def _piece(q, offsets, count, k, v, factor, top, mass, acc):
    """Largest score into top [heads], sums of weights into mass [heads], of weighted values into acc [heads, dim].

    count > 0. Scores are clamped to +-2^24, as in the exact arithmetic.
    """
    heads, dim = q.shape
    s = np.empty((heads, (count + 7) // 8 * 8), np.float32)
    cell = np.empty(dim, np.float32)
    keys = np.empty((dim, TILE), np.float32)
    dots = np.empty((heads, TILE), np.float32)
    for head in range(heads):
        top[head], mass[head] = -SCORE_LIMIT, ZERO
    for start in range(0, count, TILE):
        cells = min(TILE, count - start)
        for c in range(cells):
            _values(k, offsets[start + c], cell)
            for d in range(dim):
                keys[d, c] = cell[d]
        dots_of(q, keys, dots, 0, dim, cells)
        for head in range(heads):
            for c in range(cells):
                x = dots[head, c] * factor
                x = x if x < SCORE_LIMIT else SCORE_LIMIT
                x = x if x > -SCORE_LIMIT else -SCORE_LIMIT
                s[head, start + c] = x
                top[head] = max(top[head], x)
    for head in range(heads):
        for c in range(count):
            s[head, c] = _exp2(s[head, c] - top[head])
            mass[head] += s[head, c]
        s[head, count:] = ZERO
    acc[:] = ZERO
    values = np.empty((TILE, dim), np.float32)
    for start in range(0, count, TILE):
        cells = min(TILE, count - start)
        padded = (cells + 7) // 8 * 8
        for c in range(cells):
            _values(v, offsets[start + c], values[c])
        values[cells:padded] = ZERO
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
        _piece(turned, offsets, count, k, v, factor, top[i, piece, mine], mass[i, piece, mine], acc[i, piece, mine])


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
    k, v = flat(kv.pool.k), flat(kv.pool.v)
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
