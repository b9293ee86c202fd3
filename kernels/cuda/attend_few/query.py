"""The query of the exact ``attend`` of few rows as limbs: step 1 of design section 4, a warp a head.

One product takes limb 0 of head i in column 2i and limb 1 in column 2i + 1, another limb 2 in
column 2i and nothing in column 2i + 1: lane 4g + i then receives all limbs of head i's dots with cells g and g + 8.
"""

from qsa.reference.exact.attend import NO_CELL

from ..attend_exact.query import LOG2_UNITS
from ..attend_exact.shared_memory import FACTOR_WORD, HEAD_BYTES, POISON_WORD
from ..common.scalar import INFINITY_BITS, QUERY_BITS, exponent, scaled, transpose_bytes
from ..toolchain.compiler import cuda, device_function, float32, int32
from ..toolchain.constants import FULL_WARP
from ..toolchain.ptx import float_as_int, rint_s32, st_shared_f32, st_shared_i32, st_shared_v2_i32
from .layout import BOX_BYTES, PRODUCTS


@device_function
def fixed_point(x, words):
    """A head's query, 8 values a lane in ``x``, as limbs to ``words`` [6]: the bytes of each limb for the lane's first
    four values, then for the other four. Returns (e, whether the query is finite); all lanes of a warp together."""
    # Magnitudes order as their bits do, and everything not finite is above every finite number.
    largest = int32(0)
    for i in range(8):
        largest = max(largest, int32(float_as_int(x[i]) & 0x7FFFFFFF))
    for distance in (16, 8, 4, 2, 1):
        largest = max(largest, int32(cuda.shfl_xor_sync(FULL_WARP, largest, distance)))
    finite = largest < INFINITY_BITS
    e = exponent(largest) if finite else int32(0)
    qi = cuda.local.array(4, int32)
    for half in range(2):
        for i in range(4):
            value = int32(0)
            if finite:
                value = rint_s32(scaled(x[half * 4 + i], int32(QUERY_BITS - e)))
            # Balanced bytes: the digits of v are the bytes of v + 0x8080, the two low ones with their top bit turned.
            qi[i] = int32(value + 0x8080)
        low, middle, high, _ = transpose_bytes(qi[0], qi[1], qi[2], qi[3])
        words[half * 3] = int32(low ^ -0x7F7F7F80)
        words[half * 3 + 1] = int32(middle ^ -0x7F7F7F80)
        words[half * 3 + 2] = high
    return e, finite


@device_function
def store_query(x, head, limbs, records, maxima, lane):
    """One warp stores a head's query, 8 values a lane in ``x``, as limbs, and sets up its record and maxima."""
    words = cuda.local.array(6, int32)
    e, finite = fixed_point(x, words)
    # Words 2 * lane and 2 * lane + 1 of the head: 16 consecutive dims of 64 are one lane's of the products.
    pair, quarter, register = lane >> 3, (lane >> 1) & 3, (lane & 1) * 2
    at = int32(limbs + (pair * (PRODUCTS * 32) + head * 8 + quarter) * 16 + register * 4)
    st_shared_v2_i32(at, words[0], words[3])
    st_shared_v2_i32(int32(at + 64), words[1], words[4])
    st_shared_v2_i32(int32(at + 512), words[2], words[5])
    st_shared_v2_i32(int32(at + 576), int32(0), int32(0))
    record = int32(records + head * HEAD_BYTES)
    if lane < BOX_BYTES // 4:
        st_shared_i32(int32(maxima + head * HEAD_BYTES + lane * 4), int32(NO_CELL))
    if lane == FACTOR_WORD:
        st_shared_f32(int32(record + FACTOR_WORD * 4), scaled(float32(LOG2_UNITS), int32(e - QUERY_BITS)))
    if lane == POISON_WORD:
        st_shared_i32(int32(record + POISON_WORD * 4), int32(0 if finite else 1))
