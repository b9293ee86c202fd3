"""The kernel of the exact ``attend``: one launch takes ids to outputs, in every schedule.

Reading order: this file, then query, gather, scores, values, exchange_scratch, exchange_cluster, outputs;
shared_memory.py says where everything lies. A block of 4 * ``parts`` warps takes the cells of one row, KV head and
split:

1. It turns ids into rows of the pool and reads their scales (gather.py), and it cuts the query into limbs (query.py).
2. It computes scores and maxima (scores.py). The blocks of a row exchange their maxima.
3. It turns scores into powers and mass, and weighs the values (values.py). The warps add up their sums.
4. It writes the outputs (outputs.py). Where several blocks share a row, each sends the others their shares of the
   sums first, and writes its own share of the outputs.

The blocks of a row exchange through the scratch (exchange_scratch.py) or, on sm_90, as a cluster
(exchange_cluster.py). K and V are read once, straight into registers. While scores and weighted values are
computed, no warp waits for another, which hides the loads.

One file: it holds one kernel, whose parts are in the files above already.
"""

from collections.abc import Iterator
from typing import Any

from ..common.pool_tables import KIND, kind_of, readers
from ..toolchain.compiler import cuda, device_function, float32, int32, int64, kernel, specialised, uint32
from ..toolchain.constants import FULL_WARP
from ..toolchain.mma_dp4a import mma_s8_by_dp4a, mma_u8_by_dp4a
from ..toolchain.ptx import (
    cluster_arrive_relaxed,
    cluster_wait,
    global_base,
    ld_global_i32_nc,
    ld_shared_i64,
    ld_shared_v4_i32,
    mma_s8,
    mma_u8,
    shared_window,
    st_shared_i64,
    st_shared_v4_i32,
    wait_for_earlier,
)
from ..toolchain.ptx_rows import F3, I1, I2, TENSOR_CORE, PtxRow, signature_of
from . import exchange_cluster, exchange_scratch, gather, outputs, scores, values
from .query import load_query, store_query
from .shared_memory import (
    BARRIERS_OFFSET,
    BOX_BYTES,
    CELLS_OFFSET,
    DIM,
    FACTORS_OFFSET,
    HEADS,
    K_CODES,
    KEPT_OFFSET,
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
    V_CODES_OFFSET,
    WARP_PAIRS,
    cell_bytes,
    staging,
)

CODING_OF = {4: "int8", 8: "q4_0"}
"""Scales of a cell -> coding."""


@device_function
def opaque(thread):
    """``thread``, by a shuffle that no compiler sees through: it computes again what it computed of ``thread`` before,
    which so takes no registers in between."""
    return int32(cuda.shfl_xor_sync(FULL_WARP, thread, 0))


@specialised
def build(
    k_groups: int,
    v_groups: int,
    n_head_kv: int,
    group: int,
    parts: int,
    each: int,
    matrix: bool = True,
    cluster: bool = False,
    once: bool = False,
    tabled: bool = False,
) -> Any:
    """The kernel for one format and geometry.

    k_groups, v_groups  scales a cell (4: int8, 8: q4_0)
    group               query heads per KV head, at most 12
    parts               1 or 3: blocks of 128 or 384 lanes
    each                cells that a lane looks up: at least room / lanes; more costs time
    matrix              products on tensor cores (sm_80 and newer), otherwise by dp4a
    cluster             the blocks of a row and KV head are one cluster (sm_90; int8 alone), of at most 16 blocks
    once                no warp has more than one tile of cells to score: room is at most a tile for each warp
    tabled              the slots' pools come in a table, and rows of slots of another format are left alone
    """
    threads, warps = 128 * parts, 4 * parts
    heads_per_warp, query_values = HEADS // warps, 8 * HEADS // warps
    k_words, v_words = each * k_groups // 2, each * v_groups // 2
    # With few cells the ids load while the query is rewritten; with many cells the first K does.
    early = each == 1
    k_registers = 32 if k_groups == 4 else 16
    each_cell, staging_bytes = cell_bytes(k_groups, v_groups), staging(parts)
    signed, unsigned = (mma_s8, mma_u8) if matrix else (mma_s8_by_dp4a, mma_u8_by_dp4a)
    find, field = readers(tabled)
    kind = kind_of(*(CODING_OF[groups] for groups in (k_groups, v_groups)))
    looking = gather.make(k_groups, v_groups, n_head_kv, threads, each, field)
    load_ids, find_rows, load_cell_scales, store_scales = looking
    score_cells = scores.make(k_groups, v_groups, signed, once)
    weigh_values, store_sums = values.make(v_groups, parts, unsigned)

    @kernel(launch_bounds=(threads, 1), shared_memory_carveout=100)
    def attend_exact(q, ids, steps, slots, pools, n_pools, splits, room, scratch, out):
        """q, out [rows, n_head, 256]; ids [rows, cap]; steps [rows, 4]; slots [rows]; ``pools`` as POOL_FIELDS says, or
        a pool table [slots, 8]; ``n_pools`` 0: one pool for every row; ``room``: cells of shared memory; scratch
        int64, ``exchange_scratch.words`` for each row and KV head. Grid: rows * n_head_kv * splits blocks."""
        thread = int32(cuda.threadIdx.x)
        lane, warp = int32(thread & 31), int32(thread >> 5)
        splits, room = int32(splits), int32(room)
        row_head = int32(uint32(cuda.blockIdx.x) // uint32(splits))
        split = int32(cuda.blockIdx.x - row_head * splits)
        row = int32(row_head // n_head_kv)
        kv_head = int32(row_head - row * n_head_kv)
        which = int32(0)
        wait_for_earlier()
        if n_pools > 0:
            which = int32(slots[row])
            if which < 0 or which >= n_pools:
                return
        held = find(pools, which)
        # Loads from global memory start well before their values are needed.
        first_head = int64(row) * (n_head_kv * group) + int64(kv_head * group)
        queries = cuda.local.array(query_values, float32)
        for i in range(heads_per_warp):
            head = int32(warp + i * warps)
            load_query(queries, 8 * i, global_base(q) + (first_head + head) * (DIM * 4), head < group, lane)
        capacity = int32(ids.shape[1])
        width = min(max(ld_global_i32_nc(global_base(steps) + int64(row) * 16 + 12), int32(0)), capacity)
        # Equal shares of what this row selects, whatever its ids have room for.
        share = int32(uint32(width + splits * STEP - 1) // uint32(splits * STEP) * STEP)
        share = max(share, int32(STEP))
        active = max(int32(uint32(width + share - 1) // uint32(share)), int32(1))
        if split >= active:
            return
        begin = int32(split * share)
        count = min(int32(width - begin), share)
        padded = max(int32((count + STEP - 1) // STEP * STEP), int32(STEP))

        base = shared_window(cuda.shared.array(0, int32))
        records, factors = int32(base + RECORDS_OFFSET), int32(base + FACTORS_OFFSET)
        totals = int32(base + TOTALS_OFFSET)
        # A block alone takes its own maxima for the row's.
        maxima = int32(base + MAXIMA_OFFSET) if active > 1 else records
        stride = int32(room + PADDING)
        rows = int32(base + CELLS_OFFSET)
        k_scale = int32(rows + room * 4)
        exponents = int32(k_scale + room * (4 * k_groups))
        v_scale = int32(exponents + room * (4 * v_groups))
        powers = int32(v_scale + room * (4 * v_groups))
        signs = int32(powers + stride * (4 * HEADS))
        staged = rows
        if cluster:
            staged = int32(rows + ((room * each_cell + (HEADS * PADDING * 4 + 127)) & -128))
        rotating = int32(staged + staging_bytes)
        # In a cluster (int8 alone, which rotates nothing) the other blocks send to this memory.
        box = rotating
        masses = int32(box + splits * (HEADS * BOX_BYTES))
        maxima_here, sums_here = int32(base + BARRIERS_OFFSET), int32(base + BARRIERS_OFFSET + 8)
        exchange = int64(0)
        if active > 1 and not cluster:
            own = int64(splits) * int64(HEADS * (1 + v_groups) + splits * HEADS + SUMS)
            exchange = global_base(scratch) + int64(row_head) * own * 8
        # What is needed again at the end waits in shared memory: the values take nearly all registers.
        if thread == 0:
            st_shared_i64(int32(base + KEPT_OFFSET), global_base(out) + first_head * (DIM * 4))
            st_shared_i64(int32(base + KEPT_OFFSET + 8), exchange)
            st_shared_v4_i32(int32(base + KEPT_OFFSET + 16), active, split, masses, rotating)
            if cluster and active > 1:
                own = outputs.share_of_outputs(active, v_groups)
                own_pairs = max(min(int32(SUM_PAIRS - split * own), own), int32(0))
                exchange_cluster.open_barriers(maxima_here, sums_here, active, own_pairs)

        selection = global_base(ids) + int64(row) * int64(capacity) * 4
        cells = cuda.local.array(each, int32)
        load_ids(cells, selection, begin, count, thread)
        if early:
            for i in range(heads_per_warp):
                store_query(queries, 8 * i, int32(warp + i * warps), k_groups, base, lane)
        # All that a row of a table says is here by now; before, nothing but its own would have waited for it.
        if tabled and field(held, which, KIND) != kind:
            return
        if tabled and thread == 0:
            st_shared_i64(int32(base + V_CODES_OFFSET), field(held, which, V_CODES))
        find_rows(cells, padded, held, which, kv_head, rows, thread)
        k_raw, v_raw = cuda.local.array(k_words, int32), cuda.local.array(v_words, int32)
        if early:
            # Behind the cells' K the scales would wait for all of it.
            load_cell_scales(cells, k_raw, v_raw, held, which)
        cuda.syncthreads()
        if cluster and active > 1:
            cluster_arrive_relaxed()
        k_codes = field(held, which, K_CODES)
        raw_k = cuda.local.array(k_registers, int32)
        scores.load_tile(raw_k, k_codes, min(warp, int32(padded // TILE - 1)), rows, lane, k_groups)
        if not early:
            load_cell_scales(cells, k_raw, v_raw, held, which)
        store_scales(k_raw, v_raw, padded, room, k_scale, exponents, v_scale, signs, thread)
        if not early:
            for i in range(heads_per_warp):
                store_query(queries, 8 * i, int32(warp + i * warps), k_groups, base, lane)
        cuda.syncthreads()

        step = int32(warps)
        score_cells(
            raw_k, k_codes, padded, warp, step, base, records, maxima, rows, k_scale, exponents, powers, stride, lane
        )
        raw_v = cuda.local.array(16, int32)
        # The scores take nearly all registers, too.
        v_codes = ld_shared_i64(int32(base + V_CODES_OFFSET)) if tabled else field(held, which, V_CODES)
        v_base = values.lane_base(v_codes, warp, lane, v_groups)
        first_v = int32(min(int32((warp >> 2) * STEP), int32(padded - STEP)) + (lane & 3) * 4)
        values.load_v(raw_v, 0, v_base, int32(rows + first_v * 4), v_groups)
        values.load_v(raw_v, 1, v_base, int32(rows + first_v * 4), v_groups)
        cuda.syncthreads()
        if active > 1:
            if cluster:
                cluster_wait()
                exchange_cluster.send_maxima(box, maxima, split, active, maxima_here, thread)
                exchange_cluster.await_bytes(maxima_here)
            else:
                exchange_scratch.publish_maxima(exchange, split, maxima, v_groups, thread, False)
                exchange_scratch.gather_maxima(exchange, active, records, v_groups, thread, threads)
                cuda.syncthreads()

        for i in range(heads_per_warp):
            head = int32(warp + i * warps)
            if cluster and active > 1:
                exchange_cluster.fold_maxima(box, records, active, head, lane)
            mass_of = values.store_powers(int32(powers + head * stride * 4), padded, records, head, lane)
            if active == 1:
                if lane == 0:
                    st_shared_i64(int32(totals + head * 8), mass_of)
            elif cluster:
                exchange_cluster.send_mass(masses, split, active, head, mass_of, sums_here, lane)
            else:
                exchange_scratch.send_mass(exchange, split, splits, active, head, mass_of, v_groups, lane)
            if lane < v_groups:
                values.store_factors(records, factors, head, lane)
        cuda.syncthreads()

        sums = cuda.local.array(96, int32)
        thread = opaque(thread)
        lane, warp = int32(thread & 31), int32(thread >> 5)
        weigh_values(raw_v, v_base, padded, warp, powers, stride, v_scale, signs, room, factors, rows, sums, lane)
        if not cluster:
            # The cells are done with: their memory now carries sums between the warps that share 64 dims.
            cuda.syncthreads()
        thread = opaque(thread)
        lane, warp = int32(thread & 31), int32(thread >> 5)
        store_sums(sums, staged, warp, lane)
        exchange = ld_shared_i64(int32(base + KEPT_OFFSET + 8))
        active, split, masses, rotating = ld_shared_v4_i32(int32(base + KEPT_OFFSET + 16))
        if active > 1 and not cluster:
            for i in range(heads_per_warp):
                head = int32(warp + i * warps)
                exchange_scratch.receive_mass(exchange, split, splits, active, totals, head, v_groups, lane)
        cuda.syncthreads()
        results = ld_shared_i64(int32(base + KEPT_OFFSET))
        inbox = int32(masses + splits * (HEADS * 8))
        own = outputs.share_of_outputs(active, v_groups)
        share_of = outputs.reciprocal(own)
        total = cuda.local.array(4, int64)
        for piece in range(thread, int32(SUM_PIECES), int32(threads)):
            pair = int32(((piece >> 5) << 6) + lane)
            for half in range(2):
                total[2 * half], total[2 * half + 1] = outputs.add_parts(staged, int32(pair + half * 32), parts)
            if active == 1:
                head, dim = outputs.dims_of_lane_index(pair, v_groups)
                if head < group:
                    outputs.put_four(total, head, dim, results, rotating, records, totals, v_groups)
            else:
                for half in range(2):
                    index = outputs.exchange_index(int32(pair + half * 32), v_groups)
                    if cluster:
                        x, y = total[2 * half], total[2 * half + 1]
                        exchange_cluster.send_pair(inbox, split, own, share_of, index, x, y, sums_here)
                    else:
                        exchange_scratch.send_pair(
                            exchange, split, splits, index, total[2 * half], total[2 * half + 1], v_groups
                        )

        begin_pair, end_pair = int32(0), int32(SUM_PAIRS)
        if active > 1:
            if cluster:
                exchange_cluster.await_bytes(sums_here)
            else:
                # Every block has sent its masses, so every block has read the maxima.
                exchange_scratch.publish_maxima(exchange, split, maxima, v_groups, thread, True)
            begin_pair = min(int32(split * own), int32(SUM_PAIRS))
            end_pair = min(int32(begin_pair + own), int32(SUM_PAIRS))
            offset, part = int32(lane & (WARP_PAIRS - 1)), int32(lane // WARP_PAIRS)
            for start in range(int32(begin_pair + warp * WARP_PAIRS), end_pair, int32(WARP_PAIRS * warps)):
                index = int32(start + offset)
                head, dim = outputs.dims_of_exchange_index(min(index, int32(SUM_PAIRS - 1)), v_groups)
                x, y, mass_of = int64(0), int64(0), int64(0)
                if index < end_pair:
                    if cluster:
                        x, y, mass_of = exchange_cluster.read_inbox(
                            inbox, masses, own, active, int32(index - begin_pair), head, part
                        )
                    else:
                        x, y = exchange_scratch.receive_pair(exchange, splits, active, index, part, v_groups)
                x, y = outputs.sum_senders(x), outputs.sum_senders(y)
                mass_of = outputs.sum_senders(mass_of) if cluster else ld_shared_i64(int32(totals + head * 8))
                if index < end_pair and head < group:
                    total_of = y if part else x
                    outputs.put_one(total_of, mass_of, head, int32(dim + part), results, rotating, records, v_groups)
        if v_groups == 8:
            cuda.syncthreads()
            begin_head, end_head = int32(begin_pair >> 7), min(int32(end_pair >> 7), int32(group))
            outputs.rotate_outputs(begin_head, end_head, rotating, results, records, totals, warp, int32(warps), lane)

    return attend_exact


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each.

    The values take 96 registers of sums and some 70 more of the 168 that a lane of 384 has; whether all of them fit
    hangs on ptxas's order of instructions. On sm_100 and sm_120 the forms in clusters never run, which are sm_90's, and
    no form without tensor cores.
    """
    types = F3, I2, I2, I1, "UniTuple(int64, 28)", *["int64"] * 3, "int64[::1]", F3
    signature, tabled = signature_of(*types), signature_of(*types[:4], "int64[:, ::1]", *types[5:])
    for name, groups in (("int8", (4, 4)), ("k8v4", (4, 8)), ("q4_0", (8, 8))):
        spilled = {(8, 0): (8, 20), (9, 0): (8, 8)} if name == "k8v4" else {}
        form = build.build(*groups, 2, 12, 3, 6)
        yield PtxRow(f"attend_exact_{name}", form, signature, spilled=spilled, expect=TENSOR_CORE, minimum=(8, 0))
        form = build.build(*groups, 2, 12, 3, 6, tabled=True)
        if name != "int8":
            spilled = {**spilled, (12, 0): (8, 16)} | ({(10, 0): (8, 16)} if name == "q4_0" else {})
        yield PtxRow(f"attend_exact_{name}_table", form, tabled, spilled=spilled, expect=TENSOR_CORE, minimum=(8, 0))
    cluster = ("barrier.cluster.arrive.relaxed", "barrier.cluster.wait", "mbarrier.try_wait", "st.async")
    expect = TENSOR_CORE + cluster
    for name, given, by_table in (("", signature, False), ("_table", tabled, True)):
        # Blocks of few cells, of which each lane looks up one; and those as a cluster, on sm_90 alone.
        form = build.build(4, 4, 2, 12, 3, 1, tabled=by_table)
        yield PtxRow(f"attend_exact_int8_few{name}", form, given, expect=TENSOR_CORE, minimum=(8, 0))
        form, spilled = build.build(4, 4, 2, 12, 3, 1, True, True, True, by_table), {(12, 0): (8, 8)}
        row = f"attend_exact_int8_cluster{name}"
        yield PtxRow(row, form, given, spilled=spilled, expect=expect, minimum=(9, 0))
        # Clusters of fewer blocks, whose warps score several tiles and, in the second, whose lanes look up several
        # cells.
        form = build.build(4, 4, 2, 12, 3, 1, True, True, tabled=by_table)
        yield PtxRow(f"attend_exact_int8_cluster_tiles{name}", form, given, expect=expect, minimum=(9, 0))
        form = build.build(4, 4, 2, 12, 3, 2, True, True, tabled=by_table)
        yield PtxRow(f"attend_exact_int8_cluster_cells{name}", form, given, expect=expect, minimum=(9, 0))
    # The form without tensor cores. For the other formats and by a table it differs from theirs in nothing more.
    form, spilled = build.build(4, 4, 2, 12, 1, 6, False), {(10, 0): (512, 0), (12, 0): (512, 0)}
    yield PtxRow("attend_exact_int8_dp4a", form, signature, spilled=spilled, expect=("dp4a.s32.s32", "dp4a.u32.s32"))
