"""Index keys of 16 bits (design section 4): the encoding, appends, and scores of integer dots."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsa.reference.append_index import append_index as append_float64
from qsa.reference.block_scores import block_scores as scores_float64
from qsa.reference.exact import append_index, block_scores
from qsa.reference.geometry import REAL, step_records
from qsa.reference.index import INDEX_FORMATS, Index
from qsa.reference.key_codes import LARGEST_CODE, NOT_FINITE, decode, encode
from support.arrays import generator, same_bytes

f32 = np.float32


def same_codes(a, b):
    return a.dtype == b.dtype == np.int16 and np.array_equal(a, b)


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


def by_hand(x):
    """(codes, e) by the rule itself, in fractions."""
    largest = max(abs(Fraction(float(v))) for v in x)
    e = 0
    if largest:
        while largest <= LARGEST_CODE * Fraction(2) ** (e - 16):
            e -= 1
        while largest > LARGEST_CODE * Fraction(2) ** (e - 15):
            e += 1
    return [round(Fraction(float(v)) * Fraction(2) ** (15 - e)) for v in x], e


@given(st.lists(finite, min_size=1, max_size=8))
def test_the_encoding_is_the_rule_in_fractions(x):
    codes, e = encode(np.array(x, f32))
    assert (codes.tolist(), int(e)) == by_hand(np.array(x, f32))
    assert np.abs(codes.astype(int)).max() <= LARGEST_CODE


@pytest.mark.parametrize(
    ("largest", "code", "e"),
    [
        (1.0, 2**14, 1),
        (LARGEST_CODE / 2**15, LARGEST_CODE, 0),
        (np.nextafter(f32(LARGEST_CODE / 2**15), f32(1)), 16320, 1),
        (np.nextafter(f32(1), f32(0)), 2**14, 1),
        (0.5, 2**14, 0),
        (2.0**-149, 2**14, -148),
        (np.finfo(f32).max, 2**14, 129),
        (0.0, 0, 0),
        (-0.0, 0, 0),
    ],
)
def test_exponents_at_their_limits(largest, code, e):
    codes, exponent = encode(np.array([0, largest, -largest], f32))
    assert codes.tolist() == [0, code, -code] and exponent == e


def test_ties_go_to_the_even_code_and_small_values_to_zero():
    codes, e = encode(np.array([16384, 0.5, 1.5, 2.5, -0.5, 1e-40], f32))
    assert codes.tolist() == [16384, 0, 2, 2, 0, 0] and e == 15


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_vector_that_is_not_finite_has_no_values(wrong):
    x = np.ones((2, 4), f32)
    x[0, 2] = wrong
    codes, e = encode(x)
    assert codes.tolist() == [[0] * 4, [2**14] * 4] and e.tolist() == [NOT_FINITE, 1]
    assert np.isnan(decode(codes, e)[0]).all() and (decode(codes, e)[1] == 1).all()


def test_values_are_off_by_half_a_unit_at_most():
    x = generator(3).standard_normal((500, 128)).astype(f32) * f32(2) ** generator(4).integers(-140, 120, (500, 1))
    codes, e = encode(x.astype(f32))
    error = np.abs(decode(codes, e) - x.astype(f32)).max(axis=1)
    assert (error <= np.ldexp(1.0, e.astype(int) - 16)).all() and error.max() > 0


def raw_keys(n, seed=1):
    return generator(seed).standard_normal((n, REAL.idx_dim)).astype(f32)


def filled(n, format="int16", dtype=f32):
    index = Index(n // 4 + 1, 1 + 0.1 * generator(9).standard_normal(REAL.idx_dim), dtype=dtype, format=format)
    (append_index if dtype == f32 else append_float64)(raw_keys(n), step_records(range(n)), index)
    return index


def test_appended_keys_are_those_of_float32_encoded():
    plain, coded = filled(43, "fp32"), filled(43)
    codes, e = encode(plain.pooled)
    assert same_codes(coded.pooled[:10], codes[:10]) and same_codes(coded.pooled_exponent[:10], e[:10])
    codes, e = encode(plain.dead)
    assert same_codes(coded.dead, codes) and coded.dead_exponent[0] == e
    assert same_bytes(coded.tail, plain.tail) and coded.tail.dtype == f32


def test_windows_give_the_bytes_of_single_rows():
    one, many = (Index(12, filled(1).weight, format="int16") for _ in range(2))
    raw = raw_keys(41)
    for pos in range(41):
        append_index(raw[pos, None], step_records([pos]), one)
    for start in range(0, 41, 7):
        append_index(raw[start : start + 7], step_records(range(start, min(start + 7, 41))), many)
    assert same_bytes(one.tail, many.tail)
    for name in ("dead", "pooled", "dead_exponent", "pooled_exponent"):
        assert same_codes(getattr(one, name), getattr(many, name)), name


def test_the_float64_truth_encodes_its_own_keys():
    """Half a unit of the encoding, 2^-16 of the key's largest power of two, beside float32's own error."""
    truth, coded = filled(2100, "fp32", np.float64), filled(2100)
    unit = np.ldexp(1.0, coded.pooled_exponent[:525].astype(int) - 16)[:, None]
    assert (np.abs(coded.pooled_values(slice(525)) - truth.pooled[:525]) <= unit + 4e-6).all()
    encoded = filled(2100, "int16", np.float64)
    assert encoded.pooled.dtype == np.int16 and encoded.tail.dtype == np.float64
    assert (np.abs(encoded.pooled_values(slice(525)) - truth.pooled[:525]) <= unit).all()
    assert np.abs(encoded.dead_values() - truth.dead).max() <= 2.0 ** (encoded.dead_exponent[0] - 16)


def queries(rows, seed=2):
    return generator(seed).standard_normal((rows, 4, 128)).astype(f32)


def test_scores_by_hand():
    """The rule a second time in Python's integers, for two blocks and the dead key."""
    index, q = filled(10), queries(1)

    def score(codes, exponent):
        total = f32(0)
        for head in range(4):
            q_codes, q_exponent = by_hand(q[0, head])
            dot = sum(int(a) * b for a, b in zip(codes, q_codes, strict=True))
            x = f32(float(f32(dot)) * 2.0 ** (int(exponent) + q_exponent - 30))
            total = f32(total + max(x, f32(0)))
        return total

    got = block_scores(q, index, step_records([9]))[0]
    keys = [(index.pooled[0], index.pooled_exponent[0]), (index.pooled[1], index.pooled_exponent[1])]
    assert got[:2].tolist() == [score(*key) for key in keys]
    dead = score(index.dead, index.dead_exponent[0])
    assert got[2] == f32(dead + f32(1e9))
    assert block_scores(q, index, step_records([7]))[0, 2] == dead


def test_scores_follow_float64_of_the_same_keys():
    """The query's own rounding, 2^(e - 16) a dim, and a rounding or two of each head; rows do not meet."""
    index, q, steps = filled(2100), queries(4), step_records([2096, 2097, 2098, 2099])
    got, truth = block_scores(q, index, steps), scores_float64(q, index, steps)
    keys = np.abs(index.pooled_values(slice(524))).sum(axis=1)
    bound = keys * np.ldexp(1.0, encode(q)[1].astype(int) - 16).sum(axis=1)[:, None] + 1e-6 * truth[:, :524]
    assert (np.abs(got[:, :524] - truth[:, :524]) <= bound).all()
    for row in range(4):
        assert same_bytes(got[row], block_scores(q[row, None], index, steps[row, None])[0])
    assert (got[:3, 524] >= 1e9).all() and got[3, 525] < 1e3 and np.isneginf(got[:3, 525]).all()


def test_a_dot_is_exact_before_its_one_rounding():
    """2^30 - 2^30 + 1 in any order of the dims, with limbs of every sign; float32 adds would lose the 1."""
    index, q = Index(2, np.ones(128), format="int16"), np.zeros((1, 4, 128), f32)
    key = np.zeros(128, f32)
    key[[0, 1, 2]], q[0, 0, [0, 1, 2]] = [32639, 32639, 1], [32639, -32639, 1]
    for order in (np.arange(128), np.arange(128)[::-1], generator(5).permutation(128)):
        index.set_pooled(0, key[order])
        index.set_dead(key[order])
        assert block_scores(q[:, :, order], index, step_records([3])).tolist()[0] == [1, 1]


@pytest.mark.parametrize(
    ("key", "q", "score"),
    [
        (2.0**-149, 2.0**-149, 0.0),
        (2.0**-149, 2.0**100, 2.0**-49),
        (2.0**-100, 3 * 2.0**-50, 2 * 2.0**-149),
        (2.0**-100, 5 * 2.0**-50, 2 * 2.0**-149),
        (2.0**120, 2.0**120, np.inf),
        (-(2.0**120), 2.0**120, 0.0),
        (np.finfo(f32).max, 1.0, np.inf),
    ],
)
def test_powers_of_two_are_applied_with_one_rounding(key, q, score):
    index, query = Index(2, np.ones(128), format="int16"), np.zeros((1, 4, 128), f32)
    keys = np.zeros(128, f32)
    keys[7], query[0, 1, 7] = key, q
    index.set_pooled(0, keys)
    got = block_scores(query, index, step_records([3]))[0, 0]
    assert got == score and not np.signbit(got)


def test_what_is_not_finite_is_the_one_nan():
    index, q = filled(12), queries(2)
    index.set_pooled(1, np.full(128, np.inf, f32))
    q[1, 2, 5] = -np.inf
    got = block_scores(q, index, step_records([11, 11])).view(np.uint32)
    assert got[0, 1] == 0x7FC00000 and np.isfinite(got[0].view(f32)[[0, 2, 3]]).all()
    assert (got[1, :4] == 0x7FC00000).all()


def test_formats_are_checked_by_name():
    assert INDEX_FORMATS == ("fp32", "int16")
    for wrong in ("fp16", None, 16):
        with pytest.raises(ValueError, match=r"format = .*: allowed are fp32, int16"):
            Index(4, np.ones(128), format=wrong)
