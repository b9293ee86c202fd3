"""Index keys and queries as 16-bit integers with a power of two, in a warp: the bytes of ``reference/key_codes.py``."""

from qsa.reference.key_codes import CODE_BITS, LARGEST_CODE, NOT_FINITE

from ..toolchain.compiler import device_function, float32, int32
from ..toolchain.ptx import float_as_int, int_as_float, rint_s32
from .scalar import INFINITY_BITS, exponent, scaled


@device_function
def magnitude(x):
    """int32 bits of |x|: they order as magnitudes do, and everything not finite is above every finite number."""
    return int32(float_as_int(x) & 0x7FFFFFFF)


@device_function
def key_exponent(largest):
    """int32 exponent of a vector whose largest magnitude has the bits ``largest``; NOT_FINITE where it is not."""
    if largest >= INFINITY_BITS:
        return int32(NOT_FINITE)
    e = exponent(largest)
    if scaled(int_as_float(largest), int32(CODE_BITS - e)) > float32(LARGEST_CODE):
        e = int32(e + 1)
    return int32(e)


@device_function
def key_code(x, e):
    """int32 code of ``x`` in a vector with the exponent ``e``; 0 where that is NOT_FINITE."""
    return rint_s32(scaled(x, int32(CODE_BITS - e))) if e != NOT_FINITE else int32(0)
