"""The kernel of the tensor-core form of the float ``attend``: softmax partials of pieces of a row, or its output.

Reading order: layout, this file, query, cells, scores, powers, values, fold, outputs. A block of 8 warps takes a run of
pieces of one row and KV head, chunk after chunk of 64 cells. Between two barriers it

1. asks for K of the next chunk, V of the last one, scales, rows and ids of later ones;
2. computes the parts of this chunk's scores (scores.py);
3. turns the last chunk's scores into powers (powers.py);
4. adds the weighted values of the chunk before that (values.py).

So no step waits for one before it. A piece is a run of chunks; its sums are in float32 over the piece's own reference
exponent. Partials of pieces go to the scratch, or the block folds those of a run of pieces (fold.py), and ``merge.py``
folds what it finds there: the bits are the same. The cut of a row into pieces
depends on its width and the splits alone. Source: design section 8.

One file: it holds one kernel, whose parts are in the files above already.
"""

from collections.abc import Iterator
from typing import Any

from ...attend_exact.shared_memory import (
    CELLS_OF_TABLE,
    DIM,
    K_CODES,
    K_SCALE,
    PAGE_SIZE,
    POOL_FIELDS,
    TABLE,
    V_CODES,
    V_SCALE,
)
from ...common.pool_tables import value_of
from ...toolchain.compiler import cuda, device_function, float32, int32, int64, kernel, specialised
from ...toolchain.ptx import (
    cp_async_commit,
    cp_async_wait_0,
    global_base,
    ld_global_i32_nc,
    ld_shared_f32,
    ld_shared_i32,
    ld_shared_i64,
    shared_base,
    st_global_f32,
    st_global_i32,
    st_shared_f32,
    st_shared_i32,
    st_shared_i64,
)
from ...toolchain.ptx_rows import F1, F3, I1, I2, PtxRow, signature_of
from ..partial import reached
from . import outputs, query, scores, values
from .cells import copy_of, page_of, row_of, scales_of
from .fold import factors_of, folded, run_of
from .layout import (
    CHUNK,
    CODE_BYTES,
    HEAD_WORDS,
    NO_TOP,
    POWER_HEADS,
    POWER_ROW,
    POWERS_BYTES,
    PRODUCTS,
    QUERY_WORDS,
    SCALES,
    SCORES_BYTES,
    THREADS,
    WEIGHERS,
    layout_of,
)
from .powers import weigh

PIECES, RUNS = range(2)
"""What a block leaves: a partial of each piece, or of each run of pieces."""


@specialised
def tensor_kernel(group: int, k_coding: str, v_coding: str, result: int) -> Any:
    """The kernel for ``group`` heads to a KV head, at most 12, K and V in these codings; ``result``: PIECES, or RUNS
    for one or two blocks a row and KV head.

    Its arguments: ``q``, ``out`` [rows, n_head, 256], ``ids`` [rows, cap], ``steps`` [rows, 4], ``slots`` [rows],
    ``scratch`` (``merge.py`` says how partials lie in it), ``pools`` (MAX_POOLS * POOL_FIELDS int64), the slot of the
    first pool and the number of pools (0: one, which every row reads), the first row, ``cap``, the partials of a row
    and KV head in the scratch, and ``splits``. Grid (blocks, n_head_kv, rows).
    """
    at = layout_of(k_coding, v_coding)
    k_bytes, v_bytes = CHUNK * CODE_BYTES[k_coding], CHUNK * CODE_BYTES[v_coding]
    k_scales, v_scales = SCALES[k_coding], SCALES[v_coding]
    k_scale_bytes, v_scale_bytes = CHUNK * 4 * k_scales, CHUNK * 4 * v_scales
    copy_k, copy_v = copy_of(CODE_BYTES[k_coding]), copy_of(CODE_BYTES[v_coding])
    load_k_scales, store_k_scales = scales_of(k_scales, False)
    load_v_scales, store_v_scales = scales_of(v_scales, True)
    load_query, store_query, take_query = query.parts_of(k_coding, group)
    score, (range_of, add_values), put = scores.make(k_coding), values.make(v_coding), outputs.make(v_coding, group)
    query_registers = PRODUCTS[k_coding] * QUERY_WORDS[k_coding]
    resident = 2 if at.end <= 113 * 1024 else 1

    @device_function
    def of_pool(shared, i):
        """Field ``i`` of the pool; they wait in shared memory, since registers are few."""
        return ld_shared_i64(int32(shared + at.fields + i * 8))

    @device_function
    def keep_field(shared, pools, which, i):
        st_shared_i64(int32(shared + at.fields + i * 8), value_of(pools, which, i))

    @device_function
    def load_scales(raw, shared, row, thread):
        """Lanes 0 to 63: a cell's scales of K, lanes 64 to 127: those of V."""
        if k_scales > 0 and thread < CHUNK:
            load_k_scales(raw, of_pool(shared, K_SCALE), row)
        if v_scales > 0 and thread >= CHUNK and thread < 2 * CHUNK:
            load_v_scales(raw, of_pool(shared, V_SCALE), row)

    @device_function
    def store_scales(raw, shared, chunk, thread):
        if k_scales > 0 and thread < CHUNK:
            store_k_scales(raw, int32(shared + at.k_scale + (chunk & 1) * k_scale_bytes), thread)
        if v_scales > 0 and thread >= CHUNK and thread < 2 * CHUNK:
            store_v_scales(raw, int32(shared + at.v_scale + (chunk & 3) * v_scale_bytes), int32(thread - CHUNK))

    @device_function
    def partial(scratch, n_pieces, g, n_head_kv, piece):
        """Address of the values of a partial."""
        index = (int64(cuda.blockIdx.z) * n_head_kv + g) * n_pieces + piece
        return global_base(scratch) + index * (group * DIM * 4)

    @device_function
    def all_numbers(n_pieces, n_head_kv):
        """Bytes of one number for each head of every partial of the launch."""
        return int64(cuda.gridDim.z) * n_head_kv * n_pieces * (group * 4)

    @device_function
    def numbers_of(scratch, n_pieces, g, n_head_kv, piece):
        """Address of the reference exponents of a partial; the sums of powers lie ``all_numbers`` behind them."""
        index = (int64(cuda.blockIdx.z) * n_head_kv + g) * n_pieces + piece
        return global_base(scratch) + all_numbers(n_pieces, n_head_kv) * DIM + index * (group * 4)

    @device_function
    def rows_of(shared, chunk):
        return int32(shared + at.rows + (chunk & 3) * (CHUNK * 4))

    @kernel(launch_bounds=(THREADS, resident), shared_memory_carveout=100)
    def attend_tensor(q, ids, steps, slots, scratch, out, pools, first_slot, n_pools, first_row, cap, n_pieces, splits):
        shared = shared_base(cuda.shared.array(0, float32))
        thread = int32(cuda.threadIdx.x)
        lane, warp = int32(thread & 31), int32(thread >> 5)
        quarter, half = int32(warp & 3), int32(warp >> 2)
        g, n_head_kv = int32(cuda.blockIdx.y), int32(cuda.gridDim.y)
        row = int32(cuda.blockIdx.z + first_row)
        cap, splits = int32(cap), int32(splits)
        which = int32(0)
        if n_pools > 0:
            which = int32(ld_global_i32_nc(global_base(slots) + int64(row) * 4) - first_slot)
            if which < 0 or which >= n_pools:
                return
        width = ld_global_i32_nc(global_base(steps) + int64(row) * 16 + 12)
        width = int32(max(min(width, cap), 0))
        length, n_reached = reached(width, splits)
        # A run is half of the pieces, whichever block has it.
        run = run_of(n_reached)
        share = int32((n_reached + cuda.gridDim.x - 1) // cuda.gridDim.x)
        piece = int32(cuda.blockIdx.x * share)
        if piece >= n_reached:
            return
        # A row's first head, among heads.
        first_head = int64(row * n_head_kv + g) * group
        begin = int32(piece * length * CHUNK)
        end = int32(min(begin + share * length * CHUNK, width))
        n_chunks = int32((end - begin + CHUNK - 1) >> 6)

        queries = cuda.local.array(16, float32)
        load_query(queries, global_base(q) + first_head * (DIM * 4), warp, lane)
        selection = global_base(ids) + int64(row) * int64(cap) * 4
        table, cells = value_of(pools, which, TABLE), int32(value_of(pools, which, CELLS_OF_TABLE))
        page_size = int32(value_of(pools, which, PAGE_SIZE))
        if thread == 0:
            # One by one: a tuple that a loop's number indexes takes a branch for each.
            keep_field(shared, pools, which, K_CODES)
            keep_field(shared, pools, which, K_SCALE)
            keep_field(shared, pools, which, V_CODES)
            keep_field(shared, pools, which, V_SCALE)
            keep_field(shared, pools, which, TABLE)
            keep_field(shared, pools, which, CELLS_OF_TABLE)
            keep_field(shared, pools, which, PAGE_SIZE)
            st_shared_i64(int32(shared + at.fields + POOL_FIELDS * 8), selection)
        # Lanes 128 to 191 go on looking up cells, a chunk ahead of their rows.
        cell = int32(-1)
        if thread < 3 * CHUNK and begin + thread < end:
            cell = ld_global_i32_nc(selection + int64(begin + thread) * 4)
        if thread < 2 * CHUNK:
            page, offset = page_of(cell, table, cells, page_size)
            found = row_of(page, offset, page_size, n_head_kv, g)
            st_shared_i32(int32(rows_of(shared, int32(thread >> 6)) + (thread & 63) * 4), found)
        place = int32(thread - 2 * CHUNK)
        if warp >= 4:
            for i in range(2):
                zeros = int32(shared + at.powers + i * POWERS_BYTES + group * POWER_ROW)
                for word in range(int32(thread - 128), (POWER_HEADS - group) * (POWER_ROW // 4), 128):
                    st_shared_f32(int32(zeros + word * 4), float32(0))
        if thread < POWER_HEADS * 2:
            st_shared_f32(int32(shared + at.fades + thread * 4), float32(0))
            st_shared_f32(int32(shared + at.masses + thread * 4), float32(0))
            st_shared_i32(int32(shared + at.tops + thread * 4), int32(NO_TOP))
        cuda.syncthreads()
        copy_k(of_pool(shared, K_CODES), int32(shared + at.k), rows_of(shared, int32(0)), thread)
        copy_v(of_pool(shared, V_CODES), int32(shared + at.v), rows_of(shared, int32(0)), thread)
        if n_chunks > 1:
            copy_v(of_pool(shared, V_CODES), int32(shared + at.v + v_bytes), rows_of(shared, int32(1)), thread)
        cp_async_commit()
        raw = cuda.local.array(4, int32)
        own_row = ld_shared_i32(int32(rows_of(shared, int32(0)) + (thread & 63) * 4))
        load_scales(raw, shared, own_row, thread)
        ready = int32(shared + at.scores + SCORES_BYTES)
        store_query(queries, 0, ready, warp, int32(shared + at.factors), int32(shared + at.poison), lane)
        if warp < 4:
            store_query(queries, 8, ready, int32(warp + 8), int32(shared + at.factors), int32(shared + at.poison), lane)
        store_scales(raw, shared, int32(0), thread)
        cp_async_wait_0()
        cuda.syncthreads()
        parts_of_query = cuda.local.array(query_registers, int32)
        take_query(parts_of_query, ready, quarter, lane)

        acc = cuda.local.array(16, float32)
        total = cuda.local.array(16, float32)
        for i in range(16):
            acc[i], total[i] = float32(0), float32(0)
        # Reference and mass: of the lane's head in powers, and of its heads g and 8 + g in what is folded.
        top, mass = int32(NO_TOP), float32(0)
        top_low, top_high, mass_low, mass_high = int32(NO_TOP), int32(NO_TOP), float32(0), float32(0)
        # Chunks of the piece that powers and values have done.
        weighed, added = int32(0), int32(0)
        n = int32(0)
        while n < n_chunks + 2:
            if n + 1 < n_chunks:
                copy_k(
                    of_pool(shared, K_CODES),
                    int32(shared + at.k + ((n + 1) & 1) * k_bytes),
                    rows_of(shared, int32(n + 1)),
                    thread,
                )
            if n >= 3 and n - 1 < n_chunks:
                copy_v(
                    of_pool(shared, V_CODES),
                    int32(shared + at.v + ((n - 1) & 1) * v_bytes),
                    rows_of(shared, int32(n - 1)),
                    thread,
                )
            cp_async_commit()
            scale, up, down = int32(0), float32(0), float32(0)
            if n >= 2:
                scales = int32(shared + at.v_scale + ((n - 2) & 3) * v_scale_bytes)
                scale, up, down = range_of(scales, quarter, half, lane)
            page, offset = int32(-1), int32(0)
            if n + 1 < n_chunks:
                own_row = ld_shared_i32(int32(rows_of(shared, int32(n + 1)) + (thread & 63) * 4))
                load_scales(raw, shared, own_row, thread)
                if place >= 0 and place < CHUNK:
                    table, cells = of_pool(shared, TABLE), int32(of_pool(shared, CELLS_OF_TABLE))
                    page, offset = page_of(cell, table, cells, int32(of_pool(shared, PAGE_SIZE)))
                    following = int32(begin + (n + 3) * CHUNK + place)
                    cell = int32(-1)
                    if following < end:
                        cell = ld_global_i32_nc(of_pool(shared, POOL_FIELDS) + int64(following) * 4)
            if n < n_chunks:
                odd = int32(n & 1)
                score(
                    parts_of_query,
                    int32(shared + at.k + odd * k_bytes),
                    int32(shared + at.k_scale + odd * k_scale_bytes),
                    int32(shared + at.scores + odd * SCORES_BYTES),
                    quarter,
                    half,
                    lane,
                )
            if n >= 1 and n <= n_chunks:
                odd = int32((n - 1) & 1)
                parts, powers = int32(shared + at.scores + odd * SCORES_BYTES), int32(shared + at.powers)
                powers = int32(powers + odd * POWERS_BYTES)
                factors, poison = int32(shared + at.factors), int32(shared + at.poison)
                fades, tops = int32(shared + at.fades + odd * HEAD_WORDS), int32(shared + at.tops + odd * HEAD_WORDS)
                masses, rows = int32(shared + at.masses + odd * HEAD_WORDS), rows_of(shared, int32(n - 1))
                fresh = weighed == 0
                weighed = int32(weighed + 1)
                last = weighed == length or n == n_chunks
                if warp < WEIGHERS:
                    top, mass = weigh(
                        parts, powers, rows, factors, poison, fades, tops, masses, warp, lane, top, mass, fresh, last
                    )
                if last:
                    weighed = int32(0)
            if n >= 2:
                odd = int32(n & 1)
                add_values(
                    acc,
                    int32(shared + at.v + odd * v_bytes),
                    scale,
                    int32(shared + at.powers + odd * POWERS_BYTES),
                    int32(shared + at.fades + odd * HEAD_WORDS),
                    quarter,
                    half,
                    lane,
                    added == 0,
                    up,
                    down,
                )
                added = int32(added + 1)
                if added == length or n == n_chunks + 1:
                    added = int32(0)
                    tops, masses = int32(shared + at.tops + odd * HEAD_WORDS), int32(at.masses + odd * HEAD_WORDS)
                    masses = int32(shared + masses)
                    if result == PIECES:
                        to = partial(scratch, n_pieces, g, n_head_kv, piece)
                        put(to + int64(quarter * 256 + half * 128), acc, lane)
                        if thread < group:
                            to = numbers_of(scratch, n_pieces, g, n_head_kv, piece) + thread * 4
                            st_global_i32(to, ld_shared_i32(int32(tops + thread * 4)))
                            to += all_numbers(n_pieces, n_head_kv)
                            st_global_f32(to, ld_shared_f32(int32(masses + thread * 4)))
                        piece = int32(piece + 1)
                    else:
                        head = int32((lane >> 2) * 4)
                        low, high = int32(tops + head), int32(masses + head)
                        top_low, keep, take = factors_of(top_low, ld_shared_i32(low))
                        mass_low = folded(mass_low, keep, ld_shared_f32(high), take)
                        top_high, keep_high, take_high = factors_of(top_high, ld_shared_i32(int32(low + 32)))
                        mass_high = folded(mass_high, keep_high, ld_shared_f32(int32(high + 32)), take_high)
                        for i in range(0, 16, 4):
                            total[i] = folded(total[i], keep, acc[i], take)
                            total[i + 1] = folded(total[i + 1], keep, acc[i + 1], take)
                            total[i + 2] = folded(total[i + 2], keep_high, acc[i + 2], take_high)
                            total[i + 3] = folded(total[i + 3], keep_high, acc[i + 3], take_high)
                        piece = int32(piece + 1)
                        if piece == run or n == n_chunks + 1:
                            which_run = int32(0) if piece <= run else int32(1)
                            to = partial(scratch, n_pieces, g, n_head_kv, which_run)
                            put(to + int64(quarter * 256 + half * 128), total, lane)
                            if warp == 0 and lane & 3 == 0:
                                to = numbers_of(scratch, n_pieces, g, n_head_kv, which_run) + lane
                                if lane >> 2 < group:
                                    st_global_i32(to, top_low)
                                    st_global_f32(to + all_numbers(n_pieces, n_head_kv), mass_low)
                                if (lane >> 2) + 8 < group:
                                    st_global_i32(to + 32, top_high)
                                    st_global_f32(to + all_numbers(n_pieces, n_head_kv) + 32, mass_high)
                            top_low, top_high, mass_low, mass_high = (
                                int32(NO_TOP),
                                int32(NO_TOP),
                                float32(0),
                                float32(0),
                            )
                            for i in range(16):
                                total[i] = float32(0)
            if n + 1 < n_chunks:
                store_scales(raw, shared, int32(n + 1), thread)
                if place >= 0 and place < CHUNK:
                    found = row_of(page, offset, int32(of_pool(shared, PAGE_SIZE)), n_head_kv, g)
                    st_shared_i32(int32(rows_of(shared, int32(n + 2)) + place * 4), found)
            cp_async_wait_0()
            cuda.syncthreads()
            n = int32(n + 1)

    return attend_tensor


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each."""
    signature = signature_of(F3, I2, I2, I1, F1, F3, "UniTuple(int64, 28)", *["int64"] * 6)
    expect = "mma.sync.aligned.m16n8k16", "cp.async.cg.shared.global"
    # Two blocks a multiprocessor leave 128 registers; the newest targets keep addresses in more of them.
    spilled: dict[str, dict[tuple[int, int], tuple[int, int]]] = {
        "int8": {(10, 0): (8, 8), (12, 0): (40, 72)},
        "int8_pieces": {(12, 0): (32, 72)},
        "k8v4": {(12, 0): (8, 8)},
        "q4_0_pieces": {(12, 0): (8, 8)},
    }
    builds = (
        ("int8", ("int8", "int8"), RUNS),
        ("int8_pieces", ("int8", "int8"), PIECES),
        ("fp16", ("fp16", "fp16"), RUNS),
        ("fp16_pieces", ("fp16", "fp16"), PIECES),
        ("k8v4", ("int8", "q4_0"), RUNS),
        ("q4_0_pieces", ("q4_0", "q4_0"), PIECES),
    )
    for name, codings, result in builds:
        made, known = tensor_kernel.build(12, *codings, result), spilled.get(name, {})
        row = f"attend_tensor_{name}"
        yield PtxRow(row, made, signature, exact=False, spilled=known, expect=expect, minimum=(8, 0))
