"""``attend`` in the exact arithmetic: two passes over the selected cells, work cut by (row, KV head, part of the cells).

Source: design section 4, whose step numbers are used here; the bits are those of ``reference/exact/attend.py``. The
integers are held in float64, where every product and partial sum stays below 2^53 and is therefore exact in any order:
the loops vectorise over cells (scores) and dims (values), and a processor that fuses them changes nothing.
"""

import numba
import numpy as np

from ...reference.exact.scalar import QUERY_BITS
from .gather import code, locate, scale_of
from .jit import kernel
from .scalar import (
    NAN,
    NO_CELL,
    SCORE_LIMIT,
    exp2_fraction,
    fixed_point,
    floor,
    power_of_two,
    rint,
    rotate,
    scaled,
    split_scale,
)

TILE = 64
"""Cells whose codes are widened to float64 at a time: 64 cells * 64 dims * 8 bytes fill an ordinary L1 cache once."""

FOLD = 16384
"""Cells after which the float64 sums are moved to int64: 16384 * 2^31 * 2^7 = 2^52."""


@kernel
def _dots(qi, keys, dots, first, dims, cells):
    """dots [heads, cells] = exact integer dot products of qi [heads, first : first + dims] and keys [dims, cells]."""
    for head in range(qi.shape[0]):
        row, q = dots[head], qi[head]
        for c in range(cells):
            row[c] = 0.0
        for d in range(0, dims, 8):
            q0, q1, q2, q3 = q[first + d], q[first + d + 1], q[first + d + 2], q[first + d + 3]
            q4, q5, q6, q7 = q[first + d + 4], q[first + d + 5], q[first + d + 6], q[first + d + 7]
            k0, k1, k2, k3 = keys[d], keys[d + 1], keys[d + 2], keys[d + 3]
            k4, k5, k6, k7 = keys[d + 4], keys[d + 5], keys[d + 6], keys[d + 7]
            for c in range(cells):
                low = q0 * k0[c] + q1 * k1[c] + q2 * k2[c] + q3 * k3[c]
                high = q4 * k4[c] + q5 * k5[c] + q6 * k6[c] + q7 * k7[c]
                row[c] += low + high


@kernel
def _cut(width, parts, part):
    """(start, stop) of one of ``parts`` near-equal parts of a row's cells."""
    return width * part // parts, width * (part + 1) // parts


@kernel
def _highest(tops):
    """The maxima over all parts, (floor [heads], group [heads, groups]), of the maxima of each, [parts, ...]."""
    floor_tops, group_tops = tops
    floor_top, group_top = floor_tops[0].copy(), group_tops[0].copy()
    for part in range(1, len(floor_tops)):
        for head in range(floor_top.size):
            floor_top[head] = max(floor_top[head], floor_tops[part, head])
            for group in range(group_top.shape[1]):
                group_top[head, group] = max(group_top[head, group], group_tops[part, head, group])
    return floor_top, group_top


@kernel
def _score_part(q, places, count, k_codes, k_scale, k_q4, log2_units, s, top):
    """Steps 1 to 4 of one row, KV head and part: scores s [heads, count] and the largest floor into top [heads]."""
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
                place = places[start + c]
                scale[c] = scale_of(k_scale, place, group)
                for d in range(dims):
                    keys[d, c] = code(k_codes, place, group * dims + d, k_q4)
            _dots(qi, keys, dots, group * dims, dims, cells)
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
def _group_part(places, count, v_scale, s, top):
    """Step 5 of one part: the largest n + v per head and value group into top [heads, groups]."""
    heads, groups = top.shape
    top[:] = NO_CELL
    v = np.empty(TILE, np.int32)
    for start in range(0, count, TILE):
        cells = min(TILE, count - start)
        for group in range(groups):
            for c in range(cells):
                mu, v[c] = split_scale(scale_of(v_scale, places[start + c], group))
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
def _accumulate(w, values, sums, first, dims, cells):
    """sums [heads, first : first + dims] += w [heads, cells] times values [cells, dims], exact integers in float64."""
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


@kernel
def _sum_part(places, count, v_codes, v_scale, v_q4, s, tops, mass, value):
    """Steps 5 to 7 of one part: L into mass [heads] and O into value [heads, dim], both int64."""
    floor_top, group_top = _highest(tops)
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
    v = np.empty(TILE, np.int32)
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
                place = places[start + c]
                scale = scale_of(v_scale, place, group)
                mu[c], v[c] = split_scale(scale)
                v[c] = v[c] if mu[c] > 0 else NO_CELL
                sign = -1.0 if scale < 0 else 1.0
                for d in range(dims):
                    values[c, d] = sign * code(v_codes, place, group * dims + d, v_q4)
            values[cells:padded] = 0.0
            weight[:, cells:padded] = 0.0
            for head in range(heads):
                for c in range(cells):
                    shift = 30 + n[head, c] + v[c] - group_top[head, group]
                    w = rint(np.float64(r[head, c] * mu[c]) * power_of_two(min(max(shift, -60), 31)))
                    weight[head, c] = w if shift >= -1 else 0.0
            _accumulate(weight, values, sums, group * dims, dims, padded)
        folded += cells
        if folded > FOLD - TILE or start + cells == count:
            for head in range(heads):
                for d in range(dim):
                    value[head, d] += np.int64(sums[head, d])
                    sums[head, d] = 0.0
            folded = 0


@kernel
def _finish(q, count, masses, values, tops, v_q4, out):
    """Step 8 of one head over its parts, masses [parts] and values [parts, dim]: out [dim], rotated back and poisoned
    where that applies."""
    if count == 0:
        out[:] = np.float32(0)
        return
    floor_top, group_top = _highest(tops)
    dims = out.size // group_top.size
    divisor = np.float32(masses.sum())
    for d in range(out.size):
        value = values[:, d].sum()
        out[d] = scaled(np.float32(value), group_top[0, d // dims] - floor_top[0]) / divisor
    if v_q4:
        rotate(out)
    for d in range(q.size):
        if not abs(q[d]) < np.inf:
            out[:] = NAN


@kernel(parallel=True)
def attend_rows(q, rows, ids, steps, table, page_size, n_head_kv, k, v, parts, log2_units, out):
    """Exact attention of the rows numbered ``rows`` [n], all of one pool, each row's cells cut into ``parts``.

    q, out [all rows, n_head, head_dim] float32; ids [all rows, cap] int32, checked; steps [all rows, 4] int32; table
    [logical pages] int32; k, v as ``gather.flat`` gives them; log2_units float32, log2 e / sqrt(head_dim).
    """
    k_codes, k_scale, k_q4 = k
    v_codes, v_scale, v_q4 = v
    n, n_head, dim = rows.size, q.shape[1], q.shape[2]
    heads, groups = n_head // n_head_kv, v_scale.shape[1]
    width = 0
    for i in range(n):
        width = max(width, steps[rows[i], 3])
    turned = np.empty((n, n_head, dim), np.float32)
    s = np.empty((n, n_head, width), np.float32)
    count = np.empty((n, n_head_kv, parts), np.int64)
    floor_top = np.empty((n, parts, n_head), np.int64)
    group_top = np.empty((n, parts, n_head, groups), np.int64)
    mass = np.empty((n, parts, n_head), np.int64)
    value = np.empty((n, parts, n_head, dim), np.int64)
    for item in numba.prange(n * n_head):
        i, head = item // n_head, item % n_head
        turned[i, head] = q[rows[i], head]
        if k_q4:
            rotate(turned[i, head])
    items = n * n_head_kv * parts
    for item in numba.prange(items):
        i, g, part = item // (n_head_kv * parts), item // parts % n_head_kv, item % parts
        start, stop = _cut(steps[rows[i], 3], parts, part)
        mine = slice(g * heads, (g + 1) * heads)
        places = np.empty(stop - start, np.int64)
        found = locate(ids[rows[i]], start, stop, table, page_size, n_head_kv, g, places)
        count[i, g, part] = found
        part_s = s[i, mine, start : start + found]
        _score_part(
            turned[i, mine], places, found, k_codes, k_scale, k_q4, log2_units, part_s, floor_top[i, part, mine]
        )
        _group_part(places, found, v_scale, part_s, group_top[i, part, mine])
    for item in numba.prange(items):
        i, g, part = item // (n_head_kv * parts), item // parts % n_head_kv, item % parts
        start, stop = _cut(steps[rows[i], 3], parts, part)
        mine = slice(g * heads, (g + 1) * heads)
        places = np.empty(stop - start, np.int64)
        found = locate(ids[rows[i]], start, stop, table, page_size, n_head_kv, g, places)
        part_s = s[i, mine, start : start + found]
        tops = floor_top[i, :, mine], group_top[i, :, mine]
        _sum_part(
            places, found, v_codes, v_scale, v_q4, part_s, tops, mass[i, part, mine], value[i, part, mine]
        )
    for item in numba.prange(n * n_head):
        i, head = item // n_head, item % n_head
        tops = floor_top[i, :, head : head + 1], group_top[i, :, head : head + 1]
        total = count[i, head // heads].sum()
        _finish(turned[i, head], total, mass[i, :, head], value[i, :, head], tops, v_q4, out[rows[i], head])
