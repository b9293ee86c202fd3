"""The search of ``select``: the best of many keys, in ascending order of their indices, by one thread block.

A key is the uint32 whose order is the scores' order (NaN 0, then -inf to +inf, -0 as +0). A row wants its ``best``
blocks, ties to the lower index, so the answer is: every key above a threshold, and the first few keys at it. The
threshold is found by rounds of histograms: the range of keys that can still hold it is cut into bins, the bin it is in
becomes the next range, and when bins are one key wide it is found. Counts are integers, so no order of the atomics
matters, and no bin can overflow.

Warp w of a thread block owns a contiguous run of keys and walks it 32 at a time, so ranks are prefix sums over 32
warps and over the lanes of a warp, and the list of chosen blocks comes out ascending.
"""

from typing import Any

from ..toolchain.compiler import cuda, device_function, float32, int32, int64, libdevice, uint32
from ..toolchain.constants import FULL_WARP
from ..toolchain.ptx import (
    float_as_int,
    ld_global_f32_nc,
    ld_global_i32,
    ld_shared_i32,
    ld_shared_v2_i32,
    red_shared_add_i32,
    st_shared_i32,
    st_shared_v2_i32,
)

THREADS = 1024
WARPS = 32

SCAN_BITS, WALK_BITS = 11, 8
MOST_BEST = 1024
"""Blocks that a row may select at most."""

MAX_TURNS = 33
"""Keys that a lane may hold."""

ROUNDS = 4
"""Rounds of the search that always find the key itself: bins of 8 bits, or fewer of 11."""

FEW_TURNS = 2
"""Keys a lane holds of those left after :func:`held_search` dropped most."""

# Offsets in shared memory, in bytes.
BINS_OFFSET = 0
TOTALS_OFFSET = BINS_OFFSET + 4 * (1 << SCAN_BITS)
LEAST_OFFSET = TOTALS_OFFSET + 4 * WARPS
MOST_OFFSET = LEAST_OFFSET + 4 * WARPS
STATE_OFFSET = MOST_OFFSET + 4 * WARPS
CHOSEN_OFFSET = STATE_OFFSET + 16
WORDS_OFFSET = CHOSEN_OFFSET + 4 * MOST_BEST
FEW_OFFSET = WORDS_OFFSET + 4 * WARPS * (MAX_TURNS + 1)
SHARED_WORDS = FEW_OFFSET // 4 + FEW_TURNS * THREADS


@device_function
def lane_index():
    return int32(cuda.threadIdx.x & 31)


@device_function
def warp_index():
    return int32(cuda.threadIdx.x >> 5)


@device_function
def own_run(count):
    """(length, start, end) of this warp's run of ``count`` elements: the warps' runs are one behind the other, whole
    turns of 32."""
    run = int32((count + THREADS - 1) // THREADS * 32)
    first = int32(warp_index() * run)
    return run, first, min(int32(first + run), count)


@device_function
def selection_key(score):
    """uint32 whose order is the preference: NaN 0, -inf to +inf, -0 equal to +0."""
    bits = float_as_int(libdevice.fadd_rn(score, float32(0)))
    key = uint32(uint32(bits) ^ (uint32(0xFFFFFFFF) if bits < 0 else uint32(0x80000000)))
    return key if score == score else uint32(0)


@device_function
def scan(x):
    """Sum of ``x`` (int32) over this lane and those below it."""
    for i in range(5):
        below = int32(cuda.shfl_up_sync(FULL_WARP, x, 1 << i))
        if lane_index() >= 1 << i:
            x = int32(x + below)
    return x


@device_function
def _extremes(least, most):
    """(least of ``least``, greatest of ``most``) over a warp, both uint32."""
    for i in range(5):
        least = min(least, uint32(cuda.shfl_xor_sync(FULL_WARP, int32(least), 16 >> i)))
        most = max(most, uint32(cuda.shfl_xor_sync(FULL_WARP, int32(most), 16 >> i)))
    return least, most


@device_function
def _before_warp(totals, x):
    """Sum over the warps below this one of ``x`` (int32, the same in all lanes), through 32 words at ``totals``."""
    if lane_index() == 0:
        st_shared_i32(int32(totals + warp_index() * 4), x)
    cuda.syncthreads()
    before, _ = sums_below(totals)
    return before


@device_function
def sums_below(totals):
    """(sum of the words at ``totals`` of the warps below this one, sum of all)."""
    total = ld_shared_i32(int32(totals + lane_index() * 4))
    upto = scan(total)
    before = int32(cuda.shfl_sync(FULL_WARP, int32(upto - total), warp_index()))
    return before, int32(cuda.shfl_sync(FULL_WARP, upto, 31))


@device_function
def key_at(source, coded, element):
    """Key of ``element`` at the address ``source``: of a float32 score, or the ``coded`` key itself."""
    if coded:
        return uint32(ld_global_i32(source + int64(element) * 4))
    return selection_key(ld_global_f32_nc(source + int64(element) * 4))


def search(turns: int, held: bool, scanned: bool) -> tuple[Any, Any, Any]:
    """Device functions (fill, threshold, choose) over the keys of one thread block.

    A warp's run of keys is walked ``turns`` times 32 keys at a time, kept in a local array of ``turns`` keys a lane.
    ``held``: the array is filled once and has room for all; otherwise every pass fills it again, chunk by chunk.
    ``scanned``: a bin is found by a scan over the thread block (2,048 bins), otherwise by one lane (256 bins).
    """
    bits = SCAN_BITS if scanned else WALK_BITS
    bins = 1 << bits

    @device_function
    def fill(keys, source, coded, start, end):
        """Keys of elements ``start`` + 32 i + lane from the address ``source``: of float32 scores, or ``coded`` ones.

        0 from ``end`` on."""
        address = source + int64(int32(start + lane_index())) * 4
        room = int32(end - start - lane_index())
        for i in range(turns):
            keys[i] = uint32(0)
            if 32 * i < room:
                keys[i] = key_at(address, coded, 32 * i)

    @device_function
    def take(keys, source, coded, first, chunk, end):
        """(start, room) of a chunk of the warp's run, which begins at ``first``: its keys are then in ``keys``, and
        those of the turns i with 32 i below this lane's room exist."""
        start = int32(first + chunk * turns * 32)
        if not held:
            fill(keys, source, coded, start, end)
        return start, int32(end - start - lane_index())

    @device_function
    def bounds(keys, source, coded, chunks, first, end, shared):
        """(least key, greatest - least) of the thread block's elements, the warp's being ``first`` to ``end``."""
        least, most = uint32(0xFFFFFFFF), uint32(0)
        for chunk in range(chunks):
            _, room = take(keys, source, coded, first, chunk, end)
            for i in range(turns):
                if 32 * i < room:
                    least = min(least, keys[i])
                most = max(most, keys[i])
        least, most = _extremes(least, most)
        if lane_index() == 0:
            st_shared_i32(int32(shared + LEAST_OFFSET + warp_index() * 4), int32(least))
            st_shared_i32(int32(shared + MOST_OFFSET + warp_index() * 4), int32(most))
        cuda.syncthreads()
        least = uint32(ld_shared_i32(int32(shared + LEAST_OFFSET + lane_index() * 4)))
        most = uint32(ld_shared_i32(int32(shared + MOST_OFFSET + lane_index() * 4)))
        least, most = _extremes(least, most)
        return least, uint32(most - least)

    @device_function
    def scan_bins(shared, above, best):
        """Finds the bin of the ``best``-th key by a scan from the top, and empties the bins. Each lane has two.

        Writes it and the number of keys above it (``above`` of them above every bin) to the shared state."""
        lane = int32(cuda.threadIdx.x)
        top = int32(bins - 1 - 2 * lane)
        address = int32(shared + BINS_OFFSET + (top - 1) * 4)
        low, high = ld_shared_v2_i32(address)
        st_shared_v2_i32(address, int32(0), int32(0))
        mine = int32(low + high)
        upto = scan(mine)
        if lane_index() == 31:
            st_shared_i32(int32(shared + TOTALS_OFFSET + warp_index() * 4), upto)
        cuda.syncthreads()
        before, _ = sums_below(int32(shared + TOTALS_OFFSET))
        before = int32(above + before + upto - mine)
        if before < best and before + mine >= best:
            in_high = before + high >= best
            st_shared_i32(int32(shared + STATE_OFFSET), top if in_high else int32(top - 1))
            st_shared_i32(int32(shared + STATE_OFFSET + 4), before if in_high else int32(before + high))
        elif lane == THREADS - 1 and before + mine < best:
            st_shared_i32(int32(shared + STATE_OFFSET), int32(0))
            st_shared_i32(int32(shared + STATE_OFFSET + 4), int32(before + mine))
        cuda.syncthreads()

    @device_function
    def walk_bins(shared, above, best):
        """:func:`scan_bins` by one lane."""
        if cuda.threadIdx.x == 0:
            bin_index = int32(bins - 1)
            count = ld_shared_i32(int32(shared + BINS_OFFSET + bin_index * 4))
            while bin_index > 0 and above + count < best:
                above = int32(above + count)
                bin_index = int32(bin_index - 1)
                count = ld_shared_i32(int32(shared + BINS_OFFSET + bin_index * 4))
            st_shared_i32(int32(shared + STATE_OFFSET), bin_index)
            st_shared_i32(int32(shared + STATE_OFFSET + 4), above)
        cuda.syncthreads()
        if cuda.threadIdx.x < bins:
            st_shared_i32(int32(shared + BINS_OFFSET + cuda.threadIdx.x * 4), int32(0))
        cuda.syncthreads()

    find_bin = scan_bins if scanned else walk_bins

    @device_function
    def threshold(keys, source, coded, chunks, first, end, best, rounds, shared):
        """(key, keys above it) of the ``best``-th key of the thread block, ``best`` from 1 to the number of keys.

        Four ``rounds`` always find it; after fewer, the key may be a lower one and the count that of a whole bin's."""
        bin_index = int32(cuda.threadIdx.x)
        while bin_index < bins:
            st_shared_i32(int32(shared + BINS_OFFSET + bin_index * 4), int32(0))
            bin_index = int32(bin_index + THREADS)
        least, span = bounds(keys, source, coded, chunks, first, end, shared)
        above = int32(0)
        while span > 0 and rounds > 0:
            rounds = int32(rounds - 1)
            shift = uint32(max(int32(0), int32(32 - bits - cuda.clz(int32(span)))))
            for chunk in range(chunks):
                take(keys, source, coded, first, chunk, end)
                for i in range(turns):
                    offset = uint32(keys[i] - least)
                    bin_ = int32(uint32(offset >> shift))
                    # Nobody asks for the last bin's count: what no other bin holds is there, with its many ties.
                    if offset <= span and bin_ > 0:
                        red_shared_add_i32(int32(shared + BINS_OFFSET + bin_ * 4), int32(1))
            cuda.syncthreads()
            find_bin(shared, above, best)
            skipped = uint32(uint32(ld_shared_i32(int32(shared + STATE_OFFSET))) << shift)
            above = ld_shared_i32(int32(shared + STATE_OFFSET + 4))
            least = uint32(least + skipped)
            span = min(uint32(span - skipped), uint32(uint32(uint32(1) << shift) - uint32(1)))
        return least, above

    @device_function
    def choose(keys, source, coded, chunks, first, end, limit, above, best, shared):
        """List the ``best`` elements at shared + CHOSEN_OFFSET, in ascending order: all with keys above ``limit``
        (``above`` of them), then the first of those at it. The rank of the last of these goes to the shared state."""
        equal_wanted = int32(best - above)
        greater, equal = int32(0), int32(0)
        for chunk in range(chunks):
            _, room = take(keys, source, coded, first, chunk, end)
            for i in range(turns):
                is_equal = keys[i] == limit and 32 * i < room
                greater = int32(greater + cuda.popc(cuda.ballot_sync(FULL_WARP, keys[i] > limit)))
                equal = int32(equal + cuda.popc(cuda.ballot_sync(FULL_WARP, is_equal)))
        # Both counts in one word: no more than `best` of either kind matter, and 32 * 1024 stays below 2^16.
        before = _before_warp(int32(shared + TOTALS_OFFSET), int32(greater + min(equal, equal_wanted) * 65536))
        greater, equal = int32(before & 0xFFFF), int32(before >> 16)
        below = uint32(uint32(uint32(1) << uint32(lane_index())) - uint32(1))
        for chunk in range(chunks):
            start, room = take(keys, source, coded, first, chunk, end)
            for i in range(turns):
                is_greater = keys[i] > limit
                is_equal = keys[i] == limit and 32 * i < room
                all_greater = uint32(cuda.ballot_sync(FULL_WARP, is_greater))
                all_equal = uint32(cuda.ballot_sync(FULL_WARP, is_equal))
                if all_greater | all_equal:
                    equal_before = int32(equal + cuda.popc(uint32(all_equal & below)))
                    if is_greater or (is_equal and equal_before < equal_wanted):
                        rank = int32(greater + cuda.popc(uint32(all_greater & below)) + min(equal_before, equal_wanted))
                        st_shared_i32(int32(shared + CHOSEN_OFFSET + rank * 4), int32(start + i * 32 + lane_index()))
                        if is_equal and equal_before == equal_wanted - 1:
                            st_shared_i32(int32(shared + STATE_OFFSET + 8), rank)
                    greater = int32(greater + cuda.popc(all_greater))
                    equal = int32(equal + cuda.popc(all_equal))
        cuda.syncthreads()

    return fill, threshold, choose
