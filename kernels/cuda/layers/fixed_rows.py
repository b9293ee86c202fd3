"""Rows in fixed point, cut into limbs as the matrix products take them: step 1 of ``reference/exact/layers/linear.py``.

xi = rint(x * 2^(22 - e)) = low + 2^8 * middle + 2^16 * high with signed bytes, called limbs. Eight rows lie together
as the eight columns of a product: limbs [rows / 8, groups, 3, 8, 64] int8, inputs in their order, zeros after the last.
"""

from collections.abc import Iterator
from typing import Any

from ..common.scalar import INFINITY_BITS, QUERY_BITS, exponent, scaled, transpose_bytes, warp_max
from ..toolchain.compiler import (
    address,
    array_module,
    cuda,
    device_function,
    float32,
    int32,
    int64,
    kernel,
    launch,
    specialised,
)
from ..toolchain.host import DeviceArray
from ..toolchain.ptx import (
    float_as_int,
    ld_global_f32_nc,
    ld_shared_i32,
    rint_s32,
    shared_base,
    st_global_i32,
    st_shared_i32,
)
from ..toolchain.ptx_rows import PtxRow, integers
from .elements import swiglu_of

GROUP = 64
COLUMNS = 8
"""Rows that lie together."""

LIMBS = 3
LIMB_BYTES = COLUMNS * GROUP
GROUP_BYTES = LIMBS * LIMB_BYTES
"""Bytes of the limbs of eight rows and one group."""

NOT_FINITE_EXPONENT = 1 << 20
"""In the source of e: the row is not finite."""

WARPS = 8
THREADS = 32 * WARPS


@device_function
def limbs_of(q0, q1, q2, q3):
    """(low, middle, high): a word each of the limbs of four integers of at most 2^22.

    Balanced bytes: the digits of v are the bytes of v + 0x8080, the two low ones with their top bit turned.
    """
    a, b, c, d = int32(q0 + 0x8080), int32(q1 + 0x8080), int32(q2 + 0x8080), int32(q3 + 0x8080)
    low, middle, high, _ = transpose_bytes(a, b, c, d)
    return int32(low ^ -0x7F7F7F80), int32(middle ^ -0x7F7F7F80), high


@specialised
def fixed_kernel(gated: DeviceArray) -> Any:
    """The kernel: a thread block to a row; grid (rows).

    Address and row stride of ``x``, addresses of ``limbs`` and ``exponents`` [rows] int32, ``n`` inputs, ``groups``.
    ``gated``: x holds 2n values a row, and the row is silu of the first n times the others.
    """

    @device_function
    def value(x, d, n):
        if d >= n:
            return float32(0)
        first = ld_global_f32_nc(x + int64(d) * 4)
        return swiglu_of(first, ld_global_f32_nc(x + (int64(d) + n) * 4)) if gated else first

    @kernel()
    def fixed_rows(x, x_row, limbs, exponents, n, groups):
        memory = cuda.shared.array(WARPS, int32)
        shared = shared_base(memory)
        thread = int32(cuda.threadIdx.x)
        row = int64(cuda.blockIdx.x)
        x += row * x_row
        # Magnitudes order as their bits do, and everything not finite is above every finite number.
        largest = int32(0)
        d = thread
        while d < n:
            largest = max(largest, int32(float_as_int(value(x, d, n)) & 0x7FFFFFFF))
            d = int32(d + THREADS)
        largest = warp_max(int32(largest))
        if thread & 31 == 0:
            st_shared_i32(int32(shared + (thread >> 5) * 4), largest)
        cuda.syncthreads()
        for i in range(WARPS):
            largest = max(largest, ld_shared_i32(int32(shared + i * 4)))
        finite = largest < INFINITY_BITS
        e = exponent(int32(largest)) if finite else int32(0)
        shift = int32(QUERY_BITS - e)
        if thread == 0:
            st_global_i32(exponents + row * 4, e if finite else int32(NOT_FINITE_EXPONENT))
        target = limbs + (row // COLUMNS) * groups * GROUP_BYTES + (row % COLUMNS) * GROUP
        word = thread
        while word < groups * (GROUP // 4):
            q = cuda.local.array(4, int32)
            for i in range(4):
                q[i] = rint_s32(scaled(value(x, int32(word * 4 + i), n), shift)) if finite else int32(0)
            low, middle, high = limbs_of(q[0], q[1], q[2], q[3])
            at = target + int64(word >> 4) * GROUP_BYTES + (word & 15) * 4
            st_global_i32(at, low)
            st_global_i32(at + LIMB_BYTES, middle)
            st_global_i32(at + 2 * LIMB_BYTES, high)
            word = int32(word + THREADS)

    return fixed_rows


def fixed_rows(source: tuple[int, int], rows: int, n: int, gated: bool = False) -> tuple[DeviceArray, DeviceArray]:
    """(limbs, exponents) of ``rows`` rows of ``n`` inputs at ``source`` (address and row stride); one launch.

    The exponents are int32 [rows]: e, or :data:`NOT_FINITE_EXPONENT` for a row that is not finite. ``gated``: see
    :func:`fixed_kernel`.
    """
    xp = array_module()
    groups = -(-n // GROUP)
    limbs = xp.empty(-(-rows // COLUMNS) * groups * GROUP_BYTES, "int8")
    exponents = xp.empty(rows, "int32")
    launch(fixed_kernel(gated), rows, THREADS, (*source, address(limbs), address(exponents), n, groups))
    return limbs, exponents


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each."""
    for gated in (False, True):
        yield PtxRow(f"fixed_rows{'_gated' * gated}", fixed_kernel.build(gated), integers(6))
