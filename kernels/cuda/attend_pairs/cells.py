"""Which cells two rows have in common, and the slots that a block gives to its half of them.

Both rows' ids must ascend strictly: then a cell of the first row is looked up in the second by halving. Ids that do
not, which selection never gives, are not shared. Nothing depends on the order of the cells: sums are integers, maxima
have no order. So slots are taken as lanes come.
"""

from ..attend_exact.shared_memory import PADDING, STEP
from ..toolchain.compiler import cuda, device_function, int32, int64, uint32
from ..toolchain.constants import FULL_WARP
from ..toolchain.ptx import (
    atom_shared_add_i32,
    ld_global_i32_nc,
    ld_shared_i32,
    red_shared_add_i32,
    redux_add,
    st_shared_i32,
)
from .layout import EACH, HIGH_BYTES, IDS, INBOX_BYTES, LOW_BYTES, POWER_BYTES, STAGING, THREADS

BEYOND = 0x7FFFFFFF
"""Stands behind a row's last id."""

COMMON, ALONE, ASTRAY = 0, 4, 8
"""Counters: ids of the first row that the second has too, ids of the second that the first lacks (each of the rows'
first halves in the low 16 bits, of the second halves in the high ones), and ids that do not ascend."""

TAKEN = 12
"""The first of three counters of slots taken: common, of the first row alone, of the second alone."""


@device_function
def load_ids(found, selection, width, thread):
    """The lane's ids of a row to the local ``found``: its own and every ``THREADS``-th after it."""
    for i in range(EACH):
        at = int32(thread + i * THREADS)
        found[i] = int32(BEYOND)
        if at < width:
            found[i] = ld_global_i32_nc(selection + int64(at) * 4)


@device_function
def store_ids(found, listed, thread):
    """The lane's ids to a list in shared memory."""
    for i in range(EACH):
        st_shared_i32(int32(listed + (thread + i * THREADS) * 4), found[i])


@device_function
def count_astray(found, listed, width, thread):
    """How many of the lane's ids the next one in the list does not exceed."""
    astray = int32(0)
    for i in range(EACH):
        at = int32(thread + i * THREADS)
        following = ld_shared_i32(int32(listed + min(int32(at + 1), int32(IDS - 1)) * 4))
        astray += int32(1) if at + 1 < width and following <= found[i] else int32(0)
    return astray


@device_function
def search(found, listed, count, position):
    """For each of the lane's ids the number of ids in the ascending list of ``count`` that are less."""
    for i in range(EACH):
        position[i] = int32(0)
    for bit in range(11, -1, -1):
        for i in range(EACH):
            probe = min(int32(position[i] + (1 << bit)), count)
            if ld_shared_i32(int32(listed + probe * 4 - 4)) < found[i]:
                position[i] = probe


@device_function
def compare(first, second, width, other_width, lists, counters, lane, thread):
    """Compare the rows' ids, ``first`` and ``second`` of the lane. All lanes of the block take part.

    Returns (bits of the lane's ids of the first row that are common, of those of the second that are not); the
    counters have the block's sums after the next barrier.
    """
    other, marks = int32(lists + IDS * 4), int32(lists + IDS * 8)
    store_ids(first, lists, thread)
    store_ids(second, other, thread)
    for i in range(EACH):
        st_shared_i32(int32(marks + (thread + i * THREADS) * 4), int32(0))
    if thread < 8:
        st_shared_i32(int32(counters + thread * 4), int32(0))
    cuda.syncthreads()
    astray = count_astray(first, lists, width, thread) + count_astray(second, other, other_width, thread)
    position = cuda.local.array(EACH, int32)
    search(first, other, other_width, position)
    half, common, both = int32((width + 1) >> 1), int32(0), int32(0)
    for i in range(EACH):
        at = int32(thread + i * THREADS)
        there = ld_shared_i32(int32(other + min(position[i], int32(IDS - 1)) * 4))
        if at < width and position[i] < other_width and there == first[i]:
            st_shared_i32(int32(marks + position[i] * 4), int32(1))
            both = int32(both | (1 << i))
            common += int32(1) if at < half else int32(65536)
    common, astray = redux_add(common), redux_add(int32(astray))
    if lane == 0:
        red_shared_add_i32(int32(counters + COMMON), common)
        red_shared_add_i32(int32(counters + ASTRAY), astray)
    cuda.syncthreads()
    half, alone, only = int32((other_width + 1) >> 1), int32(0), int32(0)
    for i in range(EACH):
        at = int32(thread + i * THREADS)
        if at < other_width and ld_shared_i32(int32(marks + at * 4)) == 0:
            only = int32(only | (1 << i))
            alone += int32(1) if at < half else int32(65536)
    alone = redux_add(alone)
    if lane == 0:
        red_shared_add_i32(int32(counters + ALONE), alone)
    return both, only


@device_function
def padded(count):
    """``count`` rounded up to whole steps."""
    return int32((count + STEP - 1) & -STEP)


@device_function
def half_of(packed, rank):
    """The half ``rank`` of a counter."""
    return int32((packed >> 16) if rank else (packed & 0xFFFF))


@device_function
def sizes(counters, width, rank):
    """(common, of the first row alone, of the second alone): the cells of the rows' half ``rank``."""
    common = half_of(ld_shared_i32(int32(counters + COMMON)), rank)
    half = int32((width + 1) >> 1)
    first = int32(width - half) if rank else half
    return common, int32(first - common), half_of(ld_shared_i32(int32(counters + ALONE)), rank)


@device_function
def fits(counters, width, rank, room):
    """Whether the half ``rank`` has room beside the inbox."""
    common, first, second = sizes(counters, width, rank)
    common, first, second = max(padded(common), int32(STEP)), padded(first), padded(second)
    slots = int32(common + first + second)
    own, other = (second, first) if rank else (first, second)
    low = int32(slots * LOW_BYTES + (common + other + PADDING) * POWER_BYTES)
    high = int32(slots * HIGH_BYTES + (common + own + PADDING) * POWER_BYTES)
    return max(low, int32(STAGING)) + high <= room - INBOX_BYTES


@device_function
def take_slots(found, chosen, begin, taken, rows, lane):
    """Put the lane's ids of the bits ``chosen`` into the slots from ``begin`` on, behind those already ``taken``."""
    below = uint32(uint32(uint32(1) << uint32(lane)) - uint32(1))
    masks = cuda.local.array(EACH, uint32)
    total = int32(0)
    for i in range(EACH):
        masks[i] = uint32(cuda.ballot_sync(FULL_WARP, (chosen >> i) & 1 != 0))
        total += int32(cuda.popc(masks[i]))
    slot = int32(0)
    if lane == 0:
        slot = atom_shared_add_i32(taken, total)
    slot = int32(begin + cuda.shfl_sync(FULL_WARP, slot, 0))
    for i in range(EACH):
        if (chosen >> i) & 1:
            st_shared_i32(int32(rows + (slot + int32(cuda.popc(uint32(masks[i] & below)))) * 4), found[i])
        slot += int32(cuda.popc(masks[i]))


@device_function
def within_half(width, rank, thread):
    """Bits of the lane's ids that stand in the half ``rank`` of a row."""
    half, bits = int32((width + 1) >> 1), int32(0)
    for i in range(EACH):
        at = int32(thread + i * THREADS)
        if at < width and (at >= half) == (rank == 1):
            bits = int32(bits | (1 << i))
    return bits


@device_function
def fill(rows, begin, end, thread):
    """No cell to the slots begin to end - 1, of which there are at most ``THREADS``."""
    if begin + thread < end:
        st_shared_i32(int32(rows + (begin + thread) * 4), int32(-1))
