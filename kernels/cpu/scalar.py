"""Numbers of the kernels: float16 as bits, powers of two, exp2, fixed-point queries, the rotation, the lane tree.

Source: design section 4 and ``reference/exact/scalar.py``, whose constants are used. numba's CPU target has no float16,
so scales are read and written as uint16. Everything is branch-free where a loop over it should vectorise, and calls no
mathematical library, so no library's version can change a bit.
"""

import numpy as np

from ...reference.exact import scalar as exact
from .jit import kernel

C1, C2, C3, C4, C5, C6 = (np.float32(c) for c in exact.EXP2)
ONE = np.float32(1)
ZERO = np.float32(0)
NAN = exact.NAN
SCORE_LIMIT = exact.SCORE_LIMIT
NO_CELL = -(1 << 28)
"""Stands for the maximum over no cell, as in the exact arithmetic."""

RINT = 1.5 * 2.0**52
"""Adding and subtracting it rounds a float64 of magnitude below 2^51 to the nearest integer, ties to even."""


@kernel
def power_of_two(exponent):
    """float64 2^exponent for -1022 <= exponent <= 1023."""
    return np.int64((exponent + 1023) << 52).view(np.float64)


@kernel
def rint(x):
    """float64 nearest integer, ties to even, for \\|x\\| < 2^51."""
    return (x + RINT) - RINT


@kernel
def floor(x):
    """int32 floor of a float32 of magnitude at most 2^24."""
    n = np.int32(x)
    return np.int32(n - np.int32(np.float32(n) > x))


@kernel
def exp2_fraction(x, n):
    """float32 r in 1..2 with r * 2^n = 2^x, where n = floor(x)."""
    f = x - np.float32(n)
    r = C6 * f + C5
    r = r * f + C4
    r = r * f + C3
    r = r * f + C2
    r = r * f + C1
    return r * f + ONE


@kernel
def scaled(x, exponent):
    """float32 of ``x`` (float32) times 2^exponent (any integer), rounded once."""
    return np.float32(np.float64(x) * power_of_two(min(max(exponent, -700), 700)))


@kernel
def half_to_float(bits):
    """float32 of the float16 with these uint16 bits, exact."""
    sign = np.uint32(bits & 0x8000) << np.uint32(16)
    exponent = (bits >> 10) & 0x1F
    mantissa = bits & 0x3FF
    if exponent == 0:
        magnitude = np.float32(np.float32(mantissa) * np.float32(2.0**-24)).view(np.uint32)
    elif exponent == 31:
        magnitude = np.uint32(0x7F800000 | mantissa << 13)
    else:
        magnitude = np.uint32((exponent + 112) << 23 | mantissa << 13)
    return np.uint32(sign | magnitude).view(np.float32)


@kernel
def float_to_half(x):
    """uint16 bits of the float16 nearest to float32 ``x``, ties to even; not for a NaN."""
    bits = np.int64(np.float32(x).view(np.uint32))
    sign, magnitude = bits >> 16 & 0x8000, bits & 0x7FFFFFFF
    if magnitude >= 0x47800000:
        return np.uint16(sign | 0x7C00)
    if magnitude < 0x38800000:
        # Subnormal: the code counts units of 2^-24. The product is exact in float64, so it is rounded once.
        return np.uint16(sign | np.int64(rint(np.float64(abs(x)) * 2.0**24)))
    odd = magnitude >> 13 & 1
    return np.uint16(sign | (magnitude - 0x38000000 + 0xFFF + odd) >> 13)


@kernel
def split_scale(scale):
    """(mu, v) of |scale| = mu * 2^v with 0.5 <= mu < 1, float32 and int32; (0, 0) for a scale of 0."""
    bits = np.float64(abs(scale)).view(np.int64)
    if bits == 0:
        return ZERO, np.int32(0)
    v = np.int32((bits >> 52) - 1022)
    return np.float32(np.int64(bits & ((1 << 52) - 1) | 1022 << 52).view(np.float64)), v


@kernel
def fixed_point(q, qi):
    """Fill ``qi`` [dim] float64 with the integers rint(q * 2^(22 - e)) of ``q`` [dim] float32.

    Returns (e, finite): the least e with max|q| < 2^e. A vector that is not finite gives zeros and (0, False).
    """
    amax, finite = ZERO, True
    for d in range(q.size):
        magnitude = abs(q[d])
        finite = finite and magnitude < np.inf
        amax = max(amax, magnitude) if finite else ZERO
    if amax == 0:
        qi[:] = 0.0
        return 0, finite
    e = (np.float64(amax).view(np.int64) >> 52) - 1022
    factor = power_of_two(exact.QUERY_BITS - e)
    for d in range(q.size):
        qi[d] = rint(np.float64(q[d]) * factor)
    return e, True


@kernel
def rotate(x):
    """The orthonormal Walsh-Hadamard transform of ``x`` [dim] float32 in place, as ``reference.formats.rotate``."""
    dim = x.size
    stride = 1
    while stride < dim:
        for start in range(0, dim, 2 * stride):
            for i in range(start, start + stride):
                low, high = x[i], x[i + stride]
                x[i], x[i + stride] = low + high, low - high
        stride *= 2
    factor = np.float32(dim**-0.5)
    for i in range(dim):
        x[i] *= factor


@kernel
def lane_sum(x, lanes):
    """float32 sum of ``x`` [dim] in the lane tree; ``lanes`` [32] float32 is scratch."""
    per = x.size // 32
    for lane in range(32):
        total = x[lane * per]
        for i in range(lane * per + 1, (lane + 1) * per):
            total = total + x[i]
        lanes[lane] = total
    stride = 16
    while stride:
        for i in range(stride):
            lanes[i] = lanes[i] + lanes[i + stride]
        stride //= 2
    return lanes[0]
