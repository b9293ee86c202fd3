"""The search of the schedule ``bounded``: the best of many scores, by one thread block.

A key is the int32 whose order is the scores' order (:func:`order_key`), and a row wants its ``best`` blocks, ties to
the lower index. The search finds the row's *last choice*, the ``best``-th in that order, as a key and an index: chosen
is every greater key, and an equal one of an index that is no greater. The scores may lie in any order. Ranks of the
chosen, which make the ids ascend, come from a map with a bit for each block of the row.

Why the result is exact, whatever the scores:

1. ``bin_of`` never decreases as a score grows: subtraction, multiplication by a positive constant, truncation and both
   limits are monotonic, also after rounding. So every score above the bin that holds the ``best``-th is chosen, none
   below it is, and the bin's own scores, its *members*, decide. This holds for every range of the bins: a range that
   fits the scores badly makes more members, not a wrong choice. A NaN belongs to the last bin.
2. The count of the last bin is not needed: what no other bin holds is in it.
3. Up to :data:`TIES` members are compared with one another: the last choice is that one than which ``need`` - 1
   others are better (a greater key, or an equal one of a lower index).
4. More members are never put into that list. The search goes on by keys, in the range between the least and the
   greatest of them: every round cuts it into 2^10 bins or more, until few members are left, or the range is one key.
   Four rounds reach that from 32 bits.
5. Among many members of one key the last choice is the ``need``-th by index, which the map tells.
"""

from typing import Any, NamedTuple

from ..toolchain.compiler import cuda, device_function, int32, libdevice, uint32
from ..toolchain.constants import FULL_WARP
from ..toolchain.ptx import (
    ld_shared_i32,
    ld_shared_v2_i32,
    red_shared_add_i32,
    red_shared_max_i32,
    redux_add,
    st_shared_i32,
    trunc_s32,
)
from .bounded_bins import Bins
from .bounded_keys import (
    BINS,
    BITS,
    EXTREMES_OFFSET,
    LARGEST,
    LEAST_NUMBER,
    NO_KEY,
    TIES,
    is_chosen,
    listed_element,
    map_shift,
    mark,
    order_key,
    rank_of,
    scale_of,
    score_of,
    stored_element,
)
from .radix_search import CHOSEN_OFFSET, STATE_OFFSET, lane_index, warp_index


class Search(NamedTuple):
    """Device functions for a thread block of some number of lanes."""

    choose_held: Any
    choose_listed: Any
    last_stored: Any


def search(lanes: int, held: int, bins_: Bins) -> Search:
    """:class:`Search` of thread blocks of ``lanes`` lanes, of which each holds ``held`` scores."""
    warps, (clear, _, _, find_bin, sum_bins, list_tie, last_of_ties) = lanes // 32, bins_

    @device_function
    def put_chosen(rank, index, last_index, shared):
        """Write ``index`` into the list of the chosen, and of the last choice its rank."""
        st_shared_i32(int32(shared + CHOSEN_OFFSET + rank * 4), index)
        if index == last_index:
            st_shared_i32(int32(shared + STATE_OFFSET + 8), rank)

    @device_function
    def put_in_order(chosen, indices, last_index, shared):
        """Write the ``chosen`` of ``indices`` that ascend from lane to lane, and from turn to turn of the block."""
        masks = cuda.local.array(held, uint32)
        lane, warp = lane_index(), warp_index()
        below = uint32(uint32(uint32(1) << uint32(lane)) - uint32(1))
        for i in range(held):
            masks[i] = uint32(cuda.ballot_sync(FULL_WARP, chosen[i] != 0))
        # Two turns in a word: no more than 1,024 are chosen.
        for i in range(0, held, 2):
            both = int32(cuda.popc(masks[i]) + cuda.popc(masks[i + 1]) * 65536)
            if lane == 0:
                st_shared_i32(int32(shared + i * 64 + warp * 4), both)
        cuda.syncthreads()
        start = int32(0)
        for i in range(0, held, 2):
            both = int32(0)
            if lane < warps:
                both = ld_shared_i32(int32(shared + i * 64 + lane * 4))
            before, total = redux_add(both if lane < warp else int32(0)), redux_add(both)
            if chosen[i] != 0:
                rank = int32(start + (before & 0xFFFF) + cuda.popc(uint32(masks[i] & below)))
                put_chosen(rank, indices[i], last_index, shared)
            start = int32(start + (total & 0xFFFF))
            if chosen[i + 1] != 0:
                rank = int32(start + (before >> 16) + cuda.popc(uint32(masks[i + 1] & below)))
                put_chosen(rank, indices[i + 1], last_index, shared)
            start = int32(start + (total >> 16))

    @device_function
    def choose_held(scores, indices, ordered, best, bound, most, map_, count, shared):
        """Choose the ``best`` of the ``scores`` that all lanes hold, with their ``indices``. -inf and NaN: none.

        ``ordered``: turn i of the block has neighbouring indices, all below those of turn i + 1. ``bound`` and
        ``most``: keys of finite scores; none is greater than ``most``, and ``best`` or more are no less than ``bound``,
        else the answer may be False. ``count``: blocks of the map. The chosen go to shared + CHOSEN_OFFSET, in
        ascending order, and the rank of the last choice to the third word of the state, as ``radix_search.search`` has
        it; a barrier must follow. Returns False, having chosen none, when the bin that decides is the last one or has
        too many members. :func:`clear` has been called before a barrier."""
        bins = cuda.local.array(held, int32)
        low = score_of(bound)
        scale = scale_of(low, most)
        for i in range(held):
            # No more than the first bin, as no score is beyond `most`; 0 of a NaN, below 0 of a score below the bound.
            bins[i] = trunc_s32(libdevice.fmul_rn(libdevice.fsub_rn(scores[i], low), scale))
            if bins[i] > 0:
                red_shared_add_i32(int32(shared + bins[i] * 4), int32(1))
        found, above, ties = find_bin(int32(0), best, int32(0), shared)
        if found <= 0 or ties > TIES:
            return False
        for i in range(held):
            if bins[i] == found:
                list_tie(indices[i], order_key(scores[i]), shared)
        last_key, last_index = last_of_ties(ties, int32(best - above), shared)
        last = score_of(last_key)
        for i in range(held):
            bins[i] = int32(scores[i] > last or (scores[i] == last and indices[i] <= last_index))
        if ordered:
            put_in_order(bins, indices, last_index, shared)
        else:
            shift = map_shift(count)
            for i in range(held):
                if bins[i] != 0:
                    mark(map_, shift, indices[i], shared)
            sum_bins(map_, shift, count, shared)
            for i in range(held):
                if bins[i] != 0:
                    put_chosen(rank_of(map_, shift, indices[i], shared), indices[i], last_index, shared)
        return True

    @device_function
    def bin_of(key, low, scale):
        bin_ = trunc_s32(libdevice.fmul_rn(libdevice.fsub_rn(score_of(key), low), scale))
        return max(min(bin_, int32(BINS - 1)), int32(0))

    def finder(element):
        """The function that finds the last choice among elements that ``element`` reads."""

        @device_function
        def last_of(source, first, end, step, members, best, bound, most, map_, count, shared):
            """(key, index) of the last choice among ``members`` elements at ``source``, in any number and of any
            scores, in passes over them; the lane has ``first``, ``first`` + ``step``, ... below ``end``.

            ``bound`` and ``most``: where the keys that matter are, whatever they are; ``count``: blocks of the map.
            Bins, counters and map are empty before and after; barriers before and after."""
            bound = max(bound, int32(LEAST_NUMBER))
            most = max(min(most, int32(LARGEST)), bound)
            low = score_of(bound)
            scale = scale_of(low, most)
            position = first
            while position < end:
                _, key = element(source, position)
                bin_ = bin_of(key, low, scale)
                if bin_ > 0:
                    red_shared_add_i32(int32(shared + bin_ * 4), int32(1))
                position = int32(position + step)
            found, above, ties = find_bin(int32(0), best, members, shared)

            # The range of keys that the members fill, and rounds by keys while they are many.
            lowest, highest = int32(NO_KEY), int32(NO_KEY)
            position = first
            while position < end:
                _, key = element(source, position)
                if bin_of(key, low, scale) == found:
                    lowest, highest = max(lowest, int32(~key)), max(highest, key)
                position = int32(position + step)
            red_shared_max_i32(int32(shared + EXTREMES_OFFSET), lowest)
            red_shared_max_i32(int32(shared + EXTREMES_OFFSET + 4), highest)
            cuda.syncthreads()
            lowest, highest = ld_shared_v2_i32(int32(shared + EXTREMES_OFFSET))
            least = int32(~lowest)
            span = uint32(highest - least)
            while ties > TIES and span > 0:
                shift = uint32(max(int32(0), int32(32 - BITS - cuda.clz(int32(span)))))
                position = first
                while position < end:
                    _, key = element(source, position)
                    offset = uint32(key - least)
                    bin_ = int32(uint32(offset >> shift))
                    if offset <= span and bin_ > 0:
                        red_shared_add_i32(int32(shared + bin_ * 4), int32(1))
                    position = int32(position + step)
                found, above, ties = find_bin(above, best, ties, shared)
                skipped = uint32(uint32(found) << shift)
                least = int32(least + int32(skipped))
                span = min(uint32(span - skipped), uint32(uint32(uint32(1) << shift) - uint32(1)))
            limit, need, few = int32(least + int32(span)), int32(best - above), ties <= TIES
            by_index = map_shift(count)
            position = first
            while position < end:
                index, key = element(source, position)
                if key >= least and key <= limit:
                    if few:
                        list_tie(index, key, shared)
                    else:
                        mark(map_, by_index, index, shared)
                position = int32(position + step)
            last_key, last_index = least, int32(0)
            if few:
                last_key, last_index = last_of_ties(ties, need, shared)
            else:
                sum_bins(map_, by_index, count, shared)
                position = first
                while position < end:
                    index, key = element(source, position)
                    if key == least and rank_of(map_, by_index, index, shared) == int32(need - 1):
                        st_shared_i32(int32(shared + STATE_OFFSET), index)
                    position = int32(position + step)
                cuda.syncthreads()
                last_index = ld_shared_i32(int32(shared + STATE_OFFSET))
            clear(map_, count, shared)
            cuda.syncthreads()
            return last_key, last_index

        return last_of

    last_listed = finder(listed_element)

    @device_function
    def choose_listed(source, first, end, step, members, best, bound, most, map_, count, shared):
        """:func:`choose_held` for a list, with the arguments of ``last_of``: the answer is always there."""
        last_key, last_index = last_listed(source, first, end, step, members, best, bound, most, map_, count, shared)
        shift = map_shift(count)
        position = first
        while position < end:
            index, key = listed_element(source, position)
            if is_chosen(key, index, last_key, last_index):
                mark(map_, shift, index, shared)
            position = int32(position + step)
        sum_bins(map_, shift, count, shared)
        position = first
        while position < end:
            index, key = listed_element(source, position)
            if is_chosen(key, index, last_key, last_index):
                put_chosen(rank_of(map_, shift, index, shared), index, last_index, shared)
            position = int32(position + step)

    return Search(choose_held, choose_listed, finder(stored_element))
