"""Inputs of attention cases with the K and V that they were quantised from, truth for them, and a float32 twin.

Everything comes from ``golden/inputs.py``, addressed by (seed, name, item), so a context of a million cells costs no
more than the cells that are selected. A recipe's ``context`` and ``tail`` are those of the goldens: the last row sees
context + tail cells, earlier rows one fewer each.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from qsa.golden import inputs
from qsa.golden.attend import ODD, selection
from qsa.reference.attend import attend, selected_cells, softmax_attention
from qsa.reference.formats import rotate
from qsa.reference.geometry import REAL, step_records
from qsa.reference.kv import PagedKV, Pool, encode

from .compare import relative_error

SCORES = {"flat": 2.0**-6, "ordinary": 1.0, "peaked": 16.0}
"""Kind of scores -> factor of the query: deviations of the scores of about 0.02, 1.3 and 21 nats."""

CHUNK = 64
"""Cells of one chunk of the twin, as of the standing float path (design section 8)."""

SLACK = 2.0**-22
"""Four roundings to float32, 2^-24 each, that any width has: weight, value sum, mass, quotient. Over one cell a plain
float32 kernel is without error, and a bound of a multiple of 0 would be none."""


class Window(NamedTuple):
    """Arguments of ``attend``, and where they come from: ``cells`` [n] ascending are all that some row selects, ``k``
    and ``v`` [n, n_head_kv, head_dim] float32 their values before quantisation."""

    q: np.ndarray
    kv: PagedKV
    ids: np.ndarray
    steps: np.ndarray
    cells: np.ndarray
    k: np.ndarray
    v: np.ndarray


@lru_cache(maxsize=3)
def _values(context, tail, rows, seed):
    """(ids, steps, cells, k, v) that the formats, schedules and page sizes of a case share."""
    end = context + tail
    steps = step_records(np.arange(end - rows, end))
    ids = selection({"seed": seed}, steps)
    cells = np.unique(ids[ids >= 0]).astype(np.int64)
    dims = REAL.n_head_kv * REAL.head_dim
    k, v = (
        inputs.bell(seed, f"parity.{side}", cells, dims).reshape(-1, REAL.n_head_kv, REAL.head_dim) for side in "kv"
    )
    for array in (ids, steps, cells, k, v):
        array.flags.writeable = False
    return ids, steps, cells, k, v


def place(format, page, cells, k, v, table, spare=0):
    """A PagedKV that holds ``cells`` through ``table``, with ``spare`` pages that no table leads to. Every other place
    of the pool is poisoned: codes at the limit, NaN scales, NaN values. Cells whose page is not resident are left out.
    """
    kv = PagedKV(Pool(format, max(1, int(table.max(initial=-1)) + 1) + spare, page), table)
    physical, at = kv.locate(cells)
    here = physical >= 0
    for side, x in ((kv.pool.k, k), (kv.pool.v, v)):
        limit = {"int8": 127, "q4_0": 0xFF}.get(side.coding, np.nan)
        side.codes[:] = limit
        side.scale[:] = np.nan
        codes, scale = encode(x[here], side.coding)
        side.codes[physical[here], :, at[here]] = codes
        side.scale[physical[here], :, at[here]] = scale
    return kv


def sparse_table(cells, page, capacity, order, seed):
    """Page table int32 in which the pages of ``cells`` alone are resident; the physical pages stand in ``order``:
    identity, reversed or shuffled."""
    logical = np.unique(np.asarray(cells) // page)
    table = np.full(-(-capacity // page), -1, np.int32)
    physical = np.arange(len(logical))
    if order == "reversed":
        physical = physical[::-1]
    elif order == "shuffled":
        physical = inputs.permutation(seed, "parity.table", len(logical))
    table[logical] = physical
    return table


def window(recipe):
    """The :class:`Window` of a recipe with format, context, rows, tail and seed; page 4 and scores ``ordinary`` unless
    given."""
    context, tail, rows, seed = (recipe[key] for key in ("context", "tail", "rows", "seed"))
    capacity, page = context + tail, recipe.get("page", 4)
    ids, steps, cells, k, v = _values(context, tail, rows, seed)
    table = sparse_table(cells, page, capacity, "shuffled", seed)
    kv = place(recipe["format"], page, cells, k, v, table)
    return Window(queries(rows, seed, recipe.get("scores", "ordinary")), kv, ids, steps, cells, k, v)


def queries(rows, seed, scores="ordinary"):
    """Queries float32 [rows, n_head, head_dim] for scores of one kind of :data:`SCORES`."""
    q = inputs.bell(seed, "parity.q", rows, REAL.n_head * REAL.head_dim, SCORES[scores])
    # Bell-shaped numbers have 18 bits: fixed point with 22 bits would not round one of them.
    q = q * ODD
    return q.reshape(rows, REAL.n_head, REAL.head_dim)


def truth(w):
    """float64 attention of a window on the values its pool holds: quantised K and V."""
    return attend(w.q, w.kv, w.ids, w.steps)


def original_truth(w):
    """float64 attention of a window on K and V before quantisation."""
    out = np.empty(w.q.shape)
    for row, width in enumerate(w.steps[:, 3].tolist()):
        at = np.searchsorted(w.cells, w.ids[row, :width])
        out[row] = softmax_attention(w.q[row], w.k[at], w.v[at])
    return out


def twin(w):
    """What a plain float32 kernel makes of a window: chunks of 64 cells, partial (max, sum, accumulator), merged by
    log-sum-exp in chunk order, NumPy float32 throughout. It measures how hard the inputs are for float32."""
    out = np.empty(w.q.shape, np.float32)
    for row, width in enumerate(w.steps[:, 3].tolist()):
        k, v = (x.astype(np.float32) for x in selected_cells(w.kv, w.ids[row], width).values())
        if not len(k):
            # A row that selects nothing gives 0.
            out[row] = 0
            continue
        q = rotate(w.q[row]) if w.kv.pool.k.coding == "q4_0" else w.q[row]
        result = _chunks(q, k, v)
        out[row] = rotate(result) if w.kv.pool.v.coding == "q4_0" else result
    return out


def _chunks(q, k, v):
    n_head, dim = q.shape
    q = q.reshape(k.shape[1], -1, dim) * np.float32(dim**-0.5)
    k, v = k.transpose(1, 2, 0), v.transpose(1, 0, 2)
    top = np.full((*q.shape[:2], 1), -np.inf, np.float32)
    mass, value = np.zeros_like(top), np.zeros_like(q)
    for start in range(0, k.shape[2], CHUNK):
        s = q @ k[:, :, start : start + CHUNK]
        high = np.maximum(top, s.max(axis=-1, keepdims=True))
        p, keep = np.exp(s - high), np.exp(top - high)
        mass = mass * keep + p.sum(axis=-1, keepdims=True)
        value = value * keep + p @ v[:, start : start + CHUNK]
        top = high
    return (value / mass).reshape(n_head, dim)


def float_bound(w, expected):
    """(bounds [rows, 1], reason) on the relative error of a kernel on this window, given its float64 truth
    ``expected``: every row has a bound for its heads."""
    own = relative_error(expected, twin(w)).max(axis=1, keepdims=True)
    reason = "4 x the error of a plain float32 kernel (chunks of 64) on the same row"
    reason += f", {own.max():.2g} at most, and 2^-22 of slack"
    return 4 * own + SLACK, reason
