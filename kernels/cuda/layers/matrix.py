"""The product of fixed-point rows with int8 matrices: steps 2 to 4 of ``reference/exact/layers/linear.py``.

One product instruction takes 16 outputs (its rows), 32 inputs and 8 rows of x (its columns), once for every limb; so a
lane holds the three limbs of its sums, cut as ``fixed_rows`` cut the rows. Two instructions a limb make a group of 64.
A sum over inputs has no order, so a lane reads 16 neighbouring inputs of a weight and of a row in one load each.

Of the eight warps of a thread block warp j has the groups j, j + 8, ...: column j of the tree, which is a sum in its
registers. At the end the block adds the columns of every output. So the weights of an output are on their way to eight
warps at once, which is what a step of few rows needs: its time is that of reading the weights.

Layouts: codes [matrices, units, groups, 16, 64] int8, scales [matrices, units, groups, 16] float16, where a unit is 16
outputs; rows as ``fixed_rows`` says. A thread block has ``per_block`` units and ``tiles`` times 8 rows.
"""

from collections.abc import Iterator
from typing import Any

from ..common.scalar import NAN_BITS, QUERY_BITS, rounded_dot, scaled
from ..toolchain.compiler import (
    cuda,
    device_function,
    float32,
    int32,
    int64,
    kernel,
    libdevice,
    properties,
    specialised,
)
from ..toolchain.mma_dp4a import mma_s8_by_dp4a
from ..toolchain.ptx import (
    half_to_float,
    int_as_float,
    ld_global_i32_nc,
    ld_global_i64_nc,
    ld_global_u16_nc,
    ld_global_v4_i32_nc,
    ld_shared_f32,
    ld_shared_i32,
    mma_s8,
    shared_base,
    st_global_f32,
    st_shared_f32,
    st_shared_i32,
)
from ..toolchain.ptx_rows import TENSOR_CORE, PtxRow, integers
from .fixed_rows import COLUMNS, GROUP, GROUP_BYTES, LIMB_BYTES, NOT_FINITE_EXPONENT

UNIT = 16
"""Outputs of a unit."""

CODE_BYTES = UNIT * GROUP
SCALE_BYTES = UNIT * 2
"""Bytes of a unit's codes and scales of one group."""

WARPS = 8
THREADS = 32 * WARPS


FEW, SOME, MANY = (1, 1, 2), (1, 4, 1), (4, 4, 1)
"""(units, tiles of 8 rows, groups of a warp under way at once) of a thread block.

FEW keeps two kilobytes of weights a warp on their way; SOME reads the weights once for 32 rows; MANY shares each load
among four products and more, at 220 registers a lane.
"""


def form(rows: int, units: int) -> tuple[int, int, int]:
    """The form for ``rows`` rows that meet all ``units``: MANY once that leaves no multiprocessor without work."""
    if rows <= COLUMNS:
        return FEW
    blocks = -(-units // MANY[0]) * -(-rows // (COLUMNS * MANY[1]))
    return MANY if tensor_cores() and blocks >= properties().multiprocessors else SOME


def tensor_cores() -> bool:
    """Whether the current device has the product instruction: sm_80 and newer. Elsewhere MANY would lack registers."""
    return properties().compute_capability >= (8, 0)


@specialised
def matrix_kernel(per_block: int, tiles: int, depth: int, choice: str, on_tensor_cores: bool) -> Any:
    """The kernel for ``per_block`` units and ``tiles`` * 8 rows a thread block, ``depth`` groups a turn.

    ``choice`` says which rows meet which matrix:

    ``rows``     rows 8 * tiles * block and on; one matrix
    ``each``     pair ``block`` alone, with the matrix ``table[block]``
    ``grouped``  pairs ``order[first]`` to ``order[first + count - 1]`` of the record (matrix, first, count, -) number
                 ``block`` of ``table`` [blocks, 4] int32; a count of 0 ends the block

    A pair p is row p / ``per_row`` of x and row p of the result; without pairs they are the same.

    Grid (blocks, units / per_block), 256 lanes. Addresses of ``codes``, ``scale``, ``limbs``, ``exponents``, ``table``
    (int64 ids for ``each``), ``order`` and ``out`` [rows, outputs]; how many ``rows`` (or pairs), ``per_row``,
    ``outputs``, ``units``, ``groups`` and ``matrices``.
    """
    product = mma_s8 if on_tensor_cores else mma_s8_by_dp4a
    each, grouped = choice == "each", choice == "grouped"
    width = COLUMNS * tiles
    sums = tiles * 4
    rooms = sums * 32
    column_floats, known_words, all_sums = WARPS * rooms, 2 * width, per_block * sums
    code_words, limb_words, scale_floats = depth * per_block * 8, depth * tiles * 12, depth * per_block * 2

    @device_function
    def source_of(row, per_row):
        return int64(row) // per_row if each or grouped else int64(row)

    @device_function
    def load_weights(a, scales, slot, codes, scale, groups, group, left):
        """Codes and scales of a lane's outputs g and g + 8 of every unit, of one group; zeros beyond ``left`` units."""
        for m in range(per_block):
            held = m < left
            i = (slot * per_block + m) * 8
            at = codes + (int64(m) * groups + group) * CODE_BYTES
            if held:
                a[i], a[i + 1], a[i + 2], a[i + 3] = ld_global_v4_i32_nc(at)
                a[i + 4], a[i + 5], a[i + 6], a[i + 7] = ld_global_v4_i32_nc(at + CODE_BYTES // 2)
            else:
                for k in range(8):
                    a[i + k] = int32(0)
            at = scale + (int64(m) * groups + group) * SCALE_BYTES
            i = (slot * per_block + m) * 2
            scales[i] = half_to_float(ld_global_u16_nc(at)) if held else float32(0)
            scales[i + 1] = half_to_float(ld_global_u16_nc(at + UNIT)) if held else float32(0)

    @device_function
    def load_rows(b, slot, bases, group, held):
        """Limbs of a lane's column in every tile, of one group."""
        for j in range(tiles):
            i = (slot * tiles + j) * 12
            if held and bases[j] != 0:
                at = bases[j] + int64(group) * GROUP_BYTES
                b[i], b[i + 1], b[i + 2], b[i + 3] = ld_global_v4_i32_nc(at)
                b[i + 4], b[i + 5], b[i + 6], b[i + 7] = ld_global_v4_i32_nc(at + LIMB_BYTES)
                b[i + 8], b[i + 9], b[i + 10], b[i + 11] = ld_global_v4_i32_nc(at + 2 * LIMB_BYTES)
            else:
                for k in range(12):
                    b[i + k] = int32(0)

    @device_function
    def limb(a, i, b, k):
        """Sums of one limb over a group: outputs g and g + 8 with two rows each."""
        zero = int32(0)
        c0, c1, c2, c3 = product(a[i], a[i + 4], a[i + 1], a[i + 5], b[k], b[k + 1], zero, zero, zero, zero)
        return product(a[i + 2], a[i + 6], a[i + 3], a[i + 7], b[k + 2], b[k + 3], c0, c1, c2, c3)

    @device_function
    def add_group(total, a, b, scales, slot, count):
        for j in range(tiles):
            # Rows that a tile lacks cost nothing.
            if j == 0 or j * COLUMNS < count:
                k = (slot * tiles + j) * 12
                for m in range(per_block):
                    i = (slot * per_block + m) * 8
                    l0, l1, l2, l3 = limb(a, i, b, k)
                    m0, m1, m2, m3 = limb(a, i, b, k + 4)
                    h0, h1, h2, h3 = limb(a, i, b, k + 8)
                    low, high = scales[(slot * per_block + m) * 2], scales[(slot * per_block + m) * 2 + 1]
                    at = (m * tiles + j) * 4
                    total[at] = libdevice.fadd_rn(total[at], libdevice.fmul_rn(rounded_dot(l0, m0, h0), low))
                    total[at + 1] = libdevice.fadd_rn(total[at + 1], libdevice.fmul_rn(rounded_dot(l1, m1, h1), low))
                    total[at + 2] = libdevice.fadd_rn(total[at + 2], libdevice.fmul_rn(rounded_dot(l2, m2, h2), high))
                    total[at + 3] = libdevice.fadd_rn(total[at + 3], libdevice.fmul_rn(rounded_dot(l3, m3, h3), high))

    @device_function
    def sum_columns(at):
        """The tree's last steps: eight columns with strides 4, 2, 1."""
        c0, c4 = ld_shared_f32(at), ld_shared_f32(int32(at + 4 * rooms * 4))
        c1, c5 = ld_shared_f32(int32(at + rooms * 4)), ld_shared_f32(int32(at + 5 * rooms * 4))
        c2, c6 = ld_shared_f32(int32(at + 2 * rooms * 4)), ld_shared_f32(int32(at + 6 * rooms * 4))
        c3, c7 = ld_shared_f32(int32(at + 3 * rooms * 4)), ld_shared_f32(int32(at + 7 * rooms * 4))
        even = libdevice.fadd_rn(libdevice.fadd_rn(c0, c4), libdevice.fadd_rn(c2, c6))
        return libdevice.fadd_rn(even, libdevice.fadd_rn(libdevice.fadd_rn(c1, c5), libdevice.fadd_rn(c3, c7)))

    @kernel(launch_bounds=(THREADS, 1 if per_block * tiles > 4 else 2))
    def matrix(codes, scale, limbs, exponents, table, order, out, rows, per_row, outputs, units, groups, matrices):
        columns = cuda.shared.array(column_floats, float32)
        known = cuda.shared.array(known_words, int32)
        thread = int32(cuda.threadIdx.x)
        warp, lane = int32(thread >> 5), int32(thread & 31)
        block = int64(cuda.blockIdx.x)
        which, first, count = int64(0), block * width, int32(min(rows - block * width, width))
        if each:
            which, first, count = ld_global_i64_nc(table + block * 8), block, int32(1)
        elif grouped:
            record, begin, length, _ = ld_global_v4_i32_nc(table + block * 16)
            which, first, count = int64(record), int64(begin), length
        if count <= 0:
            return
        # An id outside the table must not lead outside the weights; its caller poisons what comes of it.
        which = min(max(which, int64(0)), int64(matrices - 1))
        # Of each of the block's rows: its row in the result, or -1, and its e.
        target = shared_base(known)
        if thread < width:
            row, e = int32(-1), int32(0)
            if thread < count:
                row = int32(first + thread)
                if grouped:
                    row = ld_global_i32_nc(order + (first + thread) * 4)
                e = ld_global_i32_nc(exponents + source_of(row, per_row) * 4)
            st_shared_i32(int32(target + thread * 8), row)
            st_shared_i32(int32(target + thread * 8 + 4), e)
        cuda.syncthreads()

        g, t = int32(lane >> 2), int32(lane & 3)
        bases = cuda.local.array(tiles, int64)
        for j in range(tiles):
            row = ld_shared_i32(int32(target + (j * COLUMNS + g) * 8))
            source = source_of(row, per_row)
            lies = limbs + (source >> 3) * groups * GROUP_BYTES + (source & 7) * GROUP + t * 16
            bases[j] = lies if row >= 0 else int64(0)
        unit = int32(cuda.blockIdx.y * per_block)
        left = int32(units - unit)
        first_group = (which * units + unit) * groups
        codes += first_group * CODE_BYTES + g * GROUP + t * 16
        scale += first_group * SCALE_BYTES + g * 2
        a = cuda.local.array(code_words, int32)
        b = cuda.local.array(limb_words, int32)
        scales = cuda.local.array(scale_floats, float32)
        total = cuda.local.array(all_sums, float32)
        for i in range(all_sums):
            total[i] = float32(0)
        group = warp
        while group < groups:
            for slot in range(depth):
                at = int32(group + slot * WARPS)
                load_weights(a, scales, slot, codes, scale, groups, at, left if at < groups else int32(0))
                load_rows(b, slot, bases, at, at < groups)
            for slot in range(depth):
                add_group(total, a, b, scales, slot, count)
            group = int32(group + depth * WARPS)

        shared = shared_base(columns)
        for m in range(per_block):
            if m > 0:
                cuda.syncthreads()
            for i in range(sums):
                st_shared_f32(int32(shared + (warp * rooms + i * 32 + lane) * 4), total[m * sums + i])
            cuda.syncthreads()
            element = thread
            while element < width * UNIT:
                column, output_row = int32(element >> 4), int32(element & 15)
                i = int32((column >> 3) * 4 + 2 * (output_row >> 3) + (column & 1))
                at = int32(shared + (i * 32 + 4 * (output_row & 7) + ((column >> 1) & 3)) * 4)
                row = ld_shared_i32(int32(target + column * 8))
                output = int32((unit + m) * UNIT + output_row)
                if row >= 0 and output < outputs:
                    e = ld_shared_i32(int32(target + column * 8 + 4))
                    value = int_as_float(int32(NAN_BITS))
                    if e != NOT_FINITE_EXPONENT:
                        value = scaled(sum_columns(at), int32(e - QUERY_BITS))
                    st_global_f32(out + (int64(row) * outputs + output) * 4, value)
                element = int32(element + THREADS)

    return matrix


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each."""
    forms = {"few": FEW, "some": SOME, "many": MANY}
    for choice, names in (("rows", ("few", "some", "many")), ("each", ("few",)), ("grouped", ("many",))):
        for name in names:
            kernel = matrix_kernel.build(*forms[name], choice, True)
            yield PtxRow(f"matrix_{choice}_{name}", kernel, integers(13), expect=TENSOR_CORE, minimum=(8, 0))
    # Not hot: without tensor cores the registers of a product are collected from all over the warp.
    form_few = matrix_kernel.build(*FEW, "rows", False)
    yield PtxRow("matrix_rows_few_dp4a", form_few, integers(13), hot=False, expect=("dp4a.s32.s32",))
