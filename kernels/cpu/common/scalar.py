"""Numbers of the kernels: float16 as bits, powers of two, exp2 and log2, the rotation, the trees.

Source: design section 4 and ``reference/exact/scalar.py``, whose constants are used. numba's CPU target has no float16,
so scales are read and written as uint16. Everything is branch-free where a loop over it should vectorise, and calls no
mathematical library, so no library's version can change a bit.
"""

import numpy as np

from qsa.reference.exact import scalar as exact

from .jit import kernel

C1, C2, C3, C4, C5, C6 = (np.float32(c) for c in exact.EXP2)
L0, L1, L2, L3, L4, L5, L6, L7, L8 = (np.float32(c) for c in exact.LOG2)
LOG2_E, LN_2, EXP_LIMIT = exact.LOG2_E, exact.LN_2, exact.EXP_LIMIT
ONE = np.float32(1)
ZERO = np.float32(0)
NAN = exact.NAN
SCORE_LIMIT = exact.SCORE_LIMIT
RINT = 1.5 * 2.0**52
"""Adding and subtracting it rounds a float64 of magnitude below 2^51 to the nearest integer, ties to even."""
RINT_BITS = int(np.float64(RINT).view(np.int64))


@kernel
def power_of_two(exponent):
    """float64 2^exponent for -1022 <= exponent <= 1023."""
    return np.int64((exponent + 1023) << 52).view(np.float64)


@kernel
def rint(x):
    """float64 nearest integer, ties to even, for |x| < 2^51."""
    return (x + RINT) - RINT


@kernel
def integer_bits(x):
    """int64 nearest integer of a float64, ties to even, for |x| < 2^51.

    The sum with RINT holds it in its lowest bits. Unlike a conversion this is one operation on every processor.
    """
    return np.float64(x + RINT).view(np.int64) - RINT_BITS


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
    magnitude = np.uint32(bits & 0x7FFF)
    # The exponent in its place, 112 too low; the product is exact, also of a subnormal.
    number = np.uint32(magnitude << np.uint32(13)).view(np.float32) * np.float32(2.0**112)
    result = np.float32(number).view(np.uint32)
    result = result if magnitude < 0x7C00 else np.uint32(result | 0x7F800000)
    return np.uint32(sign | result).view(np.float32)


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
def split_exponent(scale):
    """int32 v of scale = mu * 2^v with 0.5 <= |mu| < 1; of any value for a scale of 0.

    ``scale`` is the float32 of a float16, so it is never subnormal. An infinite one counts as 2^1024.
    """
    field = np.int32(np.int32(np.float32(abs(scale)).view(np.int32)) >> 23)
    return np.int32(1025) if field == 255 else np.int32(field - 126)


@kernel
def split_fraction(scale):
    """float32 mu of :func:`split_exponent`, with the scale's sign; 0 for a scale of 0."""
    bits = np.int32(np.float32(scale).view(np.int32))
    fraction = np.int32(bits & -0x7F800001 | 0x3F000000).view(np.float32)
    return fraction if scale != ZERO else ZERO


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


@kernel
def one_nan(x):
    """``x`` float32, a NaN as the one NaN."""
    return x if x == x else NAN


@kernel
def exp(x):
    """float32 e^x, as ``exp`` of the exact arithmetic; a NaN gives NAN."""
    y = x * LOG2_E
    y = y if y < EXP_LIMIT else EXP_LIMIT
    y = y if y > -EXP_LIMIT else -EXP_LIMIT
    n = floor(y)
    result = np.float32(np.float64(exp2_fraction(y, n)) * power_of_two(np.int64(n)))
    return result if x == x else NAN


@kernel
def log2(x):
    """float32 log2(x) of a positive, normal, finite x."""
    bits = np.int64(np.float32(x).view(np.int32))
    k = (bits - exact.ROOT_HALF) >> 23
    f = np.int32(bits - (k << 23)).view(np.float32) - ONE
    p = L8 * f + L7
    p = p * f + L6
    p = p * f + L5
    p = p * f + L4
    p = p * f + L3
    p = p * f + L2
    p = p * f + L1
    p = p * f + L0
    return np.float32(k) + f * p


@kernel
def sigmoid(x):
    """float32 1 / (1 + e^-x); a NaN gives NAN."""
    e = exp(-abs(x))
    return (ONE if x >= ZERO else e) / (ONE + e)


@kernel
def silu(x):
    """float32 x * sigmoid(x), one NaN."""
    return one_nan(x * sigmoid(x))


@kernel
def softplus(x):
    """float32 log(1 + e^x), as ``softplus`` of the exact arithmetic."""
    e = exp(-abs(x))
    u = ONE + e
    # Of a NaN, u is a NaN; log2 takes its bits for a number, so it is put back at the end.
    rest = e if u == ONE else log2(u) * LN_2 * (e / (u - ONE))
    return (x if x > ZERO else ZERO) + rest if x == x else NAN


@kernel
def add_columns(columns):
    """float32 sum of ``columns`` [2^n] as a butterfly, the widest stride first; they are overwritten."""
    stride = columns.size // 2
    while stride:
        for i in range(stride):
            columns[i] = columns[i] + columns[i + stride]
        stride //= 2
    return columns[0]


@kernel
def column_dot(x, y, columns):
    """float32 sum of the rounded products x * y [dim] in the tree of 32 columns; ``columns`` [32] is scratch."""
    for i in range(32):
        columns[i] = ZERO
    whole = x.size // 32 * 32
    for start in range(0, whole, 32):
        for i in range(32):
            columns[i] = columns[i] + x[start + i] * y[start + i]
    for i in range(x.size - whole):
        columns[i] = columns[i] + x[whole + i] * y[whole + i]
    return add_columns(columns)
