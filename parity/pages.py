"""``pages``: attention sees logical cells alone, whatever the page size, the order of the pages and what lies around.

Every place of the pool that no row selects is poisoned (codes at the limit, NaN scales), pages besides those of the
table too, so are the query of an unused row and the ids behind a row's width. Cells of pages that are not resident are
not selected.
"""

import numpy as np

from qsa.golden import case, inputs
from qsa.reference.append_kv import append_kv
from qsa.reference.exact import attend as exact_attend
from qsa.reference.formats import EXACT_FORMATS
from qsa.reference.geometry import REAL, step_records
from qsa.reference.kv import PagedKV

from . import data
from .compare import equal, error
from .localise import explain

PAGES = (1, 4, 64, 512)
ORDERS = ("identity", "reversed", "shuffled")
MISSING = ("none", "first", "middle", "last", "all")
_FORMATS = (*EXACT_FORMATS, "fp16")

OPERATIONS = {
    "attend": {
        "format": _FORMATS,
        "page": PAGES,
        "order": ORDERS,
        "missing": MISSING,
        "context": range(2**20 + 1),
        "tail": range(4),
        "seed": range(2**63),
    },
    "append_kv": {
        "format": _FORMATS,
        "page": PAGES,
        "order": ORDERS,
        "missing": MISSING,
        "rows": range(1, 65),
        "seed": range(2**63),
    },
}

SPARE = 3
"""Pages of the pool that no table leads to."""


def cases(arithmetic):
    """(case string, recipe) of every case, in order."""
    for format in EXACT_FORMATS if arithmetic == "exact" else _FORMATS:
        for number, page in enumerate(PAGES):
            for order in ORDERS:
                missing = "none" if order != "shuffled" else MISSING[1 + number]
                yield _case(
                    "attend", format=format, page=page, order=order, missing=missing, context=4092, tail=2, seed=1
                )
        for missing in MISSING:
            yield _case("attend", format=format, page=4, order="shuffled", missing=missing, context=300, tail=2, seed=2)
        for page, order, missing in ((1, "shuffled", "middle"), (4, "reversed", "last"), (64, "shuffled", "none")):
            yield _case("append_kv", format=format, page=page, order=order, missing=missing, rows=21, seed=3)


def _case(op, **recipe):
    recipe = {"op": op, **recipe}
    return case.format("pages", recipe), recipe


def check(backend, recipe):
    """The comparisons of one case."""
    return (_attend if recipe["op"] == "attend" else _append_kv)(backend, recipe)


def _remove(table, missing):
    """``table`` without the physical page of its first, middle or last resident page, all of them, or none."""
    table = table.copy()
    resident = np.flatnonzero(table >= 0)
    gone = {
        "none": [],
        "first": resident[:1],
        "middle": resident[len(resident) // 2 :][:1],
        "last": resident[-1:],
        "all": resident,
    }
    table[gone[missing]] = -1
    return table


def _with_unused_row(w):
    """The window with an unused row (position -1) between its two, whose query is NaN. Behind every row's width stands
    a cell that it does not select though its page is resident, where there is one."""
    steps = np.insert(w.steps, 1, step_records([-1])[0], axis=0)
    q = np.insert(w.q, 1, np.nan, axis=0)
    ids = np.insert(w.ids, 1, w.ids[0], axis=0)
    page = w.kv.pool.page_size
    resident = (np.flatnonzero(w.kv.table >= 0)[:, None] * page + np.arange(page)).ravel()
    for row, width in enumerate(steps[:, 3]):
        avoid = np.setdiff1d(resident[resident < w.kv.capacity], ids[row, :width])
        poisoned = np.setdiff1d(avoid, w.cells)
        ids[row, width:] = next((cell for some in (poisoned, avoid) for cell in some[:1]), -1)
    return w._replace(q=q, ids=ids, steps=steps)


def _attend(backend, recipe):
    page, capacity = recipe["page"], recipe["context"] + recipe["tail"]
    w = data.window({**recipe, "rows": 2, "page": 4})
    table = _remove(data.sparse_table(w.cells, page, capacity, recipe["order"], recipe["seed"]), recipe["missing"])
    w = _with_unused_row(w._replace(kv=data.place(recipe["format"], page, w.cells, w.k, w.v, table, SPARE)))
    # The same cells, one to a page, in order.
    here = w.cells[table[w.cells // page] >= 0]
    plain = data.sparse_table(here, 1, capacity, "identity", 0)
    plain = data.place(recipe["format"], 1, w.cells, w.k, w.v, plain)
    got = backend.attend(w.q, w.kv, w.ids, w.steps)
    if backend.arithmetic == "exact":
        standard = exact_attend(w.q, plain, w.ids, w.steps)
        found = equal("attend: pages", standard, got, reason="pages are no part of the arithmetic")
        return [found if found.passed else found.noted(*explain(backend, w, standard, got))]
    standard = backend.attend(w.q, plain, w.ids, w.steps)
    expected = data.truth(w)
    return [
        equal("attend: pages", standard, got, reason="one cell to a page gives the same sums in the same order"),
        error("attend: kernel", expected, got, *data.float_bound(w, expected)),
    ]


def _append_kv(backend, recipe):
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

    def empty():
        kv = data.place(recipe["format"], page, np.arange(0), none, none, table, SPARE)
        host = data.place(recipe["format"], page, np.arange(0), none, none, np.arange(len(table)))
        return PagedKV(kv.pool, table, host.pool)

    expected = empty()
    append_kv(k, v, expected, steps)
    got = backend.append_kv(k, v, empty(), steps)
    found = []
    for pool in ("pool", "host"):
        for side in ("k", "v"):
            for part in ("codes", "scale"):
                ours, theirs = (getattr(getattr(getattr(kv, pool), side), part) for kv in (expected, got))
                name = f"append_kv: {pool}, {side} {part}"
                axes = ("page", "kv head", "place", "byte")
                if not ours.size and not theirs.size:
                    # fp16 has no scales.
                    continue
                found.append(equal(name, ours, theirs, axes, "codes are exact, and nothing else is written"))
    return found
