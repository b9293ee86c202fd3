"""Selections whose verdict is known: ties broken otherwise, wrong blocks, cells twice, and an indexer near the cut."""

from collections.abc import Callable
from typing import Any

import numpy as np

from qsa.reference.append_index import append_index as reference_append
from qsa.reference.block_scores import block_scores as reference_scores
from qsa.reference.geometry import REAL
from qsa.reference.index import Index
from qsa.reference.select import select as reference_select

from ...checks import indexer as checked
from ...contract import Types
from .kernels import kept


def selects(change: Callable[[np.ndarray, np.ndarray, np.ndarray], Any]) -> Callable[..., np.ndarray]:
    """Selection that is changed: ``change(cells of a row, its scores, its step record)`` writes to the cells."""

    def select(scores: np.ndarray, steps: np.ndarray, *, rule: str) -> np.ndarray:
        ids = reference_select(scores, steps, rule=rule)
        for row, step in enumerate(steps):
            change(ids[row, : step[3]], scores[row], step)
        return ids

    return select


def other_tie(cells: np.ndarray, scores: np.ndarray, step: np.ndarray) -> None:
    """The last selected block is exchanged with one behind it that scores the same."""
    _exchange(cells, scores, step, lambda inside, outside: scores[inside] == scores[outside])


def worst_block(cells: np.ndarray, scores: np.ndarray, step: np.ndarray) -> None:
    """A selected block is exchanged with one that scores less."""
    _exchange(cells, scores, step, lambda inside, outside: scores[inside] > scores[outside])


def tie_and_worse(cells: np.ndarray, scores: np.ndarray, step: np.ndarray) -> None:
    """One block is exchanged with its equal, another with one that scores less."""
    other_tie(cells, scores, step)
    best = int(np.argmax(scores[: step[2]]))
    _exchange(cells, scores, step, lambda inside, outside: (inside == best) & (scores[inside] > scores[outside]))


def twice(cells: np.ndarray, scores: np.ndarray, step: np.ndarray) -> None:
    """One cell stands in the place of another one too."""
    cells[1] = cells[0]


def without_tail(cells: np.ndarray, scores: np.ndarray, step: np.ndarray) -> None:
    """The last cell of the tail gives way to a block's cell that is not selected."""
    free = np.setdiff1d(np.arange(step[2] * REAL.ratio), cells)
    cells[cells == step[1] - 1] = free[0]


def _exchange(cells: np.ndarray, scores: np.ndarray, step: np.ndarray, allowed: Callable[[Any, Any], Any]) -> None:
    n_bid = int(step[2])
    ours = np.unique(cells // REAL.ratio)
    counts = np.bincount(cells // REAL.ratio, minlength=n_bid + 1)
    inside = ours[(ours < n_bid) & (counts[ours] == REAL.ratio)]
    outside = np.setdiff1d(np.arange(n_bid), ours)
    pairs = np.argwhere(allowed(inside[::-1, None], outside[None]))
    if len(pairs):
        a, b = inside[::-1][pairs[0, 0]], outside[pairs[0, 1]]
        cells[cells // REAL.ratio == a] = b * REAL.ratio + np.arange(REAL.ratio)


def indexer(share: float) -> Callable[..., np.ndarray]:
    """The indexer in one call, which exchanges two blocks whose scores differ by ``share`` of what is rounding where
    scores are bf16 (of float32 scores no two lie as close as that)."""

    def run(
        q_idx: np.ndarray, raw: np.ndarray, weight: np.ndarray, rope: np.ndarray, steps: np.ndarray, *, rule: str
    ) -> np.ndarray:
        def make() -> np.ndarray:
            index = Index(len(raw) // REAL.ratio + 1, weight, dtype=np.float64)
            records = checked.window({"context": len(raw), "tail": 0, "rows": len(raw), "rule": rule})
            reference_append(raw, records, index)
            scores = reference_scores(q_idx, index, steps)
            ids = reference_select(scores, steps, rule=rule)
            keys = np.abs(index.pooled[: index.max_blocks - 1])
            slack = checked.ROUNDING * (keys @ np.abs(q_idx.astype(np.float64)).sum(axis=1).T).T
            slack = slack + checked._narrow_error(index, raw, q_idx, scores, Types(index_scores="bf16"))[:, None]
            for row, (_, _, n_bid, width) in enumerate(steps.tolist()):
                inside = np.unique(ids[row, :width] // REAL.ratio)
                inside = inside[inside < n_bid]
                outside = np.setdiff1d(np.arange(n_bid), inside)
                apart = scores[row, inside][:, None] - scores[row, outside]
                ratio = apart / (slack[row, inside][:, None] + slack[row, outside])
                a, b = np.unravel_index(int(np.abs(ratio - share).argmin()), ratio.shape)
                assert abs(ratio[a, b] - share) < 0.15, "the scores lie close enough"
                cells = ids[row, :width]
                cells[cells // REAL.ratio == inside[a]] = outside[b] * REAL.ratio + np.arange(REAL.ratio)
            return ids

        return kept(("indexer", share, steps.tobytes()), make)

    return run
