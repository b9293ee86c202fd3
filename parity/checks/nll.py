"""``nll``: teacher-forced scoring of two held-out texts through verify windows of 8 rows.

The split switch on against off, and the float arithmetic against the exact one: the mean difference of the negative
log-likelihood stays below 0.005 nats, with its paired standard error, percentiles of the divergence and the first
position whose most probable token changes. In the exact arithmetic the switch changes no byte.

The standing path itself is held to a golden of the text's first positions: to the mean NLL, and in the exact arithmetic
to the bytes of the logits.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from qsa.golden.canonical import block_digests, digest
from qsa.golden.families import score, text
from qsa.kernels.ops import WINDOW_ROWS
from qsa.kernels.switches import override

from ..backend import Backend, UnsupportedError
from ..compare.comparison import Comparison, equal, verdict
from . import golden_model

AGAINST = ("split", "float")
POSITIONS = 8192
FIRST_POSITIONS = 1024
BOUND = 0.005
REASON = "the proposals' own bound for a change of rounding, in nats"

OPERATIONS = {
    "score": {
        "set": tuple(text.HELD_OUT),
        "against": AGAINST,
        "positions": range(64, POSITIONS + 1),
    }
}


def cases(arithmetic: str, backend: Backend | None = None) -> Iterator[dict[str, Any]]:
    """The recipes of every case, in order."""
    for held_out in text.HELD_OUT:
        for against in AGAINST if arithmetic == "exact" else ("split",):
            yield {"op": "score", "set": held_out, "against": against, "positions": POSITIONS}


def first_cases(arithmetic: str) -> Iterator[dict[str, Any]]:
    """The first positions of one text."""
    yield {"op": "score", "set": text.HELD_OUT[0], "against": "split", "positions": FIRST_POSITIONS}


def logits(backend: Backend, ids: np.ndarray) -> np.ndarray:
    """Logits float32 [n, vocab] of the rows ``ids`` [n] of a text."""
    from qsa.engine import teacher_forced

    # The last id of what is scored has no row.
    scored = np.append(ids, 0)
    return np.concatenate([found for _, found in teacher_forced(golden_model.model(backend), scored, WINDOW_ROWS)])


@lru_cache(maxsize=4)
def _logits(backend: Backend, held_out: str, positions: int, split: bool) -> np.ndarray:
    """Logits float32 [positions, vocab] of the rows of a held-out text."""
    with override(split_attn=split):
        return logits(backend, text.held_out(held_out)[:positions])


def check(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """The comparisons of one case."""
    source = recipe["set"], recipe["positions"]
    standing = _logits(backend, *source, False)
    if recipe["against"] == "float":
        if backend.arithmetic == "float" or "float" not in backend.declaration.arithmetics:
            raise UnsupportedError(f"nll: {backend.name}, {backend.arithmetic}: no float arithmetic to hold against it")
        changed = _logits(backend.in_arithmetic("float"), *source, False)
    else:
        changed = _logits(backend, *source, True)
    name = f"nll of {recipe['set']}: {recipe['against']}"
    next_ids = text.held_out(recipe["set"])[1 : recipe["positions"] + 1]
    found = [*_golden(backend, recipe["set"], standing), difference(name, standing, changed, next_ids)]
    if backend.arithmetic == "exact" and recipe["against"] == "split":
        found.append(equal(f"{name}: logits", standing, changed, ("position", "id")))
    return found


def _golden(backend: Backend, held_out: str, standing: np.ndarray) -> Iterator[Comparison]:
    """The standing path's logits [positions, vocab] against the golden of their first positions."""
    recipe = {"set": held_out, "positions": score.POSITIONS}
    ids = score.make_inputs(recipe)["ids"]
    record = golden_model.record("score", recipe, {"ids": ids})
    means = score.stored_means(record.outputs["mean"])
    count = max(count for count in means if count <= len(standing))
    mean = score.mean_nll(standing[:count], ids[1 : count + 1])
    note = f"mean NLL of the first {count} positions: {means[count]:.6f} became {mean:.6f}"
    off = abs(mean - means[count])
    yield verdict(f"golden {record.name}: mean", off, BOUND, REASON, kind="error", size=count, notes=(note,))
    if backend.arithmetic != "exact":
        return
    stored = record.outputs["logits"]
    blocks = min(len(standing) // score.BLOCK, len(stored.blocks))
    given = standing[: blocks * score.BLOCK].reshape(blocks, score.BLOCK, -1)
    pairs = zip(stored.blocks, block_digests(given), strict=False)
    wrong = [block for block, (expected, got) in enumerate(pairs) if expected != got]
    lines = []
    if wrong:
        first = wrong[0] * score.BLOCK
        lines.append(f"first wrong logits: of positions {first} to {first + score.BLOCK - 1}")
    elif blocks == len(stored.blocks) and digest(given) != stored.hash:
        lines.append("logits: another hash")
    reason = "windows of any number of rows have the logits of rows that are read one after the other"
    bad = len(wrong) * given[0].size
    yield verdict(f"golden {record.name}: logits", len(lines), 0, reason, size=given.size, bad=bad, notes=lines)


def difference(name: str, standing: np.ndarray, changed: np.ndarray, next_ids: np.ndarray) -> Comparison:
    """The comparison of two models' logits float32 [n, vocab] on the tokens ``next_ids`` [n] of the text."""
    from qsa.engine.score import log_probabilities

    a, b = log_probabilities(standing), log_probabilities(changed)
    rows = np.arange(len(next_ids))
    gain = a[rows, next_ids] - b[rows, next_ids]
    divergence = np.maximum(0, (np.exp(a) * (a - b)).sum(axis=1))
    same = standing.argmax(axis=1) == changed.argmax(axis=1)
    figures = {
        "mean": gain.mean(),
        "standard error": gain.std(ddof=1) / np.sqrt(len(gain)),
        "nll": -a[rows, next_ids].mean(),
        "kl p50": np.percentile(divergence, 50),
        "kl p99": np.percentile(divergence, 99),
        "kl max": divergence.max(),
        "top-1 agreement": same.mean(),
    }
    figures = {key: float(value) for key, value in figures.items()}
    first = int((~same).argmax())
    note = "no position's most probable token changes" if same.all() else f"first changed top token: position {first}"
    measure = abs(figures["mean"])
    return verdict(name, measure, BOUND, REASON, kind="error", size=len(gain), notes=(note,), figures=figures)
