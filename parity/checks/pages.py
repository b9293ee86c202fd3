"""``pages``: attention depends on logical cells alone, whatever the page size, the order of the pages and other cells.

Every cell of the pool that no row selects is poisoned (codes at the limit, NaN scales). So are the pages outside the
table, the query of an unused row and the ids behind a row's width. Cells of pages that are not resident do not count.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from qsa.golden import inputs
from qsa.reference.append_kv import append_kv
from qsa.reference.formats import EXACT_FORMATS
from qsa.reference.geometry import REAL, step_records
from qsa.reference.kv import PagedKV, read_kv

from ..backend import Backend
from ..compare.comparison import Comparison, equal
from ..compare.localise import explain
from . import attend_inputs as data
from . import storage
from .designs import changed_contents, far_cells

PAGES = (1, 4, 64, 512)
ORDERS = ("identity", "reversed", "shuffled")
MISSING = ("none", "first", "middle", "last", "all")

OPERATIONS = {
    "attend": {
        "format": (*data.FORMATS, data.OWN),
        "page": PAGES,
        "order": ORDERS,
        "missing": MISSING,
        "context": range(2**20 + 1),
        "tail": data.TAILS,
        "seed": data.SEEDS,
    },
    "append_kv": {
        "format": data.FORMATS,
        "page": PAGES,
        "order": ORDERS,
        "missing": MISSING,
        "rows": range(1, 65),
        "seed": data.SEEDS,
    },
    "again": changed_contents.AGAIN,
    "far": far_cells.FAR,
}

APPENDS = (
    (1, "shuffled", "middle"),
    (4, "reversed", "last"),
    (64, "shuffled", "none"),
    (512, "identity", "first"),
    (4, "identity", "all"),
)
"""Page, order and missing pages of the append cases: every value of each."""

SPARE = 3
"""Pages of the pool that are in no table."""


def cases(arithmetic: str, backend: Backend | None = None) -> Iterator[dict[str, Any]]:
    """The recipes of every case, in order; those that change their arguments between calls besides."""
    yield from _page_cases(arithmetic, backend)
    yield from changed_contents.cases(arithmetic, backend)
    yield from far_cells.cases(arithmetic, backend)


def _page_cases(arithmetic: str, backend: Backend | None = None) -> Iterator[dict[str, Any]]:
    """The recipes of pages; pages of own storage are the backend's own business, other cells are not."""
    if backend is not None and backend.own_storage:
        own = dict(op="attend", format=data.OWN, page=4, order="identity", missing="none")
        yield from (own | dict(context=context, tail=2, seed=1) for context in (300, 4092))
        return
    for format in EXACT_FORMATS if arithmetic == "exact" else data.FORMATS:
        for number, page in enumerate(PAGES):
            for order in ORDERS:
                missing = "none" if order != "shuffled" else MISSING[1 + number]
                yield dict(
                    op="attend", format=format, page=page, order=order, missing=missing, context=4092, tail=2, seed=1
                )
        for missing in MISSING:
            yield dict(
                op="attend", format=format, page=4, order="shuffled", missing=missing, context=300, tail=2, seed=2
            )
        for page, order, missing in APPENDS:
            yield dict(op="append_kv", format=format, page=page, order=order, missing=missing, rows=21, seed=3)


def more_cases(arithmetic: str) -> Iterator[dict[str, Any]]:
    """Recipes that need gigabytes of memory."""
    yield from far_cells.more_cases(arithmetic)


def check(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """The comparisons of one case."""
    if recipe["op"] == "again":
        return changed_contents.again(backend, recipe)
    if recipe["op"] == "far":
        return far_cells.far(backend, recipe)
    return (_attend if recipe["op"] == "attend" else _append_kv)(backend, recipe)


def _remove(table: np.ndarray, missing: str) -> np.ndarray:
    """``table`` without the physical page of its first, middle or last resident page, all of them, or none."""
    table = table.copy()
    resident = np.flatnonzero(table >= 0)
    gone: dict[str, Any] = {
        "none": [],
        "first": resident[:1],
        "middle": resident[len(resident) // 2 :][:1],
        "last": resident[-1:],
        "all": resident,
    }
    table[gone[missing]] = -1
    return table


def _with_unused_row(w: data.AttendInputs) -> data.AttendInputs:
    """The inputs with an unused row (position -1) between the two rows, whose query is NaN."""
    steps = np.insert(w.steps, 1, step_records([-1])[0], axis=0)
    return w._replace(q=np.insert(w.q, 1, np.nan, axis=0), ids=np.insert(w.ids, 1, w.ids[0], axis=0), steps=steps)


def _garbage_ids(w: data.AttendInputs) -> data.AttendInputs:
    """The inputs with an id behind every row's width: a cell that the row does not select though its page is resident,
    where there is one."""
    steps, ids = w.steps, w.ids.copy()
    page = w.kv.pool.page_size
    resident = (np.flatnonzero(w.kv.table >= 0)[:, None] * page + np.arange(page)).ravel()
    for row, width in enumerate(steps[:, 3]):
        avoid = np.setdiff1d(resident[resident < w.kv.capacity], ids[row, :width])
        poisoned = np.setdiff1d(avoid, w.cells)
        ids[row, width:] = next((cell for some in (poisoned, avoid) for cell in some[:1]), -1)
    return w._replace(ids=ids)


def _own(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """Own storage in which every cell that no row selects is far from the others: 2^6 times as large."""
    w = data.attend_inputs({**recipe, "rows": 2, "format": "f64"})
    w = w._replace(q=backend.rounded("query", w.q))
    capacity = recipe["context"] + recipe["tail"]
    cells, dims = np.arange(capacity), REAL.n_head_kv * REAL.head_dim
    k, v = (inputs.bell(recipe["seed"], f"pages.own.{side}", capacity, dims, 2.0**6) for side in "kv")
    k, v = (x.reshape(capacity, REAL.n_head_kv, REAL.head_dim) for x in (k, v))
    k[w.cells], v[w.cells] = w.k, w.v
    found = []
    for pieces in (1, 7):
        given = w._replace(kv=backend.own_kv(k, v, cells, capacity, pieces))
        got, expected = backend.attend(given.q, given.kv, given.ids, given.steps), data.truth(given)
        bound, reason = data.float_bound(given, expected, backend.declaration.types)
        name = f"attend: other cells far from these, appended in {pieces} calls"
        found.append(data.held(backend, name, given, expected, got, bound, reason))
    return found


def _attend(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    if recipe["format"] == data.OWN:
        return _own(backend, recipe)
    page, capacity = recipe["page"], recipe["context"] + recipe["tail"]
    w = data.for_backend(backend, {**recipe, "rows": 2, "page": 4})
    table = _remove(data.sparse_table(w.cells, page, capacity, recipe["order"], recipe["seed"]), recipe["missing"])
    w = w._replace(kv=data.poisoned_kv(recipe["format"], page, w.cells, w.k, w.v, table, SPARE))
    w = _garbage_ids(_with_unused_row(w) if backend.declaration.domain.unused_rows else w)
    # The same cells, one to a page, in order.
    here = w.cells[table[w.cells // page] >= 0]
    plain_table = data.sparse_table(here, 1, capacity, "identity", 0)
    plain = data.poisoned_kv(recipe["format"], 1, w.cells, w.k, w.v, plain_table)
    got = backend.attend(w.q, w.kv, w.ids, w.steps)
    if backend.arithmetic == "exact":
        standard = data.exact_attend(w.q, plain, w.ids, w.steps)
        same = equal("attend: pages", standard, got, reason="pages are no part of the arithmetic")
        return [same if same.passed else same.noted(*explain(backend, w, standard, got))]
    expected = data.truth(w)
    bound, reason = data.float_bound(w, expected, backend.declaration.types)
    found = [data.held(backend, "attend: kernel", w, expected, got, bound, reason)]
    if "pages" in backend.declaration.invariance:
        standard = backend.attend(w.q, plain, w.ids, w.steps)
        found.append(equal("attend: pages", standard, got, reason="declared: invariance over pages"))
    return found


def _append_kv(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    rows, page, seed = recipe["rows"], recipe["page"], recipe["seed"]
    shape = (rows, REAL.n_head_kv, REAL.head_dim)
    k, v = (inputs.bell(seed, f"pages.{side}", rows, shape[1] * shape[2]).reshape(shape) for side in "kv")
    # Rows of a prompt that starts inside a page, and one that is unused.
    first = 3
    steps = step_records([*range(first, first + rows - 1), -1])
    capacity = first + rows
    table = data.sparse_table(np.arange(capacity), page, capacity, recipe["order"], seed)
    table = _remove(table, recipe["missing"])
    none = np.zeros((0, *shape[1:]), np.float32)

    def empty() -> PagedKV:
        kv = data.poisoned_kv(recipe["format"], page, np.arange(0), none, none, table, SPARE)
        host = data.poisoned_kv(recipe["format"], page, np.arange(0), none, none, np.arange(len(table)))
        return PagedKV(kv.pool, table, host.pool)

    expected = empty()
    append_kv(k, v, expected, steps)
    got = backend.append_kv(k, v, empty(), steps)
    found = []
    if backend.arithmetic == "float":
        # Equal values may have other bytes: a code near a half, a zero group under a scale of -0.
        found, reason = _values(k[:-1], v[:-1], expected, got, first), "nothing else is written"
    else:
        reason = "codes are exact, and nothing else is written"
    for pool in ("pool", "host"):
        for side in ("k", "v"):
            for part in ("codes", "scale"):
                ours, theirs = (getattr(getattr(getattr(kv, pool), side), part) for kv in (expected, got))
                name = f"append_kv: {pool}, {side} {part}"
                axes = ("page", "kv head", "cell", "byte")
                if not ours.size and not theirs.size:
                    # fp16 has no scales.
                    continue
                found.append(equal(name, ours, theirs, axes, reason))
    return found


def _values(k: np.ndarray, v: np.ndarray, expected: PagedKV, got: PagedKV, first: int) -> list[Comparison]:
    """Comparisons of the values stored for the cells from ``first`` on. In ``got`` their codes are replaced by those of
    ``expected``, so that what is left to compare is every other byte."""
    found = []
    for pool in ("pool", "host"):
        ours, theirs = (getattr(kv, pool) for kv in (expected, got))
        table = expected.table if pool == "pool" else np.arange(len(expected.table), dtype=np.int32)
        cells = np.arange(first, first + len(k))
        physical, at = PagedKV(ours, table).locate(cells)
        here = physical >= 0
        right, read = (read_kv(PagedKV(side, table), cells[here]) for side in (ours, theirs))
        for side, x in (("k", k), ("v", v)):
            if not here.any():
                # No page is resident: only the host's copy has cells.
                continue
            name = f"{side} of the {pool}"
            found.append(storage.stored_values(name, side, x[here], right, read, expected.pool.format))
            for part in ("codes", "scale"):
                mine, other = (getattr(getattr(each, side), part) for each in (ours, theirs))
                other[physical[here], :, at[here]] = mine[physical[here], :, at[here]]
    return found
