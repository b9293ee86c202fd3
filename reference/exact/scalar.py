"""Numbers of the exact arithmetic: exp2, powers of two, fixed-point queries, the lane tree.

Source: design section 4. float32 is IEEE binary32, rounded to nearest even, nothing fused, nothing flushed to zero;
NumPy's element-wise float32 operations are just that.
"""

import numpy as np

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

NAN = np.uint32(0x7FC00000).view(np.float32)
"""The one NaN that exact operations write."""

SCORE_LIMIT = np.float32(2**24)
"""Scores are clamped to +-2^24: beyond it a float32 has no fraction left, and the exponents stay small integers."""

QUERY_BITS = 22
"""A query is rint(q * 2^(22 - e)): 22 bits and sign, 2^22 itself included."""


def exp2(x):
    """(r, n): float32 r in 1..2 and int32 n with r * 2^n = 2^x to 1.2e-7, for float32 ``x`` of magnitude at most 2^24.

    n = floor(x); f = x - n; r = Horner in f, float32 multiply and add.
    """
    x = np.asarray(x, np.float32)
    n = np.floor(x)
    f = x - n
    r = np.full_like(f, EXP2[-1])
    for coefficient in (*EXP2[-2::-1], 1.0):
        r = r * f + np.float32(coefficient)
    return r, n.astype(np.int32)


def scale(x, exponent):
    """float32 of ``x`` (float32) times 2^``exponent`` (integer), rounded once, so also right among subnormals."""
    factor = np.ldexp(1.0, np.clip(exponent, -700, 700))
    return (np.asarray(x, np.float64) * factor).astype(np.float32)


def rounded(x, exponent):
    """int64 of rint(x * 2^exponent) for float32 ``x`` below 4 and an exponent of at most 40; 0 below exponent -1."""
    exponent = np.asarray(exponent, np.int64)
    value = np.rint(np.asarray(x, np.float64) * np.ldexp(1.0, np.clip(exponent, -60, 40)))
    return np.where(exponent < -1, 0, value).astype(np.int64)


def fixed_point(q):
    """(qi, e) of float32 ``q`` [..., dim]: the least e with max|q| < 2^e, and qi = rint(q * 2^(22 - e)) int64.

    All zero: e = 0. A vector that is not finite gives qi = 0, e = 0; the caller poisons it.
    """
    q = np.asarray(q, np.float32)
    amax = np.abs(q).max(axis=-1)
    finite = np.isfinite(amax)
    e = np.frexp(np.where(finite, amax, 0))[1]
    q = np.where(finite[..., None], q, 0).astype(np.float64)
    return np.rint(np.ldexp(q, QUERY_BITS - e[..., None])).astype(np.int64), e


def lane_sum(x):
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


def one_nan(x):
    """``x`` float32 with every NaN written as :data:`NAN`."""
    return np.where(np.isnan(x), NAN, x)
