"""Kernel of the float ``attend``: softmax partials (largest score, sum, weighted values) of pieces of a row's cells.

A piece is one chunk of 64 cells, or a split: a run of chunks folded one after another with a running maximum. A thread
block has as many lanes as a head has dims and does one piece of one row and KV head at a time:

1. Lanes 0 to 63 find the chunk's cells in the pool; -1 for one that is not selected.
2. dim / 8 lanes read a cell, eight dims each, K and V at once; eight cells to a lane. For every head the eight dots
   are reduced together, each shuffle carrying half of them.
3. A warp takes a head's 64 scores to weights 2^(score - maximum), scores being in log2 units.
4. Every lane sums its eight cells' weighted values; the eight partial sums of a dim are added in shared memory, in
   ascending order of cells, ``TOGETHER`` heads between two barriers.

All sums have one order, which depends on the row and the piece alone: neither the batch nor the number of blocks
changes a bit. A piece without cells gets the maximum ``EMPTY`` and the sum 0, its values stay unwritten. A query that
is not finite makes its head's sum NaN. Source: design section 8.
"""

import math
from collections.abc import Iterator
from typing import Any

from ..attend_exact.shared_memory import POOL_FIELDS
from ..common.pool_tables import value_of
from ..common.scalar import NAN_BITS, SCORE_LIMIT
from ..toolchain.compiler import cuda, device_function, float32, int32, int64, kernel, libdevice, specialised
from ..toolchain.ptx import (
    global_base,
    int_as_float,
    ld_global_i32_nc,
    ld_shared_f32,
    ld_shared_i32,
    ld_shared_i64,
    ld_shared_v4_f32,
    ld_shared_v4_i32,
    shared_base,
    st_global_f32,
    st_shared_f32,
    st_shared_i32,
    st_shared_i64,
    st_shared_v4_f32,
)
from ..toolchain.ptx_rows import F1, F3, I1, I2, PtxRow, signature_of
from .chunk import CHUNK, EMPTY, TOGETHER, offsets_of, parts_of
from .dequantise import cells_of
from .lanes import dot, eight_of, sums_together, weighted


@device_function
def reached(width, splits):
    """(chunks of a piece, pieces that a row of ``width`` cells reaches); ``splits`` 0: a chunk is a piece."""
    chunks = int32((width + CHUNK - 1) >> 6)
    if splits == 0:
        return int32(1), chunks
    length = int32(max((chunks + splits - 1) // splits, 1))
    return length, int32((chunks + length - 1) // length)


@specialised
def pieces_kernel(group: int, dim: int, k_coding: str, v_coding: str) -> Any:
    """The kernel for ``group`` heads of ``dim`` dims (64 or 256) to a KV head, K and V in these codings.

    Its arguments: ``q`` [rows, n_head, dim], ``ids`` [rows, cap], ``steps`` [rows, 4], ``slots`` [rows], ``scratch``
    (``merge.py`` says how partials lie in it), ``pools`` (MAX_POOLS * POOL_FIELDS int64), the slot of the first
    pool and the number of pools (0: one, which every row reads), the first row, ``cap``, the pieces of a row in the
    scratch, and ``splits``. Grid (blocks, n_head_kv, rows); the blocks of a row share its pieces.
    """
    lanes = dim // 8
    warps, cells_lane = dim // 32, lanes // 8
    load_k, widen_k = cells_of(k_coding, dim)
    load_v, widen_v = cells_of(v_coding, dim)
    reduce = sums_together(lanes)
    # V is fetched with K where registers last.
    early = k_coding == v_coding == "int8"
    factor = math.log2(math.e) / math.sqrt(dim)
    half, head_bytes, sums, buffer, weights, rows_at, tops, masses, fades, poison, fields, _ = offsets_of(group, dim)
    load_queries, weigh, look_up, partial_row, finish = parts_of(group, dim, k_coding == "q4_0")
    # A last batch of fewer heads needs a test for each.
    whole = group % TOGETHER == 0

    @kernel(launch_bounds=(dim, 2 if dim == 256 else 4), shared_memory_carveout=100)
    def pieces(q, ids, steps, slots, scratch, pools, first_slot, n_pools, first_row, cap, n_pieces, splits):
        memory = cuda.shared.array(0, float32)
        shared = shared_base(memory)
        thread = int32(cuda.threadIdx.x)
        cap, n_pieces, splits = int32(cap), int32(n_pieces), int32(splits)
        # The lane of a cell and which eight of the chunk's cells it reads; the lane of the warp is ``warp_lane``.
        lane, part = int32(thread & (lanes - 1)), int32(thread // lanes)
        warp_lane, warp = int32(thread & 31), int32(thread >> 5)
        g, n_head_kv = int32(cuda.blockIdx.y), int32(cuda.gridDim.y)
        row = int32(cuda.blockIdx.z + first_row)
        which = int32(0)
        if n_pools > 0:
            which = int32(ld_global_i32_nc(global_base(slots) + int64(row) * 4) - first_slot)
            if which < 0 or which >= n_pools:
                return
        width = ld_global_i32_nc(global_base(steps) + int64(row) * 16 + 12)
        width = int32(max(min(width, cap), 0))
        length, n_reached = reached(width, splits)
        # The addresses wait in shared memory: the registers are needed for K and V.
        for i in range(POOL_FIELDS):
            if thread == i:
                st_shared_i64(int32(shared + fields + i * 8), value_of(pools, which, i))
        piece = int32(cuda.blockIdx.x)
        if piece < n_reached:
            load_queries(global_base(q) + (int64(row) * n_head_kv + g) * (group * head_bytes), shared, lane, part)
        cuda.syncthreads()
        while piece < n_pieces:
            if piece >= n_reached:
                if thread < group:
                    finish(scratch, int32(n_pieces), g, n_head_kv, piece, thread, float32(EMPTY), float32(0))
                piece = int32(piece + cuda.gridDim.x)
                continue
            start = int32(piece * length * CHUNK)
            stop = int32(min(start + length * CHUNK, width))
            ids_row = global_base(ids) + int64(row) * cap * 4
            found = look_up(ids_row, start, stop, shared, n_head_kv, g, thread)
            first = start
            while first < stop:
                if thread < CHUNK:
                    st_shared_i32(int32(shared + rows_at + thread * 4), found)
                cuda.syncthreads()
                # The next chunk's rows are looked up while this one's cells are on their way.
                found = look_up(ids_row, int32(first + CHUNK), stop, shared, n_head_kv, g, thread)
                r0, r1, r2, r3 = ld_shared_v4_i32(int32(shared + rows_at + part * 32))
                r4, r5, r6, r7 = ld_shared_v4_i32(int32(shared + rows_at + part * 32 + 16))
                k_codes = ld_shared_i64(int32(shared + fields))
                k_scale = ld_shared_i64(int32(shared + fields + 8))
                k0, k1 = load_k(k_codes, k_scale, r0, lane), load_k(k_codes, k_scale, r1, lane)
                k2, k3 = load_k(k_codes, k_scale, r2, lane), load_k(k_codes, k_scale, r3, lane)
                k4, k5 = load_k(k_codes, k_scale, r4, lane), load_k(k_codes, k_scale, r5, lane)
                k6, k7 = load_k(k_codes, k_scale, r6, lane), load_k(k_codes, k_scale, r7, lane)
                if early:
                    v_codes = ld_shared_i64(int32(shared + fields + 16))
                    v_scale = ld_shared_i64(int32(shared + fields + 24))
                    v0, v1 = load_v(v_codes, v_scale, r0, lane), load_v(v_codes, v_scale, r1, lane)
                    v2, v3 = load_v(v_codes, v_scale, r2, lane), load_v(v_codes, v_scale, r3, lane)
                    v4, v5 = load_v(v_codes, v_scale, r4, lane), load_v(v_codes, v_scale, r5, lane)
                    v6, v7 = load_v(v_codes, v_scale, r6, lane), load_v(v_codes, v_scale, r7, lane)
                x0, x1, x2, x3 = widen_k(k0, lane), widen_k(k1, lane), widen_k(k2, lane), widen_k(k3, lane)
                x4, x5, x6, x7 = widen_k(k4, lane), widen_k(k5, lane), widen_k(k6, lane), widen_k(k7, lane)
                to = int32(shared + weights + (part * 8 + lane // cells_lane) * 4)
                for head in range(group):
                    low = ld_shared_v4_f32(int32(shared + head * head_bytes + lane * 16))
                    high = ld_shared_v4_f32(int32(shared + head * head_bytes + lane * 16 + half))
                    total = reduce(
                        warp_lane,
                        dot(x0, low, high),
                        dot(x1, low, high),
                        dot(x2, low, high),
                        dot(x3, low, high),
                        dot(x4, low, high),
                        dot(x5, low, high),
                        dot(x6, low, high),
                        dot(x7, low, high),
                    )
                    if lane & (cells_lane - 1) == 0:
                        s = libdevice.fminf(total * float32(factor), float32(SCORE_LIMIT))
                        s = libdevice.fmaxf(s, float32(-SCORE_LIMIT))
                        st_shared_f32(int32(to + head * (CHUNK * 4)), s)
                cuda.syncthreads()
                head = warp
                while head < group:
                    weigh(shared, head, warp_lane, first == start)
                    head = int32(head + warps)
                cuda.syncthreads()
                if not early:
                    v_codes = ld_shared_i64(int32(shared + fields + 16))
                    v_scale = ld_shared_i64(int32(shared + fields + 24))
                    v0, v1 = load_v(v_codes, v_scale, r0, lane), load_v(v_codes, v_scale, r1, lane)
                    v2, v3 = load_v(v_codes, v_scale, r2, lane), load_v(v_codes, v_scale, r3, lane)
                    v4, v5 = load_v(v_codes, v_scale, r4, lane), load_v(v_codes, v_scale, r5, lane)
                    v6, v7 = load_v(v_codes, v_scale, r6, lane), load_v(v_codes, v_scale, r7, lane)
                y0, y1, y2, y3 = widen_v(v0, lane), widen_v(v1, lane), widen_v(v2, lane), widen_v(v3, lane)
                y4, y5, y6, y7 = widen_v(v4, lane), widen_v(v5, lane), widen_v(v6, lane), widen_v(v7, lane)
                for together in range(0, group, TOGETHER):
                    for i in range(TOGETHER):
                        # Beyond the last head: its values again, to memory that nobody reads.
                        head = together + i if whole else min(together + i, group - 1)
                        w = eight_of(int32(shared + weights + (head * CHUNK + part * 8) * 4))
                        to = int32(shared + buffer + (i * 8 + part) * head_bytes + lane * 16)
                        st_shared_v4_f32(
                            to,
                            weighted(w, y0[0], y1[0], y2[0], y3[0], y4[0], y5[0], y6[0], y7[0]),
                            weighted(w, y0[1], y1[1], y2[1], y3[1], y4[1], y5[1], y6[1], y7[1]),
                            weighted(w, y0[2], y1[2], y2[2], y3[2], y4[2], y5[2], y6[2], y7[2]),
                            weighted(w, y0[3], y1[3], y2[3], y3[3], y4[3], y5[3], y6[3], y7[3]),
                        )
                        st_shared_v4_f32(
                            int32(to + half),
                            weighted(w, y0[4], y1[4], y2[4], y3[4], y4[4], y5[4], y6[4], y7[4]),
                            weighted(w, y0[5], y1[5], y2[5], y3[5], y4[5], y5[5], y6[5], y7[5]),
                            weighted(w, y0[6], y1[6], y2[6], y3[6], y4[6], y5[6], y6[6], y7[6]),
                            weighted(w, y0[7], y1[7], y2[7], y3[7], y4[7], y5[7], y6[7], y7[7]),
                        )
                    cuda.syncthreads()
                    for i in range(TOGETHER):
                        head = together + i
                        at = int32(shared + buffer + i * 8 * head_bytes + thread * 4)
                        total = ld_shared_f32(at)
                        for other in range(1, 8):
                            total += ld_shared_f32(int32(at + other * head_bytes))
                        if whole or head < group:
                            at = int32(shared + sums + head * head_bytes + thread * 4)
                            if first > start:
                                total = ld_shared_f32(at) * ld_shared_f32(int32(shared + fades + head * 4)) + total
                            st_shared_f32(at, total)
                    cuda.syncthreads()
                first = int32(first + CHUNK)
            # A lane's own word of every head: shared memory keeps the first four dims of eight in its first half.
            own = int32((thread & (dim // 2 - 1)) >> 2) * 8 + (thread // (dim // 2)) * 4 + (thread & 3)
            values = partial_row(scratch, int32(n_pieces), n_head_kv)
            values += ((int64(g) * n_pieces + piece) * group * dim + own) * 4
            for head in range(group):
                value = ld_shared_f32(int32(shared + sums + head * head_bytes + thread * 4))
                st_global_f32(values + head * head_bytes, value)
            if thread < group:
                top = ld_shared_f32(int32(shared + tops + thread * 4))
                mass = ld_shared_f32(int32(shared + masses + thread * 4))
                if top > float32(EMPTY) and ld_shared_i32(int32(shared + poison + thread * 4)) != 0:
                    mass = int_as_float(int32(NAN_BITS))
                finish(scratch, int32(n_pieces), g, n_head_kv, piece, thread, top, mass)
            cuda.syncthreads()
            piece = int32(piece + cuda.gridDim.x)

    return pieces


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each.

    Two blocks a multiprocessor leave 128 registers; the older targets keep addresses in more of them.
    """
    spilled = {
        "int8_int8": {(7, 5): (24, 68), (8, 0): (16, 40)},
        "q4_0_q4_0": {(7, 5): (16, 40), (8, 0): (16, 24)},
        "fp16_fp16": {(7, 5): (8, 8)},
    }
    signature = signature_of(F3, I2, I2, I1, F1, "UniTuple(int64, 28)", *["int64"] * 6)
    for codings in (("int8", "int8"), ("q4_0", "q4_0"), ("int8", "q4_0"), ("fp16", "fp16")):
        name, kernel = "_".join(codings), pieces_kernel.build(12, 256, *codings)
        yield PtxRow(f"attend_pieces_{name}", kernel, signature, exact=False, spilled=spilled.get(name, {}))
