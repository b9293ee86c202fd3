"""Merge of the float ``attend``: a row's partials folded by log-sum-exp in ascending order of pieces.

The partials of a row, all float32: values [n_head_kv, pieces, group, dim], then the maxima [n_head_kv, pieces, group]
in log2 units, then the sums of the same shape. A piece without cells has the sum 0 and values never written, which are
not read. With ``active`` the fold ends at the last piece that the row's width reaches; those behind it hold no cells,
so the bits are the same. Source: design section 8, STRATA_ATTN_MERGE_ACTIVE.
"""

from collections.abc import Iterator
from typing import Any

from qsa.reference.geometry import Geometry

from ..toolchain.compiler import cuda, device_function, float32, int32, int64, kernel, libdevice, specialised
from ..toolchain.constants import FULL_WARP
from ..toolchain.ptx import (
    ex2_approx,
    global_base,
    ld_global_f32,
    ld_global_i32_nc,
    ld_shared_f32,
    shared_base,
    st_global_f32,
    st_shared_f32,
)
from ..toolchain.ptx_rows import F1, F3, I1, I2, PtxRow, signature_of
from .chunk import EMPTY
from .partial import reached


def row_floats(geometry: Geometry, pieces: int) -> int:
    """Floats of scratch that the partials of one row take."""
    return pieces * geometry.n_head * (geometry.head_dim + 2)


@specialised
def merge_kernel(group: int, dim: int, rotated: bool) -> Any:
    """The kernel for ``group`` heads of ``dim`` dims to a KV head; ``rotated``: V is, and the output is rotated back.

    Its arguments: ``scratch``, ``steps`` [rows, 4], ``slots`` [rows], ``out`` [rows, n_head, dim], the first slot and
    how many, the first row, ``cap``, pieces of a row in the scratch, ``splits`` and ``active``. Grid (n_head, rows).
    """
    warps = dim // 32
    weights, masses, others = 0, dim * 4, dim * 8
    words = 2 * dim + max(warps, dim if rotated else 0)
    factor = dim**-0.5
    strides = tuple(1 << i for i in range(dim.bit_length() - 1))

    @device_function
    def part(values, at, c, count, step):
        """Value of the piece c of the tile; 0 where it holds no cells."""
        held = c < count
        if held:
            held = ld_shared_f32(int32(at + masses + c * 4)) != float32(0)
        return ld_global_f32(values + c * step) if held else float32(0)

    @device_function
    def rotate(x, shared, thread):
        """The rotation over the lanes of the block, in the reference's order."""
        for stride in strides:
            if stride < 32:
                other = cuda.shfl_xor_sync(FULL_WARP, x, stride)
            else:
                cuda.syncthreads()
                st_shared_f32(int32(shared + others + thread * 4), x)
                cuda.syncthreads()
                other = ld_shared_f32(int32(shared + others + (thread ^ stride) * 4))
            x = other - x if thread & stride else x + other
        return x * float32(factor)

    @kernel(launch_bounds=(dim, 2))
    def merge(scratch, steps, slots, out, first_slot, n_pools, first_row, cap, n_pieces, splits, active):
        memory = cuda.shared.array(words, float32)
        shared = shared_base(memory)
        thread = int32(cuda.threadIdx.x)
        head, n_head = int32(cuda.blockIdx.x), int32(cuda.gridDim.x)
        row = int32(cuda.blockIdx.y + first_row)
        if n_pools > 0:
            which = int32(ld_global_i32_nc(global_base(slots) + int64(row) * 4) - first_slot)
            if which < 0 or which >= n_pools:
                return
        pieces = int32(n_pieces)
        if active:
            width = ld_global_i32_nc(global_base(steps) + int64(row) * 16 + 12)
            _, n_reached = reached(int32(max(min(width, cap), 0)), splits)
            pieces = int32(min(n_reached, n_pieces))
        base = global_base(scratch) + int64(cuda.blockIdx.y) * n_pieces * n_head * (dim + 2) * 4
        slot = int64(head // group) * n_pieces * group + head % group
        tops = base + (int64(n_pieces) * n_head * dim + slot) * 4
        sums = tops + int64(n_pieces) * n_head * 4
        top = float32(EMPTY)
        c = thread
        while c < pieces:
            top = max(top, ld_global_f32(tops + int64(c) * (group * 4)))
            c = int32(c + dim)
        for distance in (16, 8, 4, 2, 1):
            top = max(top, cuda.shfl_xor_sync(FULL_WARP, top, distance))
        if thread & 31 == 0:
            st_shared_f32(int32(shared + others + (thread >> 5) * 4), top)
        cuda.syncthreads()
        for i in range(warps):
            top = max(top, ld_shared_f32(int32(shared + others + i * 4)))
        value, mass = float32(0), float32(0)
        tile = int32(0)
        while tile < pieces:
            count = int32(min(pieces - tile, dim))
            if thread < count:
                at = int64(tile + thread) * (group * 4)
                own = ld_global_f32(sums + at)
                weight = ex2_approx(ld_global_f32(tops + at) - top) if own != float32(0) else float32(0)
                st_shared_f32(int32(shared + weights + thread * 4), weight)
                st_shared_f32(int32(shared + masses + thread * 4), own)
            cuda.syncthreads()
            step = int64(group * dim * 4)
            values = base + ((slot + int64(tile) * group) * dim + thread) * 4
            c = int32(0)
            while c < count:
                # Eight loads under way before the first is used.
                a0, a1 = part(values, shared, c, count, step), part(values, shared, c + 1, count, step)
                a2, a3 = part(values, shared, c + 2, count, step), part(values, shared, c + 3, count, step)
                a4, a5 = part(values, shared, c + 4, count, step), part(values, shared, c + 5, count, step)
                a6, a7 = part(values, shared, c + 6, count, step), part(values, shared, c + 7, count, step)
                i = int32(0)
                for a in (a0, a1, a2, a3, a4, a5, a6, a7):
                    if c + i < count:
                        weight = ld_shared_f32(int32(shared + weights + (c + i) * 4))
                        mass += ld_shared_f32(int32(shared + masses + (c + i) * 4)) * weight
                        value += a * weight
                    i = int32(i + 1)
                c = int32(c + 8)
            cuda.syncthreads()
            tile = int32(tile + dim)
        if mass != float32(0):
            value = libdevice.fdiv_rn(value, mass)
        if rotated:
            value = rotate(value, shared, thread)
        st_global_f32(global_base(out) + ((int64(row) * n_head + head) * dim + thread) * 4, value)

    return merge


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each."""
    signature = signature_of(F1, I2, I1, F3, *["int64"] * 7)
    for rotated in (False, True):
        kernel = merge_kernel.build(12, 256, rotated)
        yield PtxRow(f"attend_merge{'_rotated' * rotated}", kernel, signature, exact=False)
