"""``attend`` in the exact arithmetic: two passes over the selected cells, cut by (row, KV head, part of the cells).

Source: design section 4, whose step numbers are used here; the bits are those of ``reference/exact/attend.py``. Steps 1
to 4 are in ``attend_scores.py``, steps 5 to 7 in ``attend_values.py``.
"""

import numpy as np

from qsa.reference.geometry import Geometry
from qsa.reference.kv import PagedKV

from .attend_scores import padded, score_part
from .attend_values import group_part, sum_part, value_scales
from .common.gather import ALONE, Q4_0, flat, locate, turn
from .common.jit import kernel
from .common.scalar import NAN, ZERO, power_of_two, rotate
from .common.threads import share

BOTH, SCORES, SUMS = range(3)
"""Phases: scores and maxima, then sums."""


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
def _scores_of(cells, job, q, k, v_scale, log2_units, found, finite, tops):
    """(s, mu, exponent) of a work item, whose ``cells`` are what :func:`_item` gave."""
    i, g, part, first, _, offsets = cells
    mine = slice(first, first + job[3])
    found[i, g, part] = offsets.size
    query = q[job[0][i], mine]
    turned = np.empty(query.shape, np.float32)
    turn(query, k[2], turned, finite[i, part, mine])
    # Of its own: a part of an array of all rows has strides, and loops over it would not be vectorised.
    s = np.empty((len(turned), padded(offsets.size)), np.float32)
    score_part(turned, offsets, k, log2_units, s, tops[0][i, part, mine])
    mu, exponent = value_scales(offsets, v_scale)
    group_part(exponent, s, tops[1][i, part, mine])
    return s, mu, exponent


@kernel
def _sums_of(cells, heads, s, mu, exponent, v, tops, sums):
    i, _, part, first, _, offsets = cells
    mine = slice(first, first + heads)
    value = sums[1][i, part, mine]
    sum_part(offsets, mu, exponent, v, s, tops[0][i, 0, mine], tops[1][i, 0, mine], sums[0][i, part, mine], value)


@kernel
def _work(begin, stop, phase, job, q, k, v, log2_units, all_s, found, finite, tops, sums):
    """Work items ``begin`` to ``stop``: each a row's part in one phase, or a row in both. Only parts need the maxima of
    other parts."""
    for item in range(begin, stop):
        cells, heads = _item(item, job), job[3]
        i, _, _, first, start, offsets = cells
        if phase == SUMS:
            s = np.empty((heads, offsets.size), np.float32)
            for head in range(heads):
                _copy(all_s[i, first + head, start:], s[head])
            mu, exponent = value_scales(offsets, v[1])
        else:
            s, mu, exponent = _scores_of(cells, job, q, k, v[1], log2_units, found, finite, tops)
        if phase == SCORES:
            for head in range(heads):
                _copy(s[head], all_s[i, first + head, start : start + offsets.size])
        else:
            _sums_of(cells, heads, s, mu, exponent, v, tops, sums)


@kernel
def _copy(x, out):
    """out [n] = x [n and more]. Assigning a part would make numba compile the checks and messages of any shapes."""
    for c in range(out.size):
        out[c] = x[c]


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
            integers = value[i, 0, head]
            for part in range(1, parts):
                more = value[i, part, head]
                for d in range(row.size):
                    integers[d] += more[d]
            for group in range(group_top.shape[3]):
                exponent = group_top[i, 0, head, group] - floor_top[i, 0, head]
                factor = power_of_two(min(max(exponent, -700), 700))
                for d in range(group * dims, (group + 1) * dims):
                    row[d] = np.float32(np.float64(np.float32(integers[d])) * factor) / divisor
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
    s = np.empty((n, g.n_head, width if parts > 1 else 0), np.float32)
    found = np.empty((n, g.n_head_kv, parts), np.int64)
    finite = np.empty((n, parts, g.n_head), np.bool_)
    tops = np.empty((n, parts, g.n_head), np.int64), np.empty((n, parts, g.n_head, groups), np.int64)
    sums = np.empty((n, parts, g.n_head), np.int64), np.empty((n, parts, g.n_head, g.head_dim), np.int64)
    log2_units = np.float32(np.log2(np.e) / np.sqrt(g.head_dim))
    alone = found.size * g.group * width < ALONE
    arguments = job, q, k, v, log2_units, s, found, finite, tops, sums
    if parts == 1:
        share(alone, found.size, _work, BOTH, *arguments)
    else:
        share(alone, found.size, _work, SCORES, *arguments)
        _merge_maxima(*tops)
        share(alone, found.size, _work, SUMS, *arguments)
    _outputs(job, found, finite, v[2], tops, sums, out)
