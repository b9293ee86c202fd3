"""``attend`` in the exact arithmetic: two passes over the selected cells, cut by (row, KV head, part of the cells).

Source: design section 4, whose step numbers are used here; the bits are those of ``reference/exact/attend.py``. The
integer sums are those of ``products/``: 16 cells are to a query what 16 outputs are to a row of a linear layer.
"""

import numba
import numpy as np

from qsa.reference.exact.attend import NO_CELL
from qsa.reference.exact.scalar import QUERY_BITS
from qsa.reference.geometry import Geometry
from qsa.reference.kv import PagedKV

from .gather import Q4_0, TILE, codes_of, complement, fill, flat, locate, scale_of, turn
from .jit import kernel
from .products.form import GROUP, TILE_BYTES, WIDE
from .products.records import fixed_row
from .products.tile import RECORD, pack, tile_1_1, tile_2_1, tile_4_1, transpose
from .products.values import (
    FOLD,
    LIMBS,
    QUAD_BYTES,
    WEIGHT_BYTES,
    accumulate,
    interleave,
    pack_weights,
    place_of,
)
from .scalar import (
    NAN,
    SCORE_LIMIT,
    ZERO,
    exp2_fraction,
    floor,
    integer_bits,
    power_of_two,
    rotate,
    scaled,
    split_scale,
)

MINUS_ZERO = np.float32(-0.0)


@kernel
def _score_part(q, offsets, count, k, log2_units, s, top):
    """Steps 1 to 4 of one row, KV head and part: scores s [heads, count] and the largest floor into top [heads]."""
    k_codes, k_scale, coding = k
    heads, dim = q.shape
    groups = k_scale.shape[1]
    records = np.empty((groups, heads, RECORD), np.uint8)
    factor = np.empty(heads, np.float32)
    numbers, group_numbers = np.empty(dim, np.int32), np.zeros(GROUP, np.int32)
    for head in range(heads):
        e, _ = fixed_row(q[head], numbers)
        factor[head] = scaled(log2_units, e - QUERY_BITS)
        top[head] = NO_CELL
        for group in range(groups):
            fill(numbers, group, groups, group_numbers)
            pack(group_numbers.ctypes.data, records[group, head].ctypes.data)
    scale, total = np.zeros(WIDE, np.float32), np.empty((heads, WIDE), np.float32)
    codes = np.empty(TILE_BYTES, np.uint8)
    places, spare = np.empty(WIDE, np.int64), np.zeros((WIDE, GROUP), np.int8)
    for start in range(0, count, WIDE):
        cells = min(WIDE, count - start)
        # The sum of a first term and -0 is that term, whatever its sign.
        total[:] = MINUS_ZERO
        for group in range(groups):
            for c in range(cells):
                scale[c] = scale_of(k_scale, offsets[start + c], group)
            codes_of(k_codes, offsets[start : start + cells], group, groups, coding, places, spare)
            transpose(places.ctypes.data, codes.ctypes.data)
            _add_products(codes, records[group], scale, total)
        for head in range(heads):
            row, x, f, highest = s[head, start : start + cells], total[head], factor[head], np.int32(top[head])
            for c in range(cells):
                y = x[c] * f
                # In this form a NaN becomes the limit, as fmin and fmax make it.
                y = y if y < SCORE_LIMIT else SCORE_LIMIT
                y = y if y > -SCORE_LIMIT else -SCORE_LIMIT
                row[c] = y
                highest = max(highest, floor(y))
            top[head] = highest


@kernel
def _add_products(codes, records, scale, total):
    """total [heads, 16] += float32(query times code) * scale of 16 cells; records [heads, RECORD] of one group."""
    heads, line = len(records), 4 * WIDE
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
    sums = np.zeros((heads, groups, LIMBS, GROUP), np.int32)
    value[:] = 0
    values, weight_bytes = np.empty((TILE // 4, QUAD_BYTES), np.uint8), np.empty((TILE // 4, WEIGHT_BYTES), np.uint8)
    weight = np.empty(TILE, np.uint32)
    r = np.empty((heads, TILE), np.float32)
    n = np.empty((heads, TILE), np.int32)
    mu = np.empty(TILE, np.float32)
    exponent = np.empty(TILE, np.int32)
    negative = np.empty(TILE, np.bool_)
    places, spare = np.empty(TILE, np.int64), np.zeros((TILE, GROUP), np.int8)
    # -c is ~c + 1: the complements' sums lack each weight once.
    turned_mass = np.zeros((heads, groups), np.int64)
    folded = 0
    for head in range(heads):
        mass[head] = 0
    for start in range(0, count, TILE):
        cells = min(TILE, count - start)
        for head in range(heads):
            x, total = s[head, start : start + cells], np.int64(0)
            for c in range(cells):
                n[head, c] = floor(x[c])
                r[head, c] = exp2_fraction(x[c], n[head, c])
            for c in range(cells):
                shift = 30 + n[head, c] - floor_top[head]
                p = integer_bits(np.float64(r[head, c]) * power_of_two(min(max(shift, -60), 31)))
                total += p if shift >= -1 else 0
            mass[head] += total
        for group in range(groups):
            for c in range(cells):
                scale = scale_of(v_scale, offsets[start + c], group)
                negative[c] = scale < 0
                mu[c], exponent[c] = split_scale(scale)
                exponent[c] = exponent[c] if mu[c] > 0 else NO_CELL
            codes_of(v_codes, offsets[start : start + cells], group, groups, coding, places, spare)
            turned = False
            for c in range(cells):
                turned = turned or negative[c]
            if turned:
                complement(v_codes, offsets[start : start + cells], group, coding, negative, places, spare)
            for quad in range((cells + 3) // 4):
                interleave(places[4 * quad :].ctypes.data, values[quad].ctypes.data)
            weight[cells:] = 0
            for head in range(heads):
                for c in range(cells):
                    shift = 30 + n[head, c] + exponent[c] - group_top[head, group]
                    w = integer_bits(np.float64(r[head, c] * mu[c]) * power_of_two(min(max(shift, -60), 31)))
                    weight[c] = np.uint32(w if shift >= -1 else 0)
                if turned:
                    for c in range(cells):
                        turned_mass[head, group] += np.int64(weight[c]) if negative[c] else 0
                for c in range(0, TILE, WIDE):
                    pack_weights(weight[c:].ctypes.data, weight_bytes[c // 4].ctypes.data)
                accumulate(
                    weight_bytes.ctypes.data, values.ctypes.data, (cells + 3) // 4, sums[head, group].ctypes.data
                )
        folded += cells
        if folded > FOLD - TILE or start + cells == count:
            _fold(sums, value)
            folded = 0
    dims = value.shape[1] // groups
    for head in range(heads):
        for d in range(value.shape[1]):
            value[head, d] += turned_mass[head, d // dims]


@kernel
def _fold(sums, value):
    """Move sums [heads, groups, LIMBS, GROUP] to value [heads, dim] int64."""
    heads, groups = sums.shape[:2]
    dims = value.shape[1] // groups
    for head in range(heads):
        for group in range(groups):
            limbs = sums[head, group]
            for d in range(dims):
                place = place_of(d)
                total = np.int64(0)
                for limb in range(LIMBS):
                    total += np.int64(limbs[limb, place]) << 8 * limb
                value[head, group * dims + d] += total
    sums[:] = 0


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
