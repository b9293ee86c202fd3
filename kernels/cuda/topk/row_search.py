"""The two ways in which ``select`` searches a row: keys held in registers, or read again in every pass."""

from typing import Any

from ..toolchain.compiler import cuda, device_function, int32, int64, uint32
from ..toolchain.constants import FULL_WARP
from ..toolchain.ptx import ld_shared_i32, st_shared_i32
from .radix_search import (
    CHOSEN_OFFSET,
    FEW_OFFSET,
    FEW_TURNS,
    ROUNDS,
    THREADS,
    TOTALS_OFFSET,
    WORDS_OFFSET,
    key_at,
    lane_index,
    own_run,
    scan,
    search,
    sums_below,
    warp_index,
)


def reading_search(turns: int, scanned: bool) -> Any:
    """Device function as :func:`held_search`'s, for any number of keys, which it reads again in every pass."""
    _, threshold, choose = search(turns, False, scanned)

    @device_function
    def best_of(source, coded, count, best, shared):
        keys = cuda.local.array(turns, uint32)
        run, first, end = own_run(count)
        chunks = int32((run // 32 + turns - 1) // turns)
        limit, above = threshold(keys, source, coded, chunks, first, end, best, ROUNDS, shared)
        choose(keys, source, coded, chunks, first, end, limit, above, best, shared)

    return best_of


def held_search(turns: int) -> Any:
    """Device function (source, coded, count, best, shared) that lists the ``best`` of ``count`` keys at the address
    ``source``, as :func:`search`'s choose does, from keys held in registers.

    At least ``best`` keys are no less than the ``best``-th greatest of the lanes' greatest keys, and few others are: a
    lower bound of that one drops most keys at once, and the exact search runs over the few left. When they are not
    few (many ties, or the best all in few lanes), it runs over all.
    """
    fill, threshold, choose = search(turns, True, True)
    _, few_threshold, few_choose = search(FEW_TURNS, True, True)
    _, lane_threshold, _ = search(1, True, True)
    few = FEW_TURNS * THREADS

    @device_function
    def lower_bound(keys, held_keys, best, shared):
        """A key that at least ``best`` keys reach: one round of the search over the lanes' greatest keys.

        ``held_keys`` of the warp's run; lanes without a key take no part."""
        greatest = cuda.local.array(1, uint32)
        greatest[0] = uint32(0)
        for i in range(turns):
            greatest[0] = max(greatest[0], keys[i])
        first = int32(warp_index() * 32)
        end = int32(first + min(int32(32), held_keys))
        bound, _ = lane_threshold(greatest, int64(0), True, 1, first, end, best, int32(1), shared)
        return bound

    @device_function
    def keep(keys, first, end, count, bound, shared):
        """Lists the elements whose keys reach ``bound`` in ascending order at FEW_OFFSET, as far as there is room.

        Returns how many there are."""
        room = int32(end - first - lane_index())
        for i in range(turns):
            reached = uint32(cuda.ballot_sync(FULL_WARP, keys[i] >= bound and 32 * i < room))
            if lane_index() == 0 and first + 32 * i < end:
                st_shared_i32(int32(shared + WORDS_OFFSET + (first // 32 + i) * 4), int32(reached))
        cuda.syncthreads()
        word, first_word, second_word = int32(2 * cuda.threadIdx.x), uint32(0), uint32(0)
        if 32 * word < count:
            first_word = uint32(ld_shared_i32(int32(shared + WORDS_OFFSET + word * 4)))
        if 32 * word + 32 < count:
            second_word = uint32(ld_shared_i32(int32(shared + WORDS_OFFSET + word * 4 + 4)))
        mine = int32(cuda.popc(first_word) + cuda.popc(second_word))
        upto = scan(mine)
        if lane_index() == 31:
            st_shared_i32(int32(shared + TOTALS_OFFSET + warp_index() * 4), upto)
        cuda.syncthreads()
        before, total = sums_below(int32(shared + TOTALS_OFFSET))
        rank = int32(before + upto - mine)
        for i in range(2):
            left = first_word if i == 0 else second_word
            while left != 0:
                lowest = uint32(left & uint32(uint32(0) - left))
                if rank < few:
                    element = int32((word + i) * 32 + cuda.popc(uint32(lowest - uint32(1))))
                    st_shared_i32(int32(shared + FEW_OFFSET + rank * 4), element)
                rank = int32(rank + 1)
                left = uint32(left ^ lowest)
        cuda.syncthreads()
        return total

    @device_function
    def best_of(source, coded, count, best, shared):
        keys = cuda.local.array(turns, uint32)
        run, first, end = own_run(count)
        kept = count
        if count > few:
            fill(keys, source, coded, first, end)
            bound = uint32(0)
            if (best + 31) // 32 * run <= count:
                bound = lower_bound(keys, int32(end - first), best, shared)
            kept = keep(keys, first, end, count, bound, shared)
        else:
            for i in range(FEW_TURNS):
                element = int32(cuda.threadIdx.x + i * THREADS)
                st_shared_i32(int32(shared + FEW_OFFSET + element * 4), element)
            cuda.syncthreads()
        if kept > few:
            limit, above = threshold(keys, source, coded, 1, first, end, best, ROUNDS, shared)
            choose(keys, source, coded, 1, first, end, limit, above, best, shared)
        else:
            few_keys = cuda.local.array(FEW_TURNS, uint32)
            _, first, end = own_run(kept)
            room = int32(end - first - lane_index())
            for i in range(FEW_TURNS):
                few_keys[i] = uint32(0)
                if 32 * i < room:
                    element = ld_shared_i32(int32(shared + FEW_OFFSET + (first + 32 * i + lane_index()) * 4))
                    few_keys[i] = key_at(source, coded, element)
            limit, above = few_threshold(few_keys, source, coded, 1, first, end, best, ROUNDS, shared)
            few_choose(few_keys, source, coded, 1, first, end, limit, above, best, shared)
            rank = int32(cuda.threadIdx.x)
            if rank < best:
                element = ld_shared_i32(int32(shared + CHOSEN_OFFSET + rank * 4))
                element = ld_shared_i32(int32(shared + FEW_OFFSET + element * 4))
                st_shared_i32(int32(shared + CHOSEN_OFFSET + rank * 4), element)
            cuda.syncthreads()

    return best_of
