"""Numbers of the exact kernels: exp2, log2 and what is made of them, powers of two, the one NaN, sums over a warp.

Source: design section 4 and ``reference/exact/scalar.py``, whose constants are used. Device functions on float32. Every
float operation is one of libdevice's ``_rn`` functions, which the compiler neither fuses nor reorders; nothing is
float64: where the reference scales by way of float64 to round once, :func:`scaled` does so in float32.
"""

from qsa.reference.exact import scalar as exact

from ..toolchain.compiler import cuda, device_function, float32, int32, libdevice
from ..toolchain.constants import FULL_WARP
from ..toolchain.ptx import float_as_int, floor_s32, int_as_float, prmt

NAN_BITS = 0x7FC00000
"""The one NaN that exact kernels write; an arithmetic instruction would give 0x7fffffff."""

INFINITY_BITS = 0x7F800000
LEAST_NORMAL_BITS = 0x00800000
C1, C2, C3, C4, C5, C6 = exact.EXP2
L0, L1, L2, L3, L4, L5, L6, L7, L8 = exact.LOG2
LOG2_E, LN_2, EXP_LIMIT = float(exact.LOG2_E), float(exact.LN_2), float(exact.EXP_LIMIT)
SCORE_LIMIT = float(exact.SCORE_LIMIT)
ROOT_HALF, QUERY_BITS = exact.ROOT_HALF, exact.QUERY_BITS

EXP_SHIFT = 200
"""Beyond 2^+-200 a fraction in 1..2 is inf or 0 in float32, so :func:`exp` shifts no further."""


@device_function
def one_nan(x):
    """``x``, a NaN as the one NaN."""
    return x if x == x else int_as_float(int32(NAN_BITS))


@device_function
def pow2(k):
    """2^k for k in -126..127."""
    return int_as_float(int32((k + 127) << 23))


@device_function
def scaled(x, k):
    """x * 2^k rounded once, for k in -250..250 and an x whose half-way product is a normal number or 0."""
    half = int32(k >> 1)
    return libdevice.fmul_rn(libdevice.fmul_rn(x, pow2(half)), pow2(int32(k - half)))


@device_function
def exponent(magnitude):
    """int32 e: the least with x < 2^e, of the bits ``magnitude`` of a finite x >= 0; 0 for 0."""
    e = int32((magnitude >> 23) - 126)
    if magnitude < LEAST_NORMAL_BITS:
        e = int32((float_as_int(libdevice.fmul_rn(int_as_float(magnitude), pow2(64))) >> 23) - 126 - 64)
    return e if magnitude != 0 else int32(0)


@device_function
def transpose_bytes(a, b, c, d):
    """Four words of four bytes, transposed: result i holds byte i of a, b, c and d."""
    p, q = prmt(a, b, int32(0x5140)), prmt(c, d, int32(0x5140))
    r, s = prmt(a, b, int32(0x7362)), prmt(c, d, int32(0x7362))
    low, high = int32(0x5410), int32(0x7632)
    return prmt(p, q, low), prmt(p, q, high), prmt(r, s, low), prmt(r, s, high)


@device_function
def rounded_dot(low, middle, high):
    """float32(high * 2^16 + middle * 2^8 + low), rounded once.

    The integer is cut at bit 16 into two parts that a float32 holds exactly (as the mantissa of a large power of two),
    so the one addition at the end rounds it; a 64-bit conversion would take four times as long.
    """
    rest = int32(middle * 256 + low)
    upper = libdevice.fadd_rn(int_as_float(int32(high + (rest >> 16) + 0x53400000)), float32(-1.5 * 2.0**39))
    lower = libdevice.fadd_rn(int_as_float(int32((rest & 0xFFFF) | 0x4B000000)), float32(-(2.0**23)))
    return libdevice.fadd_rn(upper, lower)


@device_function
def exp2_fraction(f):
    """2^f for f in 0..1: Horner, float32 multiply and add."""
    r = libdevice.fadd_rn(libdevice.fmul_rn(float32(C6), f), float32(C5))
    r = libdevice.fadd_rn(libdevice.fmul_rn(r, f), float32(C4))
    r = libdevice.fadd_rn(libdevice.fmul_rn(r, f), float32(C3))
    r = libdevice.fadd_rn(libdevice.fmul_rn(r, f), float32(C2))
    r = libdevice.fadd_rn(libdevice.fmul_rn(r, f), float32(C1))
    return libdevice.fadd_rn(libdevice.fmul_rn(r, f), float32(1))


@device_function
def exp2(x):
    """(r, n): r in 1..2 and int32 n with r * 2^n = 2^x, for x of magnitude at most 2^24."""
    n = floor_s32(x)
    return exp2_fraction(libdevice.fsub_rn(x, float32(n))), n


@device_function
def exp(x):
    """e^x; 0 and inf outside float32, the one NaN for a NaN."""
    y = libdevice.fmul_rn(x, float32(LOG2_E))
    y = y if y < float32(EXP_LIMIT) else float32(EXP_LIMIT)
    y = y if y > float32(-EXP_LIMIT) else float32(-EXP_LIMIT)
    r, n = exp2(y)
    n = int32(max(min(n, EXP_SHIFT), -EXP_SHIFT))
    return scaled(r, n) if x == x else int_as_float(int32(NAN_BITS))


@device_function
def log2(x):
    """log2(x) of a positive, normal, finite x."""
    bits = float_as_int(x)
    k = int32((bits - ROOT_HALF) >> 23)
    f = libdevice.fsub_rn(int_as_float(int32(bits - (k << 23))), float32(1))
    p = libdevice.fadd_rn(libdevice.fmul_rn(float32(L8), f), float32(L7))
    p = libdevice.fadd_rn(libdevice.fmul_rn(p, f), float32(L6))
    p = libdevice.fadd_rn(libdevice.fmul_rn(p, f), float32(L5))
    p = libdevice.fadd_rn(libdevice.fmul_rn(p, f), float32(L4))
    p = libdevice.fadd_rn(libdevice.fmul_rn(p, f), float32(L3))
    p = libdevice.fadd_rn(libdevice.fmul_rn(p, f), float32(L2))
    p = libdevice.fadd_rn(libdevice.fmul_rn(p, f), float32(L1))
    p = libdevice.fadd_rn(libdevice.fmul_rn(p, f), float32(L0))
    return libdevice.fadd_rn(float32(k), libdevice.fmul_rn(f, p))


@device_function
def sigmoid(x):
    """1 / (1 + e^-x), from e^-|x|; the one NaN for a NaN."""
    e = exp(-libdevice.fabsf(x))
    return one_nan(libdevice.fdiv_rn(float32(1) if x >= float32(0) else e, libdevice.fadd_rn(float32(1), e)))


@device_function
def silu(x):
    """x * sigmoid(x); the one NaN for a NaN and for -inf."""
    return one_nan(libdevice.fmul_rn(x, sigmoid(x)))


@device_function
def softplus(x):
    """log(1 + e^x) = max(x, 0) + log(1 + e) with e = e^-|x|; the one NaN for a NaN.

    log(1 + e) is e where u = 1 + e is 1, and log(u) * (e / (u - 1)) elsewhere.
    """
    e = exp(-libdevice.fabsf(x))
    u = libdevice.fadd_rn(float32(1), e)
    rest = e
    if u != float32(1):
        # Of a NaN, u is a NaN; log2 takes its bits for a number, so it is put back at the end.
        lost = libdevice.fdiv_rn(e, libdevice.fsub_rn(u, float32(1)))
        rest = libdevice.fmul_rn(libdevice.fmul_rn(log2(u), float32(LN_2)), lost)
    total = libdevice.fadd_rn(x if x > float32(0) else float32(0), rest)
    return total if x == x else int_as_float(int32(NAN_BITS))


@device_function
def rsqrt(x):
    """1 / sqrt(x), root and quotient rounded."""
    return libdevice.fdiv_rn(float32(1), libdevice.fsqrt_rn(x))


@device_function
def warp_sum(x):
    """Sum of the 32 lanes' x, in every lane: a butterfly with strides 16, 8, 4, 2, 1.

    A lane that holds column l of 32 (entries l, l + 32, ... from +0 on, ascending) gets the tree of 32 columns.
    """
    x = libdevice.fadd_rn(x, cuda.shfl_xor_sync(FULL_WARP, x, 16))
    x = libdevice.fadd_rn(x, cuda.shfl_xor_sync(FULL_WARP, x, 8))
    x = libdevice.fadd_rn(x, cuda.shfl_xor_sync(FULL_WARP, x, 4))
    x = libdevice.fadd_rn(x, cuda.shfl_xor_sync(FULL_WARP, x, 2))
    return libdevice.fadd_rn(x, cuda.shfl_xor_sync(FULL_WARP, x, 1))


@device_function
def warp_max(x):
    """Largest of the 32 lanes' int32 x, in every lane."""
    for stride in (16, 8, 4, 2, 1):
        x = max(x, int32(cuda.shfl_xor_sync(FULL_WARP, x, stride)))
    return int32(x)
