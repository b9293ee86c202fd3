"""Inputs of attention cases with the K and V that they were quantised from, their float64 results, and the error of a
plain float32 kernel on them.

Everything comes from ``golden/inputs.py``, addressed by (seed, name, item), so a context of a million cells costs no
more than the cells that are selected. A recipe's ``context`` and ``tail`` are those of the goldens: the last row sees
context + tail cells, earlier rows one fewer each.
"""

from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from qsa.golden import inputs
from qsa.golden.families.attend import ODD, selection
from qsa.kernels.ops import WINDOW_ROWS
from qsa.reference.attend import attend, selected_cells, softmax_attention
from qsa.reference.formats import EXACT_FORMATS, rotate
from qsa.reference.geometry import REAL, step_records
from qsa.reference.kv import PagedKV, Pool, encode

from ..compare.comparison import relative_error

FORMATS = (*EXACT_FORMATS, "fp16")
"""Formats of K and V that the float arithmetic takes; the exact one takes all but the last."""

ROWS = range(1, WINDOW_ROWS + 1)
TAILS = range(REAL.ratio)
SEEDS = range(2**63)
"""Values of the parameters ``rows``, ``tail`` and ``seed`` of a recipe."""

SCORES = {"flat": 2.0**-6, "ordinary": 1.0, "peaked": 16.0}
"""Kind of scores -> factor of the query: deviations of the scores of about 0.02, 1.3 and 21 nats."""

CHUNK = 64
"""Cells of one chunk of the plain float32 kernel, as of the standing float path (design section 8)."""

SLACK = 2.0**-22
"""Four roundings to float32, 2^-24 each, that any width has: weight, value sum, mass, quotient. Over one cell a plain
float32 kernel is without error, and a bound of a multiple of 0 would be none."""


class AttendInputs(NamedTuple):
    """The arguments of ``attend``, and the values that K and V were quantised from.

    q      float32 [rows, n_head, head_dim]
    kv     the quantised cells
    ids    int32 [rows, 2051], steps: int32 [rows, 4]
    cells  int64 [n], ascending: the cells that some row selects
    k, v   float32 [n, n_head_kv, head_dim]: their values before quantisation
    """

    q: np.ndarray
    kv: PagedKV
    ids: np.ndarray
    steps: np.ndarray
    cells: np.ndarray
    k: np.ndarray
    v: np.ndarray


class AttendArguments(Protocol):
    """The arguments of ``attend`` as attributes: an :class:`AttendInputs`, or the rows of one slot of a window."""

    @property
    def q(self) -> np.ndarray: ...
    @property
    def kv(self) -> PagedKV: ...
    @property
    def ids(self) -> np.ndarray: ...
    @property
    def steps(self) -> np.ndarray: ...


@lru_cache(maxsize=3)
def _values(
    context: int, tail: int, rows: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(ids, steps, cells, k, v), the same for every format, schedule and page size."""
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


def poisoned_kv(
    format: str, page: int, cells: np.ndarray, k: np.ndarray, v: np.ndarray, table: np.ndarray, spare: int = 0
) -> PagedKV:
    """A PagedKV that holds ``cells`` through ``table``, with ``spare`` pages that are in no table. Every other cell of
    the pool is poisoned: codes at the limit, NaN scales, NaN values. Cells whose page is not resident are left out.

    cells  int64 [n]; k, v: float32 [n, n_head_kv, head_dim], their values
    table  int32 [pages]: the physical page of every logical one, -1 for none
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


def sparse_table(cells: np.ndarray, page: int, capacity: int, order: str, seed: int) -> np.ndarray:
    """Page table int32 in which the pages of ``cells`` alone are resident; the physical pages are in ``order``:
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


def attend_inputs(recipe: dict[str, Any]) -> AttendInputs:
    """The :class:`AttendInputs` of a recipe with format, context, rows, tail and seed; page 4 and scores ``ordinary``
    unless given."""
    context, tail, rows, seed = (recipe[key] for key in ("context", "tail", "rows", "seed"))
    capacity, page = context + tail, recipe.get("page", 4)
    ids, steps, cells, k, v = _values(context, tail, rows, seed)
    table = sparse_table(cells, page, capacity, "shuffled", seed)
    kv = poisoned_kv(recipe["format"], page, cells, k, v, table)
    return AttendInputs(queries(rows, seed, recipe.get("scores", "ordinary")), kv, ids, steps, cells, k, v)


def queries(rows: int, seed: int, scores: str = "ordinary") -> np.ndarray:
    """Queries float32 [rows, n_head, head_dim] for scores of one kind of :data:`SCORES`."""
    q = inputs.bell(seed, "parity.q", rows, REAL.n_head * REAL.head_dim, SCORES[scores])
    # Bell-shaped numbers have 18 bits: fixed point with 22 bits would not round one of them.
    q = q * ODD
    return q.reshape(rows, REAL.n_head, REAL.head_dim)


def truth(w: AttendArguments) -> np.ndarray:
    """float64 attention [rows, n_head, head_dim] on the values that the pool holds: quantised K and V."""
    return attend(w.q, w.kv, w.ids, w.steps)


def original_truth(w: AttendInputs) -> np.ndarray:
    """float64 attention [rows, n_head, head_dim] on K and V before quantisation."""
    out = np.empty(w.q.shape)
    for row, width in enumerate(w.steps[:, 3].tolist()):
        at = np.searchsorted(w.cells, w.ids[row, :width])
        out[row] = softmax_attention(w.q[row], w.k[at], w.v[at])
    return out


def plain_attention(w: AttendArguments) -> np.ndarray:
    """float32 [rows, n_head, head_dim] by a plain float32 kernel: chunks of 64 cells, partial (max, sum, accumulator),
    merged by log-sum-exp in chunk order, NumPy float32 throughout. Its error measures how hard the inputs are."""
    out = np.empty(w.q.shape, np.float32)
    for row, width in enumerate(w.steps[:, 3].tolist()):
        k, v = (x.astype(np.float32) for x in selected_cells(w.kv, w.ids[row], width).values())
        if not len(k):
            # A row that selects nothing gives 0.
            out[row] = 0
            continue
        q = rotate(w.q[row]) if w.kv.pool.k.coding == "q4_0" else w.q[row]
        result = _attend_by_chunks(q, k, v)
        out[row] = rotate(result) if w.kv.pool.v.coding == "q4_0" else result
    return out


def _attend_by_chunks(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """float32 [n_head, dim] of one row: ``q`` [n_head, dim] over ``k`` and ``v`` [n, n_head_kv, dim]."""
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


def float_bound(w: AttendArguments, expected: np.ndarray) -> tuple[np.ndarray, str]:
    """(bounds [rows, 1], reason) on the relative error of a kernel, given its float64 result ``expected``
    [rows, n_head, head_dim]: every row has a bound for its heads."""
    own = relative_error(expected, plain_attention(w)).max(axis=1, keepdims=True)
    reason = "4 x the error of a plain float32 kernel (chunks of 64) on the same row"
    reason += f", {own.max():.2g} at most, and 2^-22 of slack"
    return 4 * own + SLACK, reason
