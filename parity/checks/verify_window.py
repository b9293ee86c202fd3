"""The windows of ``verify-batch`` in the exact arithmetic: scores, selected cells and attention of several slots.

A window's outputs are held to hashes made by the reference, to the reference itself, to calls of one row each and to
the outputs of every schedule.
"""

from contextlib import AbstractContextManager
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from msgspec.structs import replace

from qsa.golden import case
from qsa.golden.families import grid
from qsa.golden.families import verify_batch as family
from qsa.golden.families.block_scores import seen
from qsa.golden.record import Produced, differences, make
from qsa.golden.store import Store
from qsa.kernels.ops import MAX_SPLITS
from qsa.kernels.ops import OPERATIONS as TABLE
from qsa.kernels.switches import override
from qsa.reference import exact
from qsa.reference.exact import CONTRACT
from qsa.reference.geometry import REAL
from qsa.reference.index import Index

from ..backend import Backend, UnsupportedError
from ..compare import index_causes
from ..compare.comparison import Comparison, equal, verdict
from ..compare.localise import explain
from ..compare.margins import margins

KERNEL_SWITCHES = ("topk_scan", "scores_transposed", "merge_active")
"""The switches that the pass ``switches`` sets to 1. Attention's schedule is named by every call, so split_attn chooses
none; at 0 it keeps the standing path's clusters, unset those of the backend's table."""

OUTPUTS = {"scores": "block_scores", "ids": "select", "attention": "attend"}
"""Output of a window -> operation that makes it."""

AXES = {"scores": ("row", "block"), "ids": ("row", "index"), "attention": ("row", "head", "dim")}

CAPACITY_BLOCKS = 200_000 // REAL.ratio
"""Blocks of the scores that selection reads: a capacity of 200,000 cells, beyond the register form."""


class WindowOperations:
    """The operations of a window on a backend: in the batch form, or one call for each row alone."""

    def __init__(self, backend: Backend, w: family.BatchWindow) -> None:
        self.backend, self.w = backend, w
        wide = np.full((len(w.scores), CAPACITY_BLOCKS + 1), np.inf, np.float32)
        self.wide = w.scores if w.scores.shape[1] > CAPACITY_BLOCKS else wide
        self.wide[:, : w.scores.shape[1]] = w.scores

    def scores(self, schedule: str | None = None, alone: bool = False) -> np.ndarray:
        """float32 [N, blocks]; one call per slot in the batch form."""
        w = self.w

        def block_scores(q_idx: np.ndarray, index: Index, steps: np.ndarray) -> np.ndarray:
            return self.backend.block_scores(q_idx, index, steps, schedule=schedule)

        if not alone:
            return family.batch_scores(SimpleNamespace(block_scores=block_scores), w.q_idx, w.indexes, w.steps, w.slots)
        out = np.full((len(w.q_idx), max(index.max_blocks for index in w.indexes)), -np.inf, np.float32)
        for row, slot in enumerate(w.slots):
            index = w.indexes[slot]
            scores = block_scores(w.q_idx[[row]], index, w.steps[[row]])
            out[row, : index.max_blocks] = seen(scores, w.steps[[row]])[0]
        return out

    def ids(self, schedule: str | None = None, alone: bool = False) -> np.ndarray:
        """int32 [N, 2051]; one call in the batch form. The register form does not take a capacity of 200,000 cells."""
        w, scores = self.w, self.w.scores if schedule == "registers" else self.wide
        rows: list[Any] = [[row] for row in range(len(scores))] if alone else [slice(None)]
        return np.concatenate(
            [self.backend.select(scores[row], w.steps[row], rule=w.rule, schedule=schedule) for row in rows]
        )

    def attention(self, schedule: str | None = None, alone: bool = False) -> np.ndarray:
        """float32 [N, 24, 256]; one call over all slots' pools in the batch form."""
        w = self.w
        keywords: dict[str, Any] = {"schedule": schedule or "batch"}
        if schedule == "split":
            keywords["splits"] = MAX_SPLITS
        if not alone:
            return self.backend.attend(w.q, w.kvs, w.ids, w.steps, w.slots, **keywords)
        rows = ([row] for row in range(len(w.q)))
        return np.concatenate(
            [self.backend.attend(w.q[r], w.kvs[w.slots[r[0]]], w.ids[r], w.steps[r], **keywords) for r in rows]
        )


def switched(recipe: dict[str, Any]) -> AbstractContextManager[Any]:
    """The kernels' switches as the pass has them, whatever the environment says: unset in ``auto``, otherwise 0, or 1
    in ``switches``."""
    auto = recipe["pass"] == "auto"
    state = None if auto else recipe["pass"] == "switches"
    return override(split_attn=None if auto else False, **dict.fromkeys(KERNEL_SWITCHES, state))


@lru_cache(maxsize=1)
def _prepared(
    slots: int, rows: int, context: int, rule: str, seed: int
) -> tuple[family.BatchWindow, dict[str, np.ndarray], list[str]]:
    """(window, its outputs by the reference, lines on how the reference differs from the golden)."""
    recipe = {"slots": slots, "rows": rows, "context": context, "rule": rule, "seed": seed}
    w = family.make_inputs(recipe)
    right = {"scores": family.batch_scores(exact, w.q_idx, w.indexes, w.steps, w.slots), "ids": w.ids}
    right["attention"] = exact.attend(w.q, w.kvs, w.ids, w.steps, w.slots)
    name = golden_name(recipe)
    lines = Store().check(name, lambda *_: Produced(family.input_arrays(w), right, family.AXES)) if name else []
    return w, right, lines


@cache
def _goldens() -> dict[str, str]:
    """Case string -> name of every golden of the grid."""
    return {text: name for name, text in grid().items()}


def golden_name(recipe: dict[str, Any]) -> str | None:
    """Name of the golden of a window's recipe, None when there is none."""
    recipe = {key: value for key, value in recipe.items() if key in family.ALLOWED}
    return _goldens().get(case.format("verify_batch", recipe))


def _hashed(recipe: dict[str, Any], got: dict[str, np.ndarray]) -> list[Comparison]:
    """A verdict for each output: its hash against the golden's."""
    name = golden_name(recipe)
    if name is None:
        return []
    record = Store().load(name)
    fresh = make(name, record.case, CONTRACT, Produced({}, got, family.AXES))
    found = []
    for key in got:
        lines = differences(*(replace(side, inputs={}, outputs={key: side.outputs[key]}) for side in (record, fresh)))
        reason = "a hash made by the reference has one right value"
        found.append(verdict(f"golden {name}: {key}", len(lines), 0, reason, size=got[key].size, notes=lines))
    return found


def _parameters(recipe: dict[str, Any]) -> list[Any]:
    """The parameters of a window, in order."""
    return [recipe[key] for key in ("slots", "rows", "context", "rule", "seed")]


def check_window(backend: Backend, recipe: dict[str, Any]) -> tuple[list[Comparison], list[str]]:
    """(comparisons, refusals) of one case of a window."""
    w, right, lines = _prepared(*_parameters(recipe))
    if lines:
        reason, size = "the golden was made by it", len(lines)
        return [verdict("golden: the reference's own", size, 0, reason, size=size, notes=lines)], []
    run = WindowOperations(backend, w)
    offered = [name for name in OUTPUTS if backend.has(OUTPUTS[name])]
    right = {name: right[name] for name in offered}
    with switched(recipe):
        if recipe["pass"] == "schedules":
            return _scheduled(backend, w, right, run)
        got = {name: getattr(run, name)() for name in offered}
        found = [_held(backend, w, name, name, right[name], got[name]) for name in offered]
        found += _hashed(recipe, got)
        for name in offered if recipe["pass"] == "standing" else ():
            schedule = "step" if name == "attention" else None
            label = f"{name}: one call per row against the batch"
            try:
                rows = getattr(run, name)(schedule, alone=True)
            except UnsupportedError as unsupported:
                rows = getattr(run, name)(alone=True)
                label += f" ({unsupported})"
            found.append(_held(backend, w, label, name, got[name], rows))
    return found, []


def _scheduled(
    backend: Backend, w: family.BatchWindow, right: dict[str, np.ndarray], run: WindowOperations
) -> tuple[list[Comparison], list[str]]:
    """(comparisons, refusals) of every output in every schedule."""
    found, refused = [], []
    for name, expected in right.items():
        for schedule in TABLE[OUTPUTS[name]].schedules:
            try:
                got = getattr(run, name)(schedule)
            except UnsupportedError as unsupported:
                refused.append(str(unsupported))
                continue
            found.append(_held(backend, w, f"{name}: {schedule}", name, expected, got))
    return found, refused


def _held(
    backend: Backend, w: family.BatchWindow, label: str, name: str, expected: np.ndarray, got: np.ndarray
) -> Comparison:
    """Equal bytes of one output of a window, with notes on a difference."""
    found = equal(label, expected, got, AXES[name], "every form and schedule has the bits of the others")
    if found.passed or found.first is None or got.shape != expected.shape:
        return found
    if name == "ids":
        classes = margins(expected, got, w.scores, w.steps)
        likely = index_causes.explained(index_causes.selection(expected, got, w.scores, w.steps))
        return found.noted(f"cells: {classes.tie} tie, {classes.wrong} wrong", *classes.notes, *likely)
    if name == "attention":
        slot = w.slots[found.first.coordinate[0]]
        mine = w.slots == slot
        explained = explain(backend, _of_slot(w, slot), expected[mine], got[mine])
        return found.noted(f"slot {slot}, its rows from 0:", *explained)
    return found


def _of_slot(w: family.BatchWindow, slot: int) -> SimpleNamespace:
    """``q``, ``kv``, ``ids`` and ``steps`` of the rows of one slot."""
    mine = w.slots == slot
    return SimpleNamespace(q=w.q[mine], kv=w.kvs[slot], ids=w.ids[mine], steps=w.steps[mine])
