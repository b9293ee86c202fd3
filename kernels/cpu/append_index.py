"""``append_index``: rows in order, float32 in the order of ``reference/exact/append_index.py``, encoded or not."""

import math

import numpy as np

from qsa.reference.index import Index, check_rows, written

from ..ops import refuse
from .common.jit import kernel
from .common.key_codes import encode
from .common.scalar import ONE, lane_sum


@kernel
def _norm_rotate(x, weight, rope, eps, out):
    """out [dim] = the norm of x [dim] times ``weight``, its pairs (i, i + n_rot/2) rotated by ``rope`` [n_rot]."""
    dim, half = x.size, rope.size // 2
    lanes = np.empty(32, np.float32)
    for d in range(dim):
        out[d] = x[d] * x[d]
    mean = lane_sum(out, lanes) / np.float32(dim)
    factor = ONE / np.float32(math.sqrt(mean + eps))
    for d in range(dim):
        out[d] = x[d] * factor * weight[d]
    for i in range(half):
        a, b, cos, sin = out[i], out[i + half], rope[i], rope[i + half]
        out[i] = a * cos - b * sin
        out[i + half] = b * cos + a * sin


@kernel
def _completed(raw, tail, offset, mean):
    """Whether raw [dim], at ``offset`` of its block, completes it: then mean [dim] of the block's keys is filled, else
    raw is kept in the tail."""
    ratio = len(tail) + 1
    share = np.float32(1 / ratio)
    if offset < ratio - 1:
        for d in range(raw.size):
            tail[offset, d] = raw[d]
        return False
    for d in range(raw.size):
        total = tail[0, d]
        for i in range(1, ratio - 1):
            total = total + tail[i, d]
        mean[d] = (total + raw[d]) * share
    return True


@kernel
def _append(raw, positions, tail, dead, pooled, weight, rope, rope0, eps):
    ratio = len(tail) + 1
    mean = np.empty(raw.shape[1], np.float32)
    for row in range(len(raw)):
        pos = np.int64(positions[row])
        if pos < 0:
            continue
        if pos == 0:
            _norm_rotate(raw[row], weight, rope0, eps, dead)
        block = pos // ratio
        if _completed(raw[row], tail, pos % ratio, mean):
            _norm_rotate(mean, weight, rope[block], eps, pooled[block])


@kernel
def _append_coded(raw, positions, tail, dead, pooled, dead_exponent, pooled_exponent, weight, rope, rope0, eps):
    """As :func:`_append`, and every key is encoded."""
    ratio = len(tail) + 1
    mean, key = np.empty(raw.shape[1], np.float32), np.empty(raw.shape[1], np.float32)
    for row in range(len(raw)):
        pos = np.int64(positions[row])
        if pos < 0:
            continue
        if pos == 0:
            _norm_rotate(raw[row], weight, rope0, eps, key)
            dead_exponent[0] = encode(key, dead)
        block = pos // ratio
        if _completed(raw[row], tail, pos % ratio, mean):
            _norm_rotate(mean, weight, rope[block], eps, key)
            pooled_exponent[block] = encode(key, pooled[block])


def append_index(raw: np.ndarray, steps: np.ndarray, index: Index) -> bool:
    """Append the raw indexer key of every row, in order; arguments and errors as ``reference.exact.append_index``.

    raw    [rows, idx_dim] float32, neither normed nor rotated
    steps  [rows, 4] int32; a row with pos -1 appends nothing
    index  :class:`Index` of dtype float32, of either format

    Returns True; False, with nothing written, for an index that is not float32 or whose blocks are single cells. Raises
    ValueError on mismatched shapes or a block beyond the buffers; nothing is written then.
    """
    check_rows(raw, steps, index)
    raw = np.ascontiguousarray(raw, np.float32)
    if index.tail.dtype != np.float32:
        return refuse("append_index", "format")
    g = index.geometry
    if g.ratio < 2:
        return refuse("append_index", "geometry")
    positions = np.ascontiguousarray(steps[:, 0])
    tables = index.weight, index.rope, index.rope0
    append = _append if index.format == "fp32" else _append_coded
    append(raw, positions, *(getattr(index, name) for name in written(index)), *tables, np.float32(g.eps))
    return True
