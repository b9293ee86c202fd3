"""Inputs of goldens: written-down values, ranges, distributions and addressing by item."""

from itertools import combinations

import numpy as np
import pytest
import xxhash

from qsa.golden import inputs
from qsa.golden.canonical import digest
from qsa.reference.philox import words

MAKERS = {
    "uniform": lambda items: inputs.uniform(1, "s", items, 10, 3.0),
    "bell": lambda items: inputs.bell(1, "s", items, 10, 2.0),
    "int8": lambda items: inputs.int8_codes(1, "s", items, 11),
    "q4": lambda items: inputs.q4_codes(1, "s", items, 11),
    "scales": lambda items: inputs.fp16_scales(1, "s", items, 10, signed=True),
    "integers": lambda items: inputs.integers(1, "s", items, 10, 1000),
}

# A change of a formula or of the generator shows here before it shows in a hundred goldens.
KNOWN = {
    "uniform": "f91f31cd79a1ea4d5394cc07945385bc",
    "bell": "a1ec105b3fce0c6cd00bca5ac011b920",
    "int8": "e5ac803c790c915b4ee25438c54b82f5",
    "q4": "7606e7e19e5819e71bd0414760e3e76d",
    "scales": "4dfda027e1cb729dc633708dfa169c73",
    "integers": "5fd896a83e1978ae06af5da1f9af1ec7",
}


@pytest.mark.parametrize("name", MAKERS)
def test_bits_stay_what_they_are(name):
    assert digest(MAKERS[name](6)) == KNOWN[name]


@pytest.mark.parametrize("name", MAKERS)
def test_an_item_is_the_same_alone_and_among_others(name):
    whole = MAKERS[name](1000)
    some = np.array([999, 0, 17, 17])
    assert (MAKERS[name](some) == whole[some]).all()
    assert MAKERS[name](np.zeros(0, np.int64)).shape == (0, whole.shape[1])
    far = MAKERS[name](np.array([2**40, 3]))
    assert (far[1] == whole[3]).all() and (far[0] != whole[3]).any()


def test_items_hold_blocks_of_words_of_their_own():
    stream = xxhash.xxh3_64_intdigest(b"name")
    got = inputs.item_words(5, "name", np.array([3, 0]), 6)
    assert got.tolist() == [words(5, stream, 24, 6).tolist(), words(5, stream, 0, 6).tolist()]


def test_seeds_and_names_differ():
    arrays = [inputs.uniform(seed, name, 4, 4) for seed in (0, 1) for name in ("a", "b", "")]
    assert all((x != y).any() for x, y in combinations(arrays, 2))


def test_uniform_is_its_formula():
    word = inputs.item_words(1, "u", 50, 20)
    expected = ((word >> 8) / 2.0**24 - 0.5) * 0.25
    assert (inputs.uniform(1, "u", 50, 20, 0.25) == expected).all()


def test_bell_is_its_formula_and_shape():
    word = inputs.item_words(1, "b", 5, 6).astype(np.int64)
    low, high = word & 0xFFFF, word >> 16
    total = low[:, ::2] + high[:, ::2] + low[:, 1::2] + high[:, 1::2]
    assert (inputs.bell(1, "b", 5, 3, 0.5) == (total - 131070) / 2.0**16).all()
    many = inputs.bell(1, "b", 1000, 1000).astype(np.float64)
    # Of a million values the mean has the standard error 1.2e-3 and the deviation about 0.7e-3: bounds at 5 of them.
    assert abs(many.mean()) < 6e-3
    assert abs(many.std() - inputs.BELL_DEVIATION) < 4e-3
    # Excess kurtosis of four uniform pieces is -1.2/4; its standard error is about 4e-3.
    assert abs((many**4).mean() / many.var() ** 2 - 2.7) < 2e-2


@pytest.mark.parametrize("maker, low, high", [(inputs.int8_codes, -127, 127), (inputs.q4_codes, -8, 7)])
def test_codes_cover_their_range_evenly(maker, low, high):
    codes = maker(3, "c", 512, 512)
    assert codes.dtype == np.int8 and codes.min() == low and codes.max() == high
    counts = np.bincount(codes.ravel().astype(int) - low)
    expected = codes.size / (high - low + 1)
    # Poisson spread, 6 deviations; of 255 values one leaves 5 of them in 7,000 seeds.
    assert (np.abs(counts - expected) < 6 * expected**0.5).all()


def test_scales_are_normal_fp16_numbers_in_range():
    scales = inputs.fp16_scales(3, "f", 100, 100, -8, -5)
    assert scales.dtype == np.float16
    assert scales.min() >= 2**-8 and scales.max() < 2**-5
    exponents = np.frexp(scales.astype(np.float32))[1] - 1
    assert set(exponents.ravel().tolist()) == {-8, -7, -6}
    signed = inputs.fp16_scales(3, "f", 100, 100, -8, -5, signed=True)
    assert (np.abs(signed) == scales).all()
    # 5,000 of 10,000 with deviation 50: 6 of them.
    assert abs(int((signed < 0).sum()) - 5000) < 300
    assert np.isfinite(inputs.fp16_scales(3, "f", 100, 100, -14, 16)).all()


def test_permutation_and_choice():
    order = inputs.permutation(3, "p", 10000)
    assert (np.sort(order) == np.arange(10000)).all()
    assert (order != np.arange(10000)).sum() > 9900  # about one fixed point is expected
    chosen = inputs.choice(3, "p", 10000, 20)
    assert (chosen == np.sort(order[:20])).all()
    assert inputs.permutation(3, "p", 0).size == 0


def test_permutation_settles_equal_words_by_number(monkeypatch):
    # Two words by turns, and more of them than any sort settles by insertion.
    repeated = np.tile(np.array([[5], [1]], np.uint32), (2000, 1))
    monkeypatch.setattr(inputs, "item_words", lambda seed, name, items, size: repeated)
    assert inputs.permutation(0, "p", 4000).tolist() == [*range(1, 4000, 2), *range(0, 4000, 2)]


@pytest.mark.parametrize(
    "call, named",
    [
        (lambda: inputs.uniform(-1, "s", 1, 1), "seed"),
        (lambda: inputs.uniform(1, "s", [-1], 1), "item"),
        (lambda: inputs.uniform(1, "s", 1, 0), "size"),
        (lambda: inputs.bell(1, "s", 1, 1, 3.0), "scale"),
        (lambda: inputs.bell(1, "s", 1, 1, 0.0), "scale"),
        (lambda: inputs.fp16_scales(1, "s", 1, 1, -15, 0), "low"),
        (lambda: inputs.fp16_scales(1, "s", 1, 1, 3, 3), "low"),
        (lambda: inputs.integers(1, "s", 1, 1, 0), "below"),
        (lambda: inputs.choice(1, "s", 3, 4), "count"),
    ],
)
def test_errors_name_the_argument(call, named):
    with pytest.raises(ValueError, match=named):
        call()
