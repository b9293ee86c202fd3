"""The kernel of the exact ``attend`` of few rows: the same bytes as ``attend_exact/kernel.py`` in a shorter chain.

With few rows time is a chain of latencies and of instructions that a warp carries out one after the other, so this
kernel does less of both. A cluster of blocks takes one row, one KV head and four query heads of it; each block takes a
share of the cells that depends on the room of the ids alone. Reading order:

1. A warp looks up the cells of its own tiles (lookup.py) while others rewrite the query (query.py), and loads their K.
2. It scores them (scores.py); what is stored is r and n of every power. The block's maxima go to all blocks.
3. Meanwhile V is loaded and turned. Once the maxima of all are there, a warp makes weights of powers just where a
   product takes them, and weighs its values (values.py). The warps' sums are added up and sent to their owners.
4. A block makes the outputs of its share (``attend_exact/outputs.py``).
"""

from collections.abc import Iterator
from typing import Any

from ..attend_exact import outputs
from ..attend_exact import values as exact_values
from ..attend_exact.query import load_query
from ..attend_exact.scores import load_tile
from ..attend_exact.shared_memory import DIM, K_CODES, POOL_FIELDS, STEP, TILE, V_CODES
from ..toolchain.compiler import cuda, float32, int32, int64, kernel, specialised, uint32
from ..toolchain.ptx import cluster_arrive_relaxed, cluster_wait, global_base, ld_global_i32_nc, shared_window
from ..toolchain.ptx_rows import F3, I2, TENSOR_CORE, PtxRow, signature_of
from . import exchange, lookup, query, scores, values
from .layout import (
    BARRIERS_OFFSET,
    BOX_STRIDE,
    CELL_BYTES,
    CELLS_OFFSET,
    HEADS,
    LIMBS_OFFSET,
    MAXIMA_OFFSET,
    PADDING,
    PAIRS,
    RECORDS_OFFSET,
    WARP_PAIRS,
    sums_bytes,
)


@specialised
def build(n_head_kv: int, group: int, parts: int, turns: int, narrow: bool) -> Any:
    """The kernel for int8 and one geometry.

    group   query heads per KV head, at most 12
    parts   blocks of ``parts`` times four warps
    turns   tiles of 16 cells that a warp scores at most
    narrow  a block has at most ``values.LANE_CELLS`` cells
    """
    threads, warps, clusters = 128 * parts, 4 * parts, -(-group // HEADS)
    looked, scale_words = (turns + 1) // 2, (turns + 1) // 2 * 2
    adding, staging_bytes = -(-PAIRS // threads), sums_bytes(parts)
    load_ids, load_pages, store_rows, load_cell_scales, store_scales = lookup.make(n_head_kv, warps, turns)
    score_cells = scores.make(warps, turns)
    weigh_values, add_parts = values.make(parts)

    @kernel(launch_bounds=(threads, 1))
    def attend_few(q, ids, steps, pools, splits, room, own, reciprocal, share_of, out):
        """q, out [rows, n_head, 256]; ids [rows, cap]; steps [rows, 4]; ``pools``: the fields of the one pool, as
        POOL_FIELDS says; ``splits`` blocks of a cluster, of ``room`` cells each; ``own`` pairs of sums that a block
        makes outputs of; reciprocals of ``splits`` and ``own`` (``exchange.reciprocal_of``). Grid: rows * n_head_kv *
        the clusters of a KV head * splits blocks."""
        thread = int32(cuda.threadIdx.x)
        lane, warp = int32(thread & 31), int32(thread >> 5)
        splits, room, own = int32(splits), int32(room), int32(own)
        index = int32(cuda.blockIdx.x)
        cluster = exchange.owner_of(index, int32(reciprocal))
        split = int32(index - cluster * splits)
        row_head = int32(uint32(cluster) // uint32(clusters))
        first_of = int32((cluster - row_head * clusters) * HEADS)
        row = int32(uint32(row_head) // uint32(n_head_kv))
        kv_head = int32(row_head - row * n_head_kv)
        capacity = int32(ids.shape[1])
        begin = int32(split * room)
        cells = cuda.local.array(looked, int32)
        load_ids(cells, global_base(ids) + int64(row) * int64(capacity) * 4, begin, room, capacity, warp, lane)
        width = int32(min(ld_global_i32_nc(global_base(steps) + int64(row) * 16 + 12), capacity))
        first_head = int32(row * (n_head_kv * group) + kv_head * group + first_of)
        present = int32(group - first_of)
        x = cuda.local.array(8, float32)
        if warp < HEADS:
            load_query(x, 0, global_base(q) + int64(int32(first_head + warp)) * (DIM * 4), warp < present, lane)

        base = shared_window(cuda.shared.array(0, int32))
        records, maxima = int32(base + RECORDS_OFFSET), int32(base + MAXIMA_OFFSET)
        limbs, rows = int32(base + LIMBS_OFFSET), int32(base + CELLS_OFFSET)
        stride = int32(room + PADDING)
        k_scale = int32(rows + room * 4)
        exponents = int32(k_scale + room * 16)
        v_scale = int32(exponents + room * 16)
        powers = int32(v_scale + room * 16)
        floors = int32(powers + stride * (4 * HEADS))
        staged = int32(rows + ((room * (CELL_BYTES + 8 * HEADS) + (8 * HEADS * PADDING + 127)) & -128))
        masses = int32(staged + (staging_bytes - parts * HEADS * 8))
        inbox = int32(staged + staging_bytes)
        box = int32(inbox + splits * own * 16)
        masses_in = int32(box + splits * BOX_STRIDE)
        maxima_here, sums_here = int32(base + BARRIERS_OFFSET), int32(base + BARRIERS_OFFSET + 8)
        if thread == threads - 32:
            own_pairs = max(min(int32(PAIRS - split * own), own), int32(0))
            exchange.open_barriers(maxima_here, sums_here, splits, own_pairs)
        cuda.syncwarp()
        cluster_arrive_relaxed()

        places = cuda.local.array(looked, int32)
        load_pages(cells, places, begin, width, pools, warp, lane)
        if warp < HEADS:
            query.store_query(x, warp, limbs, records, maxima, lane)
        store_rows(cells, places, room, pools, kv_head, rows, warp, lane)
        k_raw, v_raw = cuda.local.array(scale_words, int32), cuda.local.array(scale_words, int32)
        load_cell_scales(cells, k_raw, v_raw, pools)
        cuda.syncwarp()
        k_codes = pools[K_CODES]
        raw_k = cuda.local.array(32, int32)
        tiles, tile = int32(room // TILE), int32(warps - 1 - warp)
        if tile < tiles:
            load_tile(raw_k, k_codes, tile, rows, lane, 4)
        store_scales(k_raw, v_raw, room, k_scale, exponents, v_scale, warp, lane)
        # All blocks arrive when they begin, so nothing is waited for here.
        cluster_wait()
        cuda.syncthreads()

        raw_v, b = cuda.local.array(16, int32), cuda.local.array(16, int32)
        v_base = exact_values.lane_base(pools[V_CODES], warp, lane, 4)
        step = int32((warp >> 2) * STEP)
        rows_v = int32(rows + (lane & 3) * 16)
        if step < room:
            exact_values.load_v(raw_v, 0, v_base, int32(rows_v + step * 4), 4)
            exact_values.load_v(raw_v, 1, v_base, int32(rows_v + step * 4), 4)
        if tile < tiles:
            score_cells(
                raw_k,
                k_codes,
                warp,
                room,
                limbs,
                records,
                maxima,
                rows,
                k_scale,
                exponents,
                powers,
                floors,
                stride,
                lane,
            )
        cuda.syncthreads()
        exchange.send_maxima(box, maxima, split, splits, maxima_here, thread)
        if step < room:
            values.turned(raw_v, b)
        step = int32(step + parts * STEP)
        if step < room:
            exact_values.load_v(raw_v, 0, v_base, int32(rows_v + step * 4), 4)
            exact_values.load_v(raw_v, 1, v_base, int32(rows_v + step * 4), 4)
        exchange.await_bytes(maxima_here)
        shift, factor = values.fold_maxima(box, records, splits, warp, lane)
        weigh_values(
            raw_v, b, v_base, room, warp, powers, floors, stride, v_scale, rows, shift, factor, staged, masses, lane
        )
        cuda.syncthreads()

        for i in range(adding):
            pair = int32(thread + i * threads)
            if pair < PAIRS:
                u, v = add_parts(staged, pair, narrow)
                exchange.send_pair(inbox, split, own, int32(share_of), pair, u, v, sums_here)
        head = int32(warps - 1 - warp)
        if head < HEADS:
            exchange.send_mass(masses, masses_in, split, splits, parts, head, sums_here, lane)
        begin_pair = min(int32(split * own), int32(PAIRS))
        end_pair = min(int32(begin_pair + own), int32(PAIRS))
        results = global_base(out) + int64(first_head) * (DIM * 4)
        offset, part = int32(lane & (WARP_PAIRS - 1)), int32(lane // WARP_PAIRS)
        exchange.await_bytes(sums_here)
        for start in range(int32(begin_pair + warp * WARP_PAIRS), end_pair, int32(WARP_PAIRS * warps)):
            pair = int32(start + offset)
            head = min(int32(pair >> 7), int32(HEADS - 1))
            dim = int32((pair & 127) * 2)
            u, v, mass_of = int64(0), int64(0), int64(0)
            if pair < end_pair:
                u, v, mass_of = exchange.read_inbox(inbox, masses_in, own, splits, int32(pair - begin_pair), head, part)
            u, v = exchange.sum_senders(u), exchange.sum_senders(v)
            mass_of = exchange.sum_senders(mass_of)
            if pair < end_pair and head < present and part < 2:
                total = v if part else u
                outputs.put_one(total, mass_of, head, int32(dim + part), results, int32(0), records, 4)

    return attend_few


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each."""
    signature = signature_of(F3, I2, I2, f"UniTuple(int64, {POOL_FIELDS})", *["int64"] * 5, F3)
    cluster = ("barrier.cluster.arrive.relaxed", "barrier.cluster.wait", "mbarrier.try_wait", "st.async")
    # One row in 13 blocks of 160 cells; two in 8 blocks of 288, whose warps score two tiles.
    for name, turns, narrow in (("attend_few_row", 1, True), ("attend_few_rows", 2, False)):
        form = build.build(2, 12, 3, turns, narrow)
        yield PtxRow(name, form, signature, expect=TENSOR_CORE + cluster, minimum=(9, 0))
