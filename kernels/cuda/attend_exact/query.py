"""The query of the exact ``attend`` in fixed point: step 1 of design section 4.

A warp takes a head, 8 values a lane. It scales them to 24-bit integers over the head's largest power of two. Each
integer becomes three balanced bytes (*limbs*), stored in shared memory in the order in which the products of scores.py
read them.
"""

import numpy as np

from qsa.reference.exact.attend import NO_CELL

from ..common.scalar import INFINITY_BITS, QUERY_BITS, exponent, scaled, transpose_bytes
from ..toolchain.compiler import cuda, device_function, float32, int32, int64, libdevice
from ..toolchain.constants import FULL_WARP
from ..toolchain.ptx import float_as_int, ld_global_v4_f32_nc, rint_s32, st_shared_f32, st_shared_i32
from .shared_memory import DIM, FACTOR_WORD, HEAD_BYTES, MAXIMA_OFFSET, POISON_WORD, PRODUCTS, RECORDS_OFFSET

LOG2_UNITS = float(np.float32(np.log2(np.e) / np.sqrt(DIM)))


@device_function
def rotate_within(x, stride):
    """The step of the rotation between values ``stride`` apart of a lane's own."""
    for i in range(8):
        if not i & stride:
            low, high = x[i], x[i + stride]
            x[i] = libdevice.fadd_rn(low, high)
            x[i + stride] = libdevice.fadd_rn(low, -high)


@device_function
def rotate_between(x, distance, lane):
    """The step of the rotation between lanes ``distance`` apart."""
    for i in range(8):
        other = cuda.shfl_xor_sync(FULL_WARP, x[i], distance)
        mine = x[i]
        if lane & distance:
            mine = -mine
        x[i] = libdevice.fadd_rn(other, mine)


@device_function
def rotate_lanes(x, lane):
    """The rotation of a 256-vector, dims 8 * lane to 8 * lane + 7 in the local array ``x``, in the reference's
    order."""
    # By name, not in a loop: what a compiler does not unroll would leave the registers for the stack.
    rotate_within(x, 1)
    rotate_within(x, 2)
    rotate_within(x, 4)
    rotate_between(x, 1, lane)
    rotate_between(x, 2, lane)
    rotate_between(x, 4, lane)
    rotate_between(x, 8, lane)
    rotate_between(x, 16, lane)
    for i in range(8):
        x[i] = libdevice.fmul_rn(x[i], float32(1 / 16))


@device_function
def query_offset(head, limb, word, k_groups):
    """Offset in bytes, among the query's limbs, of limb ``limb`` of a head's dims 4 * word to 4 * word + 3.

    int8 K (4 groups): a lane reads 16 consecutive dims, four words, of each 64; q4_0 (8 groups): of each 32 the
    4 low nibbles and the 4 high nibbles of a word.
    """
    if k_groups == 4:
        pair, quarter, register = word >> 4, (word >> 2) & 3, word & 3
    else:
        pair, quarter, register = word >> 4, word & 3, ((word >> 3) & 1) * 2 + ((word >> 2) & 1)
    if head < 8:
        product, column = limb, 2 * (head & 3) + (head >> 2)
    elif limb < 2:
        product, column = 3, 2 * (head - 8) + limb
    else:
        product, column = 4, 2 * (head - 8)
    return int32(((pair * PRODUCTS + product) * 32 + column * 4 + quarter) * 16 + register * 4)


@device_function
def load_query(x, at, address, present, lane):
    """Load this lane's 8 values of a head's query, at the global ``address``, to ``x[at]`` on; 0 unless ``present``."""
    for i in range(8):
        x[at + i] = float32(0)
    if present:
        x[at], x[at + 1], x[at + 2], x[at + 3] = ld_global_v4_f32_nc(address + int64(lane * 32))
        x[at + 4], x[at + 5], x[at + 6], x[at + 7] = ld_global_v4_f32_nc(address + int64(lane * 32 + 16))


@device_function
def store_query(queries, at, head, k_groups, base, lane):
    """One warp stores a head's query, 8 values a lane from ``queries[at]`` on, as limbs in the block's shared memory
    from ``base`` on, and sets up the head's record and maxima."""
    x = cuda.local.array(8, float32)
    for i in range(8):
        x[i] = queries[at + i]
    if k_groups == 8:
        rotate_lanes(x, lane)
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
        word = int32(lane * 2 + half)
        st_shared_i32(int32(base + query_offset(head, 0, word, k_groups)), int32(low ^ -0x7F7F7F80))
        st_shared_i32(int32(base + query_offset(head, 1, word, k_groups)), int32(middle ^ -0x7F7F7F80))
        last = int32(base + query_offset(head, 2, word, k_groups))
        st_shared_i32(last, high)
        if head >= 8:
            st_shared_i32(int32(last + 64), int32(0))
    record = int32(base + RECORDS_OFFSET + head * HEAD_BYTES)
    if lane < FACTOR_WORD:
        st_shared_i32(int32(record + lane * 4), int32(NO_CELL))
        st_shared_i32(int32(record + (MAXIMA_OFFSET - RECORDS_OFFSET) + lane * 4), int32(NO_CELL))
    if lane == FACTOR_WORD:
        st_shared_f32(int32(record + FACTOR_WORD * 4), scaled(float32(LOG2_UNITS), int32(e - QUERY_BITS)))
    if lane == POISON_WORD:
        st_shared_i32(int32(record + POISON_WORD * 4), int32(0 if finite else 1))
