"""The kernel of ``block_scores`` in the schedule ``held``: keys stay in registers while a window's rows go by.

Eight lanes have a block, as in ``block_scores_kernels.transposed``, and the same pairs are added in the same order; but
of four blocks at a time, and a key is read once for all rows of a group. What a row adds is its queries, from shared
memory, and arithmetic. So few warps are enough: two for each scheduler, whose 16 independent sums a head hide the
latencies, and the keys of a warp's next turn are on their way during the whole of this one.
"""

from collections.abc import Iterator

from ..ops import WINDOW_ROWS
from .block_scores_kernels import (
    HEADS,
    KEY_BYTES,
    QUERY_WORDS,
    ROW_BYTES,
    THREADS,
    WARPS,
    butterfly_sum,
    dot,
    exchange,
    finished,
    four_lanes,
    relu,
)
from .toolchain.compiler import cuda, device_function, float32, int32, int64, kernel, libdevice
from .toolchain.constants import FULL_WARP
from .toolchain.ptx import (
    global_base,
    ld_global_v4_f32_nc,
    ld_global_v4_i32_nc,
    ld_shared_v2_i32,
    ld_shared_v4_f32,
    shared_base,
    st_global_f32,
    st_shared_v2_i32,
    st_shared_v4_f32,
)
from .toolchain.ptx_rows import F1, F2, F3, I2, PtxRow, signature_of

KEYS = 4
"""Blocks of eight lanes at a time."""

BLOCKS = 4 * KEYS
"""Blocks of a warp at a time."""

KEY_WORDS, SUMS, RECORD_WORDS = 16 * KEYS, HEADS * KEYS, 2 * WINDOW_ROWS


@device_function
def _strip(values, at):
    return values[at], values[at + 1], values[at + 2], values[at + 3]


@device_function
def _load_keys(keys, first, t16, pooled, dead, n_bid):
    """This lane's dims of the KEYS blocks from ``first`` on; those of the dead key for blocks from ``n_bid`` on."""
    for key in range(KEYS):
        block = int32(first + key)
        address = global_base(pooled) + int64(block) * KEY_BYTES if block < n_bid else global_base(dead)
        address = address + int64(t16)
        for strip in range(4):
            at = 16 * key + 4 * strip
            a, b, c, d = ld_global_v4_f32_nc(address + 128 * strip)
            keys[at], keys[at + 1], keys[at + 2], keys[at + 3] = a, b, c, d


@device_function
def _dead_score(dead, q_row, lane):
    """Score of the dead key: a warp to the row, every sum by itself."""
    key = ld_global_v4_f32_nc(global_base(dead) + int64(lane * 16))
    address = int32(q_row + lane * 16)
    score = relu(butterfly_sum(dot(key, ld_shared_v4_f32(address))))
    for head in range(1, HEADS):
        product = dot(key, ld_shared_v4_f32(int32(address + head * KEY_BYTES)))
        score = libdevice.fadd_rn(score, relu(butterfly_sum(product)))
    return score


@kernel(launch_bounds=(THREADS, 1))
def held(q_idx, pooled, dead, steps, out, rows, group, max_blocks, ratio):
    """Grid (thread blocks, groups of ``group`` rows, up to 8), 256 lanes; ``out`` [rows, max_blocks]."""
    queries = cuda.shared.array(QUERY_WORDS, float32)
    records = cuda.shared.array(RECORD_WORDS, int32)
    keys = cuda.local.array(KEY_WORDS, float32)
    coming = cuda.local.array(KEY_WORDS, float32)
    sums = cuda.local.array(SUMS, float32)
    q_shared, r_shared = shared_base(queries), shared_base(records)
    lane = int32(cuda.threadIdx.x & 31)
    warp = int32(cuda.threadIdx.x >> 5)
    t16 = int32((lane & 7) * 16)
    stride = int32(cuda.gridDim.x * (WARPS * BLOCKS))
    group_start = int32(cuda.blockIdx.y * group)
    while group_start < rows:
        here = int32(min(group, rows - group_start))
        cuda.syncthreads()
        piece = int32(cuda.threadIdx.x)
        while piece < here * (ROW_BYTES // 16):
            a, b, c, d = ld_global_v4_f32_nc(global_base(q_idx) + int64(group_start) * ROW_BYTES + int64(piece * 16))
            st_shared_v4_f32(int32(q_shared + piece * 16), a, b, c, d)
            piece = int32(piece + THREADS)
        if cuda.threadIdx.x < here:
            row = int32(group_start + cuda.threadIdx.x)
            _, n_kv, n_bid, _ = ld_global_v4_i32_nc(global_base(steps) + int64(row) * 16)
            if n_kv <= 0 or n_bid >= max_blocks:
                n_kv, n_bid = int32(0), int32(-1)
            st_shared_v2_i32(int32(r_shared + cuda.threadIdx.x * 8), n_kv, n_bid)
        cuda.syncthreads()
        most = int32(0)
        for i in range(here):
            _, n_bid = ld_shared_v2_i32(int32(r_shared + int32(i) * 8))
            most = max(most, n_bid)
        out_group = global_base(out) + int64(group_start) * max_blocks * 4
        base = int32((cuda.blockIdx.x * WARPS + warp) * BLOCKS)
        first = int32(base + (lane >> 3) * KEYS)
        if base < most:
            _load_keys(coming, first, t16, pooled, dead, most)
        while base < most:
            for i in range(KEY_WORDS):
                keys[i] = coming[i]
            base = int32(base + stride)
            if base < most:
                _load_keys(coming, int32(first + stride), t16, pooled, dead, most)
            i = int32(0)
            while i < here:
                q_row = int32(q_shared + i * ROW_BYTES + t16)
                for head in range(HEADS):
                    at = int32(q_row + head * KEY_BYTES)
                    q = (
                        ld_shared_v4_f32(at),
                        ld_shared_v4_f32(int32(at + 128)),
                        ld_shared_v4_f32(int32(at + 256)),
                        ld_shared_v4_f32(int32(at + 384)),
                    )
                    for key in range(KEYS):
                        k = 16 * key
                        strips = _strip(keys, k), _strip(keys, k + 4), _strip(keys, k + 8), _strip(keys, k + 12)
                        sums[HEADS * key + head] = four_lanes(strips, q)
                upper = lane & 4 != 0
                for j in range(2 * HEADS):
                    sums[j] = exchange(upper, sums[j], sums[j + 2 * HEADS], 4)
                upper = lane & 2 != 0
                for key in range(2):
                    for head in range(2):
                        j = HEADS * key + head
                        sums[j] = exchange(upper, sums[j], sums[j + 2], 2)
                upper = lane & 1 != 0
                _, n_bid = ld_shared_v2_i32(int32(r_shared + i * 8))
                for key in range(2):
                    # Now lane l holds head l % 4 of this key and the next but one, by its bit 4.
                    product = relu(exchange(upper, sums[HEADS * key], sums[HEADS * key + 1], 1))
                    score = libdevice.fadd_rn(product, cuda.shfl_down_sync(FULL_WARP, product, 1))
                    score = libdevice.fadd_rn(score, cuda.shfl_down_sync(FULL_WARP, product, 2))
                    score = libdevice.fadd_rn(score, cuda.shfl_down_sync(FULL_WARP, product, 3))
                    scored = int32(first + ((lane >> 2) & 1) * 2 + key)
                    if lane & 3 == 0 and scored < n_bid:
                        address = out_group + (int64(i) * max_blocks + int64(scored)) * 4
                        st_global_f32(address, finished(score, scored, int32(0), n_bid, ratio))
                i = int32(i + 1)
            first = int32(first + stride)
        # The last thread block has as few turns as any.
        if cuda.blockIdx.x == cuda.gridDim.x - 1 and warp < here:
            n_kv, n_bid = ld_shared_v2_i32(int32(r_shared + warp * 8))
            if n_bid >= 0:
                score = _dead_score(dead, int32(q_shared + warp * ROW_BYTES), lane)
                if lane == 0:
                    address = out_group + (int64(warp) * max_blocks + int64(n_bid)) * 4
                    st_global_f32(address, finished(score, n_bid, n_kv, n_bid, ratio))
        group_start = int32(group_start + cuda.gridDim.y * group)


def ptx_rows() -> Iterator[PtxRow]:
    """The build whose PTX is checked."""
    yield PtxRow("block_scores_held", held, signature_of(F3, F2, F1, I2, F2, *["int64"] * 4))
