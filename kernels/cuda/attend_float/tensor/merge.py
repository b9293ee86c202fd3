"""Merge of the tensor-core form: a row's partials folded in ascending order, run by run (``fold.py``).

The partials of all rows of a launch, of pieces or of two runs: values float32 [rows, n_head_kv, partials, group, 256],
then the reference exponents int32 [rows, n_head_kv, partials, group], then the sums of powers float32, as many. Those
that a row's width does not reach have no meaning. A warp has a head, eight dims a lane, as the rotation wants them, or
half a head.
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
from .fold import factors_of, folded, run_of
from .layout import NO_TOP

WARPS = 4


@specialised
def merge_tensor_kernel(group: int, rotated: bool, runs: bool) -> Any:
    """The kernel for ``group`` heads to a KV head; ``rotated``: V is, and the output is rotated back; ``runs``: the
    partials are those of runs.

    Its arguments: ``scratch``, ``steps`` [rows, 4], ``slots`` [rows], ``out`` [rows, n_head, 256], the first slot and
    how many, the first row, ``cap``, partials of a row and KV head in the scratch, ``splits``. Grid (heads or halves of
    heads / 4, rows).
    """
    rotate = rotation(32)
    dims, parts = (8, 1) if rotated else (4, 2)
    # Partials under way at once: all of the first run of 17 where the registers last.
    ahead = 2 if runs else 4 if rotated else 9
    n_values = dims * ahead

    @kernel(launch_bounds=(32 * WARPS, 4))
    def merge_tensor(scratch, steps, slots, out, first_slot, n_pools, first_row, cap, n_pieces, splits):
        lane = int32(cuda.threadIdx.x & 31)
        unit = int32(cuda.blockIdx.x * WARPS + (cuda.threadIdx.x >> 5))
        head, first_dim = int32(unit // parts), int32(unit % parts * 128 + lane * dims)
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
        run = int32(1) if runs else run_of(pieces)
        heads = int64(cuda.gridDim.y) * n_head * n_pieces
        first = (int64(cuda.blockIdx.y) * (n_head // group) + head // group) * (n_pieces * group) + head % group
        values = global_base(scratch) + (first * DIM + first_dim) * 4
        tops = global_base(scratch) + (heads * DIM + first) * 4
        masses = tops + heads * 4
        total, x = cuda.local.array(dims, float32), cuda.local.array(dims, float32)
        y = cuda.local.array(n_values, float32)
        more, sums = cuda.local.array(ahead, int32), cuda.local.array(ahead, float32)
        for i in range(dims):
            total[i], x[i] = float32(0), float32(0)
        total_top, total_mass, top, mass = int32(NO_TOP), float32(0), int32(NO_TOP), float32(0)
        piece = int32(0)
        # By the scratch, not by the width: the first loads go out before the step record has come.
        while piece < n_pieces:
            for i in range(ahead):
                at = int64(min(int32(piece + i), int32(n_pieces - 1))) * (group * 4)
                more[i], sums[i] = ld_global_i32(tops + at), ld_global_f32(masses + at)
                at *= DIM
                for j in range(0, dims, 4):
                    n = dims * i + j
                    y[n], y[n + 1], y[n + 2], y[n + 3] = ld_global_v4_f32(values + at + 4 * j)
            for i in range(ahead):
                if piece + i < pieces:
                    top, keep, take = factors_of(top, more[i])
                    mass = folded(mass, keep, sums[i], take)
                    for j in range(dims):
                        x[j] = folded(x[j], keep, y[dims * i + j], take)
                    if piece + i + 1 == run or piece + i + 1 == pieces:
                        total_top, keep, take = factors_of(total_top, top)
                        total_mass = folded(total_mass, keep, mass, take)
                        for j in range(dims):
                            total[j] = folded(total[j], keep, x[j], take)
                            x[j] = float32(0)
                        top, mass = int32(NO_TOP), float32(0)
            piece = int32(piece + ahead)
        if total_mass != float32(0):
            for i in range(dims):
                total[i] = libdevice.fdiv_rn(total[i], total_mass)
        if rotated:
            rotate(total, lane)
        to = global_base(out) + ((int64(row) * n_head + head) * DIM + first_dim) * 4
        for i in range(0, dims, 4):
            st_global_v4_f32(to + 4 * i, total[i], total[i + 1], total[i + 2], total[i + 3])

    return merge_tensor


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each."""
    signature = signature_of(F1, I2, I1, F3, *["int64"] * 6)
    for rotated in (False, True):
        for runs in (False, True):
            made = merge_tensor_kernel.build(12, rotated, runs)
            name = f"attend_tensor_merge{'_rotated' * rotated}{'_runs' * runs}"
            yield PtxRow(name, made, signature, exact=False)
