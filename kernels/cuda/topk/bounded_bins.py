"""Bins, counters and sums over a thread block, of the schedule ``bounded``."""

from typing import Any, NamedTuple

from ..toolchain.compiler import cuda, device_function, int32, uint32
from ..toolchain.ptx import (
    atom_shared_add_i32,
    ld_shared_i32,
    ld_shared_v2_i32,
    ld_shared_v4_i32,
    redux_add,
    redux_max,
    redux_min,
    st_shared_i32,
    st_shared_v2_i32,
    st_shared_v4_i32,
)
from .bounded_keys import (
    BINS,
    COUNTER_OFFSET,
    EXTREMES_OFFSET,
    LEAST_OFFSET,
    MOST_OFFSET,
    NO_KEY,
    TIES_OFFSET,
    TOTALS_OFFSET,
)
from .radix_search import STATE_OFFSET, lane_index, scan, warp_index


class Bins(NamedTuple):
    """Device functions for a thread block of some number of lanes."""

    clear: Any
    before_warp: Any
    extremes: Any
    find_bin: Any
    sum_bins: Any
    list_tie: Any
    last_of_ties: Any


def bins_of(lanes: int) -> Bins:
    """:class:`Bins` of thread blocks of ``lanes`` lanes, 512 or 1,024."""
    warps, each = lanes // 32, BINS // lanes

    @device_function
    def clear(map_, count, shared):
        """Empties bins, counters and the map of ``count`` blocks; a barrier must follow."""
        thread, zero = int32(cuda.threadIdx.x), int32(0)
        if each == 2:
            st_shared_v2_i32(int32(shared + thread * 8), zero, zero)
        else:
            st_shared_v4_i32(int32(shared + thread * 16), zero, zero, zero, zero)
        word = thread
        while 32 * (word & -4) < count:
            st_shared_i32(int32(map_ + word * 4), zero)
            word = int32(word + lanes)
        if thread == 0:
            st_shared_i32(int32(shared + COUNTER_OFFSET), zero)
            st_shared_v2_i32(int32(shared + EXTREMES_OFFSET), int32(NO_KEY), int32(NO_KEY))

    @device_function
    def before_warp(x, shared):
        """(sum over the warps below this one, sum of all) of ``x``, int32, the same in all lanes of a warp."""
        lane, warp, total = lane_index(), warp_index(), int32(0)
        if lane == 0:
            st_shared_i32(int32(shared + TOTALS_OFFSET + warp * 4), x)
        cuda.syncthreads()
        if lane < warps:
            total = ld_shared_i32(int32(shared + TOTALS_OFFSET + lane * 4))
        return redux_add(total if lane < warp else int32(0)), redux_add(total)

    @device_function
    def extremes(least, most, shared):
        """(least of ``least``, greatest of ``most``) over the thread block, keys."""
        lane, warp = lane_index(), warp_index()
        least, most = redux_min(least), redux_max(most)
        if lane == 0:
            st_shared_i32(int32(shared + LEAST_OFFSET + warp * 4), least)
            st_shared_i32(int32(shared + MOST_OFFSET + warp * 4), most)
        cuda.syncthreads()
        least, most = int32(0x7FFFFFFF), int32(NO_KEY)
        if lane < warps:
            least = ld_shared_i32(int32(shared + LEAST_OFFSET + lane * 4))
            most = ld_shared_i32(int32(shared + MOST_OFFSET + lane * 4))
        return redux_min(least), redux_max(most)

    @device_function
    def load_bins(counts, first, shared):
        """The lane's neighbouring bins, from ``first`` on."""
        if each == 2:
            counts[0], counts[1] = ld_shared_v2_i32(int32(shared + first * 4))
        else:
            counts[0], counts[1], counts[2], counts[3] = ld_shared_v4_i32(int32(shared + first * 4))

    @device_function
    def store_bins(counts, first, shared):
        if each == 2:
            st_shared_v2_i32(int32(shared + first * 4), counts[0], counts[1])
        else:
            st_shared_v4_i32(int32(shared + first * 4), counts[0], counts[1], counts[2], counts[3])

    @device_function
    def find_bin(above, best, members, shared):
        """(bin, keys above it, its keys) of the ``best``-th key, from the top; empties the bins. ``members`` keys are
        counted in the bins or belong to bin 0, and ``above`` are greater. Barriers before and after."""
        counts, none = cuda.local.array(each, int32), cuda.local.array(each, int32)
        cuda.syncthreads()
        first, mine = int32(BINS - each - each * cuda.threadIdx.x), int32(0)
        load_bins(counts, first, shared)
        for i in range(each):
            none[i] = int32(0)
            mine = int32(mine + counts[i])
        store_bins(none, first, shared)
        of_warp = redux_add(mine)
        below, _ = before_warp(of_warp, shared)
        before, state = int32(above + below), int32(shared + STATE_OFFSET)
        upto = int32(before + of_warp)
        if before < best and upto >= best:
            before = int32(before + scan(mine) - mine)
            if before < best and int32(before + mine) >= best:
                for i in range(each):
                    count = counts[each - 1 - i]
                    if before < best and int32(before + count) >= best:
                        st_shared_v2_i32(state, int32(first + each - 1 - i), before)
                        st_shared_i32(int32(state + 8), count)
                    before = int32(before + count)
        elif cuda.threadIdx.x == lanes - 1 and upto < best:
            st_shared_v2_i32(state, int32(0), upto)
            st_shared_i32(int32(state + 8), int32(members - (upto - above)))
        cuda.syncthreads()
        found, above = ld_shared_v2_i32(state)
        return found, above, ld_shared_i32(int32(state + 8))

    @device_function
    def sum_bins(map_, shift, count, shared):
        """Makes of every bin the marked indices below it; barriers before and after."""
        counts = cuda.local.array(each, int32)
        cuda.syncthreads()
        first, mine = int32(each * cuda.threadIdx.x), int32(0)
        if shift > 5:
            load_bins(counts, first, shared)
        else:
            for i in range(each):
                counts[i] = int32(0)
            if 32 * first < count:
                load_bins(counts, first, map_)
            for i in range(each):
                counts[i] = int32(cuda.popc(uint32(counts[i])))
        for i in range(each):
            mine = int32(mine + counts[i])
        before, _ = before_warp(redux_add(mine), shared)
        before = int32(before + scan(mine) - mine)
        for i in range(each):
            in_bin = counts[i]
            counts[i] = before
            before = int32(before + in_bin)
        store_bins(counts, first, shared)
        cuda.syncthreads()

    @device_function
    def last_of_ties(ties, need, shared):
        """(key, index) of the last choice among the listed ties; barriers before and after."""
        cuda.syncthreads()
        thread, state = int32(cuda.threadIdx.x), int32(shared + STATE_OFFSET)
        if thread < ties:
            index, key = ld_shared_v2_i32(int32(shared + TIES_OFFSET + thread * 8))
            better, other = int32(0), int32(0)
            while other < ties:
                other_index, other_key = ld_shared_v2_i32(int32(shared + TIES_OFFSET + other * 8))
                if other_key > key or (other_key == key and other_index < index):
                    better = int32(better + 1)
                other = int32(other + 1)
            if better == int32(need - 1):
                st_shared_v2_i32(state, index, key)
        cuda.syncthreads()
        index, key = ld_shared_v2_i32(state)
        return key, index

    @device_function
    def list_tie(index, key, shared):
        slot = atom_shared_add_i32(int32(shared + COUNTER_OFFSET), int32(1))
        st_shared_v2_i32(int32(shared + TIES_OFFSET + slot * 8), index, key)

    return Bins(clear, before_warp, extremes, find_bin, sum_bins, list_tie, last_of_ties)
