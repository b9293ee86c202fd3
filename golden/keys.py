"""Pooled keys of a whole context at once: the bits of ``reference.exact.append_index`` without its loop over rows."""

import numpy as np

from qsa.reference.exact.scalar import lane_sum
from qsa.reference.index import Index


def _norm_rotate(x: np.ndarray, index: Index, rope: np.ndarray) -> np.ndarray:
    """``x`` [n, idx_dim] float32 normed, then rotated by ``rope`` [n, n_rot], in the original's order."""
    g = index.geometry
    mean = lane_sum(x * x) / np.float32(g.idx_dim)
    x = x * (np.float32(1) / np.sqrt(mean + np.float32(g.eps)))[:, None] * index.weight
    half = g.n_rot // 2
    a, b, cos, sin = x[:, :half].copy(), x[:, half : g.n_rot].copy(), rope[:, :half], rope[:, half:]
    x[:, :half] = a * cos - b * sin
    x[:, half : g.n_rot] = b * cos + a * sin
    return x


def whole_context(raw: np.ndarray, index: Index) -> Index:
    """``index`` after the raw keys [n, idx_dim] float32 of cells 0 to n - 1: tail, dead key and pooled keys.

    index  a new Index of dtype float32, of any format. Behind the open cells its tail stays as it is; the row-by-row
           form leaves keys of the last block there, which have no meaning.

    Returns the index. Raises ValueError when the cells do not fit it.
    """
    ratio = index.geometry.ratio
    blocks, tail = divmod(len(raw), ratio)
    if blocks >= index.max_blocks:
        raise ValueError(f"raw: {len(raw)} cells: the index holds {index.max_blocks} blocks, the spare one included")
    if len(raw):
        index.set_dead(_norm_rotate(raw[:1], index, index.rope0[None])[0])
    if blocks:
        total = raw[0 : blocks * ratio : ratio]
        for offset in range(1, ratio):
            total = total + raw[offset : blocks * ratio : ratio]
        keys = _norm_rotate(total * np.float32(1 / ratio), index, index.rope[:blocks])
        index.set_pooled(slice(blocks), keys)
    index.tail[:tail] = raw[blocks * ratio :]
    return index
