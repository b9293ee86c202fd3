"""Inputs of attention cases with the K and V that they were quantised from, and their float64 results.

Everything comes from ``golden/inputs.py``, addressed by (seed, name, item), so a context of a million cells costs no
more than the cells that are selected. A recipe's ``context`` and ``tail`` are those of the goldens: the last row sees
context + tail cells, earlier rows one fewer each.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from qsa.golden import inputs
from qsa.golden.families.attend import ODD, selection
from qsa.kernels.ops import WINDOW_ROWS
from qsa.reference import exact as reference_exact
from qsa.reference.attend import attend, softmax_attention
from qsa.reference.formats import EXACT_FORMATS
from qsa.reference.geometry import REAL, step_records
from qsa.reference.kv import PagedKV, Pool, encode

from ..backend import Backend
from ..compare.budget import budget, row_head_map, split_block_map
from ..compare.ceiling import REASON, exact_ceiling
from ..compare.comparison import Comparison, error, most, relative_error, verdict
from ..compare.localise import explain
from ..compare.remembered import remembered
from ..compare.twin import attention_bound, paged
from ..contract import Types
from . import real_inputs

FORMATS = (*EXACT_FORMATS, "fp16")
"""Formats of our pools that the float arithmetic takes; the exact one takes all but the last."""

ROWS = range(1, WINDOW_ROWS + 1)
TAILS = range(REAL.ratio)
SEEDS = range(2**63)
"""Values of the parameters ``rows``, ``tail`` and ``seed`` of a recipe."""

FACTORS = {"flat": 2.0**-6, "ordinary": 1.0, "peaked": 16.0}
"""Kind of scores -> factor of the query: deviations of the scores of about 0.02, 1.3 and 21 nats."""

SHARED = "shared"
"""As scores: ordinary ones of rows that have nine tenths of their blocks in common."""

SCORES = (*FACTORS, SHARED, *real_inputs.KINDS)
"""Kinds of inputs: the value ``scores`` of a recipe."""

FLOAT32 = Types()

OWN = "own"
"""As a format: the backend's own storage."""


def formats(arithmetic: str, backend: Backend | None = None) -> tuple[str, ...]:
    """The formats of the attention cases of a backend: those of our pools in its arithmetic, or its own storage."""
    if backend is not None and backend.own_storage:
        return (OWN,)
    return EXACT_FORMATS if arithmetic == "exact" else FORMATS


class AttendInputs(NamedTuple):
    """The arguments of ``attend``, and the values that K and V were quantised from.

    q      float32 [rows, n_head, head_dim]
    kv     the stored cells: a PagedKV, or an OwnKV in the backend's own storage
    ids    int32 [rows, 2051], steps: int32 [rows, 4]
    cells  int64 [n], ascending: the cells that some row selects
    k, v   float32 [n, n_head_kv, head_dim]: their values before quantisation
    """

    q: np.ndarray
    kv: Any
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
    def kv(self) -> Any: ...
    @property
    def ids(self) -> np.ndarray: ...
    @property
    def steps(self) -> np.ndarray: ...


@lru_cache(maxsize=3)
def _values(
    context: int, tail: int, rows: int, seed: int, shared: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(ids, steps, cells, k, v), the same for every format, schedule and page size. ``shared``: every row has nine
    tenths of the first row's blocks."""
    end = context + tail
    steps = step_records(np.arange(end - rows, end))
    ids = _shared(seed, steps) if shared else selection({"seed": seed}, steps)
    cells = np.unique(ids[ids >= 0]).astype(np.int64)
    dims = REAL.n_head_kv * REAL.head_dim
    k, v = (
        inputs.bell(seed, f"parity.{side}", cells, dims).reshape(-1, REAL.n_head_kv, REAL.head_dim) for side in "kv"
    )
    for array in (ids, steps, cells, k, v):
        array.flags.writeable = False
    return ids, steps, cells, k, v


def _shared(seed: int, steps: np.ndarray) -> np.ndarray:
    """Cells int32 [rows, 2051] of rows that select the same nine tenths of their blocks, and a tenth each."""
    blocks = inputs.permutation(seed, "parity.shared", int(steps[0, 2]))
    ids = np.full((len(steps), REAL.max_width), -1, np.int32)
    for row, (_, n_kv, n_bid, width) in enumerate(steps.tolist()):
        count = (width - n_kv % REAL.ratio) // REAL.ratio
        common = count * 9 // 10
        own = blocks[common:][(row * (count - common) + np.arange(count - common)) % (len(blocks) - common)]
        chosen = np.concatenate([blocks[:common], own])
        cells = (chosen[:, None] * REAL.ratio + np.arange(REAL.ratio)).ravel()
        ids[row, :width] = np.sort(np.concatenate([cells, np.arange(n_bid * REAL.ratio, n_kv)]))
    return ids


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
        codes, scale = _encode(x[here], side.coding)
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
    kind = recipe.get("scores", "ordinary")
    ids, steps, cells, k, v = _values(context, tail, rows, seed, kind == SHARED)
    q = queries(rows, seed, kind if kind in FACTORS else "ordinary")
    if kind in real_inputs.KINDS:
        q, k, v = real_inputs.changed(kind, q, k, v, ids, cells)
    table = sparse_table(cells, page, capacity, "shuffled", seed)
    kv = poisoned_kv(recipe["format"], page, cells, k, v, table)
    return AttendInputs(q, kv, ids, steps, cells, k, v)


def queries(rows: int, seed: int, scores: str = "ordinary") -> np.ndarray:
    """Queries float32 [rows, n_head, head_dim] for scores of one kind of :data:`FACTORS`."""
    q = inputs.bell(seed, "parity.q", rows, REAL.n_head * REAL.head_dim, FACTORS[scores])
    # Bell-shaped numbers have 18 bits: fixed point with 22 bits would not round one of them.
    q = q * ODD
    return q.reshape(rows, REAL.n_head, REAL.head_dim)


def truth(w: AttendArguments) -> np.ndarray:
    """float64 attention [rows, n_head, head_dim] on the values that the pool holds: quantised K and V."""
    return _float64(w.q, paged(w.kv), w.ids, w.steps)


def exact_truth(w: AttendArguments) -> np.ndarray:
    """float32 attention [rows, n_head, head_dim] of the exact arithmetic."""
    return exact_attend(w.q, w.kv, w.ids, w.steps)


_encode = remembered(encode)
_float64 = remembered(attend)
exact_attend = remembered(reference_exact.attend)
"""The exact arithmetic, made once for the same arguments."""


def original_truth(w: AttendInputs) -> np.ndarray:
    """float64 attention [rows, n_head, head_dim] on K and V before quantisation."""
    return _original(w.q, w.ids, w.steps, w.cells, w.k, w.v)


@remembered
def _original(
    q: np.ndarray, ids: np.ndarray, steps: np.ndarray, cells: np.ndarray, k: np.ndarray, v: np.ndarray
) -> np.ndarray:
    out = np.empty(q.shape)
    for row, width in enumerate(steps[:, 3].tolist()):
        at = np.searchsorted(cells, ids[row, :width])
        out[row] = softmax_attention(q[row], k[at], v[at])
    return out


def float_bound(w: AttendArguments, expected: np.ndarray, types: Types = FLOAT32) -> tuple[np.ndarray, str]:
    """:func:`~..compare.twin.attention_bound` of inputs; ``types`` are those that a backend declares."""
    return attention_bound(w, expected, types)


def ceiling(w: AttendArguments, expected: np.ndarray, got: np.ndarray, bound: np.ndarray) -> Comparison:
    """The head of every row that uses most of its ``bound``, held to what the exact arithmetic may be off by at most on
    these inputs."""
    errors = relative_error(expected, got)
    heads = (errors / np.broadcast_to(bound, errors.shape)).argmax(axis=1)
    at = np.arange(len(errors))
    name = "attend: ceiling"
    measure, limit = most(name, errors[at, heads], exact_ceiling(w, expected, heads))
    return verdict(name, measure, limit, REASON, kind="error", size=got.size)


def for_backend(backend: Backend, recipe: dict[str, Any], **replaced: Any) -> AttendInputs:
    """:func:`attend_inputs` as ``backend`` takes them: the query has values of its type, and with the format ``own``
    K and V lie in the backend's own storage. ``replaced`` are fields put in place of the made ones."""
    own = recipe["format"] == OWN
    w = attend_inputs({**recipe, "format": "f64"} if own else recipe)._replace(**replaced)
    w = w._replace(q=backend.rounded("query", w.q))
    if own:
        w = w._replace(kv=backend.own_kv(w.k, w.v, w.cells, recipe["context"] + recipe["tail"]))
    return w


def held(
    backend: Backend,
    name: str,
    w: AttendArguments,
    expected: np.ndarray,
    got: np.ndarray,
    bound: np.ndarray | float,
    reason: str,
) -> Comparison:
    """The error of an attention against float64 ``expected``, with the place and likely cause of a failure."""
    found = error(name, expected, got, bound, reason)
    if found.passed:
        return found
    return mapped(found.noted(*explain(backend, w, expected, got, np.asarray(bound))), w, expected, got, bound)


def mapped(
    found: Comparison, w: AttendArguments, expected: np.ndarray, got: np.ndarray, bound: np.ndarray | float
) -> Comparison:
    """``found`` with its map by row and head, and where it failed that of the worst head by split and block."""
    if got.shape != expected.shape:
        return found
    heads = row_head_map(expected, got, bound)
    maps = {"row, head": heads}
    if not found.passed:
        row, head = _most(heads)
        maps["split, block"] = split_block_map(w, row, head, expected, got)
    return replace(found, maps=maps)


def with_budget(
    found: Comparison,
    w: AttendInputs,
    expected: np.ndarray,
    got: np.ndarray,
    bound: np.ndarray | float,
    types: Types | None,
) -> Comparison:
    """``found`` with its maps and the error budget of the head that uses most of its bound; ``types`` are None in the
    exact arithmetic."""
    if got.shape != expected.shape:
        return found
    row, head = _most(row_head_map(expected, got, bound))
    return replace(mapped(found, w, expected, got, bound), budget=budget(w, row, head, types))


def _most(shares: list[list[float]]) -> tuple[int, int]:
    """(row, head) of the largest share."""
    array = np.array(shares)
    row, head = np.unravel_index(int(np.where(np.isnan(array), np.inf, array).argmax()), array.shape)
    return int(row), int(head)
