"""``block_scores`` of encoded keys (index format ``int16``): exact integer dots, one rounding a head.

Source: design section 4, "Keys of 16 bits"; the bits are those of ``reference/exact/block_scores.py``. 16 keys are laid
out pair by pair of dims, and all rows read them so.
"""

import numpy as np

from qsa.reference.block_scores import TAIL_BONUS
from qsa.reference.index import Index
from qsa.reference.key_codes import CODE_BITS, NOT_FINITE

from .common.jit import kernel
from .common.key_codes import encode, limbs_of
from .common.scalar import NAN, ZERO, scaled
from .common.threads import share
from .products.form import WIDE
from .products.keys import MOST_DIMS, key_dots
from .products.tile import transpose_words

ROWS = 64
"""Rows scored by one work item: as many limbs as the second cache holds."""

TILES = 16
"""Tiles of 16 keys in one work item."""

ALONE = 1 << 24
"""A call of fewer products than this runs on one thread: starting the others would cost as much."""

BONUS = np.float32(TAIL_BONUS)


def takes(index: Index) -> bool:
    """Whether the sums of the index's dims fit the kernel's integers."""
    return index.geometry.idx_dim <= MOST_DIMS


@kernel
def _queries(q, limbs, exponents):
    """Fill limbs [rows, heads, 2, dim] int16 and exponents [rows, heads] int32 of q [rows, heads, dim] float32."""
    codes = np.empty(q.shape[2], np.int16)
    for row in range(q.shape[0]):
        for head in range(q.shape[1]):
            exponents[row, head] = encode(q[row, head], codes)
            limbs_of(codes, limbs[row, head])


@kernel
def _by_pair(pooled, keys):
    """keys [dim / 2, 16] int32, each a pair of codes, of pooled [up to 16 keys, dim] int16; 0 behind the last key."""
    words, pairs = pooled.view(np.int32), len(keys)
    if len(words) == WIDE:
        for pair in range(0, pairs, WIDE):
            transpose_words(words.ctypes.data + 4 * pair, 4 * pairs, keys[pair:].ctypes.data, 4 * WIDE)
        return
    keys[:] = 0
    for key in range(len(words)):
        for pair in range(pairs):
            keys[pair, key] = words[key, pair]


@kernel
def _scores(keys, key_exponents, limbs, exponents, dots, total):
    """total [16] float32 = the scores of 16 keys for one row; a NaN is any NaN. ``dots`` [16] is scratch."""
    for head in range(len(limbs)):
        key_dots(keys.ctypes.data, np.int64(len(keys)), limbs[head].ctypes.data, dots.ctypes.data)
        for key in range(key_exponents.size):
            e, f = np.int64(key_exponents[key]), np.int64(exponents[head])
            x = scaled(dots[key], e + f - 2 * CODE_BITS)
            x = NAN if e == NOT_FINITE or f == NOT_FINITE else x
            x = ZERO if x <= ZERO else x
            total[key] = x if head == 0 else total[key] + x


@kernel
def _tiles(begin, end, row_groups, limbs, exponents, pooled, key_exponents, steps, out):
    """Work items ``begin`` to ``end``: each some tiles of keys for up to ROWS rows."""
    rows = len(limbs)
    keys = np.empty((pooled.shape[1] // 2, WIDE), np.int32)
    dots, total = np.empty(WIDE, np.float32), np.empty(WIDE, np.float32)
    for item in range(begin, end):
        first = item % row_groups * ROWS
        last = min(rows, first + ROWS)
        start = item // row_groups * (TILES * WIDE)
        stop = start
        for row in range(first, last):
            if steps[row, 1] != 0:
                stop = max(stop, min(start + TILES * WIDE, np.int64(steps[row, 2])))
        for block in range(start, stop, WIDE):
            held = slice(block, min(stop, block + WIDE))
            _by_pair(pooled[held], keys)
            for row in range(first, last):
                mine = min(held.stop, np.int64(steps[row, 2])) - block
                if steps[row, 1] == 0 or mine <= 0:
                    continue
                _scores(keys, key_exponents[held], limbs[row], exponents[row], dots, total)
                for key in range(mine):
                    out[row, block + key] = total[key] if total[key] == total[key] else NAN


@kernel
def _dead(limbs, exponents, dead, dead_exponent, steps, ratio, out):
    """The block at n_bid of every row: the dead key, and the bonus when the block holds cells."""
    keys = np.empty((dead.size // 2, WIDE), np.int32)
    _by_pair(dead.reshape(1, dead.size), keys)
    dots, total = np.empty(WIDE, np.float32), np.empty(WIDE, np.float32)
    for row in range(len(limbs)):
        n_kv, n_bid = np.int64(steps[row, 1]), np.int64(steps[row, 2])
        if n_kv == 0 or n_bid < 0:
            continue
        _scores(keys, dead_exponent, limbs[row], exponents[row], dots, total)
        score = total[0]
        if n_kv % ratio:
            score = score + BONUS
        out[row, n_bid] = score if score == score else NAN


def scores(q: np.ndarray, index: Index, steps: np.ndarray, out: np.ndarray) -> None:
    """Write the scores of every row; the arguments have been checked.

    q      [rows, idx_heads, idx_dim] float32, C-contiguous
    index  of the format ``int16``
    steps  [rows, 4] int32, C-contiguous
    out    [rows, max_blocks] float32, C-contiguous
    """
    limbs, exponents = np.empty((*q.shape[:2], 2, q.shape[2]), np.int16), np.empty(q.shape[:2], np.int32)
    _queries(q, limbs, exponents)
    row_groups = -(-len(q) // ROWS)
    items = row_groups * -(-int(steps[:, 2].max(initial=0)) // (TILES * WIDE))
    pooled = np.ascontiguousarray(index.pooled)
    key_exponents, dead_exponent = map(np.ascontiguousarray, (index.pooled_exponent, index.dead_exponent))
    alone = items * TILES * WIDE * q.size < ALONE
    share(alone, items, _tiles, row_groups, limbs, exponents, pooled, key_exponents, steps, out)
    _dead(limbs, exponents, np.ascontiguousarray(index.dead), dead_exponent, steps, index.geometry.ratio, out)
