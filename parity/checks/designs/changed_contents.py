"""The same arrays again with other contents: the operation ``again`` of the module ``pages``.

``again`` calls an operation, changes one argument in place and calls it again, then changes one element of it, chosen
by the seed, and calls it a third time: what a kernel has kept of an earlier call (a table, codes, ids, or its output)
is then wrong, whether it was found by its pointer or by a fingerprint of some of its bytes. Of ``pools`` no array
changes: slots have one another's K/V, then one of them has other K/V, so that where pools lie was kept too long.
"""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

from qsa.golden import inputs
from qsa.reference.append_kv import append_kv as reference_kv
from qsa.reference.formats import EXACT_FORMATS
from qsa.reference.geometry import REAL, step_records
from qsa.reference.kv import PagedKV
from qsa.reference.select import select as reference_select

from ...backend import Backend
from ...compare.comparison import Comparison, equal, error
from .. import attend_inputs as data
from ..index_operations import INDEX_FORMAT, formats, named
from ..selected import ids_comparison
from . import changed_index
from .append_cover import same_kv
from .attention_cover import SCHEDULES, SEEDS, OneSlot, offered

ARGUMENTS = {
    "attend": ("q", "k_codes", "k_scale", "v_codes", "v_scale", "table", "ids", "steps", "slots", "pools"),
    "block_scores": changed_index.ARGUMENTS["block_scores"],
    "select": ("scores", "steps"),
    "append_kv": ("k", "v", "table", "steps"),
    "append_index": changed_index.ARGUMENTS["append_index"],
}
"""Operation -> the arguments that are changed between two calls; of encoded keys ``changed_index.ENCODED``."""

AGAIN: dict[str, Any] = {
    "operation": tuple(ARGUMENTS),
    "argument": tuple(
        dict.fromkeys(
            name for table in (ARGUMENTS, changed_index.ENCODED) for names in table.values() for name in names
        )
    ),
    "schedule": (None, *SCHEDULES),
    "index_format": INDEX_FORMAT,
    "seed": SEEDS,
}
"""Parameters of ``again`` and their values."""

SIZE = 300
"""Cells of the context of ``again``."""

MANY = 6
"""Slots of a call whose ``pools`` change: more than kernels take by value."""

ONLY_SLOTS = ("slots", "pools")
"""Arguments of ``attend`` that calls over several slots alone have."""

CALLS = ("first call", "after a change", "after one element changed")


def cases(arithmetic: str, backend: Backend | None = None) -> Iterator[dict[str, Any]]:
    """The recipes of ``again`` within what ``backend`` declares."""
    own_kv = backend is not None and backend.own_storage
    own_index = backend is not None and backend.own_index
    for operation, names in ARGUMENTS.items():
        if (own_kv and operation in ("attend", "append_kv")) or (
            own_index and operation in ("block_scores", "append_index")
        ):
            continue
        for name in names:
            if operation != "attend":
                yield {"op": "again", "operation": operation, "argument": name, "seed": 61}
                continue
            for schedule in offered(backend, "attend"):
                if name not in ONLY_SLOTS or schedule == "multi":
                    yield {"op": "again", "operation": operation, "argument": name, "schedule": schedule, "seed": 61}
    for format in () if own_index else formats(backend)[1:]:
        for operation, names in changed_index.ENCODED.items():
            for name in names:
                yield {"op": "again", "operation": operation, "argument": name, **named(format), "seed": 61}


def again(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """Both calls, each against truth."""
    check = {
        "attend": _attend_again,
        "block_scores": changed_index.scores,
        "select": _select_again,
        "append_kv": _append_kv_again,
        "append_index": changed_index.append,
    }[recipe["operation"]]
    format = recipe.get("index_format")
    allowed = (ARGUMENTS if format is None else changed_index.ENCODED).get(recipe["operation"], ())
    if recipe["argument"] not in allowed:
        of = recipe["operation"] if format is None else f"{recipe['operation']} of the index format {format}"
        raise ValueError(f"argument = {recipe['argument']!r}: {of} has {allowed}")
    return check(backend, recipe)


def _attend_again(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    name, schedule, seed = recipe["argument"], recipe["schedule"], recipe["seed"]
    formats = backend.declaration.formats or list(EXACT_FORMATS)
    windows = [
        data.attend_inputs({"format": formats[0], "context": SIZE + slot, "rows": 2, "tail": 2, "seed": seed + slot})
        for slot in range(MANY + 1 if name == "pools" else 2)
    ]
    w = windows[0]
    q, ids, steps = backend.rounded("query", w.q).copy(), w.ids.copy(), w.steps.copy()
    slots = np.array([0, 1], np.int32) if schedule == "multi" else None
    kvs = [window.kv for window in windows[:MANY]]
    if name == "pools" and slots is not None:
        slots[:] = 0, MANY - 1
    if name == "table":
        # Half of the cells: those of all pages in another order would give the same result.
        steps[:] = step_records(np.array([SIZE // 2, SIZE // 2 + 9]))
    keywords: dict[str, Any] = {"schedule": schedule, **({"splits": 3} if schedule == "split" else {})}
    found = []
    for text in CALLS:
        if schedule == "step":
            got = np.concatenate(
                [backend.attend(q[r : r + 1], w.kv, ids[r : r + 1], steps[r : r + 1], **keywords) for r in range(2)]
            )
        elif slots is not None:
            got = backend.attend(q, kvs, ids, steps, slots, **keywords)
        else:
            got = backend.attend(q, w.kv, ids, steps, **keywords)
        for row in range(2):
            kv = w.kv if slots is None else kvs[slots[row]]
            own = OneSlot(q[row : row + 1], kv, ids[row : row + 1], steps[row : row + 1])
            found.append(judged(backend, f"attend: {name}, {text}, row {row}", own, got[row : row + 1]))
        if name == "pools":
            # Slots change places, then one has K/V that no call had.
            kvs = kvs[::-1] if text == CALLS[0] else [*kvs[:-1], windows[-1].kv]
        elif text == CALLS[0]:
            _change_attend(name, q, w.kv, ids, steps, slots)
        else:
            _change_one_of_attend(name, _random(recipe), q, w.kv, ids, steps)
    return found


def judged(backend: Backend, name: str, own: OneSlot, got: np.ndarray) -> Comparison:
    """One slot's rows against truth."""
    if backend.arithmetic == "exact":
        return equal(name, data.exact_truth(own), got)
    truth = data.truth(own)
    return error(name, truth, got, *data.float_bound(own, truth, backend.declaration.types))


def _change_attend(name: str, q: np.ndarray, kv: PagedKV, ids: np.ndarray, steps: np.ndarray, slots: Any) -> None:
    """Another right call in the same arrays."""
    if name == "q":
        q[:] = q[:, ::-1].copy()
    elif name in ("k_codes", "v_codes"):
        side = getattr(kv.pool, name[0])
        side.codes[:] = np.roll(side.codes, 1, axis=0)
    elif name in ("k_scale", "v_scale"):
        side = getattr(kv.pool, name[0])
        side.scale[:] = side.scale * np.float16(0.5)
        side.scale[::3] *= np.float16(4)
    elif name == "table":
        # The first 70 pages of 4 cells are all in use.
        kv.table[:70] = kv.table[:70][::-1].copy()
    elif name == "ids":
        ids[:, : SIZE // 2] = ids[:, :1]
    elif name == "steps":
        steps[:] = step_records(np.array([SIZE // 2, SIZE // 3]))
    else:
        slots[:] = slots[::-1].copy()


def _change_one_of_attend(
    name: str, random: np.random.Generator, q: np.ndarray, kv: PagedKV, ids: np.ndarray, steps: np.ndarray
) -> None:
    """The same call but for one element: of codes two neighbours, of a table two pages, and of two slots
    nothing, for both have changed."""
    row, cell, head = int(random.integers(2)), int(random.integers(SIZE // 2)), int(random.integers(REAL.n_head_kv))
    page, at = _place(kv, cell)
    if name == "q":
        q[row, random.integers(REAL.n_head), random.integers(REAL.head_dim)] += 4
    elif name in ("k_codes", "v_codes"):
        codes = getattr(kv.pool, name[0]).codes[page, head, at]
        dim = random.choice(np.flatnonzero(codes[:-1] != codes[1:]))
        codes[[dim, dim + 1]] = codes[[dim + 1, dim]]
    elif name in ("k_scale", "v_scale"):
        getattr(kv.pool, name[0]).scale[page, head, at] *= np.float16(2)
    elif name == "table":
        # A page of the cells that are read, and one of the others.
        one, other = cell // kv.pool.page_size, SIZE // kv.pool.page_size - 1
        kv.table[[one, other]] = kv.table[[other, one]]
    elif name == "ids":
        ids[row, random.integers(SIZE // 2, steps[row, 3])] = ids[row, 0]
    elif name == "steps":
        steps[row] = step_records(np.array([SIZE // 2 + 1 + cell]))[0]


def _place(kv: PagedKV, cell: int) -> tuple[int, int]:
    """Physical page of a cell, and its place there."""
    page, at = kv.locate(np.array([cell]))
    return int(page[0]), int(at[0])


def _random(recipe: dict[str, Any]) -> np.random.Generator:
    """Draws the element that changes."""
    return np.random.default_rng(recipe["seed"])


def _select_again(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    scores = backend.rounded("index_scores", inputs.bell(recipe["seed"], "again.scores", 2, 900))
    steps = step_records(np.array([3400, 3303]))
    random, found = _random(recipe), []
    for text in CALLS:
        got = backend.select(scores, steps)
        right = reference_select(scores, steps)
        found.append(ids_comparison(backend, f"select: {recipe['argument']}, {text}", right, got, scores, steps))
        if text != CALLS[0]:
            row, block = int(random.integers(2)), int(random.integers(800))
            if recipe["argument"] == "scores":
                # In the selection now, unless it was; then no longer.
                chosen = block * REAL.ratio in right[row]
                scores[row, block] = -9 if chosen else 9
            else:
                steps[row] = step_records(np.array([2401 + block]))[0]
        elif recipe["argument"] == "scores":
            scores[:] = -scores
        else:
            steps[:] = step_records(np.array([2399, 2601]))
    return found


def _append_kv_again(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    name, rows = recipe["argument"], 5
    shape = (rows, REAL.n_head_kv, REAL.head_dim)
    k, v = (inputs.bell(recipe["seed"], f"again.{side}", rows, shape[1] * shape[2]).reshape(shape) for side in "kv")
    formats = backend.declaration.formats or list(EXACT_FORMATS)
    kv: Any = PagedKV.new(formats[0], 40, 4, host=True)
    right, steps, found = copy.deepcopy(kv), step_records(np.arange(7, 7 + rows)), []
    random = _random(recipe)
    for text in CALLS:
        reference_kv(k, v, right, steps)
        kv = backend.append_kv(k, v, kv, steps)
        found.append(same_kv(f"{name}, {text}", [right], [kv]))
        if text != CALLS[0]:
            row = int(random.integers(rows))
            if name in ("k", "v"):
                (k if name == "k" else v)[row, random.integers(shape[1]), random.integers(shape[2])] += 9
            elif name == "steps":
                steps[:] = step_records(np.arange(22 + row, 22 + row + rows))
            else:
                # The pages of two of the cells that are written.
                for each in (right, kv):
                    each.table[[1, 2]] = each.table[[2, 1]]
        elif name in ("k", "v"):
            (k if name == "k" else v)[:] *= np.float32(-0.75)
        elif name == "steps":
            steps[:] = step_records(np.arange(21, 21 + rows))
        else:
            for each in (right, kv):
                each.table[:] = each.table[::-1].copy()
    return found
