"""``verify-batch`` in the float arithmetic: the windows' scores, cells and attention, all held to float64.

Bytes are asked for only where the backend declares an invariance: ``schedule`` (every schedule and switch gives the
bytes of the standing path) and ``batch`` (a row alone gives the bytes that it has in a window).
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from qsa.golden.families import verify_batch as family
from qsa.kernels.ops import OPERATIONS as TABLE
from qsa.reference.select import select

from ..backend import Backend, UnsupportedError
from ..compare.comparison import Comparison, equal, error
from ..compare.localise import explain
from . import attend_inputs as data
from .index_operations import score_row
from .selected import held_as_sets
from .verify_window import AXES, OUTPUTS, WindowOperations, switched


class FloatWindow:
    """A window whose queries and scores have values of the backend's types, and the truth of its outputs."""

    def __init__(self, backend: Backend, w: family.BatchWindow) -> None:
        self.backend = backend
        scores = backend.rounded("index_scores", w.scores)
        ids = select(scores, w.steps, rule=w.rule)
        self.w = w._replace(
            q=backend.rounded("query", w.q), q_idx=backend.rounded("index_query", w.q_idx), scores=scores, ids=ids
        )
        self.operations = WindowOperations(backend, self.w)

    def held(self, name: str, label: str, got: np.ndarray) -> Iterator[Comparison]:
        """The output ``name`` of the window against float64."""
        w, backend = self.w, self.backend
        if name == "ids":
            text = f"scores are {backend.declaration.types.index_scores}"
            yield held_as_sets(backend, label, w.ids, got, w.scores, w.steps, np.zeros_like(w.scores), text)
        elif name == "scores":
            for row, slot in enumerate(w.slots):
                step = w.steps[row].tolist()
                yield score_row(backend, f"{label}, row {row}", w.q_idx[row], w.indexes[slot], step, got[row])
        else:
            yield _attention(backend, label, w, got)


def _attention(backend: Backend, label: str, w: family.BatchWindow, got: np.ndarray) -> Comparison:
    """A window's attention against float64, every slot by itself for the bound and the cause of a failure."""
    parts, notes = [], []
    for slot in range(len(w.kvs)):
        mine = w.slots == slot
        own = SimpleNamespace(q=w.q[mine], kv=w.kvs[slot], ids=w.ids[mine], steps=w.steps[mine])
        truth = data.truth(own)
        bound, reason = data.float_bound(own, truth, backend.declaration.types)
        parts.append((truth, got[mine], bound))
        lines = explain(backend, own, truth, got[mine], bound)
        notes += [f"slot {slot}, its rows from 0:", *lines] if lines else []
    truths, outputs, bounds = (np.concatenate([part[i] for part in parts]) for i in range(3))
    return error(label, truths, outputs, bounds, reason).noted(*notes)


@lru_cache(maxsize=1)
def _prepared(backend: Backend, slots: int, rows: int, context: int, rule: str, seed: int) -> FloatWindow:
    recipe = {"slots": slots, "rows": rows, "context": context, "rule": rule, "seed": seed}
    return FloatWindow(backend, family.make_inputs(recipe))


def check_window(backend: Backend, recipe: dict[str, Any]) -> tuple[list[Comparison], list[str]]:
    """(comparisons, refusals) of one case of a window."""
    window = _prepared(backend, *(recipe[key] for key in ("slots", "rows", "context", "rule", "seed")))
    found: list[Comparison] = []
    refused: list[str] = []
    for name, operation in OUTPUTS.items():
        if not backend.has(operation) or (name == "scores" and backend.own_index) or _own(backend, name):
            continue
        run: Callable[..., np.ndarray] = getattr(window.operations, name)
        try:
            found += _output(backend, window, recipe["pass"], name, run, refused)
        except UnsupportedError as unsupported:
            refused.append(str(unsupported))
    return found, refused


def _own(backend: Backend, name: str) -> bool:
    return name == "attention" and backend.own_storage


def _output(
    backend: Backend,
    window: FloatWindow,
    kind: str,
    name: str,
    run: Callable[..., np.ndarray],
    refused: list[str],
) -> list[Comparison]:
    """The comparisons of one output in one pass."""
    recipe = {"pass": kind}
    if kind == "standing":
        with switched(recipe):
            standing, alone = run(), run(alone=True)
        found = [*window.held(name, name, standing), *window.held(name, f"{name}: one call per row", alone)]
        return found + _same(backend, "batch", f"{name}: one call per row against the batch", name, standing, alone)
    if kind in ("switches", "auto"):
        with switched({"pass": "standing"}):
            standing = run()
        with switched(recipe):
            got = run()
        label = f"{name}: {kind}"
        return [*window.held(name, label, got), *_same(backend, "schedule", label, name, standing, got)]
    found = []
    with switched(recipe):
        for schedule in TABLE[OUTPUTS[name]].schedules:
            if (name, schedule) == ("attention", "split"):
                # Another order of additions: the module `split` holds it to its bound.
                continue
            try:
                got = run(schedule)
            except UnsupportedError as unsupported:
                refused.append(str(unsupported))
                continue
            label = f"{name}: {schedule}"
            found += [*window.held(name, label, got)]
            if "schedule" in backend.declaration.invariance:
                found += _same(backend, "schedule", label, name, run(), got)
    return found


def _same(
    backend: Backend, kind: str, label: str, name: str, expected: np.ndarray, got: np.ndarray
) -> list[Comparison]:
    """Equality of bytes where the backend declares the invariance ``kind``."""
    if kind not in backend.declaration.invariance:
        return []
    return [equal(f"{label}: bytes", expected, got, AXES[name], f"declared: invariance over {kind}")]


def check_scores(
    backend: Backend, q_idx: np.ndarray, index: Any, steps: np.ndarray, recipe: dict[str, Any]
) -> tuple[list[Comparison], list[str]]:
    """(comparisons, refusals) of scores of 1 to 8 rows of one slot."""
    if backend.own_index:
        raise UnsupportedError("scores: an own index: its scores are held in accuracy")
    q_idx = backend.rounded("index_query", q_idx)
    schedules: tuple[str | None, ...] = TABLE["block_scores"].schedules if recipe["pass"] == "schedules" else (None,)
    found: list[Comparison] = []
    refused: list[str] = []
    with switched(recipe):
        for schedule in schedules:
            for rows in range(1, len(q_idx) + 1):
                try:
                    got = backend.block_scores(q_idx[:rows], index, steps[:rows], schedule=schedule)
                except UnsupportedError as unsupported:
                    refused.append(f"{rows} rows: {unsupported}")
                    continue
                label = f"scores: {rows} rows{f', {schedule}' if schedule else ''}"
                found += [
                    score_row(backend, f"{label}, row {row}", q_idx[row], index, steps[row].tolist(), got[row])
                    for row in range(rows)
                ]
    return found, refused


def check_draft(
    backend: Backend, arguments: Any, recipe: dict[str, Any], schedules: tuple[str, ...]
) -> tuple[list[Comparison], list[str]]:
    """(comparisons, refusals) of the draft layer's call; ``arguments`` has q, kv, ids, steps."""
    if backend.own_storage:
        raise UnsupportedError("draft: own storage: its attention is held in accuracy")
    w = SimpleNamespace(**{**vars(arguments), "q": backend.rounded("query", arguments.q)})
    truth = data.truth(w)
    bound, reason = data.float_bound(w, truth, backend.declaration.types)
    found: list[Comparison] = []
    refused: list[str] = []
    with switched({"pass": "standing"}):
        standing = backend.attend(w.q, w.kv, w.ids, w.steps)
    found.append(data.held(backend, "draft: standing path against float64", w, truth, standing, bound, reason))
    for schedule in schedules:
        if schedule == "split":
            # Another order of additions: the module `split` holds it to its bound.
            continue
        try:
            with switched(recipe):
                got = backend.attend(w.q, w.kv, w.ids, w.steps, schedule=schedule)
        except UnsupportedError as unsupported:
            refused.append(str(unsupported))
            continue
        found.append(data.held(backend, f"draft: {schedule}", w, truth, got, bound, reason))
        found += _same(backend, "schedule", f"draft: {schedule}", "attention", standing, got)
    return found, refused
