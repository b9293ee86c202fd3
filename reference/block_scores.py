"""``block_scores``, float64: how well every block's key answers a row's indexer queries."""

import numpy as np

from .arguments import check_floats, check_output, check_steps
from .index import Index, check_index

TAIL_BONUS = 1e9
"""Added to the score of the block at n_bid when it holds cells, so that the tail wins every cut."""


def check_scores(q_idx: np.ndarray, index: Index, steps: np.ndarray, out: np.ndarray | None) -> None:
    """Raises ValueError unless the shapes fit and every row's blocks, the spare one included, fit the index."""
    g = check_index(index).geometry
    if check_floats("q_idx", q_idx).ndim != 3 or q_idx.shape[1:] != (g.idx_heads, g.idx_dim):
        raise ValueError(f"q_idx: shape {q_idx.shape}: must be [rows, {g.idx_heads}, {g.idx_dim}]")
    rows = len(q_idx)
    check_steps(steps, rows)
    index.check_blocks(steps)
    if out is not None and check_output("out", out, index.tail.dtype).shape != (rows, index.max_blocks):
        raise ValueError(f"out: shape {out.shape}: must be {(rows, index.max_blocks)}")


def block_scores(q_idx: np.ndarray, index: Index, steps: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """score(b) = sum over heads of relu(key_b . q_h); block n_bid has the dead key, and 1e9 more when it holds cells.

    q_idx  [rows, idx_heads, idx_dim], normed and rotated at the row's own position
    index  its ``pooled`` and ``dead`` are read, of the format ``int16`` what their codes stand for
    steps  [rows, 4] int32

    Returns float64 [rows, max_blocks] (or ``out``): blocks 0 to n_bid are written, later ones are left as they are
    (-inf when the array is new), and a row with n_kv 0 is left whole. relu keeps a NaN. Raises ValueError on mismatched
    shapes or a block beyond the index. Source: published model code (its common factor 1/sqrt(dim) changes no order);
    dead key and bonus: design section 4.
    """
    check_scores(q_idx, index, steps, out)
    if out is None:
        out = np.full((len(q_idx), index.max_blocks), -np.inf)
    for row, (_, n_kv, n_bid, _) in enumerate(steps.tolist()):
        if n_kv == 0:
            continue
        keys = np.concatenate([index.pooled_values(slice(n_bid)), index.dead_values()[None]])
        dots = keys @ q_idx[row].astype(np.float64).T
        out[row, : n_bid + 1] = np.where(dots <= 0, 0, dots).sum(axis=1)
        if n_kv % index.geometry.ratio:
            out[row, n_bid] += TAIL_BONUS
    return out
