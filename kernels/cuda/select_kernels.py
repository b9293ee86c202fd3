"""Kernels of ``select``: the best blocks of a row by a histogram search over integer keys, in ascending order.

A key is the uint32 whose order is the scores' order (NaN 0, then -inf to +inf, -0 as +0). A row wants its ``best``
blocks, ties to the lower index, so the answer is: every key above a threshold, and the first few keys at it. The
threshold is found by rounds of histograms: the range of keys that can still hold it is cut into bins, the bin it is in
becomes the next range, and when bins are one key wide it is found. Counts are integers, so no order of the atomics
matters, and no bin can overflow.

Warp w of a thread block owns a contiguous run of keys and walks it 32 at a time, so ranks are prefix sums over 32
warps and over the lanes of a warp, and the list of chosen blocks comes out ascending.
"""

from .compiler import cuda, device_function, float32, int32, int64, kernel, libdevice, specialised, uint32
from .ptx import (
    atom_global_inc,
    float_as_int,
    global_base,
    ld_global_f32_nc,
    ld_global_i32,
    ld_global_v4_i32_nc,
    ld_shared_i32,
    ld_shared_v2_i32,
    red_shared_add_i32,
    shared_base,
    st_global_i32,
    st_shared_i32,
    st_shared_v2_i32,
)

THREADS = 1024
WARPS = 32
ALL = 0xFFFFFFFF

SCAN_BITS, WALK_BITS = 11, 8
MOST_BEST = 1024
"""Blocks that a row may select at most."""

MAX_TURNS = 33
"""Keys that a lane may hold."""

ROUNDS = 4
"""Rounds of the search that always find the key itself: bins of 8 bits, or fewer of 11."""

FEW_TURNS = 2
"""Keys a lane holds of those left after :func:`held_search` dropped most."""

# Places in shared memory, in bytes.
BINS = 0
TOTALS = BINS + 4 * (1 << SCAN_BITS)
LEAST = TOTALS + 4 * WARPS
MOST = LEAST + 4 * WARPS
STATE = MOST + 4 * WARPS
CHOSEN = STATE + 16
WORDS = CHOSEN + 4 * MOST_BEST
FEW = WORDS + 4 * WARPS * (MAX_TURNS + 1)
SHARED_WORDS = FEW // 4 + FEW_TURNS * THREADS


@device_function
def _lane():
    return int32(cuda.threadIdx.x & 31)


@device_function
def _warp():
    return int32(cuda.threadIdx.x >> 5)


@device_function
def selection_key(score):
    """uint32 whose order is the preference: NaN 0, -inf to +inf, -0 equal to +0."""
    bits = float_as_int(libdevice.fadd_rn(score, float32(0)))
    key = uint32(uint32(bits) ^ (uint32(0xFFFFFFFF) if bits < 0 else uint32(0x80000000)))
    return key if score == score else uint32(0)


@device_function
def _scan(x):
    """Sum of ``x`` (int32) over this lane and those below it."""
    for i in range(5):
        below = int32(cuda.shfl_up_sync(ALL, x, 1 << i))
        if _lane() >= 1 << i:
            x = int32(x + below)
    return x


@device_function
def _extremes(least, most):
    """(least of ``least``, greatest of ``most``) over a warp, both uint32."""
    for i in range(5):
        least = min(least, uint32(cuda.shfl_xor_sync(ALL, int32(least), 16 >> i)))
        most = max(most, uint32(cuda.shfl_xor_sync(ALL, int32(most), 16 >> i)))
    return least, most


@device_function
def _before_warp(totals, x):
    """Sum over the warps below this one of ``x`` (int32, the same in all lanes), through 32 words at ``totals``."""
    if _lane() == 0:
        st_shared_i32(int32(totals + _warp() * 4), x)
    cuda.syncthreads()
    before, _ = _below(totals)
    return before


@device_function
def _below(totals):
    """(sum of the words at ``totals`` of the warps below this one, sum of all)."""
    total = ld_shared_i32(int32(totals + _lane() * 4))
    upto = _scan(total)
    return int32(cuda.shfl_sync(ALL, int32(upto - total), _warp())), int32(cuda.shfl_sync(ALL, upto, 31))


@device_function
def key_at(source, coded, element):
    """Key of ``element`` at the address ``source``: of a float32 score, or the ``coded`` key itself."""
    if coded:
        return uint32(ld_global_i32(source + int64(element) * 4))
    return selection_key(ld_global_f32_nc(source + int64(element) * 4))


def search(turns, held, scanned):
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
        place = source + int64(int32(start + _lane())) * 4
        room = int32(end - start - _lane())
        for i in range(turns):
            keys[i] = uint32(0)
            if 32 * i < room:
                keys[i] = key_at(place, coded, 32 * i)

    @device_function
    def bounds(keys, source, coded, chunks, first, end, shared):
        """(least key, greatest - least) of the thread block's elements, the warp's being ``first`` to ``end``."""
        least, most = uint32(0xFFFFFFFF), uint32(0)
        for chunk in range(chunks):
            start = int32(first + chunk * turns * 32)
            if not held:
                fill(keys, source, coded, start, end)
            room = int32(end - start - _lane())
            for i in range(turns):
                if 32 * i < room:
                    least = min(least, keys[i])
                most = max(most, keys[i])
        least, most = _extremes(least, most)
        if _lane() == 0:
            st_shared_i32(int32(shared + LEAST + _warp() * 4), int32(least))
            st_shared_i32(int32(shared + MOST + _warp() * 4), int32(most))
        cuda.syncthreads()
        least = uint32(ld_shared_i32(int32(shared + LEAST + _lane() * 4)))
        most = uint32(ld_shared_i32(int32(shared + MOST + _lane() * 4)))
        least, most = _extremes(least, most)
        return least, uint32(most - least)

    @device_function
    def scan_bins(shared, above, best):
        """Finds the bin of the ``best``-th key by a scan from the top, and empties the bins. Each lane has two.

        Writes it and the number of keys above it (``above`` of them above every bin) to the shared state."""
        lane = int32(cuda.threadIdx.x)
        top = int32(bins - 1 - 2 * lane)
        place = int32(shared + BINS + (top - 1) * 4)
        low, high = ld_shared_v2_i32(place)
        st_shared_v2_i32(place, int32(0), int32(0))
        mine = int32(low + high)
        upto = _scan(mine)
        if _lane() == 31:
            st_shared_i32(int32(shared + TOTALS + _warp() * 4), upto)
        cuda.syncthreads()
        before, _ = _below(int32(shared + TOTALS))
        before = int32(above + before + upto - mine)
        if before < best and before + mine >= best:
            in_high = before + high >= best
            st_shared_i32(int32(shared + STATE), top if in_high else int32(top - 1))
            st_shared_i32(int32(shared + STATE + 4), before if in_high else int32(before + high))
        elif lane == THREADS - 1 and before + mine < best:
            st_shared_i32(int32(shared + STATE), int32(0))
            st_shared_i32(int32(shared + STATE + 4), int32(before + mine))
        cuda.syncthreads()

    @device_function
    def walk_bins(shared, above, best):
        """:func:`scan_bins` by one lane."""
        if cuda.threadIdx.x == 0:
            place = int32(bins - 1)
            count = ld_shared_i32(int32(shared + BINS + place * 4))
            while place > 0 and above + count < best:
                above = int32(above + count)
                place = int32(place - 1)
                count = ld_shared_i32(int32(shared + BINS + place * 4))
            st_shared_i32(int32(shared + STATE), place)
            st_shared_i32(int32(shared + STATE + 4), above)
        cuda.syncthreads()
        if cuda.threadIdx.x < bins:
            st_shared_i32(int32(shared + BINS + cuda.threadIdx.x * 4), int32(0))
        cuda.syncthreads()

    find_bin = scan_bins if scanned else walk_bins

    @device_function
    def threshold(keys, source, coded, chunks, first, end, best, rounds, shared):
        """(key, keys above it) of the ``best``-th key of the thread block, ``best`` from 1 to the number of keys.

        Four ``rounds`` always find it; after fewer, the key may be a lower one and the count that of a whole bin's."""
        place = int32(cuda.threadIdx.x)
        while place < bins:
            st_shared_i32(int32(shared + BINS + place * 4), int32(0))
            place = int32(place + THREADS)
        least, span = bounds(keys, source, coded, chunks, first, end, shared)
        above = int32(0)
        while span > 0 and rounds > 0:
            rounds = int32(rounds - 1)
            shift = uint32(max(int32(0), int32(32 - bits - cuda.clz(int32(span)))))
            for chunk in range(chunks):
                if not held:
                    fill(keys, source, coded, int32(first + chunk * turns * 32), end)
                for i in range(turns):
                    offset = uint32(keys[i] - least)
                    bin_ = int32(uint32(offset >> shift))
                    # Nobody asks for the last bin's count: what no other bin holds is there, with its many ties.
                    if offset <= span and bin_ > 0:
                        red_shared_add_i32(int32(shared + BINS + bin_ * 4), int32(1))
            cuda.syncthreads()
            find_bin(shared, above, best)
            skipped = uint32(uint32(ld_shared_i32(int32(shared + STATE))) << shift)
            above = ld_shared_i32(int32(shared + STATE + 4))
            least = uint32(least + skipped)
            span = min(uint32(span - skipped), uint32(uint32(uint32(1) << shift) - uint32(1)))
        return least, above

    @device_function
    def choose(keys, source, coded, chunks, first, end, limit, above, best, shared):
        """Lists the ``best`` elements in ascending order at shared + CHOSEN: all with keys above ``limit`` (``above``
        of them), then the first at it. The rank of the last one at it goes to the shared state."""
        equal_wanted = int32(best - above)
        greater, equal = int32(0), int32(0)
        for chunk in range(chunks):
            start = int32(first + chunk * turns * 32)
            if not held:
                fill(keys, source, coded, start, end)
            room = int32(end - start - _lane())
            for i in range(turns):
                is_equal = keys[i] == limit and 32 * i < room
                greater = int32(greater + cuda.popc(cuda.ballot_sync(ALL, keys[i] > limit)))
                equal = int32(equal + cuda.popc(cuda.ballot_sync(ALL, is_equal)))
        # Both counts in one word: no more than `best` of either kind matter, and 32 * 1024 stays below 2^16.
        before = _before_warp(int32(shared + TOTALS), int32(greater + min(equal, equal_wanted) * 65536))
        greater, equal = int32(before & 0xFFFF), int32(before >> 16)
        below = uint32(uint32(uint32(1) << uint32(_lane())) - uint32(1))
        for chunk in range(chunks):
            start = int32(first + chunk * turns * 32)
            if not held:
                fill(keys, source, coded, start, end)
            room = int32(end - start - _lane())
            for i in range(turns):
                is_greater = keys[i] > limit
                is_equal = keys[i] == limit and 32 * i < room
                all_greater = uint32(cuda.ballot_sync(ALL, is_greater))
                all_equal = uint32(cuda.ballot_sync(ALL, is_equal))
                if all_greater | all_equal:
                    equal_before = int32(equal + cuda.popc(uint32(all_equal & below)))
                    if is_greater or (is_equal and equal_before < equal_wanted):
                        rank = int32(greater + cuda.popc(uint32(all_greater & below)) + min(equal_before, equal_wanted))
                        st_shared_i32(int32(shared + CHOSEN + rank * 4), int32(start + i * 32 + _lane()))
                        if is_equal and equal_before == equal_wanted - 1:
                            st_shared_i32(int32(shared + STATE + 8), rank)
                    greater = int32(greater + cuda.popc(all_greater))
                    equal = int32(equal + cuda.popc(all_equal))
        cuda.syncthreads()

    return fill, threshold, choose


def reading_search(turns, scanned):
    """Device function as :func:`held_search`'s, for any number of keys, which it reads again in every pass."""
    _, threshold, choose = search(turns, False, scanned)

    @device_function
    def best_of(source, coded, count, best, shared):
        keys = cuda.local.array(turns, uint32)
        run = int32((count + THREADS - 1) // THREADS * 32)
        first = int32(_warp() * run)
        end = min(int32(first + run), count)
        chunks = int32((run // 32 + turns - 1) // turns)
        limit, above = threshold(keys, source, coded, chunks, first, end, best, ROUNDS, shared)
        choose(keys, source, coded, chunks, first, end, limit, above, best, shared)

    return best_of


def held_search(turns):
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
    def lower_bound(keys, best, shared):
        """A key that at least ``best`` keys reach: one round of the search over the lanes' greatest keys."""
        greatest = cuda.local.array(1, uint32)
        greatest[0] = uint32(0)
        for i in range(turns):
            greatest[0] = max(greatest[0], keys[i])
        first = int32(_warp() * 32)
        bound, _ = lane_threshold(greatest, int64(0), True, 1, first, int32(first + 32), best, int32(1), shared)
        return bound

    @device_function
    def keep(keys, first, end, count, bound, shared):
        """Lists the elements whose keys reach ``bound`` in ascending order at FEW, as far as there is room.

        Returns how many there are."""
        room = int32(end - first - _lane())
        for i in range(turns):
            reached = uint32(cuda.ballot_sync(ALL, keys[i] >= bound and 32 * i < room))
            if _lane() == 0 and first + 32 * i < end:
                st_shared_i32(int32(shared + WORDS + (first // 32 + i) * 4), int32(reached))
        cuda.syncthreads()
        word, one, two = int32(2 * cuda.threadIdx.x), uint32(0), uint32(0)
        if 32 * word < count:
            one = uint32(ld_shared_i32(int32(shared + WORDS + word * 4)))
        if 32 * word + 32 < count:
            two = uint32(ld_shared_i32(int32(shared + WORDS + word * 4 + 4)))
        mine = int32(cuda.popc(one) + cuda.popc(two))
        upto = _scan(mine)
        if _lane() == 31:
            st_shared_i32(int32(shared + TOTALS + _warp() * 4), upto)
        cuda.syncthreads()
        before, total = _below(int32(shared + TOTALS))
        rank = int32(before + upto - mine)
        for i in range(2):
            left = one if i == 0 else two
            while left != 0:
                lowest = uint32(left & uint32(uint32(0) - left))
                if rank < few:
                    element = int32((word + i) * 32 + cuda.popc(uint32(lowest - uint32(1))))
                    st_shared_i32(int32(shared + FEW + rank * 4), element)
                rank = int32(rank + 1)
                left = uint32(left ^ lowest)
        cuda.syncthreads()
        return total

    @device_function
    def best_of(source, coded, count, best, shared):
        keys = cuda.local.array(turns, uint32)
        run = int32((count + THREADS - 1) // THREADS * 32)
        first = int32(_warp() * run)
        end = min(int32(first + run), count)
        fill(keys, source, coded, first, end)
        kept = count
        if count > few:
            bound = lower_bound(keys, best, shared)
            kept = keep(keys, first, end, count, bound, shared)
        else:
            for i in range(FEW_TURNS):
                element = int32(cuda.threadIdx.x + i * THREADS)
                st_shared_i32(int32(shared + FEW + element * 4), element)
            cuda.syncthreads()
        if kept > few:
            limit, above = threshold(keys, source, coded, 1, first, end, best, ROUNDS, shared)
            choose(keys, source, coded, 1, first, end, limit, above, best, shared)
        else:
            few_keys = cuda.local.array(FEW_TURNS, uint32)
            run = int32((kept + THREADS - 1) // THREADS * 32)
            first = int32(_warp() * run)
            end = min(int32(first + run), kept)
            room = int32(end - first - _lane())
            for i in range(FEW_TURNS):
                few_keys[i] = uint32(0)
                if 32 * i < room:
                    element = ld_shared_i32(int32(shared + FEW + (first + 32 * i + _lane()) * 4))
                    few_keys[i] = key_at(source, coded, element)
            limit, above = few_threshold(few_keys, source, coded, 1, first, end, best, ROUNDS, shared)
            few_choose(few_keys, source, coded, 1, first, end, limit, above, best, shared)
            rank = int32(cuda.threadIdx.x)
            if rank < best:
                element = ld_shared_i32(int32(shared + CHOSEN + rank * 4))
                st_shared_i32(int32(shared + CHOSEN + rank * 4), ld_shared_i32(int32(shared + FEW + element * 4)))
            cuda.syncthreads()

    return best_of


def expansion(ratio):
    """Device functions (record, write) of rows of selected blocks of ``ratio`` cells."""

    @device_function
    def record(steps, row, max_blocks):
        """(n_kv, n_bid, width, best) of a step record, best = blocks to select; all 0 for a record that selects
        nothing or does not belong to ``max_blocks``."""
        _, n_kv, n_bid, width = ld_global_v4_i32_nc(global_base(steps) + int64(row) * 16)
        tail = int32(n_kv - n_bid * ratio)
        best = int32(int32(width - tail + ratio - 1) // ratio)
        fits = n_kv > 0 and 0 <= n_bid <= max_blocks and 0 <= tail < ratio and tail <= width <= n_kv
        if not fits or best > MOST_BEST or best > n_bid:
            return int32(0), int32(0), int32(0), int32(0)
        return n_kv, n_bid, width, best

    @device_function
    def write(ids, row, cap, n_kv, n_bid, width, labels, shared):
        """Writes a row of ids: the chosen blocks' cells, the tail, then -1. A chosen element's block is the word of
        ``labels`` (an address) at it, or itself when that is 0. The block at the rank in the state is cut to fit."""
        tail = int32(n_kv - n_bid * ratio)
        cells = int32(width - tail)
        missing = int32((ratio - cells % ratio) % ratio)
        cut = cells
        if missing > 0:
            cut = int32(ld_shared_i32(int32(shared + STATE + 8)) * ratio + ratio - missing)
        place = int32(cuda.threadIdx.x)
        out = global_base(ids) + int64(row) * cap * 4
        while place < cap:
            cell = int32(-1)
            if width == n_kv and place < width:
                cell = place
            elif place < cells:
                source = int32(place + missing) if place >= cut else place
                block = ld_shared_i32(int32(shared + CHOSEN + source // ratio * 4))
                if labels != 0:
                    block = ld_global_i32(labels + int64(block) * 4)
                cell = int32(block * ratio + source % ratio)
            elif place < width:
                cell = int32(n_bid * ratio + place - cells)
            st_global_i32(out + int64(place) * 4, cell)
            place = int32(place + THREADS)

    return record, write


@specialised
def one_block(turns, held, scanned, ratio):
    """The kernel that gives a thread block to a row: grid (rows), 1,024 lanes.

    ``held``: ``turns`` keys a lane stay in registers, up to 1,024 * ``turns`` blocks a row; otherwise keys are read
    again in every pass, ``turns`` at a time, and any number will do. ``scanned`` as for :func:`search`.
    """
    best_of = held_search(turns) if held else reading_search(turns, scanned)
    record, write = expansion(ratio)

    @kernel(launch_bounds=(THREADS, 1))
    def select(scores, steps, ids, max_blocks, cap):
        words = cuda.shared.array(SHARED_WORDS, int32)
        shared = shared_base(words)
        row = int32(cuda.blockIdx.x)
        n_kv, n_bid, width, best = record(steps, row, max_blocks)
        if width < n_kv and best > 0:
            source = global_base(scores) + int64(row) * max_blocks * 4
            best_of(source, False, n_bid, best, shared)
        write(ids, row, cap, n_kv, n_bid, width, int64(0), shared)

    return select


@specialised
def spread(turns, ratio):
    """The kernel that spreads a row over thread blocks: grid (rows, slices), 1,024 lanes.

    A thread block finds the best of its slice of at most 1,024 * ``turns`` blocks and puts their keys and numbers into
    the row's scratch; the one that comes last selects among those. It waits for nobody, so any number of them may be
    resident. A row that fits one slice is selected by one thread block. ``scratch`` [rows, words_per_row] int32: a
    counter, 0 before and after, then keys, then numbers.
    """
    best_of = held_search(turns)
    record, write = expansion(ratio)

    @kernel(launch_bounds=(THREADS, 1))
    def select(scores, steps, ids, scratch, max_blocks, cap, words_per_row):
        words = cuda.shared.array(SHARED_WORDS, int32)
        shared = shared_base(words)
        row, slice_ = int32(cuda.blockIdx.x), int32(cuda.blockIdx.y)
        n_kv, n_bid, width, best = record(steps, row, max_blocks)
        slices = int32((n_bid + THREADS * turns - 1) // (THREADS * turns))
        if width == n_kv or best == 0:
            slices = int32(1)
        if slice_ >= slices:
            return
        labels = int64(0)
        if width < n_kv and best > 0:
            source = global_base(scores) + int64(row) * max_blocks * 4
            length = int32((uint32(n_bid) + uint32(slices) - uint32(1)) // uint32(slices))
            start = int32(slice_ * length)
            source = source + int64(start) * 4
            best_of(source, False, min(length, int32(n_bid - start)), best, shared)
            if slices > 1:
                counter = global_base(scratch) + int64(row) * words_per_row * 4
                found = counter + 4
                labels = found + int64(cuda.gridDim.y * best) * 4
                rank = int32(cuda.threadIdx.x)
                if rank < best:
                    element = ld_shared_i32(int32(shared + CHOSEN + rank * 4))
                    place = int64(slice_ * best + rank) * 4
                    st_global_i32(found + place, int32(selection_key(ld_global_f32_nc(source + int64(element) * 4))))
                    st_global_i32(labels + place, int32(start + element))
                cuda.syncthreads()
                if cuda.threadIdx.x == 0:
                    # Orders the thread block's words before, and those of the ones that came earlier after.
                    st_shared_i32(int32(shared + STATE), atom_global_inc(counter, int32(slices - 1)))
                cuda.syncthreads()
                if ld_shared_i32(int32(shared + STATE)) != slices - 1:
                    return
                best_of(found, True, int32(slices * best), best, shared)
        write(ids, row, cap, n_kv, n_bid, width, labels, shared)

    return select
