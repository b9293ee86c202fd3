"""``block_scores``: the lane tree of many blocks at once. Encoded keys have a file beside this one.

Source: design section 4; the bits are those of ``reference/exact/block_scores.py``. A tile of blocks is laid out dim by
dim, so every addition of the tree is one vector operation over blocks, and all rows read the tile's keys once.
"""

from typing import Literal

import numpy as np

from qsa.reference.block_scores import TAIL_BONUS, check_scores
from qsa.reference.index import Index

from ..ops import check_schedule, refuse
from . import block_scores_int16
from .common.jit import kernel
from .common.scalar import NAN, ZERO, lane_sum
from .common.threads import share
from .products.form import WIDE
from .products.tile import transpose_words

TILE = 64
"""Blocks scored together: their keys fill 32 KiB."""

ROWS = 64
"""Rows scored by one work item."""

ALONE = 1 << 23
"""A call of fewer products than this runs on one thread: starting the others would cost as much."""

BONUS = np.float32(TAIL_BONUS)


@kernel
def _lane_sums(keys, q, lanes):
    """lanes[0] [TILE] = lane-tree sums of keys [dim, TILE] times q [dim]; ``lanes`` [32, TILE] is scratch."""
    per = q.size // 32
    for lane in range(32):
        total = lanes[lane]
        x, key = q[lane * per], keys[lane * per]
        for b in range(TILE):
            total[b] = key[b] * x
        for d in range(lane * per + 1, (lane + 1) * per):
            x, key = q[d], keys[d]
            for b in range(TILE):
                total[b] = total[b] + key[b] * x
    stride = 16
    while stride:
        for lane in range(stride):
            low, high = lanes[lane], lanes[lane + stride]
            for b in range(TILE):
                low[b] = low[b] + high[b]
        stride //= 2


@kernel
def _by_dim(pooled, keys):
    """keys [dim, TILE] = pooled [up to TILE blocks, dim], dim by dim; 0 behind the last block."""
    blocks, dim = pooled.shape
    whole = blocks // WIDE * WIDE
    source, target = pooled.ctypes.data, keys.ctypes.data
    for b in range(0, whole, WIDE):
        for d in range(0, dim, WIDE):
            transpose_words(source + 4 * (b * dim + d), 4 * dim, target + 4 * (d * TILE + b), 4 * TILE)
    for d in range(dim):
        for b in range(whole, blocks):
            keys[d, b] = pooled[b, d]
        keys[d, blocks:] = ZERO


@kernel
def _tiles(begin, end, row_groups, q, pooled, steps, out):
    """Work items ``begin`` to ``end``: each a tile of blocks for up to ROWS rows."""
    rows, heads, dim = q.shape
    keys = np.empty((dim, TILE), np.float32)
    lanes = np.empty((32, TILE), np.float32)
    total = np.empty(TILE, np.float32)
    for item in range(begin, end):
        start, first = item // row_groups * TILE, item % row_groups * ROWS
        last = min(rows, first + ROWS)
        stop = start
        for row in range(first, last):
            if steps[row, 1] != 0:
                stop = max(stop, min(start + TILE, np.int64(steps[row, 2])))
        if stop == start:
            continue
        _by_dim(pooled[start:stop], keys)
        for row in range(first, last):
            if steps[row, 1] == 0:
                continue
            for head in range(heads):
                _lane_sums(keys, q[row, head], lanes)
                dot = lanes[0]
                for b in range(TILE):
                    x = ZERO if dot[b] <= ZERO else dot[b]
                    total[b] = x if head == 0 else total[b] + x
            for b in range(min(stop, np.int64(steps[row, 2])) - start):
                out[row, start + b] = total[b] if total[b] == total[b] else NAN


@kernel
def _dead(q, dead, steps, ratio, out):
    """The block at n_bid of every row: the dead key, and the bonus when the block holds cells."""
    lanes, products = np.empty(32, np.float32), np.empty(dead.size, np.float32)
    for row in range(len(q)):
        n_kv, n_bid = np.int64(steps[row, 1]), np.int64(steps[row, 2])
        if n_kv == 0 or n_bid < 0:
            continue
        total = ZERO
        for head in range(q.shape[1]):
            for d in range(dead.size):
                products[d] = dead[d] * q[row, head, d]
            dot = lane_sum(products, lanes)
            dot = ZERO if dot <= ZERO else dot
            total = dot if head == 0 else total + dot
        if n_kv % ratio:
            total = total + BONUS
        out[row, n_bid] = total if total == total else NAN


def _scores(q_idx: np.ndarray, index: Index, steps: np.ndarray, out: np.ndarray) -> None:
    """Write the scores of keys that are float32; the arguments have been checked."""
    row_groups = -(-len(q_idx) // ROWS)
    items = row_groups * -(-int(steps[:, 2].max(initial=0)) // TILE)
    alone = items * TILE * q_idx.size < ALONE
    share(alone, items, _tiles, row_groups, q_idx, np.ascontiguousarray(index.pooled), steps, out)
    _dead(q_idx, np.ascontiguousarray(index.dead), steps, index.geometry.ratio, out)


def block_scores(
    q_idx: np.ndarray, index: Index, steps: np.ndarray, out: np.ndarray | None = None, *, schedule: str | None = None
) -> np.ndarray | Literal[False]:
    """Scores of every block for every row; arguments, result and errors as ``reference.exact.block_scores``.

    q_idx     [rows, idx_heads, idx_dim] float32, normed and rotated at the row's own position
    index     its ``pooled`` and ``dead`` are read, of either format
    steps     [rows, 4] int32
    out       [rows, max_blocks] of any layout, or None
    schedule  any of the operation's: they are ways to cut the work over a device, and here one kernel for any rows

    Returns float32 [rows, max_blocks] (or ``out``), of which blocks 0 to n_bid are written. Returns False, with nothing
    written, for an index that is not float32, or one of encoded keys of more than 512 dims. Raises ValueError on an
    unknown schedule.
    """
    if schedule is not None:
        check_schedule("block_scores", schedule)
    check_scores(q_idx, index, steps, out)
    q_idx = np.ascontiguousarray(q_idx, np.float32)
    if index.tail.dtype != np.float32:
        return refuse("block_scores", "format")
    coded = index.format == "int16"
    if coded and not block_scores_int16.takes(index):
        return refuse("block_scores", "geometry")
    if out is None:
        out = np.full((len(q_idx), index.max_blocks), -np.inf, np.float32)
    steps = np.ascontiguousarray(steps)
    direct = out.dtype == np.float32 and out.flags.c_contiguous
    result = out if direct else np.empty(out.shape, np.float32)
    if coded:
        block_scores_int16.scores(q_idx, index, steps, result)
    else:
        _scores(q_idx, index, steps, result)
    if not direct:
        written = (np.arange(index.max_blocks) <= steps[:, 2:3]) & (steps[:, 1:2] != 0)
        out[written] = result[written]
    return out
