"""``attend`` in the exact arithmetic: two passes over the selected cells, cut by (row, KV head, part of the cells).

Source: design section 4, whose step numbers are used here; the bits are those of ``reference/exact/attend.py``. The
integers are held in float64, where every product and partial sum stays below 2^53 and is therefore exact in any order:
the loops vectorise over cells (scores) and dims (values), and a processor that fuses them changes nothing.
"""

import numba
import numpy as np

from qsa.reference.exact.attend import NO_CELL
from qsa.reference.exact.scalar import QUERY_BITS
from qsa.reference.geometry import Geometry
from qsa.reference.kv import PagedKV

from .gather import Q4_0, TILE, accumulate, code, dots_of, flat, locate, scale_of, turn
from .jit import kernel
from .scalar import (
    NAN,
    SCORE_LIMIT,
    ZERO,
    exp2_fraction,
    fixed_point,
    floor,
    power_of_two,
    rint,
    rotate,
    scaled,
    split_scale,
)

FOLD = 16384
"""Cells after which the float64 sums are moved to int64: 16384 * 2^31 * 2^7 = 2^52."""


@kernel
def _score_part(q, offsets, count, k, log2_units, s, top):
    """Steps 1 to 4 of one row, KV head and part: scores s [heads, count] and the largest floor into top [heads]."""
    k_codes, k_scale, coding = k
    heads, dim = q.shape
    groups = k_scale.shape[1]
    dims = dim // groups
    qi = np.empty((heads, dim))
    factor = np.empty(heads, np.float32)
    for head in range(heads):
        e, _ = fixed_point(q[head], qi[head])
        factor[head] = scaled(log2_units, e - QUERY_BITS)
        top[head] = NO_CELL
    keys = np.empty((dims, TILE))
    dots = np.empty((heads, TILE))
    scale = np.empty(TILE, np.float32)
    for start in range(0, count, TILE):
        cells = min(TILE, count - start)
        for group in range(groups):
            for c in range(cells):
                offset = offsets[start + c]
                scale[c] = scale_of(k_scale, offset, group)
                for d in range(dims):
                    keys[d, c] = code(k_codes, offset, group * dims + d, coding)
            dots_of(qi, keys, dots, group * dims, dims, cells)
            for head in range(heads):
                total, dot = s[head, start : start + cells], dots[head]
                if group == 0:
                    for c in range(cells):
                        total[c] = np.float32(dot[c]) * scale[c]
                else:
                    for c in range(cells):
                        total[c] = total[c] + np.float32(dot[c]) * scale[c]
        for head in range(heads):
            total, f, highest = s[head, start : start + cells], factor[head], np.int32(top[head])
            for c in range(cells):
                x = total[c] * f
                # In this form a NaN becomes the limit, as fmin and fmax make it.
                x = x if x < SCORE_LIMIT else SCORE_LIMIT
                x = x if x > -SCORE_LIMIT else -SCORE_LIMIT
                total[c] = x
                highest = max(highest, floor(x))
            top[head] = highest


@kernel
def _group_part(offsets, count, v_scale, s, top):
    """Step 5 of one part: the largest n + v per head and value group into top [heads, groups]."""
    heads, groups = top.shape
    top[:] = NO_CELL
    v = np.empty(TILE, np.int32)
    for start in range(0, count, TILE):
        cells = min(TILE, count - start)
        for group in range(groups):
            for c in range(cells):
                mu, v[c] = split_scale(scale_of(v_scale, offsets[start + c], group))
                v[c] = v[c] if mu > 0 else NO_CELL
            for head in range(heads):
                x, highest = s[head, start : start + cells], np.int32(top[head, group])
                for c in range(cells):
                    highest = max(highest, np.int32(floor(x[c]) + v[c]))
                top[head, group] = highest
    for head in range(heads):
        for group in range(groups):
            # n + v of a cell with a scale is never so low: |n| <= 2^24.
            if top[head, group] < NO_CELL // 2:
                top[head, group] = NO_CELL


@kernel
def _sum_part(offsets, count, v, s, floor_top, group_top, mass, value):
    """Steps 5 to 7 of one part: L into mass [heads] and O into value [heads, dim], both int64."""
    v_codes, v_scale, coding = v
    heads, groups = group_top.shape
    dim = value.shape[1]
    dims = dim // groups
    sums = np.zeros((heads, dim))
    value[:] = 0
    values = np.empty((TILE, dims))
    weight = np.empty((heads, TILE))
    r = np.empty((heads, TILE), np.float32)
    n = np.empty((heads, TILE), np.int32)
    mu = np.empty(TILE, np.float32)
    exponent = np.empty(TILE, np.int32)
    folded = 0
    for head in range(heads):
        mass[head] = 0
    for start in range(0, count, TILE):
        cells = min(TILE, count - start)
        padded = (cells + 7) // 8 * 8
        for head in range(heads):
            x, total = s[head, start : start + cells], np.int64(0)
            for c in range(cells):
                n[head, c] = floor(x[c])
                r[head, c] = exp2_fraction(x[c], n[head, c])
            for c in range(cells):
                shift = 30 + n[head, c] - floor_top[head]
                p = rint(np.float64(r[head, c]) * power_of_two(min(max(shift, -60), 31)))
                total += np.int64(p) if shift >= -1 else 0
            mass[head] += total
        for group in range(groups):
            for c in range(cells):
                offset = offsets[start + c]
                scale = scale_of(v_scale, offset, group)
                mu[c], exponent[c] = split_scale(scale)
                exponent[c] = exponent[c] if mu[c] > 0 else NO_CELL
                sign = -1.0 if scale < 0 else 1.0
                for d in range(dims):
                    values[c, d] = sign * code(v_codes, offset, group * dims + d, coding)
            values[cells:padded] = 0.0
            weight[:, cells:padded] = 0.0
            for head in range(heads):
                for c in range(cells):
                    shift = 30 + n[head, c] + exponent[c] - group_top[head, group]
                    w = rint(np.float64(r[head, c] * mu[c]) * power_of_two(min(max(shift, -60), 31)))
                    weight[head, c] = w if shift >= -1 else 0.0
            accumulate(weight, values, sums, group * dims, dims, padded)
        folded += cells
        if folded > FOLD - TILE or start + cells == count:
            for head in range(heads):
                for d in range(dim):
                    value[head, d] += np.int64(sums[head, d])
                    sums[head, d] = 0.0
            folded = 0


@kernel
def _item(item, job):
    """(number of the row, KV head, part, first query head, first id, offsets of the cells found) of a work item."""
    rows, parts, n_head_kv, heads, ids, widths, table, page_size = job
    i, g, part = item // (n_head_kv * parts), item // parts % n_head_kv, item % parts
    width = widths[rows[i]]
    start, stop = width * part // parts, width * (part + 1) // parts
    offsets = np.empty(stop - start, np.int64)
    count = locate(ids[rows[i]], start, stop, table, page_size, n_head_kv, g, offsets)
    return i, g, part, g * heads, start, offsets[:count]


@kernel
def _scores_of(item, job, q, k, v_scale, log2_units, s, found, finite, tops):
    i, g, part, first, start, offsets = _item(item, job)
    count, mine = offsets.size, slice(first, first + job[3])
    found[i, g, part] = count
    query = q[job[0][i], mine]
    turned = np.empty(query.shape, np.float32)
    turn(query, k[2], turned, finite[i, part, mine])
    s = s[i, mine, start : start + count]
    _score_part(turned, offsets, count, k, log2_units, s, tops[0][i, part, mine])
    _group_part(offsets, count, v_scale, s, tops[1][i, part, mine])


@kernel
def _sums_of(item, job, v, s, tops, sums):
    i, _, part, first, start, offsets = _item(item, job)
    count, mine = offsets.size, slice(first, first + job[3])
    s = s[i, mine, start : start + count]
    floor_top, group_top = tops[0][i, 0, mine], tops[1][i, 0, mine]
    _sum_part(offsets, count, v, s, floor_top, group_top, sums[0][i, part, mine], sums[1][i, part, mine])


# The loops over work items stand alone: numba's parallel pass takes seconds over a body of any size. The item is cast
# because that pass types it unsigned, and would compile everything below a second time.


@kernel(parallel=True)
def _scores_all(items, job, q, k, v_scale, log2_units, s, found, finite, tops):
    for item in numba.prange(items):
        _scores_of(np.int64(item), job, q, k, v_scale, log2_units, s, found, finite, tops)


@kernel(parallel=True)
def _sums_all(items, job, v, s, tops, sums):
    for item in numba.prange(items):
        _sums_of(np.int64(item), job, v, s, tops, sums)


@kernel
def _merge_maxima(floor_top, group_top):
    """Fold the maxima of every part, [n, parts, n_head] and [n, parts, n_head, groups], into part 0."""
    for i in range(len(floor_top)):
        for part in range(1, floor_top.shape[1]):
            for head in range(floor_top.shape[2]):
                floor_top[i, 0, head] = max(floor_top[i, 0, head], floor_top[i, part, head])
                for group in range(group_top.shape[3]):
                    group_top[i, 0, head, group] = max(group_top[i, 0, head, group], group_top[i, part, head, group])


@kernel
def _outputs(job, found, finite, coding, tops, sums, out):
    """Step 8: the parts' sums added, one rounded division; rotated back and poisoned where that applies."""
    rows, parts, heads = job[0], job[1], job[3]
    floor_top, group_top = tops
    mass, value = sums
    dims = out.shape[2] // group_top.shape[3]
    for i in range(len(rows)):
        for head in range(out.shape[1]):
            row = out[rows[i], head]
            count, total = 0, np.int64(0)
            for part in range(parts):
                count += found[i, head // heads, part]
                total += mass[i, part, head]
            if count == 0:
                row[:] = ZERO
                continue
            if not finite[i, 0, head]:
                row[:] = NAN
                continue
            divisor = np.float32(total)
            for d in range(row.size):
                integer = np.int64(0)
                for part in range(parts):
                    integer += value[i, part, head, d]
                exponent = group_top[i, 0, head, d // dims] - floor_top[i, 0, head]
                row[d] = scaled(np.float32(integer), exponent) / divisor
            if coding == Q4_0:
                rotate(row)
            for d in range(row.size):
                # -0 becomes +0.
                row[d] += ZERO


def row_bytes(geometry: Geometry, width: int, splits: int | None) -> int:
    """Bytes of scratch that :func:`attend_rows` needs for a row, about."""
    return geometry.n_head * (4 * width + 8 * geometry.head_dim * (splits or 1))


def attend_rows(
    q: np.ndarray,
    kv: PagedKV,
    rows: np.ndarray,
    ids: np.ndarray,
    widths: np.ndarray,
    splits: int | None,
    out: np.ndarray,
) -> None:
    """Exact attention of the rows numbered ``rows`` [n] int64, all of ``kv``, each row's cells cut into ``splits``
    parts (None: one).

    q, out [all rows, n_head, head_dim] float32; ids [all rows, cap] int32, checked; widths [all rows] int64, not
    negative. All contiguous.
    """
    g, parts = kv.pool.geometry, splits or 1
    k, v = flat(kv.pool.k), flat(kv.pool.v)
    job = rows, parts, g.n_head_kv, g.group, ids, widths, kv.table, kv.pool.page_size
    n, width, groups = len(rows), int(widths[rows].max()), v[1].shape[1]
    s = np.empty((n, g.n_head, width), np.float32)
    found = np.empty((n, g.n_head_kv, parts), np.int64)
    finite = np.empty((n, parts, g.n_head), np.bool_)
    tops = np.empty((n, parts, g.n_head), np.int64), np.empty((n, parts, g.n_head, groups), np.int64)
    sums = np.empty((n, parts, g.n_head), np.int64), np.empty((n, parts, g.n_head, g.head_dim), np.int64)
    log2_units = np.float32(np.log2(np.e) / np.sqrt(g.head_dim))
    _scores_all(found.size, job, q, k, v[1], log2_units, s, found, finite, tops)
    _merge_maxima(*tops)
    _sums_all(found.size, job, v, s, tops, sums)
    _outputs(job, found, finite, v[2], tops, sums, out)
