"""``block_scores``, exact: float32 in the lane tree."""

import numpy as np

from ..block_scores import TAIL_BONUS, check_scores
from ..index import Index
from .scalar import lane_sum, one_nan

CHUNK = 4096
"""Blocks scored at a time: bounds the products held to 4096 * heads * dim floats (8 MiB)."""


def _score(keys: np.ndarray, q: np.ndarray) -> np.ndarray:
    total: np.ndarray | None = None
    for head in q:
        dot = lane_sum(keys * head)
        dot = np.where(dot <= 0, np.float32(0), dot)
        total = dot if total is None else total + dot
    assert total is not None, "an index has at least one head"
    return total


def block_scores(q_idx: np.ndarray, index: Index, steps: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Scores of every block for every row: lane tree per head, relu per head, heads added in ascending order.

    q_idx  [rows, idx_heads, idx_dim] float32, normed and rotated at the row's own position
    index  its ``pooled`` and ``dead`` (float32) are read
    steps  [rows, 4] int32

    Returns float32 [rows, max_blocks] (or ``out``): blocks 0 to n_bid are written, later ones are left as they are
    (-inf when the array is new), and a row with n_kv 0 is left whole. Block n_bid has the dead key, and 1e9 more
    (rounded) when it holds cells. relu(x) is 0 where x <= 0, so -0 becomes +0 and a NaN stays, as the one NaN. Raises
    ValueError on mismatched shapes or a block beyond the index.
    """
    check_scores(q_idx, index, steps, out)
    q_idx = np.asarray(q_idx, np.float32)
    if out is None:
        out = np.full((len(q_idx), index.max_blocks), -np.inf, np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for row, (_, n_kv, n_bid, _) in enumerate(steps.tolist()):
            if n_kv == 0:
                continue
            for start in range(0, n_bid, CHUNK):
                stop = min(n_bid, start + CHUNK)
                out[row, start:stop] = one_nan(_score(index.pooled[start:stop], q_idx[row]))
            dead = _score(index.dead[None], q_idx[row])
            if n_kv % index.geometry.ratio:
                dead = dead + np.float32(TAIL_BONUS)
            out[row, n_bid : n_bid + 1] = one_nan(dead)
    return out
