"""Relations of ``block_scores`` and ``select``: repeated calls, schedules, and other rows beside a row."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from qsa.golden import inputs
from qsa.reference import exact
from qsa.reference.geometry import REAL, RULES, step_records

from ...backend import Backend, UnsupportedError
from ...compare.comparison import Comparison, equal
from ..index_operations import score_row
from ..selected import held_as_sets
from . import score_cover
from .attention_cover import offered
from .related import Pair, plain, rows_of, same, shown, windows


def _calls(backend: Backend, recipe: dict[str, Any], run: Callable[..., np.ndarray]) -> Iterator[Pair]:
    """The pairs of an operation of the indexer; ``run(rows, schedule)`` is its result for a slice of the rows."""
    everything = slice(None)
    base = run(everything, None)
    if recipe["relation"] == "repeat":
        yield "again", base, run(everything, None)
    elif recipe["relation"] == "schedule":
        for schedule in (
            offered(backend, recipe["operation"]) if backend.kernel.takes(recipe["operation"], "schedule") else ()
        ):
            yield schedule, base, run(everything, schedule)
    else:
        for rows in windows(len(base)):
            yield f"{rows.stop - rows.start} rows", base[rows], run(rows, None)


def check_scores(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """Scores of up to 64 rows over 24 to 40 blocks."""
    if backend.own_index:
        raise UnsupportedError("block_scores: relations: are made with an index of ours")
    wide = {
        "keys": "ordinary",
        "blocks": 40,
        "tail": 1,
        "unused": "none",
        "rows": rows_of(backend),
        "seed": recipe["seed"],
    }
    q, index, steps = score_cover.arguments(backend, wide)
    tail = int(bool(backend.declaration.tail_score))

    def run(rows: slice, schedule: str | None) -> np.ndarray:
        got = plain(backend.block_scores(q[rows], index, steps[rows], schedule=schedule))
        return np.where(np.arange(got.shape[1]) < steps[rows, 2:3] + tail, got, 0)

    name = f"block_scores: {recipe['relation']}"
    base = run(slice(None), None)
    if backend.arithmetic == "exact":
        right = exact.block_scores(q, index, steps)
        seen = np.arange(right.shape[1]) < steps[:, 2:3] + tail
        found = [equal("block_scores: standard", np.where(seen, plain(right), 0), base, ("row", "block"))]
    else:
        found = [
            score_row(backend, f"block_scores: standard, row {row}", q[row], index, steps[row].tolist(), base[row])
            for row in range(0, len(q), 9)
        ]
    found += same(backend, name, _calls(backend, recipe, run), ("row", "block"))
    keys, half = index.pooled[: steps[0, 2]], REAL.idx_dim // 2
    whole = np.maximum(keys @ q[0].T, 0).sum(axis=1)
    halves = np.maximum(keys[:, :half] @ q[0].T[:half] + keys[:, half:] @ q[0].T[half:], 0).sum(axis=1)
    return [*found, shown(name, whole != halves)]


def check_select(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """Selection of up to 64 rows of 700 blocks whose scores have 32 values: the cut lies among equal ones."""
    rows, blocks = rows_of(backend), 700
    rule = next(rule for rule in RULES if rule in backend.declaration.rules)
    steps = step_records(blocks * REAL.ratio - rows + np.arange(rows), rule)
    scores = inputs.integers(recipe["seed"], "relation.scores", rows, blocks + 1, 32).astype(np.float32)

    def run(these: slice, schedule: str | None) -> np.ndarray:
        got = backend.select(scores[these], steps[these], rule, schedule=schedule)
        wide = np.full((len(got), REAL.max_width), -1, np.int64)
        wide[:, : got.shape[1]] = got[:, : REAL.max_width]
        return wide

    name = f"select: {recipe['relation']}"
    right, base = exact.select(scores, steps, rule=rule), run(slice(None), None)
    if backend.arithmetic == "exact":
        found = [equal("select: standard", right.astype(np.int64), base, ("row", "index"))]
    else:
        text = f"scores are {backend.declaration.types.index_scores}"
        found = [held_as_sets(backend, "select: standard", right, base, scores, steps, np.zeros_like(scores), text)]
    found += same(backend, name, _calls(backend, recipe, run), ("row", "index"))
    sorted_scores = -np.sort(-np.stack([scores[row, : steps[0, 2]] for row in range(rows)]), axis=1)
    cut = REAL.budget // REAL.ratio
    return [*found, shown(name, sorted_scores[:, cut - 1] == sorted_scores[:, cut])]
