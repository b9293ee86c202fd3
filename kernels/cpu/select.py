"""``select``: radix search for the threshold key of every row, then one pass that writes the cells in order.

Source: design section 6; the keys are those of ``reference/exact/select.py``. Three digits of 11, 11 and 10 bits are
settled from the top; each search keeps only the keys that share the digits so far, so the work is O(blocks) whatever
the scores are, and no bin has a capacity that ties could overflow.
"""

import numpy as np

from qsa.reference.geometry import REAL, Geometry
from qsa.reference.select import check_select

from ..ops import check_schedule
from .common.jit import kernel
from .common.scalar import ZERO
from .common.threads import share

BINS = 2048

ALONE = 1 << 16
"""A call of one row, or of fewer scores than this, runs on one thread: waking the others would cost as much."""


@kernel
def _keys(scores, keys):
    """Fill ``keys`` [n] uint32 from ``scores`` [n] float32, greater = preferred: NaN 0, -inf to +inf, -0 as +0."""
    for i in range(keys.size):
        x = np.float32(scores[i] + ZERO)
        bits = x.view(np.uint32)
        key = np.uint32(~bits) if bits >> 31 else np.uint32(bits | 0x80000000)
        keys[i] = key if x == x else np.uint32(0)


@kernel
def threshold(keys, whole):
    """(the ``whole``-th largest of uint32 ``keys``, 1 <= whole <= n; how many with this key are wanted)."""
    live = keys
    wanted = whole
    found = np.uint32(0)
    count = np.empty(BINS, np.int64)
    for shift, mask in ((21, 2047), (10, 2047), (0, 1023)):
        count[:] = 0
        for i in range(live.size):
            count[(live[i] >> shift) & mask] += 1
        digit = mask
        while count[digit] < wanted:
            wanted -= count[digit]
            digit -= 1
        found = np.uint32(found | digit << shift)
        if shift:
            kept = np.empty(count[digit], np.uint32)
            index = 0
            for i in range(live.size):
                if (live[i] >> shift) & mask == digit:
                    kept[index] = live[i]
                    index += 1
            live = kept
    return found, wanted


@kernel
def _select_row(row, all_scores, steps, ratio, all_ids):
    n_kv, n_bid, width = np.int64(steps[row, 1]), np.int64(steps[row, 2]), np.int64(steps[row, 3])
    scores, ids = all_scores[row], all_ids[row]
    tail = n_kv - n_bid * ratio
    budget = width - tail
    whole = (budget + ratio - 1) // ratio
    index = 0
    if whole > 0:
        keys = np.empty(n_bid, np.uint32)
        _keys(scores, keys)
        limit, equal = threshold(keys, whole)
        left = budget - (whole - equal) * ratio
        for block in range(n_bid):
            if keys[block] < limit:
                continue
            cells = ratio
            if keys[block] == limit:
                cells = min(ratio, left)
                left -= cells
            for cell in range(block * ratio, block * ratio + cells):
                ids[index] = cell
                index += 1
    for cell in range(n_bid * ratio, n_kv):
        ids[index] = cell
        index += 1


@kernel
def _select(begin, stop, scores, steps, ratio, ids):
    for row in range(begin, stop):
        _select_row(row, scores, steps, ratio, ids)


def select(
    scores: np.ndarray,
    steps: np.ndarray,
    ids: np.ndarray | None = None,
    *,
    rule: str = "blocks",
    geometry: Geometry = REAL,
    schedule: str | None = None,
) -> np.ndarray:
    """The selected cells of every row, ascending and unique; arguments, result and errors as ``reference.select``.

    scores    [rows, blocks] float, taken as float32; of any layout
    steps     [rows, 4] int32, made for ``rule``
    ids       [rows, cap] int32 of any layout, or None
    schedule  any of the operation's: they are ways to cut the work over a device, and here one kernel of any capacity

    Returns int32 [rows, cap]: ``width`` cells, then -1. Raises ValueError on an unknown schedule.
    """
    if schedule is not None:
        check_schedule("select", schedule)
    ids = check_select(scores, steps, ids, rule, geometry)
    direct = ids.dtype == np.int32 and ids.flags.c_contiguous
    result = ids if direct else np.full(ids.shape, -1, np.int32)
    alone = len(steps) == 1 or scores.size < ALONE
    scores, steps = np.ascontiguousarray(scores, np.float32), np.ascontiguousarray(steps)
    share(alone, len(steps), _select, scores, steps, geometry.ratio, result)
    if not direct:
        ids[...] = result
    return ids
