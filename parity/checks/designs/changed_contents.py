"""The same arrays again with other contents: the operation ``again`` of the module ``pages``.

``again`` calls an operation, changes one argument in place and calls it again, then changes one element of it, chosen
by the seed, and calls it a third time: what a kernel has kept of an earlier call (a table, codes, ids, or its output)
is then wrong, whether it was found by its pointer or by a fingerprint of some of its bytes.
"""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

from qsa.golden import inputs
from qsa.reference import exact
from qsa.reference.append_index import append_index as reference_index
from qsa.reference.append_kv import append_kv as reference_kv
from qsa.reference.formats import EXACT_FORMATS
from qsa.reference.geometry import REAL, step_records
from qsa.reference.index import Index
from qsa.reference.kv import PagedKV
from qsa.reference.select import select as reference_select

from ...backend import Backend
from ...compare.comparison import Comparison, equal, error
from .. import attend_inputs as data
from ..index_operations import score_row
from ..selection import ids_comparison
from .append_cover import same_index, same_kv
from .attention_cover import SCHEDULES, SEEDS, OneSlot, offered

ARGUMENTS = {
    "attend": ("q", "k_codes", "k_scale", "v_codes", "v_scale", "table", "ids", "steps", "slots"),
    "block_scores": ("q_idx", "pooled", "dead", "steps"),
    "select": ("scores", "steps"),
    "append_kv": ("k", "v", "table", "steps"),
    "append_index": ("raw", "steps", "weight", "rope"),
}
"""Operation -> the arguments that are changed between two calls."""

AGAIN: dict[str, Any] = {
    "operation": tuple(ARGUMENTS),
    "argument": tuple(dict.fromkeys(name for names in ARGUMENTS.values() for name in names)),
    "schedule": (None, *SCHEDULES),
    "seed": SEEDS,
}
"""Parameters of ``again`` and their values."""

SIZE = 300
"""Cells of the context of ``again``."""

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
                if name != "slots" or schedule == "multi":
                    yield {"op": "again", "operation": operation, "argument": name, "schedule": schedule, "seed": 61}


def again(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """Both calls, each against truth."""
    check = {
        "attend": _attend_again,
        "block_scores": _scores_again,
        "select": _select_again,
        "append_kv": _append_kv_again,
        "append_index": _append_index_again,
    }[recipe["operation"]]
    if recipe["argument"] not in ARGUMENTS[recipe["operation"]]:
        raise ValueError(
            f"argument = {recipe['argument']!r}: {recipe['operation']} has {ARGUMENTS[recipe['operation']]}"
        )
    return check(backend, recipe)


def _attend_again(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    name, schedule, seed = recipe["argument"], recipe["schedule"], recipe["seed"]
    formats = backend.declaration.formats or list(EXACT_FORMATS)
    windows = [
        data.attend_inputs({"format": formats[0], "context": SIZE + slot, "rows": 2, "tail": 2, "seed": seed + slot})
        for slot in range(2)
    ]
    w, other = windows
    q, ids, steps = backend.rounded("query", w.q).copy(), w.ids.copy(), w.steps.copy()
    slots = np.array([0, 1], np.int32) if schedule == "multi" else None
    kvs = [w.kv, other.kv]
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
        if text == CALLS[0]:
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


def _scores_again(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    name, seed, rows, blocks, dim = recipe["argument"], recipe["seed"], 2, 40, REAL.idx_dim
    q = inputs.bell(seed, "again.q", rows, REAL.idx_heads * dim).reshape(rows, REAL.idx_heads, dim)
    q = backend.rounded("index_query", q)
    index = Index(blocks + 1, np.ones(dim, np.float32))
    index.pooled[:] = inputs.bell(seed, "again.pooled", blocks + 1, dim)
    index.dead[:] = inputs.bell(seed, "again.dead", 1, dim)[0]
    # No tail: the score of the dead key is seen without its bonus.
    steps = step_records(np.array([blocks * REAL.ratio - 1, blocks * 2 - 1]))
    random, found = _random(recipe), []
    for text in CALLS:
        got = backend.block_scores(q, index, steps)
        right = exact.block_scores(q, index, steps)
        for row, step in enumerate(steps.tolist()):
            label = f"block_scores: {name}, {text}, row {row}"
            if backend.arithmetic == "exact":
                found.append(equal(label, right[row, : step[2] + 1], got[row, : step[2] + 1], ("block",)))
            else:
                found.append(score_row(backend, label, q[row], index, step, got[row]))
        if text != CALLS[0]:
            row, block, dims = (int(random.integers(n)) for n in (rows, blocks // 4, dim))
            if name == "q_idx":
                q[row, random.integers(REAL.idx_heads), dims] += 4
            elif name == "steps":
                steps[row] = step_records(np.array([blocks * 3 + block * 4 - 1]))[0]
            else:
                array = getattr(index, name).reshape(-1, dim)
                array[block if len(array) > 1 else 0, dims] += 4
        elif name == "q_idx":
            q[:] = q[:, ::-1].copy() * np.float32(2)
        elif name == "steps":
            steps[:] = steps[::-1].copy()
        else:
            array = getattr(index, name)
            array[:] = np.roll(array, 3, axis=0)
    return found


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


def _append_index_again(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    name, rows, seed = recipe["argument"], 9, recipe["seed"]
    exactly = backend.arithmetic == "exact"
    raw = backend.rounded("raw_keys", inputs.bell(seed, "again.raw", rows, REAL.idx_dim))
    weight = 1 + inputs.uniform(seed, "again.weight", 1, REAL.idx_dim)[0]
    index, right = (Index(12, weight, dtype=kind) for kind in (np.float32, np.float32 if exactly else np.float64))
    steps, random, found = step_records(np.arange(rows)), _random(recipe), []
    for text in CALLS:
        (exact.append_index if exactly else reference_index)(raw, steps, right)
        index = backend.append_index(raw, steps, index)
        found += same_index(f"{name}, {text}", right, index, exactly, int(steps[-1, 1]) % REAL.ratio)
        if text != CALLS[0]:
            row, dim = int(random.integers(rows - 1)), int(random.integers(REAL.idx_dim))
            if name == "raw":
                raw[row, dim] += 9
            elif name == "steps":
                steps[:] = step_records(np.arange(24 + row % 4, 24 + row % 4 + rows))
            else:
                for each in (right, index):
                    getattr(each, name)[..., dim % getattr(each, name).shape[-1]] *= 3
        elif name == "raw":
            raw[:] = raw[::-1].copy()
        elif name == "steps":
            steps[:] = step_records(np.arange(20, 20 + rows))
        else:
            for each in (right, index):
                array = getattr(each, name)
                array[:] = np.roll(array, 5, axis=-1)
    return found
