"""``append_index``, float64: raw indexer keys into tail, dead key and pooled keys."""

import numpy as np

from .index import Index, check_rows


def _norm_rotate(x: np.ndarray, index: Index, rope: np.ndarray) -> np.ndarray:
    g = index.geometry
    x = x / np.sqrt(np.mean(x * x) + g.eps) * index.weight.astype(np.float64)
    half = g.n_rot // 2
    a, b, cos, sin = x[:half].copy(), x[half : g.n_rot].copy(), rope[:half], rope[half:]
    x[:half] = a * cos - b * sin
    x[half : g.n_rot] = b * cos + a * sin
    return x


def append_index(raw: np.ndarray, steps: np.ndarray, index: Index) -> bool:
    """Append the raw indexer key of every row, in order: pool a block's keys (mean), then norm, then rotate.

    raw    [rows, idx_dim], neither normed nor rotated; the row of cell 0 also makes the dead key
    steps  [rows, 4] int32; a row with pos -1 appends nothing
    index  :class:`Index` of dtype float64; of the format ``int16`` the float64 keys are encoded

    Returns True. Raises ValueError on mismatched shapes or a block beyond the buffers; nothing is written then. Source:
    published model code; the dead key as design section 2 defines it.
    """
    check_rows(raw, steps, index)
    raw = raw.astype(np.float64)
    for row, pos in zip(raw, steps[:, 0].tolist(), strict=True):
        if pos < 0:
            continue
        block, offset = divmod(pos, index.geometry.ratio)
        if pos == 0:
            index.set_dead(_norm_rotate(row.copy(), index, index.rope0))
        if offset < len(index.tail):
            index.tail[offset] = row
        else:
            pooled = (index.tail.sum(axis=0) + row) / index.geometry.ratio
            index.set_pooled(block, _norm_rotate(pooled, index, index.rope[block]))
    return True
