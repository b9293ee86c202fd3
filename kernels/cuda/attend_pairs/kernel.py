"""The exact ``attend`` of two rows at a time, whose cells are mostly the same: rows of a window or a prompt, sm_90, int8.

Two neighbouring rows of one slot and one KV head have two blocks, a cluster. Each block takes one half of the cells
that the rows have together: cells of both are read, looked up and brought into the products' order once (cells.py,
scores.py); then it weighs the values for one row after the other (values.py). A block finishes the row of its rank and
sends the other block its maxima and, of the other row, masses and sums, so the second row's values hide the sending.

Where two rows have less than half of their cells in common, belong to different slots, select nothing, or have ids
that do not ascend, each block takes its row alone, as ``attend_exact`` does with one block a row. All of it is decided
on the device, alike in both blocks. The bytes are the same in every case: sums are integers, and maxima are taken over
a row's own cells alone.
"""

from collections.abc import Iterator
from typing import Any

from ..attend_exact import exchange_cluster, gather, outputs, values
from ..attend_exact.gather import field
from ..attend_exact.query import load_query, store_query
from ..attend_exact.scores import load_tile
from ..attend_exact.shared_memory import (
    BOX_BYTES,
    DIM,
    FACTORS_OFFSET,
    HEAD_BYTES,
    HEADS,
    K_CODES,
    MAXIMA_OFFSET,
    PADDING,
    RECORDS_OFFSET,
    STEP,
    SUM_PAIRS,
    SUM_PIECES,
    SUMS,
    TILE,
    TOTALS_OFFSET,
    V_CODES,
)
from ..toolchain.compiler import cuda, device_function, float32, int32, int64, kernel, specialised, uint32
from ..toolchain.ptx import (
    cluster_arrive_relaxed,
    cluster_wait,
    fence_mbarrier_init,
    global_base,
    half_to_float,
    ld_global_i32_nc,
    ld_shared_i32,
    ld_shared_i64,
    ld_shared_v2_i64,
    ld_shared_v4_i32,
    map_shared,
    mbarrier_arrive_expect,
    mbarrier_init,
    mma_s8,
    mma_u8,
    shared_window,
    st_async_i64,
    st_async_v2_i64,
    st_async_v4_i32,
    st_shared_f32,
    st_shared_i32,
    st_shared_i64,
    st_shared_v2_i32,
    st_shared_v4_i32,
)
from ..toolchain.ptx_rows import F3, I1, I2, TENSOR_CORE, PtxRow, signature_of
from . import cells as common_cells
from . import scores
from . import values as shared_values
from .layout import (
    BARRIERS_OFFSET,
    BOX_OFFSET,
    COUNTERS_OFFSET,
    EACH,
    FIXED,
    INBOX_BYTES,
    MASSES,
    PARTS,
    PLACES_OFFSET,
    POWER_BYTES,
    ROW_BYTES,
    SCALE_WORDS,
    STAGING,
    THREADS,
    WARPS,
)

BOX_PIECES = HEADS * BOX_BYTES // 16
"""16-byte pieces of a row's maxima."""


@device_function
def open_barriers(base):
    """One lane: this block's mbarriers, for the other's maxima of both rows, and for its masses and sums of one."""
    at = int32(base + BARRIERS_OFFSET)
    mbarrier_init(at, int32(1))
    mbarrier_init(int32(at + 8), int32(1))
    fence_mbarrier_init()
    mbarrier_arrive_expect(at, int32(2 * HEADS * BOX_BYTES))
    mbarrier_arrive_expect(int32(at + 8), int32(SUMS * 8 + HEADS * 8))


@device_function
def send_maxima(base, peer, thread):
    """Send this block's maxima of both rows to the other block's box."""
    if thread < 2 * BOX_PIECES:
        row, piece = int32(thread // BOX_PIECES), int32(thread % BOX_PIECES)
        at = int32(base + MAXIMA_OFFSET + row * ROW_BYTES + (piece >> 1) * HEAD_BYTES + (piece & 1) * 16)
        a, b, c, d = ld_shared_v4_i32(at)
        there = map_shared(int32(base + BOX_OFFSET + thread * 16), peer)
        st_async_v4_i32(there, a, b, c, d, map_shared(int32(base + BARRIERS_OFFSET), peer))


@device_function
def fold_maxima(base, row, head, lane):
    """One warp: the larger of this block's and the other's maxima of a head into its record."""
    own = int32(base + row * ROW_BYTES + head * HEAD_BYTES + lane * 4)
    if lane < exchange_cluster.KINDS:
        other = ld_shared_i32(int32(base + BOX_OFFSET + (row * HEADS + head) * BOX_BYTES + lane * 4))
        st_shared_i32(int32(own + RECORDS_OFFSET), max(ld_shared_i32(int32(own + MAXIMA_OFFSET)), other))


@device_function
def store_scales(k_raw, v_raw, slots, k_scale, exponents, v_scale, thread):
    """The scales of the lane's slots to shared memory: those of K as they are, those of V also as exponents."""
    for i in range(EACH):
        slot = int32(thread + i * THREADS)
        if slot < slots:
            st_shared_v2_i32(int32(k_scale + slot * 8), k_raw[2 * i], k_raw[2 * i + 1])
            low, high = v_raw[2 * i], v_raw[2 * i + 1]
            s0, s1 = half_to_float(int32(low & 0x7FFF)), half_to_float(int32((low >> 16) & 0x7FFF))
            s2, s3 = half_to_float(int32(high & 0x7FFF)), half_to_float(int32((high >> 16) & 0x7FFF))
            at = int32(v_scale + slot * 4)
            st_shared_f32(at, s0)
            st_shared_f32(int32(at + slots * 4), s1)
            st_shared_f32(int32(at + slots * 8), s2)
            st_shared_f32(int32(at + slots * 12), s3)
            at = int32(exponents + slot * 16)
            st_shared_v4_i32(
                at, gather.exponent(s0), gather.exponent(s1), gather.exponent(s2), gather.exponent(s3)
            )


@specialised
def build(n_head_kv: int, group: int) -> Any:
    """The kernel for ``n_head_kv`` KV heads with ``group`` query heads each, at most 12."""
    _, find_rows, load_cell_scales, _ = gather.make(4, 4, n_head_kv, THREADS, EACH)
    score_cells = scores.make(mma_s8)
    weigh_values = shared_values.make(mma_u8)
    _, store_sums = values.make(4, PARTS, mma_u8)

    @kernel(launch_bounds=(THREADS, 1), shared_memory_carveout=100)
    def attend_exact_pairs(q, ids, steps, slots, pools, first, n_pools, room, out):
        """q, out [rows, n_head, 256]; ids [rows, cap]; steps [rows, 4]; slots [rows]; ``pools``, ``first``, ``n_pools``
        as in ``attend_exact``; ``room``: bytes of shared memory from ``FIXED`` on. Grid: two blocks, a cluster, for
        each two rows and KV head."""
        thread, rank = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x & 1)
        lane, warp = int32(thread & 31), int32(thread >> 5)
        pair = int32(uint32(cuda.blockIdx.x >> 1) // uint32(n_head_kv))
        kv_head = int32((cuda.blockIdx.x >> 1) - pair * n_head_kv)
        # Not known to the compiler.
        nothing = int32(cuda.blockIdx.y)
        rows_given, capacity, room = int32(ids.shape[0]), int32(ids.shape[1]), int32(room)
        row = int32(pair * 2 + rank)
        other_row = int32(pair * 2 + 1 - rank)
        if row >= rows_given:
            return
        which, sharing = int32(0), other_row < rows_given
        other_row = min(other_row, int32(rows_given - 1))
        if n_pools > 0:
            which = int32(slots[row] - first)
            sharing = sharing and slots[other_row] - first == which
            if which < 0 or which >= n_pools:
                return
        counts = global_base(steps) + 12
        width = min(max(ld_global_i32_nc(counts + int64(row) * 16), int32(0)), capacity)
        other_width = min(max(ld_global_i32_nc(counts + int64(other_row) * 16), int32(0)), capacity)
        sharing = sharing and width > 0 and other_width > 0

        base = shared_window(cuda.shared.array(0, int32))
        # Of the pair's first and second row, whatever the rank.
        queries = cuda.local.array(16, float32)
        found, second = cuda.local.array(EACH, int32), cuda.local.array(EACH, int32)
        widths = cuda.local.array(2, int32)
        selection = global_base(ids) + int64(pair * 2) * int64(capacity) * 4
        row_bytes = int64(n_head_kv * group * (DIM * 4))
        query_at = global_base(q) + int64(pair * 2) * row_bytes + int64(kv_head * group + warp) * (DIM * 4)
        widths[0] = other_width if rank else width
        widths[1] = width if rank else other_width
        if not sharing:
            widths[0] = int32(0) if rank else width
            widths[1] = width if rank else int32(0)
        common_cells.load_ids(found, selection, widths[0], thread)
        common_cells.load_ids(second, selection + int64(capacity) * 4, widths[1], thread)
        load_query(queries, 0, query_at, warp < group and (sharing or rank == 0), lane)
        load_query(queries, 8, query_at + row_bytes, warp < group and (sharing or rank == 1), lane)
        store_query(queries, 0, warp, 4, base, lane)
        store_query(queries, 8, warp, 4, int32(base + ROW_BYTES), lane)

        counters = int32(base + COUNTERS_OFFSET)
        low = int32(base + FIXED)
        both, only = int32(0), int32(0)
        if sharing:
            both, only = common_cells.compare(
                found, second, widths[0], widths[1], low, counters, lane, thread
            )
            cuda.syncthreads()
            packed = ld_shared_i32(int32(counters + common_cells.COMMON))
            many = 2 * ((packed & 0xFFFF) + (packed >> 16)) >= min(widths[0], widths[1])
            sharing = many and ld_shared_i32(int32(counters + common_cells.ASTRAY)) == 0
            for half in range(2):
                sharing = sharing and common_cells.fits(counters, widths[0], int32(half), room)
        # Slots: those of both rows, of the first alone, of the second alone.
        common, first_own, second_own = int32(0), common_cells.padded(widths[0]), common_cells.padded(widths[1])
        if not sharing:
            first_own = int32(0) if rank else max(common_cells.padded(width), int32(STEP))
            second_own = max(common_cells.padded(width), int32(STEP)) if rank else int32(0)
        exact_common, exact_first, exact_second = int32(0), int32(0), int32(0)
        if sharing:
            exact_common, exact_first, exact_second = common_cells.sizes(counters, widths[0], rank)
            common = max(common_cells.padded(exact_common), int32(STEP))
            first_own, second_own = common_cells.padded(exact_first), common_cells.padded(exact_second)
        first_end = int32(common + first_own)
        slots_used = int32(first_end + second_own)
        k_scale = low
        exponents = int32(k_scale + slots_used * 8)
        powers = int32(exponents + slots_used * 16)
        rows = powers
        if sharing:
            others = first_own if rank else second_own
            rows = max(int32(powers + (common + others + PADDING) * POWER_BYTES), int32(low + STAGING))
        v_scale = int32(rows + slots_used * 4)
        own_powers = int32(v_scale + slots_used * 16)
        inbox = int32(low + room - INBOX_BYTES)
        places = cuda.local.array(8, int32)
        places[0], places[4] = (powers, own_powers) if rank else (own_powers, powers)
        places[2], places[6] = first_end, int32(common + second_own)
        places[1], places[5] = int32(places[2] + PADDING), int32(places[6] + PADDING)
        places[3], places[7] = int32(0), first_own
        if thread == 0:
            at = int32(base + PLACES_OFFSET)
            st_shared_v4_i32(at, places[0], places[1], places[2], places[3])
            st_shared_v4_i32(int32(at + 16), places[4], places[5], places[6], places[7])
            if sharing:
                open_barriers(base)

        if sharing:
            taken = int32(counters + common_cells.TAKEN)
            within = common_cells.within_half(widths[0], rank, thread)
            common_cells.take_slots(found, within & both, int32(0), taken, rows, lane)
            alone = within & (both ^ -1)
            common_cells.take_slots(found, alone, common, int32(taken + 4), rows, lane)
            alone = common_cells.within_half(widths[1], rank, thread) & only
            common_cells.take_slots(second, alone, first_end, int32(taken + 8), rows, lane)
            common_cells.fill(rows, exact_common, common, thread)
            common_cells.fill(rows, int32(common + exact_first), first_end, thread)
            common_cells.fill(rows, int32(first_end + exact_second), slots_used, thread)
        else:
            for i in range(EACH):
                at = int32(thread + i * THREADS)
                cell = second[i] if rank else found[i]
                if at < slots_used:
                    st_shared_i32(int32(rows + at * 4), cell if at < width else int32(-1))
        cuda.syncthreads()
        looked_up = cuda.local.array(EACH, int32)
        for i in range(EACH):
            at = int32(thread + i * THREADS)
            looked_up[i] = int32(-1)
            if at < slots_used:
                looked_up[i] = ld_shared_i32(int32(rows + at * 4))
        find_rows(looked_up, slots_used, pools, which, kv_head, rows, thread)
        cuda.syncthreads()
        if sharing:
            cluster_arrive_relaxed()
        k_codes = field(pools, which, K_CODES)
        raw_k = cuda.local.array(32, int32)
        load_tile(raw_k, k_codes, min(warp, int32(slots_used // TILE - 1)), rows, lane, 4)
        k_raw, v_raw = cuda.local.array(SCALE_WORDS, int32), cuda.local.array(SCALE_WORDS, int32)
        load_cell_scales(looked_up, k_raw, v_raw, pools, which)
        store_scales(k_raw, v_raw, slots_used, k_scale, exponents, v_scale, thread)
        cuda.syncthreads()

        # A block alone takes its own maxima for the row's.
        maxima = int32(MAXIMA_OFFSET) if sharing else int32(RECORDS_OFFSET)
        score_cells(
            raw_k,
            k_codes,
            common,
            first_end,
            slots_used,
            base,
            maxima,
            rows,
            k_scale,
            exponents,
            places,
            nothing,
            warp,
            lane,
        )
        peer = int32(1 - rank)
        turn = peer if sharing else rank
        raw_v = cuda.local.array(16, int32)
        v_base = values.lane_base(field(pools, which, V_CODES), warp, lane, 4)
        _, _, count, apart = ld_shared_v4_i32(int32(base + PLACES_OFFSET + turn * 16))
        shared_values.load_first(raw_v, v_base, count, common, apart, rows, warp, lane)
        cuda.syncthreads()
        sums_there = int32(0)
        if sharing:
            cluster_wait()
            send_maxima(base, peer, thread)
            exchange_cluster.await_bytes(int32(base + BARRIERS_OFFSET))
            sums_there = map_shared(int32(base + BARRIERS_OFFSET + 8), peer)
            for of in range(2):
                fold_maxima(base, int32(of), warp, lane)
            cuda.syncwarp()
        for step in range(2 if sharing else 1):
            of = int32(turn ^ step)
            at = int32(base + of * ROW_BYTES)
            scores_at, stride, count, _ = ld_shared_v4_i32(int32(base + PLACES_OFFSET + of * 16))
            records = int32(at + RECORDS_OFFSET)
            mass_of = values.store_powers(int32(scores_at + warp * stride * 4), count, records, warp, lane)
            if lane == 0:
                if of == rank:
                    st_shared_i64(int32(at + TOTALS_OFFSET + warp * 8), mass_of)
                else:
                    st_async_i64(map_shared(int32(inbox + MASSES + warp * 8), peer), mass_of, sums_there)
            if lane < 4:
                values.store_factors(records, int32(at + FACTORS_OFFSET), warp, lane)
        cuda.syncthreads()

        for step in range(2 if sharing else 1):
            of = int32(turn ^ step)
            at = int32(base + of * ROW_BYTES)
            scores_at, stride, count, apart = ld_shared_v4_i32(int32(base + PLACES_OFFSET + of * 16))
            sums = cuda.local.array(96, int32)
            weigh_values(
                raw_v,
                v_base,
                count,
                common,
                apart,
                warp,
                scores_at,
                stride,
                v_scale,
                slots_used,
                int32(at + FACTORS_OFFSET),
                rows,
                sums,
                lane,
            )
            if of != rank:
                # The next row's V is under way while this row's sums are sent.
                _, _, count, apart = ld_shared_v4_i32(int32(base + PLACES_OFFSET + rank * 16))
                shared_values.load_first(raw_v, v_base, count, common, apart, rows, warp, lane)
            cuda.syncthreads()
            store_sums(sums, low, warp, lane)
            if of == rank and sharing and thread < HEADS:
                exchange_cluster.await_bytes(int32(base + BARRIERS_OFFSET + 8))
                mass_at = int32(at + TOTALS_OFFSET + thread * 8)
                received = ld_shared_i64(int32(inbox + MASSES + thread * 8))
                st_shared_i64(mass_at, ld_shared_i64(mass_at) + received)
            cuda.syncthreads()
            if of != rank:
                for index in range(thread, int32(SUM_PAIRS), int32(THREADS)):
                    x, y = outputs.add_parts(low, int32(index), PARTS)
                    st_async_v2_i64(map_shared(int32(inbox + index * 16), peer), x, y, sums_there)
            else:
                if sharing:
                    exchange_cluster.await_bytes(int32(base + BARRIERS_OFFSET + 8))
                results = global_base(out) + int64(row) * row_bytes + int64(kv_head * group) * (DIM * 4)
                records, totals = int32(at + RECORDS_OFFSET), int32(at + TOTALS_OFFSET)
                total = cuda.local.array(4, int64)
                for piece in range(thread, int32(SUM_PIECES), int32(THREADS)):
                    index = int32(((piece >> 5) << 6) + lane)
                    for half in range(2):
                        x, y = outputs.add_parts(low, int32(index + half * 32), PARTS)
                        if sharing:
                            more, further = ld_shared_v2_i64(int32(inbox + (index + half * 32) * 16))
                            x += more
                            y += further
                        total[2 * half], total[2 * half + 1] = x, y
                    head, dim = outputs.dims_of_lane_index(index, 4)
                    if head < group:
                        outputs.put_four(total, head, dim, results, int32(0), records, totals, 4)

    return attend_exact_pairs


def ptx_rows() -> Iterator[PtxRow]:
    """The build whose PTX is checked; its clusters are sm_90's."""
    signature = signature_of(F3, I2, I2, I1, "UniTuple(int64, 28)", *["int64"] * 3, F3)
    expect = (*TENSOR_CORE, "barrier.cluster.arrive.relaxed", "mbarrier.try_wait", "st.async")
    yield PtxRow("attend_exact_pairs", build.build(2, 12), signature, expect=expect, minimum=(9, 0))
