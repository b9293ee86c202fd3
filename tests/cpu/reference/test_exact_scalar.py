"""Numbers of the exact arithmetic: bounds of exp2, log2 and their kin, powers of two, fixed point, the lane tree."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsa.reference.exact.scalar import (
    EXP2,
    LN_2,
    LOG2,
    LOG2_E,
    NAN,
    SCORE_LIMIT,
    exp,
    exp2,
    fixed_point,
    lane_sum,
    log2,
    one_nan,
    rounded,
    scale,
    sigmoid,
    silu,
    softplus,
)

floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


def test_exp2_holds_its_bound_at_every_fraction():
    """All 2^23 fractions k/2^23, and the small ones between 0 and 2^-23; float64's own exp2 is good to 2e-16."""
    fractions = np.arange(2**23, dtype=np.float32) / np.float32(2**23)
    small = np.ldexp(np.float32(1), -np.arange(24, 150)).astype(np.float32)
    for x in (fractions, small):
        r, n = exp2(x)
        assert (n == 0).all()
        assert r.dtype == np.float32 and r.min() >= 1 and r.max() <= 2
        error = np.abs(r / np.exp2(x.astype(np.float64)) - 1)
        # The contract's figure. 6e-8 of it is the rounding of r itself.
        assert error.max() <= 1.2e-7


def test_exp2_is_that_of_mpmath():
    """The bound again, against 100-bit arithmetic: the float64 yardstick above is not trusted alone."""
    with mpmath.workprec(100):
        for x in np.random.Generator(np.random.Philox(5)).integers(-(2**30), 2**30, 300) / np.float64(2**24):
            x = np.float32(x)
            r, n = exp2(x)
            true = mpmath.power(2, mpmath.mpf(float(x)))
            assert abs(mpmath.mpf(float(r)) * mpmath.power(2, int(n)) / true - 1) <= 1.2e-7


def test_exp2_of_integers_and_of_the_smallest_negative():
    r, n = exp2(np.array([0, -1, 5, -(2**24)], np.float32))
    assert (r == 1).all() and n.tolist() == [0, -1, 5, -(2**24)]
    # -1e-30 has floor -1 and a fraction that rounds to 1: r is exactly 2 there, so r * 2^n is 1.
    r, n = exp2(np.float32(-1e-30))
    assert (float(r), int(n)) == (2.0, -1)


def test_exp2_coefficients_are_float32():
    assert all(float(np.float32(c)) == c for c in EXP2)


def exact_product(x, exponent):
    """float32 nearest to x * 2^exponent, ties to even, from rational arithmetic."""
    value = Fraction(float(x)) * Fraction(2) ** exponent
    if value == 0:
        return np.float32(x)
    lowest = max(int(np.floor(float(mpmath.log(abs(mpmath.mpf(float(x))), 2)))) + exponent - 23, -149)
    unit = Fraction(2) ** lowest
    return np.float32(round(value / unit) * unit)


@given(floats, st.integers(-160, 20))
def test_scale_rounds_once(x, exponent):
    if abs(x) >= 2**60:
        x = x / 2**90
    x = np.float32(x)
    got, want = scale(x, exponent), exact_product(x, exponent)
    assert got.view(np.uint32) == want.view(np.uint32) or (got == 0 and want == 0)


def test_scale_takes_exponents_of_any_size():
    assert scale(np.float32(3), -(2**28)) == 0
    assert scale(np.float32(1), -149) == np.float32(1e-45)


def test_rounded_is_half_to_even_and_zero_below_its_range():
    x = np.array([1, 1.5, 2, 1.9999999], np.float32)
    assert rounded(x, -1).tolist() == [0, 1, 1, 1]
    assert rounded(x, -2).tolist() == [0, 0, 0, 0]
    assert rounded(x, 30).tolist() == [2**30, 3 << 29, 2**31, 2**31 - 2**7]
    assert rounded(x, -(2**28)).tolist() == [0] * 4


@given(st.lists(floats, min_size=1, max_size=9))
def test_fixed_point_is_exact_to_half_a_unit(values):
    q = np.array(values, np.float32)
    qi, e = fixed_point(q)
    amax = max(abs(Fraction(float(v))) for v in q)
    if amax == 0:
        assert e == 0 and not qi.any()
        return
    assert Fraction(2) ** int(e - 1) <= amax < Fraction(2) ** int(e)
    assert np.abs(qi).max() <= 2**22
    unit = Fraction(2) ** int(e - 22)
    assert all(abs(Fraction(float(v)) - int(i) * unit) <= unit / 2 for v, i in zip(q, qi, strict=True))


def test_fixed_point_of_what_is_not_finite_is_zero():
    qi, e = fixed_point(np.array([[np.inf, 1], [np.nan, 1], [2, 1]], np.float32))
    assert qi.tolist() == [[0, 0], [0, 0], [2**21, 2**20]] and e.tolist() == [0, 0, 2]


def test_lane_sum_is_the_butterfly():
    """Against 32 lanes that exchange with lane ^ stride, as a warp does; every lane ends with the same bits."""
    x = np.random.Generator(np.random.Philox(3)).standard_normal((7, 128)).astype(np.float32)
    lanes = x.reshape(7, 32, 4)
    lanes = ((lanes[..., 0] + lanes[..., 1]) + lanes[..., 2]) + lanes[..., 3]
    for stride in (16, 8, 4, 2, 1):
        lanes = lanes + lanes[:, np.arange(32) ^ stride]
    assert (lanes == lanes[:, :1]).all()
    assert np.array_equal(lane_sum(x), lanes[:, 0])
    # The order matters: a plain sum has other bits in at least one of the rows.
    assert not np.array_equal(lane_sum(x), np.add.reduce(x, axis=1))


def test_lane_sum_refuses_other_sizes():
    with pytest.raises(ValueError, match="multiple of 32"):
        lane_sum(np.zeros(48, np.float32))


def test_one_nan():
    x = np.array([0x7FFFFFFF, 0xFFC00001, 0x3F800000], np.uint32).view(np.float32)
    assert one_nan(x).view(np.uint32).tolist() == [0x7FC00000, 0x7FC00000, 0x3F800000]
    assert NAN.view(np.uint32) == 0x7FC00000


def test_log2_holds_its_bound_at_every_fraction():
    """Every float32 from 1/2 to 2, where the result is smallest beside its parts, and samples of every exponent."""
    for first in (0.5, 1.0):
        x = np.arange(2**23, dtype=np.uint32) + np.float32(first).view(np.uint32)
        x = x.view(np.float32)[x > np.float32(1).view(np.uint32)] if first == 1 else x.view(np.float32)
        true = np.log2(x.astype(np.float64))
        assert np.abs(log2(x) / true - 1).max() <= 2e-7
    x = np.arange(0x3F, 0x7F800000, 1009, dtype=np.uint32).view(np.float32)
    true = np.log2(x.astype(np.float64))
    assert (np.abs(log2(x) - true) <= 2e-7 * np.abs(true)).all()


def test_log2_of_special_numbers():
    x = np.array([0, -0.0, 1, 8, 2.0**-149, np.inf, -1, -np.inf, np.nan], np.float32)
    assert log2(x)[:6].tolist() == [-np.inf, -np.inf, 0, 3, -149, np.inf]
    assert (log2(x)[6:].view(np.uint32) == 0x7FC00000).all()


def test_exp_holds_its_bound():
    x = np.linspace(-87, 88, 1_000_003).astype(np.float32)
    true = np.exp(x.astype(np.float64))
    assert (np.abs(exp(x) / true - 1) <= 2e-7 + 1.1e-7 * np.abs(x)).all()


def test_exp_at_the_ends():
    x = np.array([0, -0.0, -90, -104, -1e30, -np.inf, 89, 1e30, np.inf, np.nan], np.float32)
    got = exp(x)
    assert got[:2].tolist() == [1, 1] and 0 < got[2] < 2e-39 and not got[3:6].any() and np.isinf(got[6:9]).all()
    assert got[9].view(np.uint32) == 0x7FC00000


def test_sigmoid_silu_and_softplus_hold_their_bounds():
    """One rounding of a sum, one of a quotient, and exp's error: absolute beside 1, relative in a tail of e^x."""
    x = np.linspace(-80, 80, 1_000_003).astype(np.float32)
    wide = x.astype(np.float64)
    tail = 4e-7 + 1.2e-7 * np.abs(np.minimum(wide, 0))
    true = 1 / (1 + np.exp(-wide))
    assert (np.abs(sigmoid(x) / true - 1) <= tail).all() and np.abs(sigmoid(x) - true).max() <= 1.2e-7
    assert (np.abs(silu(x) - wide * true) <= tail * np.abs(wide * true) * 1.2).all()
    assert (np.abs(softplus(x) / np.logaddexp(0, wide) - 1) <= tail * 1.2).all()


def test_sigmoid_and_softplus_of_special_numbers():
    x = np.array([np.inf, -np.inf, 0, -0.0, 3e38, -3e38], np.float32)
    assert sigmoid(x).tolist() == [1, 0, 0.5, 0.5, 1, 0]
    assert softplus(x)[:2].tolist() == [np.inf, 0] and softplus(x)[4:].tolist() == [x[4], 0]
    for function in (sigmoid, silu, softplus):
        assert function(np.array([-np.nan], np.float32)).view(np.uint32).tolist() == [0x7FC00000]
    assert np.isnan(silu(np.float32(-np.inf)))


def test_constants_are_the_nearest_float32():
    assert all(float(np.float32(c)) == c for c in LOG2)
    with mpmath.workprec(100):
        for constant, true in ((LOG2_E, 1 / mpmath.log(2)), (LN_2, mpmath.log(2))):
            assert abs(mpmath.mpf(float(constant)) - true) <= np.spacing(constant) / 2


def test_the_scores_are_clamped_where_the_contract_says():
    assert SCORE_LIMIT == 2**24 and SCORE_LIMIT.dtype == np.float32
