"""The query of the tensor-core form, in parts that the products take exactly.

For K of integer codes a head's query becomes integers in three signed bytes each, so the dot of a group is an exact
integer. The largest magnitude becomes LARGEST, the most that the bytes hold: 23 bits and sign where the exact
arithmetic, which scales by a power of two, has 21 to 22; with those the query's own rounding was twice the rest. For
fp16 K it is the sum of two halves, of which the first has 11 bits and the second the 11 after them, over a power of two
that makes the largest one 2^13 to 2^14: 23 bits in all, and no subnormal half that counts.

A warp takes a head, eight dims a lane, and stores its parts in shared memory in the order in which the lanes of a
product hold them. Columns of the fp16 products: of product 0 column 2i is head i and 2i + 1 head 4 + i, the first
halves; product 1 has their second halves; of product 2 column 2i is head 8 + i, 2i + 1 its second half.
"""

from typing import Any

from ...attend_exact.query import LOG2_UNITS, load_query, query_offset, rotate_lanes
from ...attend_exact.shared_memory import DIM
from ...common.scalar import INFINITY_BITS, exponent, scaled, transpose_bytes
from ...toolchain.compiler import cuda, device_function, float32, int32, int64, libdevice
from ...toolchain.constants import FULL_WARP
from ...toolchain.ptx import (
    float_as_int,
    floats_to_halves,
    half_to_float,
    int_as_float,
    ld_shared_v4_i32,
    rint_s32,
    st_shared_f32,
    st_shared_i32,
)
from .layout import PRODUCTS, QUERY_WORDS, WARPS

LARGEST = float((127 << 16) - 1)
"""Of balanced bytes the highest is at most 127 up to here, the two others being added by rounding."""

HALF_BITS = 14
"""The largest magnitude of a query over its power of two is below 2^HALF_BITS as halves."""

HALF_PRODUCTS = PRODUCTS["fp16"]


@device_function
def _store_bytes(x, at, e, largest, base, head, lane):
    """Three signed bytes each of eight dims of a head, below 2^e; the factor that takes the integers back to dims."""
    ratio = float32(LARGEST)
    if largest != 0:
        ratio = libdevice.fdiv_rn(float32(LARGEST), scaled(int_as_float(largest), int32(-e)))
    qi = cuda.local.array(4, int32)
    for half in range(2):
        for i in range(4):
            # Balanced bytes: the digits of v are the bytes of v + 0x8080, the two low ones with their top bit turned.
            qi[i] = int32(rint_s32(scaled(x[at + half * 4 + i], int32(-e)) * ratio) + 0x8080)
        low, middle, high, _ = transpose_bytes(qi[0], qi[1], qi[2], qi[3])
        word = int32(lane * 2 + half)
        st_shared_i32(int32(base + query_offset(head, 0, word, 8)), int32(low ^ -0x7F7F7F80))
        st_shared_i32(int32(base + query_offset(head, 1, word, 8)), int32(middle ^ -0x7F7F7F80))
        last = int32(base + query_offset(head, 2, word, 8))
        st_shared_i32(last, high)
        if head >= 8:
            st_shared_i32(int32(last + 64), int32(0))
    return scaled(libdevice.fdiv_rn(float32(LOG2_UNITS), ratio), e)


@device_function
def _store_halves(x, at, e, largest, base, head, lane):
    """Two halves each of eight dims of a head, below 2^e: words of two dims. Returns as :func:`_store_bytes`."""
    shift = int32(HALF_BITS - e)
    product, column = int32(0), int32(2 * (head & 3) + (head >> 2))
    second = int32(2 * 32 * 16)
    if head >= 8:
        product, column, second = int32(2), int32(2 * (head - 8)), int32(4 * 16)
    for i in range(4):
        a, b = scaled(x[at + 2 * i], shift), scaled(x[at + 2 * i + 1], shift)
        high = floats_to_halves(a, b)
        low = floats_to_halves(a - half_to_float(high), b - half_to_float(int32(high >> 16)))
        # The lane's eight dims are eight of the sixteen of a product; the word's two are those of lane i of four.
        pair, step, which = int32(lane >> 3), int32((lane >> 1) & 3), int32(lane & 1)
        to = int32(((pair * HALF_PRODUCTS + product) * 2 + (step >> 1)) * 512)
        to = int32(base + to + (column * 4 + i) * 16 + ((step & 1) * 2 + which) * 4)
        st_shared_i32(to, high)
        st_shared_i32(int32(to + second), low)
    return scaled(float32(LOG2_UNITS), int32(e - HALF_BITS))


def parts_of(coding: str, group: int) -> tuple[Any, Any, Any]:
    """(load, store, take) of the query for K in ``coding``, ``group`` heads to a KV head."""
    store_parts = _store_halves if coding == "fp16" else _store_bytes
    rotated = coding == "q4_0"
    products, words = PRODUCTS[coding], QUERY_WORDS[coding]

    @device_function
    def load(x, base, warp, lane):
        """The lane's dims of the warp's two heads from global memory to the local ``x`` [16]; 0 where there is none."""
        for i in range(2):
            head = int32(warp + i * WARPS)
            load_query(x, 8 * i, base + int64(head) * (DIM * 4), head < group, lane)

    @device_function
    def store(x, at, base, head, factors, poison, lane):
        """One warp: the parts of a head's query, its dims from ``x[at]`` on, to shared memory from ``base`` on; the
        factor of its scores and whether the query is not finite to ``factors`` and ``poison``."""
        if rotated:
            turned = cuda.local.array(8, float32)
            for i in range(8):
                turned[i] = x[at + i]
            rotate_lanes(turned, lane)
            for i in range(8):
                x[at + i] = turned[i]
        # Magnitudes order as their bits do, and everything not finite is above every finite number.
        largest = int32(0)
        for i in range(8):
            largest = max(largest, int32(float_as_int(x[at + i]) & 0x7FFFFFFF))
        for distance in (16, 8, 4, 2, 1):
            largest = max(largest, int32(cuda.shfl_xor_sync(FULL_WARP, largest, distance)))
        finite = largest < INFINITY_BITS
        e = exponent(largest) if finite else int32(0)
        if not finite:
            largest = int32(0)
            for i in range(8):
                x[at + i] = float32(0)
        factor = store_parts(x, at, e, largest, base, head, lane)
        if lane == 0:
            st_shared_f32(int32(factors + head * 4), factor)
            st_shared_i32(int32(poison + head * 4), int32(0 if finite else 1))

    @device_function
    def take(registers, base, quarter, lane):
        """The lane's words of all products of 64 dims to the local ``registers`` [products * words]."""
        for product in range(products):
            for i in range(0, words, 4):
                at = int32(base + ((quarter * products + product) * (words // 4) + i // 4) * 512 + lane * 16)
                n = product * words + i
                registers[n], registers[n + 1], registers[n + 2], registers[n + 3] = ld_shared_v4_i32(at)

    return load, store, take
