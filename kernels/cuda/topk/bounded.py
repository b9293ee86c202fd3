"""The kernel of the schedule ``bounded``: keys below a bound are dropped, the best of the others are searched.

A row belongs to one thread block, or to a cluster of them (sm_90) of which as many take part as its length pays for.
Its blocks are dealt out to their warps 32 at a time, so that every warp has some of every part of the row. Scores stay
in registers.

1. Lanes are taken together in groups, half of ``best`` or more. The least of the groups' second greatest keys is a
   *bound*: every group has two keys that are no less, so the ``best`` best keys of the row are no less either, and the
   others are dropped. Of keys in random order some 2,100 are left for a ``best`` of 512, whatever the row's length.
2. What is left of a thread block's scores goes to a list in shared memory; in a cluster to that of rank 0, where every
   rank has a place of its own.
3. One thread block chooses among them (bounded_search.py, which says why that is exact).

A place has room for :data:`ROOM` entries, the list of a thread block alone for :data:`ROOM_ALONE`. A thread block that
has more left (most keys equal, say), or a bound below every number, finds the last choice among all that is its own,
reading the scores again, and passes on that one and the better ones: ``best``, which always fit. Of the row's best
keys, ties to the lower index, none is lost by that. So nothing overflows, and the choice is exact for all scores.

A row of up to :data:`FEW` blocks is not bounded: rank 0 takes all of it.
"""

from collections.abc import Iterator
from typing import Any

from ..common.scalar import INFINITY_BITS
from ..toolchain.compiler import (
    cuda,
    device_function,
    float32,
    int32,
    int64,
    kernel,
    libdevice,
    specialised,
    uint32,
)
from ..toolchain.constants import FULL_WARP
from ..toolchain.ptx import (
    atom_shared_add_i32,
    cluster_arrive_relaxed,
    float_as_int,
    global_base,
    int_as_float,
    ld_global_f32_nc,
    ld_shared_i32,
    ld_shared_v2_i32,
    map_shared,
    redux_add,
    redux_max,
    shared_base,
    st_async_i64,
    st_global_i32,
    st_shared_i32,
    st_shared_v2_i32,
    start_next,
    wait_for_earlier,
)
from ..toolchain.ptx_rows import F2, I2, PtxRow, signature_of
from .bounded_bins import bins_of
from .bounded_cluster import (
    BARRIERS_OFFSET,
    COUNTS_OFFSET,
    MAP_OFFSET,
    MOST_RANKS,
    announce,
    await_bytes,
    bound_of_row,
    open_barriers,
)
from .bounded_keys import COUNTER_OFFSET, LEAST_NUMBER, NO_KEY, is_chosen, is_finite, order_key, score_of
from .bounded_search import search
from .kernels import expansion
from .radix_search import CHOSEN_OFFSET, MOST_BEST, lane_index, scan, warp_index

ALONE, RANK = 1024, 512
"""Lanes of a thread block alone, and of one in a cluster."""

BUILDS = (5120, 9216, 17408)
"""Blocks of a row that a thread block has room for in the builds; a call takes the first that is enough."""

FEW = 4096
"""Blocks of a row that rank 0 takes unbounded, and for which a row gets one more thread block of its cluster."""

ROOM = MOST_BEST
"""Entries of a rank's place in the list, where all ranks take part; where fewer do, they have the others' as well."""

ROOM_ALONE = FEW
"""Entries of the list of a thread block alone, and of the scores that one holds to choose among. Of 2,000 rows in
random order the bound leaves more than this of one."""

LOWEST_BITS = INFINITY_BITS - (1 << 31)
"""Those of -inf, as an int32."""


def lanes_of(size: int) -> int:
    """Lanes of a thread block in clusters of ``size``; 1: alone."""
    return ALONE if size == 1 else RANK


def _list_offset(blocks, size):
    return MAP_OFFSET + 16 * -(-blocks * size // 128)


def shared_bytes(blocks: int, size: int) -> int:
    """Bytes of dynamic shared memory of a thread block of the build ``blocks``."""
    return _list_offset(blocks, size) + 8 * (ROOM_ALONE if size == 1 else max(FEW, size * ROOM))


@specialised
def bounded(blocks: int, size: int, ratio: int) -> Any:
    """The kernel of rows of up to ``size`` * ``blocks`` blocks of ``ratio`` cells, in clusters of ``size``.

    Grid (rows * size), :func:`lanes_of` lanes, :func:`shared_bytes` of dynamic shared memory; ``size`` 1: no clusters.
    ``blocks``: one of BUILDS, or another multiple of the lanes.
    """
    lanes, clustered = lanes_of(size), size > 1
    # Where most rows are short enough.
    early = not clustered and blocks == BUILDS[0]
    turns, held, warps = blocks // lanes, FEW // lanes, lanes // 32
    room, list_offset = (size * ROOM if clustered else ROOM_ALONE), _list_offset(blocks, size)
    record, write = expansion(ratio, lanes)
    bins = bins_of(lanes)
    clear, before_warp, extremes = bins.clear, bins.before_warp, bins.extremes
    choose_held, choose_listed, last_stored = search(lanes, held, bins)

    @device_function
    def room_of(active):
        return int32(uint32(room) // uint32(active))

    @device_function
    def put(place, barrier, position, element, score):
        """Put an entry into the own list, or send it to that of rank 0."""
        if clustered:
            entry = int64((int64(float_as_int(score)) << 32) | int64(element))
            st_async_i64(int32(place + position * 8), entry, barrier)
        else:
            st_shared_v2_i32(int32(place + position * 8), element, float_as_int(score))

    @device_function
    def list_bounded(source, count, active, rank, best, shared):
        """List what is left of this thread block's scores; (bound, greatest key of the row, entries)."""
        scores = cuda.local.array(turns, float32)
        first = int32((warp_index() * active + rank) * 32 + lane_index())
        step = int32(lanes * active)
        lowest = int_as_float(int32(LOWEST_BITS))
        highest, second = lowest, lowest
        address, room_of_lane = source + int64(first) * 4, int32(count - first)
        for i in range(turns):
            scores[i] = lowest
            if room_of_lane > 0:
                scores[i] = ld_global_f32_nc(address)
            address, room_of_lane = address + int64(step) * 4, int32(room_of_lane - step)
        for i in range(turns):
            # A NaN counts as -inf, beyond which no bound that is a number goes.
            scores[i] = libdevice.fmaxf(scores[i], lowest)
            second = libdevice.fmaxf(second, libdevice.fminf(highest, scores[i]))
            highest = libdevice.fmaxf(highest, scores[i])
        bound, most = order_key(second), order_key(highest)
        for i in range(5):
            # Twice as large groups of lanes, as long as there are enough of them. The first warp's may stay as they
            # are, which makes 257 groups of 256: as many as 513 blocks need, the rule `cells`'.
            enough = int32(step >> i) >= best
            if enough or (int32((step + 32) >> i) >= best and warp_index() + rank > 0):
                other_bound = int32(cuda.shfl_xor_sync(FULL_WARP, bound, 1 << i))
                other_most = int32(cuda.shfl_xor_sync(FULL_WARP, most, 1 << i))
                bound = max(max(bound, other_bound), min(most, other_most))
                most = max(most, other_most)
        bound, most = extremes(bound, most, shared)
        if clustered:
            bound, most = bound_of_row(bound, most, active, rank, shared)
        limit = score_of(bound)
        left = int32(0)
        for i in range(turns):
            if scores[i] >= limit:
                left = int32(left + 1)
        upto = scan(left)
        position, total = before_warp(int32(cuda.shfl_sync(FULL_WARP, upto, 31)), shared)
        position = int32(position + upto - left)
        place, barrier = int32(shared + list_offset), int32(0)
        if clustered:
            place = map_shared(int32(place + rank * 8 * room_of(active)), int32(0))
            barrier = map_shared(int32(shared + BARRIERS_OFFSET + 8), int32(0))
        if total <= room_of(active) and bound >= LEAST_NUMBER:
            for i in range(turns):
                if scores[i] >= limit:
                    put(place, barrier, position, int32(first + i * step), scores[i])
                    position = int32(position + 1)
        else:
            members = int32(0)
            if first < count:
                members = int32(uint32(count - first + step - 1) // uint32(step))
            cuda.syncthreads()
            _, members = before_warp(redux_add(members), shared)
            map_ = int32(shared + MAP_OFFSET)
            key, index = last_stored(source, first, count, step, members, best, bound, most, map_, count, shared)
            element = first
            while element < count:
                score = ld_global_f32_nc(source + int64(element) * 4)
                if is_chosen(order_key(score), element, key, index):
                    position = atom_shared_add_i32(int32(shared + COUNTER_OFFSET), int32(1))
                    put(place, barrier, position, element, score)
                element = int32(element + step)
            cuda.syncthreads()
            if cuda.threadIdx.x == 0:
                st_shared_i32(int32(shared + COUNTER_OFFSET), int32(0))
            total = best
        return bound, most, total

    @device_function
    def part_of_list(active, shared):
        """(source, first, end, step, entries of all ranks, longest part) of a list that has come: the warps that have a
        part of a rank's place."""
        await_bytes(int32(shared + BARRIERS_OFFSET + 8))
        counted = int32(0)
        if lane_index() < active:
            counted = ld_shared_i32(int32(shared + COUNTS_OFFSET + lane_index() * 8))
        parts = int32(uint32(warps) // uint32(active))
        rank = int32(uint32(warp_index()) // uint32(parts))
        entries = int32(cuda.shfl_sync(FULL_WARP, counted, rank))
        run = int32(uint32(entries + parts - 1) // uint32(parts))
        first = int32((warp_index() - rank * parts) * run)
        end = min(int32(first + run), entries)
        source = int32(shared + list_offset + rank * 8 * room_of(active))
        longest = int32(uint32(redux_max(counted) + parts - 1) // uint32(parts))
        return source, int32(first + lane_index()), end, int32(32), redux_add(counted), longest

    @kernel(launch_bounds=(lanes, 1))
    def select(scores, steps, ids, max_blocks, cap):
        shared = shared_base(cuda.shared.array(0, int32))
        chosen_from = cuda.local.array(held, float32)
        indices = cuda.local.array(held, int32)
        row = int32(uint32(cuda.blockIdx.x) // uint32(size))
        rank = int32(cuda.blockIdx.x - row * size)
        thread = int32(cuda.threadIdx.x)
        source = global_base(scores) + int64(row) * max_blocks * 4
        lowest = int_as_float(int32(LOWEST_BITS))
        start_next()
        wait_for_earlier()
        if early:
            # On their way while the step record is.
            for i in range(held):
                indices[i], chosen_from[i] = int32(i * lanes + thread), lowest
                if indices[i] < int32(max_blocks):
                    chosen_from[i] = ld_global_f32_nc(source + int64(indices[i]) * 4)
        n_kv, n_bid, width, best = record(steps, row, int32(max_blocks))
        searched = width < n_kv and best > 0
        active = int32(1)
        if clustered and searched:
            active = min(int32(uint32(n_bid + FEW - 1) // uint32(FEW)), int32(size))
        if rank >= active:
            return
        if not searched:
            write(ids, row, cap, n_kv, n_bid, width, int64(0), shared)
            return
        map_ = int32(shared + MAP_OFFSET)
        clear(map_, n_bid, shared)
        place, first, end, step = int32(shared + list_offset), thread, n_bid, int32(lanes)
        entries, longest = n_bid, int32(0)
        if n_bid <= FEW:
            greatest = int32(NO_KEY)
            for i in range(held):
                indices[i] = int32(i * lanes + thread)
                if indices[i] >= n_bid:
                    chosen_from[i] = lowest
                else:
                    if not early:
                        chosen_from[i] = ld_global_f32_nc(source + int64(indices[i]) * 4)
                    greatest = max(greatest, order_key(chosen_from[i]))
            # Where the bins begin: the least of the greatest keys of groups of lanes, which are `best` if they can be.
            most = greatest
            for i in range(5):
                if int32(min(n_bid, int32(lanes)) >> (i + 1)) >= best:
                    greatest = max(greatest, int32(cuda.shfl_xor_sync(FULL_WARP, greatest, 1 << i)))
            bound, most = extremes(greatest if greatest != NO_KEY else int32(0x7FFFFFFF), most, shared)
        else:
            if clustered:
                if thread == 0:
                    open_barriers(active, rank, shared)
                cluster_arrive_relaxed()
            bound, most, entries = list_bounded(source, n_bid, active, rank, best, shared)
            end = entries
            if clustered:
                if thread == 0:
                    announce(entries, rank, shared)
                if rank > 0:
                    return
                place, first, end, step, entries, longest = part_of_list(active, shared)
            else:
                cuda.syncthreads()
            for i in range(held):
                indices[i], chosen_from[i] = n_bid, lowest
                position = int32(first + i * step)
                if position < end:
                    indices[i], bits = ld_shared_v2_i32(int32(place + position * 8))
                    chosen_from[i] = int_as_float(bits)
        done = False
        if longest <= 32 * held and is_finite(bound, most):
            done = choose_held(chosen_from, indices, n_bid <= FEW, best, bound, most, map_, n_bid, shared)
        if not done:
            if n_bid <= FEW:
                for i in range(held):
                    if indices[i] < n_bid:
                        st_shared_v2_i32(int32(place + indices[i] * 8), indices[i], float_as_int(chosen_from[i]))
            choose_listed(place, first, end, step, entries, best, bound, most, map_, n_bid, shared)
        cuda.syncthreads()
        tail = int32(n_kv - n_bid * ratio)
        cells = int32(width - tail)
        if uint32(cells) % uint32(ratio) != 0:
            write(ids, row, cap, n_kv, n_bid, width, int64(0), shared)
            return
        out = global_base(ids) + int64(row) * cap * 4
        index = thread
        while index < cells:
            block = ld_shared_i32(int32(shared + CHOSEN_OFFSET + int32(uint32(index) // uint32(ratio)) * 4))
            st_global_i32(out + int64(index) * 4, int32(block * ratio + int32(uint32(index) % uint32(ratio))))
            index = int32(index + lanes)
        index = int32(cells + thread)
        while index < int32(cap):
            cell = int32(n_bid * ratio + index - cells) if index < width else int32(-1)
            st_global_i32(out + int64(index) * 4, cell)
            index = int32(index + lanes)

    return select


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each."""
    signature = signature_of(F2, I2, I2, "int64", "int64")
    expect = ("barrier.cluster.arrive.relaxed", "mbarrier.arrive.expect_tx.release.cluster", "st.async")
    for blocks in BUILDS:
        yield PtxRow(f"select_bounded_{blocks}", bounded.build(blocks, 1, 4), signature, minimum=(8, 0))
        name = f"select_bounded_cluster_{blocks}"
        yield PtxRow(name, bounded.build(blocks, MOST_RANKS, 4), signature, expect=expect, minimum=(9, 0))
