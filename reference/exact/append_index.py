"""``append_index``, exact: raw indexer keys into tail, dead key and pooled keys, float32 in one fixed order."""

import numpy as np

from ..index import Index, check_rows
from .scalar import lane_sum


def _norm_rotate(x: np.ndarray, index: Index, rope: np.ndarray) -> np.ndarray:
    g = index.geometry
    one = np.float32(1)
    mean = lane_sum(x * x) / np.float32(g.idx_dim)
    x = x * (one / np.sqrt(mean + np.float32(g.eps))) * index.weight
    half = g.n_rot // 2
    a, b, cos, sin = x[:half].copy(), x[half : g.n_rot].copy(), rope[:half], rope[half:]
    x[:half] = a * cos - b * sin
    x[half : g.n_rot] = b * cos + a * sin
    return x


def append_index(raw: np.ndarray, steps: np.ndarray, index: Index) -> bool:
    """Append the raw indexer key of every row, in order.

    raw    [rows, idx_dim] float32, neither normed nor rotated
    steps  [rows, 4] int32; a row with pos -1 appends nothing
    index  :class:`Index` of dtype float32

    pooled = (((k0 + k1) + k2) + k3) * (1/ratio); norm: x * (1 / sqrt(ss/dim + eps)) * weight, ss in the lane tree,
    products left to right; rotation of the pairs (i, i + n_rot/2) by the index's cos and sin, every product and sum
    rounded. The dead key is the norm of cell 0's raw key, rotated at position 0. The format ``int16`` encodes both
    kinds of key at the end. A window gives the bytes of its rows appended one by one.

    Returns True. Raises ValueError on mismatched shapes or a block beyond the buffers; nothing is written then.
    """
    check_rows(raw, steps, index)
    raw = np.asarray(raw, np.float32)
    ratio = index.geometry.ratio
    for row, pos in zip(raw, steps[:, 0].tolist(), strict=True):
        if pos < 0:
            continue
        block, offset = divmod(pos, ratio)
        if pos == 0:
            index.set_dead(_norm_rotate(row, index, index.rope0))
        if offset < ratio - 1:
            index.tail[offset] = row
        else:
            total = index.tail[0]
            for key in (*index.tail[1:], row):
                total = total + key
            index.set_pooled(block, _norm_rotate(total * np.float32(1 / ratio), index, index.rope[block]))
    return True
