"""Merge of the tensor-core form: a row's partials folded one after the other in ascending order of pieces.

The partials of all rows of a launch: values float32 [rows, n_head_kv, pieces, group, 256], then the reference exponents
int32 [rows, n_head_kv, pieces, group], then the sums of powers float32 of the same shape. Those of pieces that a row's
width does not reach are not read. A warp has a head, eight dims a lane, as the rotation wants them.
"""

from collections.abc import Iterator
from typing import Any

from ...attend_exact.shared_memory import DIM
from ...toolchain.compiler import cuda, float32, int32, int64, kernel, libdevice, specialised
from ...toolchain.ptx import (
    global_base,
    ld_global_f32,
    ld_global_i32,
    ld_global_i32_nc,
    ld_global_v4_f32,
    st_global_v4_f32,
)
from ...toolchain.ptx_rows import F1, F3, I1, I2, PtxRow, signature_of
from ..lanes import rotation
from ..partial import reached
from .fold import factors_of, folded
from .layout import NO_TOP

AHEAD = 4
"""Pieces whose values are under way at once."""

VALUES = 8 * AHEAD
WARPS = 4


@specialised
def merge_tensor_kernel(group: int, rotated: bool) -> Any:
    """The kernel for ``group`` heads to a KV head; ``rotated``: V is, and the output is rotated back.

    Its arguments: ``scratch``, ``steps`` [rows, 4], ``slots`` [rows], ``out`` [rows, n_head, 256], the first slot and
    how many, the first row, ``cap``, partials of a row and KV head in the scratch, ``splits``. Grid (n_head / 4, rows).
    """
    rotate = rotation(32)

    @kernel(launch_bounds=(32 * WARPS, 4))
    def merge_tensor(scratch, steps, slots, out, first_slot, n_pools, first_row, cap, n_pieces, splits):
        lane = int32(cuda.threadIdx.x & 31)
        head = int32(cuda.blockIdx.x * WARPS + (cuda.threadIdx.x >> 5))
        row, n_head = int32(cuda.blockIdx.y + first_row), int32(out.shape[1])
        if head >= n_head:
            return
        if n_pools > 0:
            which = int32(ld_global_i32_nc(global_base(slots) + int64(row) * 4) - first_slot)
            if which < 0 or which >= n_pools:
                return
        width = ld_global_i32_nc(global_base(steps) + int64(row) * 16 + 12)
        _, pieces = reached(int32(max(min(width, int32(cap)), 0)), int32(splits))
        pieces = int32(min(pieces, n_pieces))
        heads = int64(cuda.gridDim.y) * n_head * n_pieces
        first = (int64(cuda.blockIdx.y) * (n_head // group) + head // group) * (n_pieces * group) + head % group
        values = global_base(scratch) + (first * DIM + lane * 8) * 4
        tops = global_base(scratch) + (heads * DIM + first) * 4
        masses = tops + heads * 4
        x, y = cuda.local.array(8, float32), cuda.local.array(VALUES, float32)
        more, sums = cuda.local.array(AHEAD, int32), cuda.local.array(AHEAD, float32)
        for i in range(8):
            x[i] = float32(0)
        top, mass = int32(NO_TOP), float32(0)
        piece = int32(0)
        while piece < pieces:
            for i in range(AHEAD):
                at = int64(min(int32(piece + i), int32(pieces - 1))) * (group * 4)
                more[i], sums[i] = ld_global_i32(tops + at), ld_global_f32(masses + at)
                at *= DIM
                y[8 * i], y[8 * i + 1], y[8 * i + 2], y[8 * i + 3] = ld_global_v4_f32(values + at)
                y[8 * i + 4], y[8 * i + 5], y[8 * i + 6], y[8 * i + 7] = ld_global_v4_f32(values + at + 16)
            for i in range(AHEAD):
                if piece + i < pieces:
                    top, keep, take = factors_of(top, more[i])
                    mass = folded(mass, keep, sums[i], take)
                    for j in range(8):
                        x[j] = folded(x[j], keep, y[8 * i + j], take)
            piece = int32(piece + AHEAD)
        if mass != float32(0):
            for i in range(8):
                x[i] = libdevice.fdiv_rn(x[i], mass)
        if rotated:
            rotate(x, lane)
        to = global_base(out) + (int64(row) * n_head + head) * (DIM * 4) + lane * 32
        st_global_v4_f32(to, x[0], x[1], x[2], x[3])
        st_global_v4_f32(to + 16, x[4], x[5], x[6], x[7])

    return merge_tensor


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each."""
    signature = signature_of(F1, I2, I1, F3, *["int64"] * 6)
    for rotated in (False, True):
        made = merge_tensor_kernel.build(12, rotated)
        yield PtxRow(f"attend_tensor_merge{'_rotated' * rotated}", made, signature, exact=False)
