"""How the blocks of one row exchange maxima, mass and sums through a scratch in global memory.

The cells of a row and KV head may be split over several blocks of one launch. Each block publishes its maxima and waits
for those of the others; later it sends every other block its part of that block's share of the outputs. Both go through
64-bit words of the scratch, which hold UNSET until they are written: a word announces itself, without a flag, a fence
or a counter. The last reader of a word sets it back to UNSET, so a scratch is filled once, when it is made.

Blocks of a row are neighbours in launch order, and a device starts blocks in that order. At most ``splits`` of them are
needed at once, far fewer than are resident, so waiting always ends. Where the blocks of a row are one cluster,
exchange_cluster.py is used instead.
"""

from ..toolchain.compiler import cuda, device_function, int32, int64
from ..toolchain.constants import FULL_WARP
from ..toolchain.ptx import (
    ld_global_relaxed_i64,
    ld_global_v2_relaxed_i64,
    ld_shared_i32,
    red_shared_max_i32,
    st_global_relaxed_i64,
    st_global_v2_relaxed_i64,
    st_shared_i64,
)
from .shared_memory import HEAD_BYTES, HEADS, SENDER_LANES, SUMS

UNSET = -(1 << 63)
"""A value that no maximum, mass or sum takes."""

BATCH = 10
"""Pairs that a lane waits for at once."""


def words(splits: int, v_groups: int) -> int:
    """Words of scratch for one row and KV head cut into ``splits``."""
    return splits * (HEADS * (1 + v_groups) + splits * HEADS + SUMS)


@device_function
def mass_address(base, splits, sender, owner, head, v_groups):
    """Where ``sender`` leaves the mass of a head for ``owner``."""
    return base + int64(splits * (HEADS * (1 + v_groups)) + (sender * splits + owner) * HEADS + head) * 8


@device_function
def pair_address(base, splits, sender, index, v_groups):
    """Where ``sender`` leaves its two sums of the pair ``index`` (an exchange index: ``outputs.py``)."""
    return base + int64(splits * (HEADS * (1 + v_groups) + splits * HEADS) + sender * SUMS + index * 2) * 8


@device_function
def publish_maxima(base, split, maxima, v_groups, lane, clear):
    """Leave this block's maxima in the scratch, or ``clear`` them again. ``lane`` of the block."""
    kinds = 1 + v_groups
    if lane < HEADS * kinds:
        word = int64(UNSET)
        if not clear:
            word = int64(ld_shared_i32(int32(maxima + lane // kinds * HEAD_BYTES + lane % kinds * 4)))
        st_global_relaxed_i64(base + int64(split * (HEADS * kinds) + lane) * 8, word)


@device_function
def gather_maxima(base, active, records, v_groups, lane, lanes):
    """Fold the maxima of all ``active`` blocks into this block's records."""
    kinds = 1 + v_groups
    total = int32(active * (HEADS * kinds))
    found = cuda.local.array(4, int64)
    for start in range(lane, total, int32(lanes * 4)):
        for i in range(4):
            found[i] = int64(UNSET)
        waiting = True
        while waiting:
            waiting = False
            for i in range(4):
                word = min(int32(start + i * lanes), int32(total - 1))
                if found[i] == UNSET:
                    found[i] = ld_global_relaxed_i64(base + int64(word) * 8)
            for i in range(4):
                waiting = waiting or found[i] == UNSET
        for i in range(4):
            word = int32(min(int32(start + i * lanes), int32(total - 1)) % (HEADS * kinds))
            red_shared_max_i32(int32(records + word // kinds * HEAD_BYTES + word % kinds * 4), int32(found[i]))


@device_function
def send_mass(base, split, splits, active, head, mass_of, v_groups, lane):
    """One warp leaves this block's mass of a head for every block of the row."""
    for owner in range(lane, active, int32(32)):
        st_global_relaxed_i64(mass_address(base, splits, split, int32(owner), head, v_groups), mass_of)


@device_function
def receive_mass(base, split, splits, active, totals, head, v_groups, lane):
    """One warp adds a head's mass over all blocks and stores it to ``totals`` [12] int64; it clears the words."""
    total = int64(0)
    for sender in range(lane, active, int32(32)):
        at = mass_address(base, splits, int32(sender), split, head, v_groups)
        word = ld_global_relaxed_i64(at)
        while word == UNSET:
            word = ld_global_relaxed_i64(at)
        st_global_relaxed_i64(at, int64(UNSET))
        total += word
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(FULL_WARP, total, distance)
    if lane == 0:
        st_shared_i64(int32(totals + head * 8), total)


@device_function
def send_pair(base, split, splits, index, x, y, v_groups):
    """Leave this block's two sums of a pair for the block that owns it."""
    st_global_v2_relaxed_i64(pair_address(base, splits, split, index, v_groups), x, y)


@device_function
def receive_pair(base, splits, active, index, part, v_groups):
    """Two sums of a pair over every ``SENDER_LANES``-th block from ``part`` on; the words are cleared."""
    x, y = int64(0), int64(0)
    low, high = cuda.local.array(BATCH, int64), cuda.local.array(BATCH, int64)
    for start in range(part, active, int32(SENDER_LANES * BATCH)):
        for i in range(BATCH):
            high[i] = int64(0)
            low[i] = int64(UNSET) if start + i * SENDER_LANES < active else int64(0)
        first = pair_address(base, splits, int32(start), index, v_groups)
        waiting = True
        while waiting:
            waiting = False
            for i in range(BATCH):
                # The two halves of a pair need not come together.
                if low[i] == UNSET or high[i] == UNSET:
                    low[i], high[i] = ld_global_v2_relaxed_i64(first + i * (SENDER_LANES * SUMS * 8))
            for i in range(BATCH):
                waiting = waiting or low[i] == UNSET or high[i] == UNSET
        for i in range(BATCH):
            x += low[i]
            y += high[i]
            if start + i * SENDER_LANES < active:
                st_global_v2_relaxed_i64(first + i * (SENDER_LANES * SUMS * 8), int64(UNSET), int64(UNSET))
    return x, y
