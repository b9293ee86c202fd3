"""Acceptance in the exact arithmetic: each rule by hand, whole windows against the float64 forms."""

import numpy as np
import pytest

from qsa.reference import speculative as float64_speculative
from qsa.reference.exact import speculative
from qsa.reference.exact.sampler import distribution
from qsa.reference.sampler import DEFAULT, Sampling


def test_a17_drafts_count_for_the_penalties_of_later_rows():
    rows = np.tile(np.array([0.0, 0.0, 4.0, 5.0]), (3, 1))
    options = Sampling(temperature=0.0, repeat=2.0)
    assert speculative.greedy(rows, [3, 2], [0], options) == (2, [3, 2, 3])
    assert speculative.greedy(rows, [3, 3], [0], options) == (1, [3, 2])
    sharp = Sampling(temperature=1e-3, repeat=2.0)
    assert speculative.exact_match(rows, [3, 2], [0], sharp, 1, 0) == (2, [3, 2, 3])
    assert speculative.rejection(rows, [3, 3], [None, None], [0], sharp, 1, 0) == (1, [3, 2])


def test_single_decisions():
    ids, p = np.array([4, 1, 6]), np.array([2, 1, 1])
    told = (np.array([1, 6]), np.array([3, 3]))
    half = 1 << 23
    assert speculative.judge(ids, p, 1, told, half - 1, 0) == (True, 1)  # u q < p
    assert speculative.judge(ids, p, 1, told, half, 15 << 20) == (False, 4)  # u q = p: the residual is token 4 alone
    assert speculative.judge(ids, p, 4, None, half - 1, 0) == (True, 4)
    assert speculative.judge(ids, p, 4, None, half, half - 1) == (False, 1)  # a point mass: p without the draft
    assert speculative.judge(ids, p, 4, None, half, half) == (False, 6)
    assert speculative.judge(ids, p, 4, told, half, half) == (False, 6)  # not in the list: a point mass too
    assert speculative.judge(ids, p, 2, None, 0, 0) == (False, 4)  # outside the support
    # Equal lists of different scales accept every u.
    assert speculative.judge(ids, p, 6, (ids[::-1], p[::-1] * 1000), (1 << 24) - 1, 0) == (True, 6)


def test_windows_are_the_float_ones_but_for_boundaries():
    """The three forms emit what the float64 forms do; 4e-6 of the decisions may differ, so none of these 800 does."""
    rng = np.random.default_rng(6)
    options = Sampling(temperature=0.9, top_k=7, repeat=1.25)
    for trial in range(100):
        rows = rng.normal(0, 1, (3, 12)).astype(np.float32)
        drafts = [int(row.argmax()) for row in rows[:2]]
        own = rows + rng.normal(0, 0.7, rows.shape).astype(np.float32)
        exact_lists = [distribution(row, (), options) for row in own[:2]]
        float_lists = [(ids, masses / masses.sum()) for ids, masses in exact_lists]
        given = ([trial % 12], options, 5, 3 * trial)
        assert speculative.exact_match(rows, drafts, *given) == float64_speculative.exact_match(rows, drafts, *given)
        got = speculative.rejection(rows, drafts, exact_lists, *given)
        assert got == float64_speculative.rejection(rows, drafts, float_lists, *given)
        assert speculative.greedy(rows, drafts) == float64_speculative.greedy(rows, drafts)


@pytest.mark.parametrize(
    "call, named",
    [
        (lambda: speculative.greedy(np.zeros((2, 4)), []), "drafts"),
        (lambda: speculative.greedy(np.zeros((1, 4)), [], (), DEFAULT), "temperature"),
        (lambda: speculative.exact_match(np.zeros((2, 4)), [4], [], DEFAULT, 0, 0), "token 4"),
        (lambda: speculative.rejection(np.zeros((2, 4)), [1], [], [], DEFAULT, 0, 0), "lists"),
        (lambda: speculative.judge([1], [1], 1, ([1, 1], [1, 1]), 0, 0), "distinct"),
        (lambda: speculative.judge([1], [1], 1, ([1, 2], [0, 0]), 0, 0), "not all 0"),
        (lambda: speculative.judge([1], [1], 1, ([1, 2], [1, -1]), 0, 0), "from 0"),
        (lambda: speculative.judge([1], [1], 1, ([1], [0.5]), 0, 0), "float64"),
        (lambda: speculative.judge([1], [1], 1, ([1], [(1 << 40) + 1]), 0, 0), "2\\^40"),
    ],
)
def test_errors_name_the_argument(call, named):
    with pytest.raises(ValueError, match=named):
        call()
