"""Numbers of the exact arithmetic: exp2, log2 and what is made of them, powers of two, fixed-point rows, the trees.

Source: design section 4. float32 is IEEE binary32, rounded to nearest even, nothing fused, nothing flushed to zero;
NumPy's element-wise float32 operations are just that.
"""

import numpy as np
import numpy.typing as npt

EXP2 = tuple(
    float.fromhex(c)
    for c in (
        "0x1.62e42ap-1",
        "0x1.ebfd62p-3",
        "0x1.c68926p-5",
        "0x1.3d0402p-7",
        "0x1.473af4p-10",
        "0x1.c3bd96p-13",
    )
)
"""Coefficients of f, f^2, ..., f^6 in exp2's polynomial; each is a float32. The constant term is 1."""

LOG2 = tuple(
    float.fromhex(c)
    for c in (
        "0x1.715476p+0",
        "-0x1.715470p-1",
        "0x1.ec73d6p-2",
        "-0x1.715c4ep-2",
        "0x1.26d384p-2",
        "-0x1.e95be6p-3",
        "0x1.b9c91ap-3",
        "-0x1.a87d0cp-3",
        "0x1.01b6dcp-3",
    )
)
"""Coefficients of 1, f, ..., f^8 in log2's polynomial: log2(1 + f) = f * P(f). Each is a float32."""

LOG2_E = np.float32(float.fromhex("0x1.715476p+0"))
"""log2(e) as a float32: exp's product."""

LN_2 = np.float32(float.fromhex("0x1.62e430p-1"))
"""ln(2) as a float32: log's product."""

EXP_LIMIT = np.float32(256)
"""exp clamps its power of two to +-256: beyond it the result is 0 or inf anyway."""

ROOT_HALF = 0x3F3504F3
"""Bits of the least float32 at or above sqrt(1/2): log2 splits x = m * 2^k with m from here to twice as much."""

NAN = np.uint32(0x7FC00000).view(np.float32)
"""The one NaN that exact operations write."""

SCORE_LIMIT = np.float32(2**24)
"""Scores are clamped to +-2^24: beyond it a float32 has no fraction left, and the exponents stay small integers."""

QUERY_BITS = 22
"""A query is rint(q * 2^(22 - e)): 22 bits and sign, 2^22 itself included."""


def exp2(x: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """(r, n): float32 r in 1..2 and int32 n with r * 2^n = 2^x to 1.2054e-7, for float32 ``x`` of magnitude to 2^24.

    n = floor(x); f = x - n, rounded for x from -1/2 to 0; r = Horner in f, float32 multiply and add.
    """
    x = np.asarray(x, np.float32)
    n = np.floor(x)
    f = x - n
    r = np.full_like(f, EXP2[-1])
    for coefficient in (*EXP2[-2::-1], 1.0):
        r = r * f + np.float32(coefficient)
    return r, n.astype(np.int32)


def scale(x: npt.ArrayLike, exponent: npt.ArrayLike) -> np.ndarray:
    """float32 of ``x`` (float32) times 2^``exponent`` (integer), rounded once, so also right among subnormals."""
    factor = np.ldexp(1.0, np.clip(exponent, -700, 700))
    return (np.asarray(x, np.float64) * factor).astype(np.float32)


def rounded(x: npt.ArrayLike, exponent: npt.ArrayLike) -> np.ndarray:
    """int64 of rint(x * 2^exponent) for float32 ``x`` below 4 and an exponent of at most 40; 0 below exponent -1."""
    exponent = np.asarray(exponent, np.int64)
    value = np.rint(np.asarray(x, np.float64) * np.ldexp(1.0, np.clip(exponent, -60, 40)))
    return np.where(exponent < -1, 0, value).astype(np.int64)


def fixed_point(q: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """(qi, e) of float32 ``q`` [..., dim]: the least e with max|q| < 2^e, and qi = rint(q * 2^(22 - e)) int64.

    All zero: e = 0. A vector that is not finite gives qi = 0, e = 0; the caller poisons it.
    """
    q = np.asarray(q, np.float32)
    amax = np.abs(q).max(axis=-1)
    finite = np.isfinite(amax)
    e = np.frexp(np.where(finite, amax, 0))[1]
    q = np.where(finite[..., None], q, 0).astype(np.float64)
    return np.rint(np.ldexp(q, QUERY_BITS - e[..., None])).astype(np.int64), e


def lane_sum(x: np.ndarray) -> np.ndarray:
    """float32 sum over the last axis in the lane tree.

    Lane l of 32 holds the consecutive entries l*per .. l*per + per - 1 and adds them left to right; the lanes are added
    as a butterfly with strides 16, 8, 4, 2, 1. Raises ValueError unless the axis divides into 32 lanes.
    """
    if x.shape[-1] % 32:
        raise ValueError(f"last axis = {x.shape[-1]}: the lane tree needs a multiple of 32")
    lanes = x.reshape(*x.shape[:-1], 32, -1)
    total = lanes[..., 0]
    for i in range(1, lanes.shape[-1]):
        total = total + lanes[..., i]
    for stride in (16, 8, 4, 2, 1):
        total = total[..., :stride] + total[..., stride:]
    return total[..., 0]


def one_nan(x: np.ndarray) -> np.ndarray:
    """``x`` float32 with every NaN written as :data:`NAN`."""
    return np.where(np.isnan(x), NAN, x)


def column_sum(x: np.ndarray, columns: int) -> np.ndarray:
    """float32 sum over the last axis in the tree of ``columns`` (a power of two) columns, for an axis of any length.

    Column j begins at +0 and adds the entries j, j + columns, j + 2 * columns, ... in ascending order. The columns are
    then added as a butterfly with strides columns/2, ..., 1. Neighbouring entries lie in different columns, so a vector
    or a warp takes them at once; zeros after the end would change nothing.
    """
    total = np.zeros((*x.shape[:-1], columns), np.float32)
    for start in range(0, x.shape[-1], columns):
        row = x[..., start : start + columns]
        total[..., : row.shape[-1]] += row
    while total.shape[-1] > 1:
        stride = total.shape[-1] // 2
        total = total[..., :stride] + total[..., stride:]
    return total[..., 0]


def exp(x: npt.ArrayLike) -> np.ndarray:
    """float32 e^x: exp2 of the rounded product x * log2(e), clamped to +-256; 0 and inf outside float32, NaN for NaN.

    Relative error at most 2e-7 + 1.1e-7 * |x|, of which the second part is the product's; a subnormal result is rounded
    once more.
    """
    x = np.asarray(x, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        r, n = exp2(np.fmax(np.fmin(x * LOG2_E, EXP_LIMIT), -EXP_LIMIT))
        return np.where(np.isnan(x), NAN, scale(r, n))


def log2(x: npt.ArrayLike) -> np.ndarray:
    """float32 log2(x) with a relative error of at most 2e-7; -inf for 0, inf for inf, NaN below 0 and for NaN.

    x = m * 2^k with sqrt(1/2) <= m < sqrt(2), split exactly; f = m - 1 (exact); k + f * P(f), P by Horner, float32
    multiply and add.
    """
    x = np.asarray(x, np.float32)
    # A subnormal x is lifted by 2^23 first, which is exact.
    small = np.abs(x) < np.float32(2.0**-126)
    bits = np.where(small, np.where(small, x, 0) * np.float32(2.0**23), x).view(np.int32)
    k = (bits - ROOT_HALF) >> 23
    with np.errstate(invalid="ignore", over="ignore"):
        f = (bits - (k << 23)).view(np.float32) - np.float32(1)
        p = np.full_like(f, LOG2[-1])
        for coefficient in LOG2[-2::-1]:
            p = p * f + np.float32(coefficient)
        result = (k - np.where(small, 23, 0)).astype(np.float32) + f * p
    result = np.where(x == 0, np.float32(-np.inf), result)
    return np.where((x < 0) | np.isnan(x), NAN, np.where(x == np.inf, x, result))


def log(x: npt.ArrayLike) -> np.ndarray:
    """float32 ln(x): log2(x) * ln(2), rounded."""
    return log2(x) * LN_2


def sigmoid(x: npt.ArrayLike) -> np.ndarray:
    """float32 1 / (1 + e^-x), from e^-|x| so that nothing overflows; one NaN for a NaN."""
    x = np.asarray(x, np.float32)
    e = exp(-np.abs(x))
    return np.where(x >= 0, np.float32(1), e) / (np.float32(1) + e)


def silu(x: npt.ArrayLike) -> np.ndarray:
    """float32 x * sigmoid(x); one NaN for a NaN and for -inf."""
    x = np.asarray(x, np.float32)
    with np.errstate(invalid="ignore"):
        return one_nan(x * sigmoid(x))


def softplus(x: npt.ArrayLike) -> np.ndarray:
    """float32 log(1 + e^x) = max(x, 0) + log(1 + e) with e = e^-|x|; one NaN for a NaN.

    log(1 + e) is log(u) * (e / (u - 1)) with u = 1 + e rounded, and e where u is 1: the quotient takes back what the
    rounding of u did, so small results keep their relative precision.
    """
    x = np.asarray(x, np.float32)
    e = exp(-np.abs(x))
    u = np.float32(1) + e
    lost = u == 1
    rest = np.where(lost, e, log(u) * (e / np.where(lost, np.float32(1), u - np.float32(1))))
    return one_nan(np.where(x > 0, x, np.float32(0)) + rest)


def rsqrt(x: npt.ArrayLike) -> np.ndarray:
    """float32 1 / sqrt(x), root and quotient rounded."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.float32(1) / np.sqrt(np.asarray(x, np.float32))
