"""The kernels of ``block_scores``: float32 in the lane tree, which they all give the same bits.

The contract's lane l of 32 holds dims 4l to 4l + 3. :func:`one_row` and :func:`butterfly` give a warp to a block and do
what the contract says: every (row, head) sum is reduced by itself, 20 shuffles a row. :func:`transposed` gives a block
to 8 lanes: a lane holds the contract's lanes t, t + 8, t + 16 and t + 24, adds those itself (strides 16 and 8), and the
sums of 8 blocks and 4 heads are reduced together, each shuffle carrying half of them (strides 4, 2, 1): the same pairs
in the same order, 10 shuffles for 8 blocks of a row.
"""

from collections.abc import Iterator
from typing import Any

from qsa.reference.block_scores import TAIL_BONUS

from ..ops import WINDOW_ROWS
from .common.scalar import NAN_BITS
from .toolchain.compiler import cuda, device_function, float32, int32, int64, kernel, libdevice, specialised
from .toolchain.constants import FULL_WARP
from .toolchain.ptx import (
    global_base,
    int_as_float,
    ld_global_v4_f32_nc,
    ld_global_v4_i32_nc,
    ld_shared_v4_f32,
    shared_base,
    st_global_f32,
    st_shared_v4_f32,
    start_next,
    wait_for_earlier,
)
from .toolchain.ptx_rows import F1, F2, F3, I2, PtxRow, signature_of

KEYS = 4
"""Blocks that a warp of the schedule ``warp`` has under way: 16 sums, whose shuffles hide each other's latency."""

LEAST, RESIDENT = 3, 4
"""Thread blocks of that schedule for which a multiprocessor must have room, and for which the grid is made. The lanes
take 63 or 64 registers up to sm_90, so four are resident there, with 64 KiB of keys on their way, where 25 KiB keep the
memory busy. Newer targets take 71, and would spill to have four."""

WARPS = 8
THREADS = 32 * WARPS
BLOCKS_PER_MULTIPROCESSOR = 2

HEADS, DIM = 4, 128
KEY_BYTES = DIM * 4
ROW_BYTES = HEADS * KEY_BYTES
QUERY_WORDS = WINDOW_ROWS * HEADS * DIM


@device_function
def dot(k, q):
    """Four products, summed left to right."""
    s = libdevice.fadd_rn(libdevice.fmul_rn(k[0], q[0]), libdevice.fmul_rn(k[1], q[1]))
    return libdevice.fadd_rn(libdevice.fadd_rn(s, libdevice.fmul_rn(k[2], q[2])), libdevice.fmul_rn(k[3], q[3]))


@device_function
def relu(x):
    """0 where ``x`` <= 0; a NaN stays one."""
    return float32(0) if x <= float32(0) else x


@device_function
def finished(score, block, n_kv, n_bid, ratio):
    """The score as it is written: with the tail's bonus, and a NaN as the one NaN."""
    if block == n_bid and n_kv > n_bid * ratio:
        score = libdevice.fadd_rn(score, float32(TAIL_BONUS))
    return score if score == score else int_as_float(int32(NAN_BITS))


@device_function
def butterfly_sum(x):
    """Sum of the 32 lanes' ``x`` in every lane, in the order of the contract."""
    x = libdevice.fadd_rn(x, cuda.shfl_xor_sync(FULL_WARP, x, 16))
    x = libdevice.fadd_rn(x, cuda.shfl_xor_sync(FULL_WARP, x, 8))
    x = libdevice.fadd_rn(x, cuda.shfl_xor_sync(FULL_WARP, x, 4))
    x = libdevice.fadd_rn(x, cuda.shfl_xor_sync(FULL_WARP, x, 2))
    return libdevice.fadd_rn(x, cuda.shfl_xor_sync(FULL_WARP, x, 1))


@specialised
def one_row(keys: int, least: int) -> Any:
    """The kernel that gives a warp ``keys`` blocks (2 to 32) at a time; a multiprocessor has room for ``least`` thread
    blocks or more.

    Grid (thread blocks, rows), 256 lanes; ``out`` [rows, max_blocks]. A row's queries stay in registers; the keys of a
    turn are on their way together, and so are the shuffles of its sums, which hide each other's latency.
    """
    query_words, key_words, n_sums = 4 * HEADS, 4 * keys, HEADS * keys

    @kernel(launch_bounds=(THREADS, least))
    def one_row(q_idx, pooled, dead, steps, out, rows, max_blocks, ratio):
        query = cuda.local.array(query_words, float32)
        key = cuda.local.array(key_words, float32)
        sums = cuda.local.array(n_sums, float32)
        lane = int32(cuda.threadIdx.x & 31)
        first = int32((cuda.blockIdx.x * WARPS + (cuda.threadIdx.x >> 5)) * keys)
        stride = int32(cuda.gridDim.x * (WARPS * keys))
        pooled_lane = global_base(pooled) + int64(lane * 16)
        dead_lane = global_base(dead) + int64(lane * 16)
        row = int32(cuda.blockIdx.y)
        start_next()
        wait_for_earlier()
        while row < rows:
            _, n_kv, n_bid, _ = ld_global_v4_i32_nc(global_base(steps) + int64(row) * 16)
            last = n_bid if n_kv > 0 and n_bid < max_blocks else int32(-1)
            q_row = global_base(q_idx) + int64(row) * ROW_BYTES + int64(lane * 16)
            for head in range(HEADS):
                a, b, c, d = ld_global_v4_f32_nc(q_row + head * KEY_BYTES)
                query[4 * head], query[4 * head + 1], query[4 * head + 2], query[4 * head + 3] = a, b, c, d
            out_row = global_base(out) + int64(row) * max_blocks * 4
            base = first
            while base <= last:
                for i in range(keys):
                    block = int32(base + i)
                    a, b, c, d = ld_global_v4_f32_nc(
                        pooled_lane + int64(block) * KEY_BYTES if block < n_bid else dead_lane
                    )
                    key[4 * i], key[4 * i + 1], key[4 * i + 2], key[4 * i + 3] = a, b, c, d
                for i in range(keys):
                    k = key[4 * i], key[4 * i + 1], key[4 * i + 2], key[4 * i + 3]
                    for head in range(HEADS):
                        q = query[4 * head], query[4 * head + 1], query[4 * head + 2], query[4 * head + 3]
                        sums[HEADS * i + head] = dot(k, q)
                for step in range(5):
                    for j in range(HEADS * keys):
                        sums[j] = libdevice.fadd_rn(sums[j], cuda.shfl_xor_sync(FULL_WARP, sums[j], 16 >> step))
                # Every lane has every sum; lane i finishes block base + i.
                s0, s1, s2, s3 = sums[0], sums[1], sums[2], sums[3]
                for i in range(1, keys):
                    if lane == i:
                        s0, s1, s2, s3 = sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]
                score = libdevice.fadd_rn(relu(s0), relu(s1))
                score = libdevice.fadd_rn(libdevice.fadd_rn(score, relu(s2)), relu(s3))
                scored = int32(base + lane)
                if lane < keys and scored <= n_bid:
                    st_global_f32(out_row + int64(scored) * 4, finished(score, scored, n_kv, n_bid, ratio))
                base = int32(base + stride)
            row = int32(row + cuda.gridDim.y)

    return one_row


@kernel()
def butterfly(q_idx, pooled, dead, steps, out, rows, group, max_blocks, ratio):
    """A warp to a block, a key read once for a group of rows; grid (blocks, groups of ``group`` rows), 256 lanes.

    ``out`` [rows, max_blocks].
    """
    queries = cuda.shared.array(QUERY_WORDS, float32)
    q_shared = shared_base(queries)
    lane = int32(cuda.threadIdx.x & 31)
    warp = int32(cuda.threadIdx.x >> 5)
    first = int32(cuda.blockIdx.x * (WARPS) + warp)
    stride = int32(cuda.gridDim.x * (WARPS))
    steps_base, q_base, out_base = global_base(steps), global_base(q_idx), global_base(out)
    pooled_lane = global_base(pooled) + int64(lane * 16)
    start_next()
    wait_for_earlier()
    dead_key = ld_global_v4_f32_nc(global_base(dead) + int64(lane * 16))
    # While loops in int32: a range with a step costs a 64-bit division before its first turn.
    group_start = int32(cuda.blockIdx.y * group)
    while group_start < rows:
        held = int32(min(group, rows - group_start))
        cuda.syncthreads()
        piece = int32(cuda.threadIdx.x)
        while piece < held * (ROW_BYTES // 16):
            a, b, c, d = ld_global_v4_f32_nc(q_base + int64(group_start) * ROW_BYTES + int64(piece * 16))
            st_shared_v4_f32(int32(q_shared + piece * 16), a, b, c, d)
            piece = int32(piece + THREADS)
        cuda.syncthreads()
        last = int32(-1)
        for i in range(held):
            _, n_kv, n_bid, _ = ld_global_v4_i32_nc(steps_base + int64(group_start + i) * 16)
            if n_kv > 0 and n_bid < max_blocks:
                last = max(last, n_bid)
        block = first
        while block <= last:
            key = dead_key
            if block < last:
                key = ld_global_v4_f32_nc(pooled_lane + int64(block) * KEY_BYTES)
            for i in range(held):
                _, n_kv, n_bid, _ = ld_global_v4_i32_nc(steps_base + int64(group_start + i) * 16)
                if n_kv > 0 and n_bid < max_blocks and block <= n_bid:
                    mine = dead_key if block == n_bid else key
                    q_row = q_shared + int32(i * ROW_BYTES + lane * 16)
                    score = relu(butterfly_sum(dot(mine, ld_shared_v4_f32(q_row))))
                    for head in range(1, HEADS):
                        product = dot(mine, ld_shared_v4_f32(int32(q_row + head * KEY_BYTES)))
                        score = libdevice.fadd_rn(score, relu(butterfly_sum(product)))
                    if lane == 0:
                        score = finished(score, block, n_kv, n_bid, ratio)
                        st_global_f32(out_base + (int64(group_start + i) * max_blocks + block) * 4, score)
            block = int32(block + stride)
        group_start = int32(group_start + cuda.gridDim.y * group)


@device_function
def load_strips(address):
    """The four strips of 32 dims that 8 lanes read together: this lane's 4 dims of each."""
    return (
        ld_global_v4_f32_nc(address),
        ld_global_v4_f32_nc(address + 128),
        ld_global_v4_f32_nc(address + 256),
        ld_global_v4_f32_nc(address + 384),
    )


@device_function
def four_lanes(k, q):
    """Sum of the contract's lanes t, t + 8, t + 16, t + 24: its strides 16, then 8."""
    even = libdevice.fadd_rn(dot(k[0], q[0]), dot(k[2], q[2]))
    return libdevice.fadd_rn(even, libdevice.fadd_rn(dot(k[1], q[1]), dot(k[3], q[3])))


@device_function
def exchange(upper, x, y, stride):
    """Lanes without the bit ``stride`` get the sum of both lanes' x, those with it (``upper``) that of both's y."""
    kept, sent = (y, x) if upper else (x, y)
    return libdevice.fadd_rn(kept, cuda.shfl_xor_sync(FULL_WARP, sent, stride))


@kernel(launch_bounds=(THREADS, BLOCKS_PER_MULTIPROCESSOR))
def transposed(q_idx, pooled, dead, steps, out, rows, max_blocks, ratio):
    """Eight lanes to a block, a warp to a row; grid (blocks, groups of rows).

    A thread block has 32 lanes by the rows of a group by the warps that share a row. ``out`` [rows, max_blocks].
    """
    lane = int32(cuda.threadIdx.x)
    t16 = (lane & 7) * 16
    first = int32((cuda.blockIdx.x * cuda.blockDim.z + cuda.threadIdx.z) * 8)
    stride = int32(cuda.gridDim.x * cuda.blockDim.z * 8)
    pooled_lane = global_base(pooled) + int64(t16)
    dead_lane = global_base(dead) + int64(t16)
    row = int32(cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y)
    start_next()
    wait_for_earlier()
    while row < rows:
        _, n_kv, n_bid, _ = ld_global_v4_i32_nc(global_base(steps) + int64(row) * 16)
        last = n_bid if n_kv > 0 and n_bid < max_blocks else int32(-1)
        q_row = global_base(q_idx) + int64(row) * ROW_BYTES + int64(t16)
        q0, q1 = load_strips(q_row), load_strips(q_row + KEY_BYTES)
        q2, q3 = load_strips(q_row + 2 * KEY_BYTES), load_strips(q_row + 3 * KEY_BYTES)
        out_row = global_base(out) + int64(row) * max_blocks * 4
        base = first
        block = int32(base + (lane >> 3) * 2)
        ka = load_strips(pooled_lane + int64(block) * KEY_BYTES if block < n_bid else dead_lane)
        while base <= last:
            # One key of the pair is under way while the other is multiplied.
            kb = load_strips(pooled_lane + int64(block + 1) * KEY_BYTES if block + 1 < n_bid else dead_lane)
            a0, a1, a2, a3 = four_lanes(ka, q0), four_lanes(ka, q1), four_lanes(ka, q2), four_lanes(ka, q3)
            block = int32(block + stride)
            ka = load_strips(pooled_lane + int64(block) * KEY_BYTES if block < n_bid else dead_lane)
            upper = lane & 4 != 0
            s0 = exchange(upper, a0, four_lanes(kb, q0), 4)
            s1 = exchange(upper, a1, four_lanes(kb, q1), 4)
            s2 = exchange(upper, a2, four_lanes(kb, q2), 4)
            s3 = exchange(upper, a3, four_lanes(kb, q3), 4)
            upper = lane & 2 != 0
            s0, s1 = exchange(upper, s0, s2, 2), exchange(upper, s1, s3, 2)
            # Now lane l holds head l % 4 of block base + l // 4.
            product = relu(exchange(lane & 1 != 0, s0, s1, 1))
            score = libdevice.fadd_rn(product, cuda.shfl_down_sync(FULL_WARP, product, 1))
            score = libdevice.fadd_rn(score, cuda.shfl_down_sync(FULL_WARP, product, 2))
            score = libdevice.fadd_rn(score, cuda.shfl_down_sync(FULL_WARP, product, 3))
            scored = int32(base + (lane >> 2))
            if lane & 3 == 0 and scored <= n_bid:
                st_global_f32(out_row + int64(scored) * 4, finished(score, scored, n_kv, n_bid, ratio))
            base = int32(base + stride)
        row = int32(row + cuda.gridDim.y * cuda.blockDim.y)


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each."""
    arrays = (F3, F2, F1, I2, F2)
    yield PtxRow("block_scores_one_row", one_row.build(KEYS, LEAST), signature_of(*arrays, *["int64"] * 3))
    yield PtxRow("block_scores_butterfly", butterfly, signature_of(*arrays, *["int64"] * 4))
    yield PtxRow("block_scores_transposed", transposed, signature_of(*arrays, *["int64"] * 3))
