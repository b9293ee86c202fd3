"""``goldens``: every golden recomputed by the backend under test and compared by hash with the stored record.

Goldens are of the exact arithmetic; of a float backend the inputs of a selection are held by ``selection.py``. The
case string of a golden is its recipe. On a mismatch the record names the blocks; the reference is then run on the
same recipe, so that the first wrong element can be shown too.
"""

from collections.abc import Iterator
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from qsa.golden import case
from qsa.golden.families import FAMILIES, grid, produce
from qsa.golden.record import GoldenError, Produced
from qsa.golden.store import Store

from ..backend import Backend, UnsupportedError
from ..compare import index_causes
from ..compare.comparison import Comparison, equal, verdict
from ..compare.localise import explain
from ..compare.margins import margins
from . import golden_model, needle, nll, selection

ELSEWHERE = ("verify_batch", "text", "score", "needle", "captured")
"""Families that modules of their own hold: ``verify-batch``, ``seven`` and ``spec``, ``nll``, ``needle``; ``captured``
is inputs, which no backend makes."""

AXES = {
    "out": ("row", "head", "dim"),
    "attention": ("row", "head", "dim"),
    "ids": ("row", "index"),
    "scores": ("row", "block"),
    "pooled": ("block", "dim"),
}
"""Output -> names of its axes; the first axis of any other output is the row."""


@cache
def _names() -> dict[str, str]:
    """Case string -> name of every golden of the grid and of the folder, in the order of the names."""
    store = Store()
    known = grid() | {name: store.load(name).case for name in store.names()}
    return {known[name]: name for name in sorted(known)}


def cases(arithmetic: str, backend: Backend | None = None) -> Iterator[dict[str, Any]]:
    """The recipes of every golden of the grid and of the folder, in the order of their names, with the ``family``."""
    for text in _names():
        family, recipe = case.parse(text)
        if family not in ELSEWHERE:
            yield {"family": family, **recipe}


def check(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """The comparisons of one golden; a recipe without a golden is compared with the reference."""
    family = recipe["family"]
    recipe = {key: value for key, value in recipe.items() if key != "family"}
    if family == "captured":
        raise UnsupportedError("captured: inputs, which the reference alone makes: qsa golden check")
    if backend.arithmetic != "exact":
        if family != "select":
            raise UnsupportedError("goldens: stored in the exact arithmetic")
        return selection.check(backend, {"op": "select", **recipe})
    text = case.format(family, recipe)
    produced: list[Produced] = []

    def produce_here(family: str, recipe: dict[str, Any]) -> Produced:
        produced.append(produce(family, recipe, compute={family: _compute(backend, family)}))
        return produced[-1]

    name = _names().get(text)
    if name is None:
        return _in_full(backend, family, recipe, produce_here(family, recipe))
    store = Store()
    if name not in store.names():
        raise GoldenError(f"{name}: there is no record: `qsa golden regen {name}`, then `accept`")
    lines = store.check(name, produce_here)
    size = sum(output.size for output in produced[-1].outputs.values())
    found = verdict(f"golden {name}", len(lines), 0, "a hash has one right value", size=size, notes=lines)
    return [found] if found.passed else [found, *_in_full(backend, family, recipe, produced[-1])]


def _compute(backend: Backend, family: str) -> Any:
    """The replacement of the reference: the operation of that name, a text, its logits or answers by the engine, or
    the backend itself for a family of several operations."""
    if family == "text":
        return lambda **given: golden_model.texts(backend, [given])[0][0]
    if family == "score":
        return partial(nll.logits, backend)
    if family == "needle":
        return partial(needle.answers, backend)
    return getattr(backend, family, backend)


def _in_full(backend: Backend, family: str, recipe: dict[str, Any], produced: Produced) -> list[Comparison]:
    """Every output against the reference's own, element by element."""
    right = produce(family, recipe).outputs
    found = []
    for name, expected in right.items():
        got = produced.outputs[name]
        comparison = equal(f"{family}: {name}", expected, got, AXES.get(name, ("row", "axis 1", "axis 2")))
        explained = () if comparison.passed else _explained(backend, family, recipe, name, expected, got)
        found.append(comparison.noted(*explained))
    return found


def _explained(
    backend: Backend, family: str, recipe: dict[str, Any], name: str, expected: np.ndarray, got: np.ndarray
) -> tuple[str, ...]:
    """Notes on a wrong output, where there is more to say than its elements."""
    if got.shape != expected.shape or name not in ("ids", "out"):
        return ()
    given = FAMILIES[family].make_inputs(recipe)
    given = SimpleNamespace(**(given if isinstance(given, dict) else given._asdict()))
    if name == "out":
        return explain(backend, given, expected, got)
    classes = margins(expected, got, given.scores, given.steps)
    likely = index_causes.explained(index_causes.selection(expected, got, given.scores, given.steps))
    return f"cells: {classes.tie} tie, {classes.wrong} wrong", *classes.notes, *likely
