"""Goldens of block scores: up to 8 rows against the keys of contexts up to a million cells."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from qsa.reference.exact import block_scores
from qsa.reference.geometry import REAL
from qsa.reference.index import INDEX_FORMATS, Index, written

from .. import inputs
from ..recipe import CONTEXTS, ROWS, TAILS, Recipe, check, window
from ..record import Produced

KEYS = ("uniform", "special")

ALLOWED = {
    "keys": KEYS,
    "context": range(4 * REAL.ratio, 2**24 + 1),
    "rows": range(1, 9),
    "tail": TAILS,
    "index_format": (None, *INDEX_FORMATS[1:]),
    "seed": range(2**63),
}

_SPECIAL = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45, 3e38, -3e38], np.float32)


def make_inputs(recipe: Recipe) -> dict[str, Any]:
    """The arguments of ``block_scores``: dict of ``q_idx`` [rows, 4, 128] float32, ``index``, ``steps`` [rows, 4].

    recipe  keys, context, rows, tail, seed: the last row sees context + tail cells. Keys within +-2; with ``special``
            every 16th has one dim that is a zero, NaN, an infinity, a denormal or nearly the largest number, and every
            64th is 0 throughout. The slot behind the last complete block is NaN: the dead key stands for it. With an
            ``index_format`` other than fp32 the keys are encoded in it.

    Raises CaseError, naming the parameter, on a recipe outside :data:`ALLOWED`.
    """
    check("block_scores", recipe, ALLOWED)
    seed, steps = recipe["seed"], window({**recipe, "rule": "blocks"})
    blocks = int(steps[-1, 2])
    index = Index(blocks + 1, np.ones(REAL.idx_dim, np.float32), format=recipe.get("index_format", "fp32"))
    keys = np.full((blocks + 1, REAL.idx_dim), np.nan, np.float32)
    keys[:blocks] = inputs.uniform(seed, "block_scores.pooled", blocks, REAL.idx_dim, 4.0)
    if recipe["keys"] == "special":
        some = np.arange(0, blocks, 16)
        dim = inputs.integers(seed, "block_scores.dim", len(some), 1, REAL.idx_dim)[:, 0]
        keys[some, dim] = _SPECIAL[np.arange(len(some)) % len(_SPECIAL)]
        keys[8:blocks:64] = 0
    index.set_pooled(slice(None), keys)
    index.set_dead(inputs.uniform(seed, "block_scores.dead", 1, REAL.idx_dim, 4.0)[0])
    q = inputs.bell(seed, "block_scores.q", recipe["rows"], REAL.idx_heads * REAL.idx_dim)
    return {"q_idx": q.reshape(-1, REAL.idx_heads, REAL.idx_dim), "index": index, "steps": steps}


def seen(scores: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """``scores`` [rows, blocks] with -inf behind every row's spare block: what lies there has no meaning."""
    return np.where(np.arange(scores.shape[1]) <= steps[:, 2:3], scores, np.float32(-np.inf))


def produce(recipe: Recipe, compute: Callable[..., Any] = block_scores) -> Produced:
    """Inputs ``q_idx``, ``pooled``, ``dead`` (and exponents of encoded keys), ``steps``; output ``scores`` [rows,
    max_blocks] float32, a block per row, -inf behind the row's spare block.

    ``compute`` takes the values of :func:`make_inputs` by name.
    """
    given = make_inputs(recipe)
    index, steps = given["index"], given["steps"]
    keys = {name: getattr(index, name) for name in written(index) if name != "tail"}
    hashed = {"q_idx": given["q_idx"], **keys, "steps": steps}
    return Produced(hashed, {"scores": seen(compute(**given), steps)}, {})


def grid() -> Iterator[dict[str, Any]]:
    """Recipes in which every pair of values of keys, context, rows and tail occurs, in each index format."""
    for format in INDEX_FORMATS:
        for i, context in enumerate(CONTEXTS):
            for j, tail in enumerate(TAILS):
                yield {
                    "keys": KEYS[(i + j // 2) % 2],
                    "context": context,
                    "rows": ROWS[(i + 2 * j) % 3],
                    "tail": tail,
                    **({} if format == "fp32" else {"index_format": format}),
                    "seed": 7,
                }
