"""``split``: every schedule gives one result: split in several parts, row by row, several slots in one launch.

The schedule ``batch`` of the backend under test is the standard, and is itself held to the reference: a backend that is
wrong in every schedule alike is wrong. In the exact arithmetic the bytes are equal; in the float arithmetic two orders
of addition differ, each within its own error.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from qsa.golden.case import CaseError
from qsa.kernels.ops import MAX_SPLITS
from qsa.reference.formats import EXACT_FORMATS

from ..backend import Backend
from ..compare.comparison import Comparison, equal, error
from ..compare.localise import explain
from . import attend_inputs as data
from .designs import attention_cover, relations

SCHEDULES = ("split", "step", "multi")

MIXED = "mixed"
"""As a format: every slot of a ``multi`` case has another one."""

OPERATIONS = {
    "attend": {
        "schedule": SCHEDULES,
        "splits": range(1, MAX_SPLITS + 1),
        "format": (*data.FORMATS, data.OWN, MIXED),
        "context": range(2**24 + 1),
        "rows": data.ROWS,
        "tail": data.TAILS,
        "seed": data.SEEDS,
    },
    "cover": attention_cover.COVER,
    "tiles": attention_cover.TILED,
    "relation": relations.RELATION,
}

SLOTS = 3
"""Slots of a ``multi`` case; their contexts differ."""


def cases(arithmetic: str, backend: Backend | None = None) -> Iterator[dict[str, Any]]:
    """The recipes of every case, in order; those of ``backend``'s own storage where it has such."""
    for format in data.formats(arithmetic, backend):
        # Fewer cells than splits, fewer than a chunk for each split, and a full selection.
        for context, rows, tail in ((4, 2, 1), (500, 2, 2), (16384, 4, 3)):
            for splits in (1, 2, 3, 7, 20):
                yield _attend("split", splits, format, context, rows, tail)
            for schedule in ("step", "multi"):
                yield _attend(schedule, 1, format, context, rows, tail)
    yield from attention_cover.cases(arithmetic, backend)
    yield from relations.cases(arithmetic, backend)
    if backend is not None and backend.own_storage:
        return
    # A row for each slot at least.
    for context, rows, tail in ((500, 3, 2), (16384, 4, 3)):
        yield _attend("multi", 1, MIXED, context, rows, tail)


def _attend(schedule: str, splits: int, format: str, context: int, rows: int, tail: int) -> dict[str, Any]:
    recipe = {"op": "attend", "schedule": schedule, "splits": splits, "format": format}
    return recipe | {"context": context, "rows": rows, "tail": tail, "seed": 1}


def check(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """The comparisons of one case."""
    if recipe["op"] == "cover":
        return attention_cover.check_cover(backend, recipe)
    if recipe["op"] == "tiles":
        return attention_cover.check_tiles(backend, recipe)
    if recipe["op"] == "relation":
        return relations.check(backend, recipe)
    if recipe["schedule"] == "multi":
        return _multi(backend, recipe)
    if recipe["format"] == MIXED:
        raise CaseError(f"format = {MIXED!r}: goes with the schedule multi, not {recipe['schedule']}")
    w, right = _prepared(backend, *(recipe[key] for key in ("format", "context", "rows", "tail", "seed")))
    standard = backend.attend(w.q, w.kv, w.ids, w.steps)
    if recipe["schedule"] == "split":
        name = f"attend: split in {recipe['splits']}"
        got = backend.attend(w.q, w.kv, w.ids, w.steps, schedule="split", splits=recipe["splits"])
    else:
        name, given = "attend: step", [(w.q[[r]], w.kv, w.ids[[r]], w.steps[[r]]) for r in range(len(w.q))]
        got = np.concatenate([backend.attend(*row, schedule="step") for row in given])
    return _both(backend, w, name, right, standard, got)


class _Right(NamedTuple):
    """The right result: exact bytes without a bound, or float64 truth with bounds [rows, 1] and their reason."""

    expected: np.ndarray
    bound: np.ndarray | None
    reason: str


def _right(backend: Backend, w: data.AttendInputs) -> _Right:
    """The :class:`_Right` of inputs of attention."""
    if backend.arithmetic == "exact":
        return _Right(data.exact_attend(w.q, w.kv, w.ids, w.steps), None, "a schedule cannot change a byte")
    expected = data.truth(w)
    return _Right(expected, *data.float_bound(w, expected, backend.declaration.types))


@lru_cache(maxsize=1)
def _prepared(
    backend: Backend, format: str, context: int, rows: int, tail: int, seed: int
) -> tuple[data.AttendInputs, _Right]:
    """(inputs, their :class:`_Right`), the same for every schedule."""
    given = {"format": format, "context": context, "rows": rows, "tail": tail, "seed": seed}
    w = data.for_backend(backend, given)
    return w, _right(backend, w)


def _both(
    backend: Backend, w: data.AttendInputs, name: str, right: _Right, standard: np.ndarray, got: np.ndarray
) -> list[Comparison]:
    """The standard against the right result, and ``got`` against the standard."""
    if right.bound is None:
        found = []
        for label, a, b in (("attend: batch", right.expected, standard), (name, standard, got)):
            same = equal(label, a, b, reason=right.reason)
            # The cause is one of the schedule: it is looked for against the right result.
            found.append(same if same.passed else same.noted(*explain(backend, w, right.expected, b)))
        return found
    twice = f"both may be off by their own bound, twice: {right.reason}"
    same = error(name, standard, got, 2 * right.bound, twice)
    found = [
        data.held(backend, "attend: batch", w, right.expected, standard, right.bound, right.reason),
        same if same.passed else same.noted(*explain(backend, w, right.expected, got, right.bound)),
    ]
    # The split schedule adds in another order; the number of splits is an invariance of its own (`relations.py`).
    if same.passed and ": split in" not in name and "schedule" in backend.declaration.invariance:
        found.append(equal(f"{name}: bytes", standard, got, reason="declared: invariance over schedule"))
    return found


def _multi(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """Rows of several slots in turn, each slot's own result being the standard."""
    windows = []
    for slot in range(SLOTS):
        # One row at least sees fewer cells than a row of the next slot.
        context = max(recipe["context"] - 4 * slot, recipe["rows"])
        format = EXACT_FORMATS[slot % len(EXACT_FORMATS)] if recipe["format"] == MIXED else recipe["format"]
        given = {"format": format, "context": context, "seed": recipe["seed"] + slot}
        windows.append(data.for_backend(backend, {**recipe, **given}))
    slots = np.arange(recipe["rows"], dtype=np.int32) % SLOTS
    q, ids, steps = (
        np.stack([getattr(windows[slot], name)[row] for row, slot in enumerate(slots)])
        for name in ("q", "ids", "steps")
    )
    kvs = [w.kv for w in windows]
    got = backend.attend(q, kvs, ids, steps, slots, schedule="multi")
    found = []
    for slot in np.unique(slots):
        rows, w = np.flatnonzero(slots == slot), windows[slot]
        own = w._replace(q=w.q[rows], ids=w.ids[rows], steps=w.steps[rows])
        standard = backend.attend(own.q, own.kv, own.ids, own.steps)
        found += _both(backend, own, f"attend: multi, slot {slot}", _right(backend, own), standard, got[rows])
    return found
