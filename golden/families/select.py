"""Goldens of selection: both rules over block scores of contexts up to a million cells."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from qsa.reference.exact import select
from qsa.reference.geometry import REAL, RULES

from .. import inputs
from ..recipe import CONTEXTS, ROWS, TAILS, Recipe, check, window
from ..record import Produced

SCORES = ("continuous", "levels", "equal", "special")

ALLOWED = {
    "rule": RULES,
    "scores": SCORES,
    "context": range(4 * REAL.ratio, 2**24 + 1),
    "rows": range(1, 9),
    "tail": TAILS,
    "seed": range(2**63),
}

_SPECIAL = np.array([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1e-45, -1e-45, 3.4e38, -3.4e38], np.float32)


def _scores(kind: str, seed: int, rows: int, blocks: int) -> np.ndarray:
    if kind == "equal":
        return np.ones((rows, blocks), np.float32)
    if kind == "levels":
        return inputs.integers(seed, "select.levels", rows, blocks, 64).astype(np.float32) / np.float32(8)
    scores = inputs.bell(seed, "select.scores", rows, blocks)
    if kind == "special":
        # One in 16 replaced by a special value, most of the rest rounded to few values, of both signs.
        scores = np.rint(scores * np.float32(64)) / np.float32(64)
        which = inputs.integers(seed, "select.special", rows, blocks, 16 * len(_SPECIAL))
        scores = np.where(which < len(_SPECIAL), _SPECIAL[np.minimum(which, len(_SPECIAL) - 1)], scores)
    return scores


def make_inputs(recipe: Recipe) -> dict[str, Any]:
    """The arguments of ``select``: dict of ``scores`` [rows, blocks] float32, ``steps`` [rows, 4] int32, ``rule``.

    recipe  rule, scores, context, rows, tail, seed: the last row sees context + tail cells. Scores: ``continuous``;
            64 ``levels``, so that ties stand at the cut; all ``equal``; ``special``: zeros of both signs, NaN,
            infinities, denormals and limits among coarse values. A row's spare block has a score above all finite
            ones, as ``block_scores`` gives it with a tail; what lies behind it is +inf, and not to be read.

    Raises CaseError, naming the parameter, on a recipe outside :data:`ALLOWED`.
    """
    check("select", recipe, ALLOWED)
    steps = window(recipe)
    blocks = int(steps[:, 2].max()) + 1
    scores = _scores(recipe["scores"], recipe["seed"], recipe["rows"], blocks)
    for row, n_bid in enumerate(steps[:, 2]):
        scores[row, n_bid] = np.finfo(np.float32).max
        scores[row, n_bid + 1 :] = np.inf
    return {"scores": scores, "steps": steps, "rule": recipe["rule"]}


def produce(recipe: Recipe, compute: Callable[..., Any] = select) -> Produced:
    """Inputs ``scores`` and ``steps``; output ``ids`` [rows, 2051] int32, a block per row.

    ``compute`` takes the values of :func:`make_inputs` by name and gives the cells of every row, then -1.
    """
    given = make_inputs(recipe)
    return Produced({key: given[key] for key in ("scores", "steps")}, {"ids": compute(**given)}, {})


def grid() -> Iterator[dict[str, Any]]:
    """Recipes in which every pair of values of rule, scores, context, rows and tail occurs."""
    for i, context in enumerate(CONTEXTS):
        for j, tail in enumerate(TAILS):
            for k, rule in enumerate(RULES):
                yield {
                    "rule": rule,
                    "scores": SCORES[(i + j) % 4],
                    "context": context,
                    "rows": ROWS[(i + 2 * j + k) % 3],
                    "tail": tail,
                    "seed": 7,
                }
