"""The inputs of a case, how a result of it is judged, and what it must touch and compute at least.

A problem has two variants: the same call with other values in some of its arguments. The second one is written over the
first in place after the timing, so that a result which was kept from an earlier call shows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from qsa.reference import exact
from qsa.reference.append_index import append_index as reference_append_index
from qsa.reference.append_kv import append_kv as reference_append_kv
from qsa.reference.geometry import REAL, step_records
from qsa.reference.index import Index
from qsa.reference.kv import PagedKV, read_kv
from qsa.reference.select import select

from ..backend import Backend, UnsupportedError
from ..checks import attend_inputs, index_operations, selection, storage
from ..compare.comparison import Comparison, equal, error
from ..contract import NUMBER_TYPES, OwnIndex
from .cases import OWN, STANDING, BenchCase
from .limits.floors import cell_bytes

SEED, TAIL = 1, 3
"""Of every case: its seed, and the cells of the unfinished block, as many as there can be."""

APPENDED_CELLS = 1024
"""Cells before the end of an append of K/V."""

Check = Callable[[Backend, int], list[Comparison]]
"""Function of a backend and the number of the variant, 0 or 1: calls the backend once and compares what it gave."""


@dataclass(frozen=True)
class Problem:
    """A case on one backend.

    check    the parity comparison of one call
    changed  names of the arguments that differ in the second variant
    touched  bytes that a call must read or write
    macs     multiply-adds that it must do; of a selection comparisons
    note     what is otherwise than the case says, for the contract of its times
    """

    check: Check
    changed: tuple[str, ...]
    touched: int
    macs: int
    note: str = ""


def make(backend: Backend, case: BenchCase) -> Problem:
    """The problem of a case for ``backend``. Raises UnsupportedError where the backend has no such call."""
    backend.require(case.operation)
    return _MAKE[case.operation](backend, case)


def _attend(backend: Backend, case: BenchCase) -> Problem:
    # A backend that keeps K and V itself stands beside ours of any format.
    format = OWN if backend.own_storage else case.get("format")
    w, expected, bound, reason = _attention(backend, format, case.get("rows"), case.get("context"))
    queries, results = (w.q, _rolled(w.q)), (expected, _rolled(expected))
    schedule = case.get("schedule")
    keywords = {} if schedule == STANDING else {"schedule": schedule, "splits": 8}

    def check(judged: Backend, variant: int) -> list[Comparison]:
        got = judged.attend(queries[variant], w.kv, w.ids, w.steps, **keywords)
        if judged.arithmetic == "exact":
            return [equal("attend", results[variant], got)]
        return [error("attend", results[variant], got, bound, reason)]

    width = int(w.steps[:, 3].sum())
    own = format == OWN
    types = backend.declaration.types
    cell = 2 * REAL.head_dim * NUMBER_TYPES[types.kv].dtype.itemsize if own else cell_bytes(w.kv.pool)
    query, output = (w.q.size * NUMBER_TYPES[name].dtype.itemsize for name in (types.query, types.output))
    touched = len(w.cells) * REAL.n_head_kv * cell + query + output
    note = f"K and V in the backend's own storage, {types.kv}" if own else ""
    return Problem(check, ("q",), touched, width * REAL.n_head * REAL.head_dim * 2, note)


def _rolled(x: np.ndarray) -> np.ndarray:
    """``x`` [rows, n_head, dim] with the heads of each KV head in another order: as attention's query so its result."""
    grouped = x.reshape(len(x), REAL.n_head_kv, REAL.group, -1)
    return np.ascontiguousarray(np.roll(grouped, 1, axis=2).reshape(x.shape))


@lru_cache(maxsize=2)
def _attention(
    backend: Backend, format: str, rows: int, context: int
) -> tuple[attend_inputs.AttendInputs, np.ndarray, np.ndarray | float, str]:
    """(inputs, expected, bound, reason), the same for every schedule and cache."""
    recipe = {"format": format, "context": context, "tail": TAIL, "rows": rows, "seed": SEED}
    if format == OWN and not backend.own_storage:
        raise UnsupportedError("attend: format own: the backend has no own storage")
    w = attend_inputs.for_backend(backend, recipe)
    if backend.arithmetic == "exact":
        if not w.kv.exact:
            raise UnsupportedError(f"attend: format {format} is outside the exact arithmetic")
        return w, exact.attend(w.q, w.kv, w.ids, w.steps), 0.0, ""
    expected = attend_inputs.truth(w)
    bound, reason = attend_inputs.float_bound(w, expected, backend.declaration.types)
    return w, expected, bound, reason


def _random(rows: int, *shape: int, number: int = 0) -> np.ndarray:
    """Normal float32 [rows, ...]."""
    return np.random.default_rng((SEED, number)).standard_normal((rows, *shape), np.float32)


@lru_cache(maxsize=2)
def _index(backend: Backend, end: int) -> Index | OwnIndex:
    """An index of the blocks of ``end`` cells."""
    weight = np.ones(REAL.idx_dim, np.float32)
    if backend.own_index:
        raw = backend.rounded("raw_keys", _random(end, REAL.idx_dim))
        filled = Index(end // REAL.ratio + 1, weight, dtype=np.float64)
        reference_append_index(raw, step_records(np.arange(end)), filled)
        return backend.own_index_of(raw, filled)
    index = Index(end // REAL.ratio + 1, weight)
    index.pooled[:] = _random(index.max_blocks, REAL.idx_dim)
    index.dead[:] = _random(1, REAL.idx_dim, number=1)[0]
    return index


def _block_scores(backend: Backend, case: BenchCase) -> Problem:
    rows, end = case.get("rows"), case.get("context") + TAIL
    index, steps = _index(backend, end), step_records(np.arange(end - rows, end))
    values = index.index if isinstance(index, OwnIndex) else index
    queries = [
        backend.rounded("index_query", _random(rows, REAL.idx_heads, REAL.idx_dim, number=2 + each))
        for each in range(2)
    ]
    schedule = case.get("schedule")
    seen = np.arange(values.max_blocks) <= steps[:, 2:3]

    @lru_cache
    def right(variant: int) -> np.ndarray:
        return np.where(seen, exact.block_scores(queries[variant], values, steps), 0)

    def check(judged: Backend, variant: int) -> list[Comparison]:
        named = None if schedule == STANDING else schedule
        got = judged.block_scores(queries[variant], index, steps, schedule=named)
        if judged.arithmetic == "exact" and got.shape == seen.shape:
            return [equal("block_scores", right(variant), np.where(seen, got, 0), ("row", "block"))]
        found = []
        for row, step in enumerate(steps.tolist()):
            name = f"block_scores: row {row}"
            found.append(index_operations.score_row(judged, name, queries[variant][row], values, step, got[row]))
        return found

    blocks, types = steps[:, 2].astype(np.int64), backend.declaration.types
    key = NUMBER_TYPES[types.index_keys if isinstance(index, OwnIndex) else "float32"].dtype.itemsize
    score = NUMBER_TYPES[types.index_scores].dtype.itemsize
    touched = int(blocks.max()) * REAL.idx_dim * key + int(blocks.sum()) * score
    return Problem(check, ("q_idx",), touched, int(blocks.sum()) * REAL.idx_heads * REAL.idx_dim)


def _select(backend: Backend, case: BenchCase) -> Problem:
    rows, end = case.get("rows"), case.get("context") + TAIL
    steps, schedule = step_records(np.arange(end - rows, end)), case.get("schedule")
    scores = [
        backend.rounded("index_scores", _random(rows, end // REAL.ratio + 1, number=4 + each)) for each in range(2)
    ]

    @lru_cache
    def right(variant: int) -> np.ndarray:
        return select(scores[variant], steps)

    def check(judged: Backend, variant: int) -> list[Comparison]:
        given = scores[variant]
        got = judged.select(given, steps, schedule=None if schedule == STANDING else schedule)
        return [selection.ids_comparison(judged, "select", right(variant), got, given, steps)]

    blocks, kind = int(steps[:, 2].astype(np.int64).sum()), backend.declaration.types.index_scores
    touched = blocks * NUMBER_TYPES[kind].dtype.itemsize
    return Problem(check, ("scores",), touched, blocks)


def _append_kv(backend: Backend, case: BenchCase) -> Problem:
    rows, format = case.get("rows"), case.get("format")
    if format == OWN:
        raise UnsupportedError("append_kv: format own: what a backend stores itself is not timed")
    cells = max(APPENDED_CELLS, rows) - rows + np.arange(rows)
    capacity, steps = max(APPENDED_CELLS, rows), step_records(cells)
    shape = (REAL.n_head_kv, REAL.head_dim)
    sides = [[_random(rows, *shape, number=6 + 2 * each + side) for side in range(2)] for each in range(2)]

    @lru_cache
    def right(variant: int) -> PagedKV:
        kv = PagedKV.new(format, capacity)
        k, v = sides[variant]
        reference_append_kv(k, v, kv, steps)
        return kv

    def check(judged: Backend, variant: int) -> list[Comparison]:
        k, v = sides[variant]
        got = judged.append_kv(k, v, PagedKV.new(format, capacity), steps)
        ours, theirs = read_kv(right(variant), cells), read_kv(got, cells)
        if judged.arithmetic == "exact":
            names = [name for name in ("k_codes", "k_scale", "v_codes", "v_scale") if getattr(ours, name).size]
            pairs = ((name, getattr(ours, name), getattr(theirs, name)) for name in names)
            return [equal(f"append_kv: {name}", a, b, storage.AXES) for name, a, b in pairs]
        return [storage.stored_values(name, name, x, ours, theirs, format) for name, x in (("k", k), ("v", v))]

    values = 2 * rows * REAL.n_head_kv * REAL.head_dim
    touched = values * 4 + rows * REAL.n_head_kv * cell_bytes(PagedKV.new(format, 4).pool)
    return Problem(check, ("k", "v"), touched, values)


def _append_index(backend: Backend, case: BenchCase) -> Problem:
    if backend.own_index:
        raise UnsupportedError("append_index: what a backend keeps in an own index is not timed")
    rows = case.get("rows")
    raws = [backend.rounded("raw_keys", _random(rows, REAL.idx_dim, number=10 + each)) for each in range(2)]
    weight, steps = np.ones(REAL.idx_dim, np.float32), step_records(np.arange(rows))
    blocks = rows // REAL.ratio

    def check(judged: Backend, variant: int) -> list[Comparison]:
        if judged.arithmetic == "float":
            return index_operations.appended(judged, raws[variant], weight)
        right, given = (Index(blocks + 1, weight) for _ in range(2))
        exact.append_index(raws[variant], steps, right)
        got = judged.append_index(raws[variant], steps, given)
        found = [equal("append_index: dead", right.dead, got.dead, ("dim",))]
        if blocks:
            found.append(equal("append_index: pooled", right.pooled[:blocks], got.pooled[:blocks], ("block", "dim")))
        return found

    return Problem(check, ("raw",), 4 * REAL.idx_dim * (rows + blocks), rows * REAL.idx_dim)


_MAKE: dict[str, Callable[[Backend, BenchCase], Problem]] = {
    "attend": _attend,
    "block_scores": _block_scores,
    "select": _select,
    "append_kv": _append_kv,
    "append_index": _append_index,
}
