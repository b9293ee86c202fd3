"""Index keys and queries as 16-bit integers with a power of two: the bytes of ``reference/key_codes.py``."""

import numpy as np

from qsa.reference.key_codes import CODE_BITS, LARGEST_CODE, NOT_FINITE

from ..products.records import INFINITY_BITS
from .jit import kernel
from .scalar import integer_bits, power_of_two


@kernel
def encode(x, codes):
    """Fill codes [dim] int16 of x [dim] float32 and return the exponent, or NOT_FINITE with codes 0.

    The largest magnitude is found among the bits, where NaN and infinities are the largest and nothing branches.
    """
    bits = x.view(np.int32)
    top = np.int32(0)
    for i in range(bits.size):
        top = max(top, np.int32(bits[i] & 0x7FFFFFFF))
    if top == 0 or top >= INFINITY_BITS:
        codes[:] = 0
        return np.int64(0 if top == 0 else NOT_FINITE)
    largest = np.float64(np.int32(top).view(np.float32))
    # In float64 every float32 is a normal number.
    e = (largest.view(np.int64) >> 52) - 1022
    if largest * power_of_two(CODE_BITS - e) > LARGEST_CODE:
        e += 1
    factor = power_of_two(CODE_BITS - e)
    for i in range(x.size):
        codes[i] = np.int16(integer_bits(np.float64(x[i]) * factor))
    return e


@kernel
def limbs_of(codes, limbs):
    """limbs [2, dim] int16 of codes [dim] int16: code = low + 256 * high, low from -128 to 127."""
    for i in range(codes.size):
        high = (np.int32(codes[i]) + 128) >> 8
        limbs[0, i], limbs[1, i] = np.int16(codes[i] - 256 * high), np.int16(high)
