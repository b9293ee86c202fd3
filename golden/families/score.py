"""Goldens of scores: the logits of the first positions of two held-out texts, and the mean NLL that they come to.

The reference reads the text as a prompt, in chunks: about 15 seconds for each on one core. In the exact arithmetic a
window of any number of rows has the same logits, byte for byte; any other arithmetic can be held to the mean.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..canonical import digest
from ..recipe import Recipe, check
from ..record import GoldenError, Output, Produced
from . import text

POSITIONS = 1024
"""Positions of a golden: four times the model's budget of 256 cells."""

BLOCK = 64
"""Positions whose logits have a hash together."""

MEANS = (BLOCK, 256, POSITIONS)
"""Numbers of first positions whose mean NLL is stored."""

GRID = 2.0**20
"""A stored mean is a multiple of 1 / GRID nats: the last bits of a library's exponential do not show in its hash."""

CHUNK = 256
"""Rows that the reference reads at a time. No byte depends on it."""

ALLOWED = {"set": text.HELD_OUT, "positions": (POSITIONS,)}

Compute = Callable[[np.ndarray], np.ndarray]
"""ids int64 [n] -> logits float32 [n, vocab]."""


def make_inputs(recipe: Recipe) -> dict[str, Any]:
    """``ids`` int64 [positions + 1]: a row for each but the last, and what the rows should predict. Raises CaseError on
    a recipe outside :data:`ALLOWED`."""
    check("score", recipe, ALLOWED)
    return {"ids": text.held_out(recipe["set"])[: recipe["positions"] + 1]}


def produce(recipe: Recipe, compute: Compute | None = None) -> Produced:
    """Inputs ``ids`` and ``weights``; outputs ``logits`` float32 [blocks, BLOCK, vocab] and ``mean`` float64 [3], the
    mean NLL in nats of the first positions, as many as :data:`MEANS` says.

    compute  None: the reference
    """
    ids = make_inputs(recipe)["ids"]
    logits = (compute or _read)(ids[:-1])
    means = [mean_nll(logits[:count], ids[1 : count + 1]) for count in MEANS]
    outputs = {"logits": logits.reshape(-1, BLOCK, logits.shape[1]), "mean": np.array(means)}
    return Produced({"ids": ids, "weights": text.weights_hash()}, outputs, {})


def mean_nll(logits: np.ndarray, next_ids: np.ndarray) -> float:
    """Mean negative log-likelihood in nats, on the :data:`GRID`, of ``next_ids`` int [n] under ``logits`` float32
    [n, vocab]."""
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    nll = np.log(np.exp(x).sum(axis=1)) - x[np.arange(len(x)), next_ids]
    return float(np.rint(nll.mean() * GRID) / GRID)


def stored_means(output: Output) -> dict[int, float]:
    """Number of first positions -> mean NLL in nats, out of the record's output ``mean``. Raises GoldenError when its
    numbers are not those that were hashed."""
    means = np.rint(np.array(output.statistics.first, np.float64) * GRID) / GRID
    if digest(means) != output.hash:
        raise GoldenError(f"mean: the numbers {means.tolist()} have another hash than {output.hash}")
    return dict(zip(MEANS, means.tolist(), strict=True))


def _read(ids: np.ndarray) -> np.ndarray:
    model = text.reference()
    state = model.init_state(len(ids))
    chunks = [ids[first : first + CHUNK] for first in range(0, len(ids), CHUNK)]
    return np.concatenate([model.logits(model.run([chunk], [state]).x) for chunk in chunks])


def grid() -> Iterator[dict[str, Any]]:
    """A recipe for each held-out text."""
    for name in text.HELD_OUT:
        yield {"set": name, "positions": POSITIONS}
