"""Parts of the kernel of partial.py that touch no K or V: queries, rows, weights, what a piece leaves.

A block's shared memory, in bytes from its start: the heads' queries, their sums, the values being summed, the scores of
a chunk, its rows, four numbers a head (maximum, sum, factor of what was summed before, poison), a pool's fields.
"""

import math
from typing import Any, NamedTuple

from ..attend_exact.shared_memory import POOL_FIELDS
from ..toolchain.compiler import cuda, device_function, float32, int32, int64
from ..toolchain.constants import FULL_WARP
from ..toolchain.ptx import (
    ex2_approx,
    global_base,
    ld_global_i32_nc,
    ld_global_v4_f32_nc,
    ld_shared_f32,
    ld_shared_i32,
    ld_shared_i64,
    st_global_f32,
    st_shared_f32,
    st_shared_i32,
    st_shared_v4_f32,
)
from .lanes import rotation, row_of

CHUNK = 64
"""Cells of a chunk: eight for each of the eight sets of lanes that a thread block has."""

TOGETHER = 4
"""Heads whose values are summed at a time."""

EMPTY = -3.4028234663852886e38


class Offsets(NamedTuple):
    """Offsets in a block's shared memory, in bytes. ``half`` and ``head`` are sizes: half a head's dims, and all."""

    half: int
    head: int
    sums: int
    buffer: int
    weights: int
    rows: int
    tops: int
    masses: int
    fades: int
    poison: int
    fields: int
    end: int


def offsets_of(group: int, dim: int) -> Offsets:
    """:class:`Offsets` of a block of ``group`` heads of ``dim`` dims."""
    head = dim * 4
    sums = group * head
    buffer = sums + group * head
    weights = buffer + 8 * TOGETHER * head
    rows = weights + group * CHUNK * 4
    tops = rows + CHUNK * 4
    masses, fades, poison, fields = (tops + i * group * 4 for i in range(1, 5))
    return Offsets(
        dim * 2, head, sums, buffer, weights, rows, tops, masses, fades, poison, fields, fields + 8 * POOL_FIELDS
    )


def parts_of(group: int, dim: int, rotated: bool) -> tuple[Any, Any, Any, Any, Any]:
    """(load_queries, weigh, look_up, partial_row, finish) of the kernel for ``group`` heads of ``dim`` dims;
    ``rotated``: K is."""
    lanes = dim // 8
    rotate = rotation(lanes)
    half, head_bytes, _, _, weights, rows_at, tops, masses, fades, poison, fields, _ = offsets_of(group, dim)

    @device_function
    def load_queries(base, shared, lane, part):
        """The heads' queries to shared memory, the first four dims of every lane's eight in the first half."""
        x = cuda.local.array(8, float32)
        for start in range(0, group, 8):
            head = int32(start + part)
            at = base + (int64(min(head, int32(group - 1))) * dim + lane * 8) * 4
            x[0], x[1], x[2], x[3] = ld_global_v4_f32_nc(at)
            x[4], x[5], x[6], x[7] = ld_global_v4_f32_nc(at + 16)
            if rotated:
                rotate(x, lane)
            bad = False
            for i in range(8):
                bad = bad or not (abs(x[i]) < float32(math.inf))
            # The lanes of this head are one part of the warp, or all of it.
            votes = int64(cuda.ballot_sync(FULL_WARP, bad)) >> ((part * lanes) & 31)
            if head < group:
                to = int32(shared + head * head_bytes + lane * 16)
                st_shared_v4_f32(to, x[0], x[1], x[2], x[3])
                st_shared_v4_f32(int32(to + half), x[4], x[5], x[6], x[7])
                if lane == 0:
                    st_shared_i32(int32(shared + poison + head * 4), int32(votes & ((1 << lanes) - 1) != 0))
                    st_shared_f32(int32(shared + tops + head * 4), float32(EMPTY))

    @device_function
    def weigh(shared, head, lane, fresh):
        """One warp: a head's scores to weights, its maximum and sum brought up to date. ``fresh``: the piece begins."""
        at = int32(shared + weights + (head * CHUNK + lane) * 4)
        row_at = int32(shared + rows_at + lane * 4)
        s0 = ld_shared_f32(at) if ld_shared_i32(row_at) >= 0 else float32(EMPTY)
        s1 = ld_shared_f32(int32(at + 128)) if ld_shared_i32(int32(row_at + 128)) >= 0 else float32(EMPTY)
        before = float32(EMPTY)
        mass = float32(0)
        if lane == 0 and not fresh:
            before = ld_shared_f32(int32(shared + tops + head * 4))
            mass = ld_shared_f32(int32(shared + masses + head * 4))
        before = cuda.shfl_sync(FULL_WARP, before, 0)
        top = max(max(s0, s1), before)
        for distance in (16, 8, 4, 2, 1):
            top = max(top, cuda.shfl_xor_sync(FULL_WARP, top, distance))
        e0 = ex2_approx(s0 - top) if s0 > float32(EMPTY) else float32(0)
        e1 = ex2_approx(s1 - top) if s1 > float32(EMPTY) else float32(0)
        fade = ex2_approx(before - top) if before > float32(EMPTY) else float32(0)
        st_shared_f32(at, e0)
        st_shared_f32(int32(at + 128), e1)
        total = e0 + e1
        for distance in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(FULL_WARP, total, distance)
        if lane == 0:
            st_shared_f32(int32(shared + tops + head * 4), top)
            st_shared_f32(int32(shared + masses + head * 4), mass * fade + total)
            st_shared_f32(int32(shared + fades + head * 4), fade)

    @device_function
    def look_up(ids_row, first, stop, shared, n_head_kv, g, thread):
        """Row of the pool of the lane's cell in the chunk from ``first``; -1 where nothing is selected."""
        if thread >= CHUNK or first + thread >= stop:
            return int32(-1)
        return row_of(
            ld_global_i32_nc(ids_row + int64(first + thread) * 4),
            ld_shared_i64(int32(shared + fields + 32)),
            int32(ld_shared_i64(int32(shared + fields + 40))),
            int32(ld_shared_i64(int32(shared + fields + 48))),
            n_head_kv,
            g,
        )

    @device_function
    def partial_row(scratch, n_pieces, n_head_kv):
        """Address of the partials of the block's row."""
        return global_base(scratch) + int64(cuda.blockIdx.z) * (n_pieces * n_head_kv) * (group * (dim + 2) * 4)

    @device_function
    def finish(scratch, n_pieces, g, n_head_kv, piece, head, top, mass):
        """Maximum and sum of one head's piece to the scratch."""
        each = int64(n_pieces) * n_head_kv * group
        index = (int64(g) * n_pieces + piece) * group + head
        at = partial_row(scratch, n_pieces, n_head_kv) + (each * dim + index) * 4
        st_global_f32(at, top)
        st_global_f32(at + each * 4, mass)

    return load_queries, weigh, look_up, partial_row, finish
