"""The kernel of ``block_scores`` in the schedule ``held``: keys stay in shared memory while a window's rows go by.

A warp has a row, and eight lanes a block, as in ``block_scores_kernels.transposed``; the same pairs are added in the
same order. But the warps that walk over the same keys, a *share* of the thread block, copy them to shared memory once
for all their rows, asynchronously and two turns ahead: no lane waits for memory, and none keeps a key in registers
that it does not multiply yet. sm_80 and newer.
"""

from collections.abc import Iterator

from ..ops import WINDOW_ROWS
from .block_scores_kernels import (
    HEADS,
    KEY_BYTES,
    ROW_BYTES,
    THREADS,
    WARPS,
    butterfly_sum,
    dot,
    exchange,
    finished,
    four_lanes,
    load_strips,
    relu,
)
from .common.scalar import one_nan, warp_max
from .toolchain.compiler import cuda, device_function, int32, int64, kernel, libdevice
from .toolchain.constants import FULL_WARP
from .toolchain.ptx import (
    barrier_sync,
    cp_async_16,
    cp_async_commit,
    cp_async_wait_1,
    global_base,
    ld_global_v4_f32_nc,
    ld_global_v4_i32_nc,
    ld_shared_v4_f32,
    shared_base,
    st_global_f32,
    start_next,
    wait_for_earlier,
)
from .toolchain.ptx_rows import F1, F2, F3, I2, PtxRow, signature_of

BLOCKS = 16
"""Blocks of a share's turn, which are computed eight at a time."""

STAGES = 3
"""Turns of keys in shared memory: one in use, two on their way."""

MOST_SHARES = 4
"""Shares of a thread block at most: two thread blocks of four fit a multiprocessor's shared memory."""

TURN_BYTES = BLOCKS * KEY_BYTES

RESIDENT = 2
"""Thread blocks for which a multiprocessor has room."""


def shared_bytes(shares: int) -> int:
    """Bytes of dynamic shared memory of a thread block of so many shares."""
    return shares * STAGES * TURN_BYTES


@device_function
def _copy_turn(stage, base, most, pooled_lane, own, group):
    """Start the copies of a turn's keys, of the blocks from ``base`` on, 16 bytes a lane of each ``group``-th block; of
    blocks from ``most`` on the last one's, which nobody wants. An empty group of copies where the turn has none."""
    if base < most:
        block = own
        while block < BLOCKS:
            from_ = pooled_lane + int64(min(int32(base + block), int32(most - 1))) * KEY_BYTES
            cp_async_16(int32(stage + block * KEY_BYTES), from_)
            block = int32(block + group)
    cp_async_commit()


@device_function
def _shared_strips(address):
    """As ``load_strips``, of shared memory."""
    return (
        ld_shared_v4_f32(address),
        ld_shared_v4_f32(int32(address + 128)),
        ld_shared_v4_f32(int32(address + 256)),
        ld_shared_v4_f32(int32(address + 384)),
    )


@device_function
def _dead_score(dead, q_row, lane):
    """Score of the dead key: a warp to the row, every sum by itself."""
    key = ld_global_v4_f32_nc(global_base(dead) + int64(lane * 16))
    address = q_row + int64(lane * 16)
    score = relu(butterfly_sum(dot(key, ld_global_v4_f32_nc(address))))
    for head in range(1, HEADS):
        product = dot(key, ld_global_v4_f32_nc(address + head * KEY_BYTES))
        score = libdevice.fadd_rn(score, relu(butterfly_sum(product)))
    return score


@kernel(launch_bounds=(THREADS, RESIDENT))
def held(q_idx, pooled, dead, steps, out, rows, max_blocks, ratio):
    """Grid (thread blocks, groups of rows); a thread block has 32 lanes by the rows of a group (8 at most) by its
    shares, and :func:`shared_bytes` of dynamic shared memory. ``out`` [rows, max_blocks]."""
    lane, own, share = int32(cuda.threadIdx.x), int32(cuda.threadIdx.y), int32(cuda.threadIdx.z)
    group = int32(cuda.blockDim.y)
    threads = int32(group * 32)
    ring = int32(shared_base(cuda.shared.array(0, int32)) + share * (STAGES * TURN_BYTES))
    ring_lane, pooled_lane = int32(ring + lane * 16), global_base(pooled) + int64(lane * 16)
    t16 = int32((lane & 7) * 16)
    mine = int32((lane >> 3) * (2 * KEY_BYTES) + t16)
    stride = int32(cuda.gridDim.x * cuda.blockDim.z * BLOCKS)
    start_next()
    wait_for_earlier()
    group_start = int32(cuda.blockIdx.y * group)
    while group_start < rows:
        base = int32((cuda.blockIdx.x * cuda.blockDim.z + share) * BLOCKS)
        # A lane has the record of one row.
        n_kv, n_bid = int32(0), int32(-1)
        if lane < group and group_start + lane < rows:
            _, n_kv, n_bid, _ = ld_global_v4_i32_nc(global_base(steps) + int64(group_start + lane) * 16)
            if n_kv <= 0 or n_bid >= max_blocks:
                n_bid = int32(-1)
        most = warp_max(n_bid)
        n_kv, n_bid = cuda.shfl_sync(FULL_WARP, n_kv, own), cuda.shfl_sync(FULL_WARP, n_bid, own)
        row = min(int32(group_start + own), int32(rows - 1))
        q_row = global_base(q_idx) + int64(row) * ROW_BYTES
        out_row = global_base(out) + int64(row) * max_blocks * 4
        barrier_sync(int32(share + 1), threads)
        stage = int32(0)
        while stage < STAGES - 1:
            at = int32(ring_lane + stage * TURN_BYTES)
            _copy_turn(at, int32(base + stage * stride), most, pooled_lane, own, group)
            stage = int32(stage + 1)
        lanes = q_row + int64(t16)
        q0, q1 = load_strips(lanes), load_strips(lanes + KEY_BYTES)
        q2, q3 = load_strips(lanes + 2 * KEY_BYTES), load_strips(lanes + 3 * KEY_BYTES)
        # The last thread block has as few turns as any.
        if cuda.blockIdx.x == cuda.gridDim.x - 1 and share == 0 and n_bid >= 0:
            score = _dead_score(dead, q_row, lane)
            if lane == 0:
                st_global_f32(out_row + int64(n_bid) * 4, finished(score, n_bid, n_kv, n_bid, ratio))
        # The stage that is used, and the one before it, which takes the keys of the turn after the next.
        stage, before = int32(0), int32(STAGES - 1)
        while base < most:
            cp_async_wait_1()
            barrier_sync(int32(share + 1), threads)
            ahead = int32(base + (STAGES - 1) * stride)
            _copy_turn(int32(ring_lane + before * TURN_BYTES), ahead, most, pooled_lane, own, group)
            keys = int32(ring + stage * TURN_BYTES + mine)
            for half in range(2):
                k = _shared_strips(keys)
                a0, a1, a2, a3 = four_lanes(k, q0), four_lanes(k, q1), four_lanes(k, q2), four_lanes(k, q3)
                k = _shared_strips(int32(keys + KEY_BYTES))
                upper = lane & 4 != 0
                s0 = exchange(upper, a0, four_lanes(k, q0), 4)
                s1 = exchange(upper, a1, four_lanes(k, q1), 4)
                s2 = exchange(upper, a2, four_lanes(k, q2), 4)
                s3 = exchange(upper, a3, four_lanes(k, q3), 4)
                upper = lane & 2 != 0
                s0, s1 = exchange(upper, s0, s2, 2), exchange(upper, s1, s3, 2)
                # Now lane l holds head l % 4 of block l // 4 of these eight.
                product = relu(exchange(lane & 1 != 0, s0, s1, 1))
                score = libdevice.fadd_rn(product, cuda.shfl_down_sync(FULL_WARP, product, 1))
                score = libdevice.fadd_rn(score, cuda.shfl_down_sync(FULL_WARP, product, 2))
                score = libdevice.fadd_rn(score, cuda.shfl_down_sync(FULL_WARP, product, 3))
                scored = int32(base + half * 8 + (lane >> 2))
                if lane & 3 == 0 and scored < n_bid:
                    # The tail's bonus belongs to the dead key's score.
                    st_global_f32(out_row + int64(scored) * 4, one_nan(score))
                keys = int32(keys + 8 * KEY_BYTES)
            base, before = int32(base + stride), stage
            stage = int32(stage + 1) if stage < STAGES - 1 else int32(0)
        group_start = int32(group_start + cuda.gridDim.y * group)


def shape_of(rows: int) -> tuple[int, int]:
    """(rows of a group, shares of a thread block) of a call."""
    group = min(rows, WINDOW_ROWS)
    return group, min(WARPS // group, MOST_SHARES)


def ptx_rows() -> Iterator[PtxRow]:
    """The build whose PTX is checked."""
    signature = signature_of(F3, F2, F1, I2, F2, *["int64"] * 3)
    yield PtxRow("block_scores_held", held, signature, expect=("cp.async.cg",), minimum=(8, 0))
