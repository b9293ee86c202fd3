"""The cases of the benchmark: what each launches, how its result is checked, and its limit.

A case string names what is timed: ``cache=cold`` empties the L2 cache before each replay.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

import qsa.reference.exact as exact
from qsa.golden import case
from qsa.kernels.cuda import backend
from qsa.kernels.cuda.device import to_device, to_host
from qsa.kernels.cuda.select import scratch_shape
from qsa.kernels.cuda.toolchain.compiler import array_module
from qsa.reference.geometry import REAL, step_records
from qsa.reference.index import Index
from qsa.reference.kv import PagedKV

from ..checks import attend_inputs as data
from ..compare.comparison import relative_error
from . import limits

SLOTS = 8
"""Slots over which the rows of attention are spread, each with a pool of 64K cells, but for :data:`ALONE`."""

ALONE = (16, 64)
"""Rows of attention that have a slot each as well, beside one shared pool; 64 pools take 4.5 GB, and so does their
limit."""

CONTEXTS = (1 << 16, 1 << 20)
ATTEND_CONTEXT = (1 << 16) - 1
"""Cells of a slot: one fewer than 64K, so that a row has a tail and selects 2,051 cells."""


def cases() -> list[str]:
    """Case strings in order."""
    found: list[str] = []

    def add(operation: str, **recipe: Any) -> None:
        found.append(case.format(operation, recipe))

    def attend(arithmetic: str, format: str, rows: int, slots: int, schedule: str, cache: str = "hot") -> None:
        recipe = {"arithmetic": arithmetic, "format": format, "rows": rows, "slots": slots}
        add("attend", **recipe, schedule=schedule, cache=cache)

    for rows in (1, 4, 16, 64, 256):
        slots = min(rows, SLOTS)
        for schedule in ("batch", "split") if rows <= 16 else ("batch",):
            attend("exact", "int8", rows, slots, schedule)
        if rows <= 16:
            attend("exact", "int8", rows, slots, "split", "cold")
        if rows > 1:
            # The rows of one sequence: a window, or a prompt.
            attend("exact", "int8", rows, 1, "batch" if rows <= 8 else "prompt")
        if rows in ALONE:
            attend("exact", "int8", rows, rows, "batch")
    for format in ("k8v4", "q4_0"):
        for rows in (4, 64):
            attend("exact", format, rows, min(rows, SLOTS), "batch")
    for schedule in ("batch", "split"):
        for rows in (1, 4):
            attend("float", "int8", rows, 1, schedule)
    for context in CONTEXTS:
        for rows, schedules in ((1, ("warp", "transposed")), (4, ("multi_query", "transposed"))):
            for schedule in schedules:
                add("block_scores", context=context, rows=rows, schedule=schedule, cache="hot")
        for rows in (1, 4):
            for schedule in ("registers", "scan", "spread") if context == CONTEXTS[0] else ("wide", "scan", "spread"):
                add("select", context=context, rows=rows, schedule=schedule, cache="hot")
    add("block_scores", context=CONTEXTS[1], rows=1, schedule="warp", cache="cold")
    add("append_kv", format="int8", rows=4, cache="hot")
    add("append_index", rows=4, cache="hot")
    return found


@lru_cache(maxsize=2)
def _pool(format: str, capacity: int) -> PagedKV:
    """A pool of random codes and scales around 2^-6, the pages in order."""
    rng = np.random.default_rng(5)
    kv = PagedKV.new(format, capacity)
    for side in (kv.pool.k, kv.pool.v):
        low, high = (0, 256) if side.coding == "q4_0" else (-127, 128)
        side.codes[:] = rng.integers(low, high, side.codes.shape, side.codes.dtype)
        side.scale[:] = np.exp2(rng.uniform(-8, -5, side.scale.shape))
    return kv


@lru_cache(maxsize=1)
def _device_pools(format: str, capacity: int, slots: int) -> list[Any]:
    return [to_device(_pool(format, capacity)) for _ in range(slots)]


def _random_ids(rows: int, steps: np.ndarray) -> np.ndarray:
    """ids [rows, 2051] int32: 512 random blocks of each row, and its tail."""
    rng = np.random.default_rng(6)
    ids = np.full((rows, REAL.max_width), -1, np.int32)
    for row, (_, n_kv, n_bid, width) in enumerate(steps.tolist()):
        blocks = np.sort(rng.choice(n_bid, REAL.top_blocks, replace=False))
        cells = (blocks[:, None] * REAL.ratio + np.arange(REAL.ratio)).ravel()
        ids[row, :width] = [*cells, *range(n_bid * REAL.ratio, n_kv)]
    return ids


class Prepared(NamedTuple):
    """A prepared case: ``call()`` launches it (False: refused), ``correct()`` checks its result, ``limit`` is the name
    of the limit and a function that launches it."""

    call: Callable[[], Any]
    correct: Callable[[], bool]
    limit: tuple[str, Callable[[], object]]


@lru_cache(maxsize=1)
def _exact_rows(format: str, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(q, ids, steps, expected), the same for every schedule."""
    steps = step_records(np.full(rows, ATTEND_CONTEXT - 1))
    ids = _random_ids(rows, steps)
    q = np.random.default_rng(7).standard_normal((rows, REAL.n_head, REAL.head_dim), dtype=np.float32)
    return q, ids, steps, exact.attend(q, _pool(format, ATTEND_CONTEXT + 1), ids, steps)


def _attend(recipe: dict[str, Any]) -> Prepared:
    if recipe["arithmetic"] == "float":
        return _attend_float(recipe)
    format, rows, n_slots = recipe["format"], recipe["rows"], recipe["slots"]
    q, ids, steps, expected = _exact_rows(format, rows)
    # All slots hold the same cells, each in a pool of its own.
    pools = _device_pools(format, ATTEND_CONTEXT + 1, max(n_slots, SLOTS))[:n_slots]
    slots = np.arange(rows, dtype=np.int32) % n_slots
    given = {"q": q, "kv": pools, "ids": ids, "steps": steps, "slots": slots}
    if n_slots == 1:
        given |= {"kv": pools[0], "slots": None}
    limit = limits.gather(ids, slots, n_slots, ATTEND_CONTEXT + 1, REAL.n_head_kv, limits.cell_bytes(pools[0].pool))
    return _prepared_attend(recipe, given, lambda got: _same(got, expected), limit)


def _attend_float(recipe: dict[str, Any]) -> Prepared:
    rows = recipe["rows"]
    w = data.attend_inputs({"format": recipe["format"], "context": CONTEXTS[0], "rows": rows, "tail": 3, "seed": 5})
    truth = data.truth(w)
    bound, _ = data.float_bound(w, truth)
    given = {"q": w.q, "kv": to_device(w.kv), "ids": w.ids, "steps": w.steps, "slots": None}
    # The window's pool holds the selected pages alone, the limit's buffer all of them: the same bytes are read.
    slots, cell = np.zeros(rows, np.int32), limits.cell_bytes(w.kv.pool)
    limit = limits.gather(w.ids, slots, 1, w.kv.capacity, REAL.n_head_kv, cell)
    return _prepared_attend(recipe, given, lambda got: bool((relative_error(truth, got) <= bound).all()), limit)


def _prepared_attend(
    recipe: dict[str, Any],
    given: dict[str, Any],
    right: Callable[[np.ndarray], bool],
    limit: Callable[[], object],
) -> Prepared:
    held = {name: to_device(x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    out = array_module().full(given["q"].shape, np.nan, "float32")
    keywords = {"schedule": recipe["schedule"], "arithmetic": recipe["arithmetic"]}

    def call() -> Any:
        return backend.attend(**held, out=out, **keywords)

    return Prepared(call, lambda: right(out.get()), (limits.GATHER, limit))


def _same(got: np.ndarray, expected: np.ndarray) -> bool:
    return got.shape == expected.shape and got.tobytes() == expected.tobytes()


@lru_cache(maxsize=1)
def _index(context: int) -> Index:
    rng = np.random.default_rng(8)
    index = Index(context // REAL.ratio + 1, np.ones(REAL.idx_dim, np.float32))
    index.pooled[:] = rng.standard_normal(index.pooled.shape, dtype=np.float32)
    index.dead[:] = rng.standard_normal(index.dead.shape, dtype=np.float32)
    return index


def _block_scores(recipe: dict[str, Any]) -> Prepared:
    index, rows = _index(recipe["context"]), recipe["rows"]
    shape = (rows, REAL.idx_heads, REAL.idx_dim)
    q = np.random.default_rng(9).standard_normal(shape, dtype=np.float32)
    steps = step_records(recipe["context"] - rows + np.arange(rows))
    q_d, index_d, steps_d = (to_device(x) for x in (q, index, steps))
    out = array_module().full((rows, index.max_blocks), -np.inf, "float32")

    def call() -> Any:
        return backend.block_scores(q_d, index_d, steps_d, out, schedule=recipe["schedule"])

    limit = limits.READ, limits.sequential(index.pooled.nbytes)
    return Prepared(call, lambda: _same(out.get(), exact.block_scores(q, index, steps)), limit)


def _select(recipe: dict[str, Any]) -> Prepared:
    cupy, rows, blocks = array_module(), recipe["rows"], recipe["context"] // REAL.ratio + 1
    scores = np.random.default_rng(10).standard_normal((rows, blocks), dtype=np.float32)
    steps = step_records(recipe["context"] - rows + np.arange(rows))
    scores_d, steps_d = to_device(scores), to_device(steps)
    ids = cupy.full((rows, REAL.max_width), -2, "int32")
    scratch = cupy.zeros(scratch_shape(rows, blocks), "int32") if recipe["schedule"] == "spread" else None

    def call() -> Any:
        return backend.select(scores_d, steps_d, ids, schedule=recipe["schedule"], scratch=scratch)

    return Prepared(
        call, lambda: _same(ids.get(), exact.select(scores, steps)), (limits.READ, limits.sequential(scores.nbytes))
    )


def _append_kv(recipe: dict[str, Any]) -> Prepared:
    rows = recipe["rows"]
    k, v = np.random.default_rng(11).standard_normal((2, rows, REAL.n_head_kv, REAL.head_dim), dtype=np.float32)
    steps = step_records(1024 - rows + np.arange(rows))
    kv = PagedKV.new(recipe["format"], 1024)
    held = [to_device(x) for x in (k, v, kv, steps)]
    exact.append_kv(k, v, kv, steps)

    def correct() -> bool:
        got = to_host(held[2]).pool
        pairs = (
            ((side.codes, side.scale) for side in (got.k, got.v)),
            ((s.codes, s.scale) for s in (kv.pool.k, kv.pool.v)),
        )
        return all(_same(a, b) for x, y in zip(*pairs, strict=True) for a, b in zip(x, y, strict=True))

    return Prepared(lambda: backend.append_kv(*held), correct, (limits.EMPTY, limits.empty))


def _append_index(recipe: dict[str, Any]) -> Prepared:
    rows = recipe["rows"]
    raw = np.random.default_rng(12).standard_normal((rows, REAL.idx_dim), dtype=np.float32)
    steps = step_records(1024 - rows + np.arange(rows))
    index = Index(1024 // REAL.ratio + 1, np.ones(REAL.idx_dim, np.float32))
    held = [to_device(x) for x in (raw, steps, index)]
    exact.append_index(raw, steps, index)

    def correct() -> bool:
        got = to_host(held[2])
        return all(_same(getattr(got, name), getattr(index, name)) for name in ("tail", "dead", "pooled"))

    return Prepared(lambda: backend.append_index(*held), correct, (limits.EMPTY, limits.empty))


PREPARE: dict[str, Callable[[dict[str, Any]], Prepared]] = {
    "attend": _attend,
    "block_scores": _block_scores,
    "select": _select,
    "append_kv": _append_kv,
    "append_index": _append_index,
}


def prepare(text: str) -> Prepared:
    """The :class:`Prepared` of a case string of :func:`cases`."""
    operation, recipe = case.parse(text)
    return PREPARE[operation](recipe)
