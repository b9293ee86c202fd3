"""The comparison helper: what it counts, where it points, and that it can fail."""

import json
import math

import numpy as np
import pytest

from qsa.parity.compare.comparison import Comparison, equal, error, relative_error, verdict
from qsa.parity.compare.element import ulp_distance

F = np.float32


def one(value):
    return np.array(value, F)


def sample(shape=(2, 3, 8)):
    return (np.arange(np.prod(shape), dtype=F) / 7 + 1).reshape(shape)


def test_equal_arrays_pass_with_nothing_bad():
    found = equal("x", sample(), sample())
    assert found.passed and (found.measure, found.bound, found.share, found.bad, found.size) == (0, 0, 0, 0, 48)
    assert found.first is None and found.worst == {}


def test_equal_counts_bad_elements_and_names_the_first_with_values_bits_and_ulp():
    got = sample()
    got[1, 2, 3] = np.nextafter(got[1, 2, 3], F(100), dtype=F)
    got[1, 2, 7] = 5
    found = equal("x", sample(), got)
    assert not found.passed and found.bad == 2 and found.measure == 2 and math.isinf(found.share)
    assert found.first.coordinate == (1, 2, 3) and found.first.ulp == 1
    bits = int(sample()[1, 2, 3].view(np.uint32))
    assert found.first.expected_bits == f"0x{bits:08x}" and found.first.got_bits == f"0x{bits + 1:08x}"
    assert found.worst == {"row": (1, 2.0), "head": (2, 2.0), "dim": (3, 1.0)}
    text = "\n".join(found.lines())
    assert "2 of 48 elements (4.17 %)" in text and "[1, 2, 3]" in text and "1 ULP apart" in text


def test_a_nan_of_any_payload_equals_only_a_nan():
    expected, got = sample(), sample()
    expected[0, 0, 0] = np.nan
    got.view(np.uint32)[0, 0, 0] = 0xFFC12345
    assert equal("x", expected, got).passed
    assert equal("x", sample(), got).bad == 1
    found = equal("x", expected, sample())
    assert found.bad == 1 and found.first.ulp is None


def test_zeros_of_both_signs_differ_in_bytes_and_are_no_ulp_apart():
    found = equal("x", one([0.0]), one([-0.0]), ("dim",))
    assert found.bad == 1 and found.first.ulp == 0 and found.first.got_bits == "0x80000000"


@pytest.mark.parametrize("got", [sample().astype(np.float64), sample()[:1], sample().reshape(3, 2, 8)])
def test_another_shape_or_dtype_fails_and_says_so(got):
    found = equal("x", sample(), got)
    assert not found.passed and str(got.dtype) in found.notes[0] and str(list(got.shape)) in found.notes[0]


def test_integers_are_compared_by_value():
    found = equal("x", np.array([[1, 2]], np.int32), np.array([[1, 3]], np.int32), ("row", "place"))
    assert found.first == ((0, 1), "2", "3", "0x00000002", "0x00000003", None)


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [(1, 1, 0), (0.0, -0.0, 0), (1e-45, -1e-45, 2), (1, 1.0000001192092896, 1), (3.4028234663852886e38, np.inf, 1)],
)
def test_ulp_distance(a, b, distance):
    assert ulp_distance(F(a), F(b)) == ulp_distance(F(b), F(a)) == distance


def test_ulp_distance_of_float16_and_of_a_nan():
    assert ulp_distance(np.float16(1), np.float16(1.001)) == 1
    assert ulp_distance(F(np.nan), F(1)) is None


def test_error_is_the_relative_norm_of_the_worst_vector():
    truth = sample().astype(np.float64)
    got = truth.copy()
    got[1, 0] *= 1 + 1e-3
    found = error("x", truth, got, 1e-4, "a reason")
    assert found.measure == pytest.approx(1e-3) and found.share == pytest.approx(10)
    assert found.worst["row"][0] == 1 and found.worst["head"][0] == 0
    assert error("x", truth, got, 2e-3, "a reason").passed


def test_error_shows_an_element_even_when_only_the_norm_is_over_the_bound():
    truth = np.ones((1, 1, 400))
    found = error("x", truth, truth + 1e-4, 0.99e-4, "a reason")
    assert not found.passed and found.first is not None and found.bad > 0


def test_error_relative_to_a_scale_of_each_element():
    truth, scale = np.array([1.0, 1000.0]), np.array([1.0, 1000.0])
    got = truth + np.array([0, 0.5])
    assert error("x", truth, got, 1e-3, "a reason", ("block",), scale).measure == pytest.approx(5e-4)
    found = error("x", truth, truth + np.array([0.5, 0]), 1e-3, "a reason", ("block",), scale)
    assert found.measure == pytest.approx(0.5) and found.first.coordinate == (0,)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_error_is_infinite_where_one_side_alone_is_not_finite(value):
    truth = sample().astype(np.float64)
    got = truth.copy()
    got[0, 1, 2] = value
    found = error("x", truth, got, 1e9, "a reason")
    assert not found.passed and found.first.coordinate == (0, 1, 2)
    assert error("x", got, got, 0, "a reason").passed


def test_zeros_are_no_answer_and_a_truth_of_zero_asks_for_zero():
    assert relative_error(np.ones((1, 4)), np.zeros((1, 4))) == 1
    assert relative_error(np.zeros((1, 4)), np.full((1, 4), 1e-30)) == np.inf
    assert relative_error(np.zeros((1, 4)), np.zeros((1, 4))) == 0


def test_a_measure_that_is_no_number_fails():
    assert not verdict("x", math.nan, 1, "a reason").passed


def test_json_holds_plain_finite_values():
    got = sample()
    got[0, 0, 0] = np.nan
    for found in (equal("x", sample(), got), error("x", sample(), got, 1e-6, "a reason"), verdict("x", 1, 0, "why")):
        assert isinstance(found, Comparison)
        back = json.loads(json.dumps(found.as_dict(), allow_nan=False))
        assert back["passed"] is False and back["share"] is None and back["reason"]


def test_notes_are_lines():
    found = verdict("x", 3, 0, "why", notes=["one"]).noted("two")
    assert found.notes == ("one", "two") and [line.strip() for line in found.lines()][-2:] == ["one", "two"]
