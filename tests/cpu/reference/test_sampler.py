"""The sampling chain: each stage by hand, the whole against a plain loop, and its draws."""

from math import exp, log

import numpy as np
import pytest

from qsa.reference.philox import words
from qsa.reference.sampler import (
    ACCEPT,
    DRAFTER,
    GREEDY,
    PICK,
    RESIDUAL,
    Sampling,
    distribution,
    penalised,
    pick,
    sample,
    uniform,
)
from support.sampler_problems import WRONG_ROWS


def logs(*probabilities):
    return np.log(probabilities)


def by_loop(logits, history, o):
    """The chain in plain Python, one rule a line, as an independent statement of it."""
    row = [float(x) for x in logits]
    recent = list(history) if o.last_n < 0 else (list(history)[-o.last_n :] if o.last_n else [])
    for token in set(recent):
        row[token] = row[token] * o.repeat if row[token] <= 0 else row[token] / o.repeat
        row[token] -= recent.count(token) * o.frequency + o.presence
    ids = sorted(range(len(row)), key=lambda i: (-row[i], i))
    for cap in (o.top_k, o.max_candidates):
        ids = ids[:cap] if cap else ids
    weight = [exp(row[i] - row[ids[0]]) for i in ids]
    if o.top_p < 1:
        total, n = 0.0, 0
        while n < len(ids) and total < o.top_p:
            total += weight[n] / sum(weight)
            n += 1
        ids = ids[: max(n, o.min_keep)]
    if o.min_p > 0:
        ids = [i for i in ids if row[i] >= row[ids[0]] + log(o.min_p)]
    weight = [exp((row[i] - row[ids[0]]) / o.temperature) for i in ids]
    return ids, [w / sum(weight) for w in weight]


@pytest.mark.parametrize("top_k", [0, 1, 5, 20])
@pytest.mark.parametrize("top_p", [1.0, 0.95, 0.5, 0.0])
@pytest.mark.parametrize("min_p", [0.0, 0.05, 0.3])
def test_whole_chain_against_a_loop(top_k, top_p, min_p):
    rng = np.random.default_rng(1000 * top_k + int(100 * top_p) + int(10000 * min_p))
    for temperature in (0.3, 1.0, 1.5):
        # Quarter steps: many equal logits, so that ties occur at every cut.
        logits = np.round(rng.normal(0, 2, 100) * 4) / 4
        history = rng.integers(0, 100, 40)
        options = Sampling(temperature, top_k, top_p, min_p, 2, 32, 1.25, 0.125, 0.25)
        ids, probabilities = distribution(logits, history, options)
        expected_ids, expected = by_loop(logits, history, options)
        assert ids.tolist() == expected_ids
        # 1e-14: a few float64 roundings of exp, sum and quotient on either side.
        np.testing.assert_allclose(probabilities, expected, rtol=1e-14)


def test_penalties_by_sign_count_and_presence():
    options = Sampling(repeat=2.0, frequency=0.25, presence=0.5, last_n=4)
    got = penalised([3.0, -3.0, 0.0, 1.0, 1.0], [3, 0, 1, 0, 2], options)
    # Token 3 has left the last four; token 0 occurs twice in them.
    assert got.tolist() == [3 / 2 - 0.5 - 0.5, -6 - 0.25 - 0.5, 0 - 0.25 - 0.5, 1.0, 1.0]


@pytest.mark.parametrize("last_n, expected", [(0, 4.0), (1, 4.0), (2, 2.0), (-1, 2.0)])
def test_window_of_the_penalties(last_n, expected):
    assert penalised([4.0, 1.0], [0, 1], Sampling(repeat=2.0, last_n=last_n))[0] == expected


def test_penalties_do_not_write_into_the_caller_row():
    row = np.array([4.0, 1.0])
    penalised(row, [0], Sampling(repeat=2.0))
    assert row.tolist() == [4.0, 1.0]


def test_penalties_reach_the_greedy_choice():
    assert sample([4.0, 3.0], [0], Sampling(temperature=0, repeat=2.0), 0, 0) == 1


def test_ties_go_to_the_lower_id():
    assert distribution([1.0, 5.0, 2.0, 5.0, 5.0], options=Sampling(top_k=2))[0].tolist() == [1, 3]
    assert sample([1.0, 5.0, 5.0], [], GREEDY, 0, 0) == 1


def test_top_k_0_and_above_the_cap_keep_the_cap():
    row = np.arange(100.0)
    for top_k in (0, 64, 99):
        assert distribution(row, options=Sampling(top_k=top_k))[0].tolist() == list(range(99, 35, -1))
    assert len(distribution(row, options=Sampling(max_candidates=0))[0]) == 100
    assert len(distribution(row, options=Sampling(top_k=70, max_candidates=0))[0]) == 70


def test_top_p_keeps_the_token_that_reaches_it():
    row = logs(0.5, 0.25, 0.125, 0.125)
    assert distribution(row, options=Sampling(top_p=0.6))[0].tolist() == [0, 1]
    assert distribution(row, options=Sampling(top_p=0.0))[0].tolist() == [0]
    assert distribution(row, options=Sampling(top_p=0.0, min_keep=3))[0].tolist() == [0, 1, 2]


def test_top_p_sees_the_list_that_top_k_left():
    # Of all four the first has 0.4; of the two that top-k leaves it has 0.57, which reaches 0.5.
    row = logs(0.4, 0.3, 0.2, 0.1)
    assert distribution(row, options=Sampling(top_k=2, top_p=0.5))[0].tolist() == [0]


def test_top_p_comes_before_min_p():
    # Top-p first: 0.5 + 0.26 reach 0.6, and 0.26 is at least half of 0.5. Min-p first would leave two tokens of which
    # the first alone has 0.66.
    assert distribution(logs(0.5, 0.26, 0.24), options=Sampling(top_p=0.6, min_p=0.5))[0].tolist() == [0, 1]


def test_cuts_see_temperature_1():
    # At temperature 4 the four would be nearly even: top-p would keep three and min-p all.
    row = logs(0.7, 0.15, 0.1, 0.05)
    assert distribution(row, options=Sampling(temperature=4.0, top_p=0.7))[0].tolist() == [0]
    ids, probabilities = distribution(row, options=Sampling(temperature=4.0, min_p=0.2))
    assert ids.tolist() == [0, 1]
    # exp(log(x)/4) = x^(1/4); 1e-14: roundings of log, exp and the quotient.
    np.testing.assert_allclose(probabilities[1] / probabilities[0], (0.15 / 0.7) ** 0.25, rtol=1e-14)


def test_impossible_tokens_are_never_in_the_list():
    ids, probabilities = distribution([-np.inf, 1.0, -np.inf, 0.0], [2, 0], Sampling(repeat=1.5, presence=1.0))
    assert ids.tolist() == [1, 3]
    assert probabilities.sum() == pytest.approx(1, abs=1e-15)  # one rounding of the last sum


def test_tiny_temperature_is_the_largest_logit():
    ids, probabilities = distribution([1.0, 3.0, 2.0], options=Sampling(temperature=1e-308))
    assert ids[0] == 1 and probabilities.tolist() == [1, 0, 0]
    assert {sample([1.0, 3.0, 2.0], [], Sampling(temperature=1e-308), 1, n) for n in range(64)} == {1}


def test_draw_is_the_inverse_of_the_distribution_function():
    ids = np.array([7, 3, 9, 4])
    p = np.array([0.5, 0.0, 0.25, 0.25])
    last = 1 - 2.0**-24
    assert pick(ids, p, [0, 0.5 - 2**-24, 0.5, 0.75 - 2**-24, 0.75, last]).tolist() == [7, 7, 9, 9, 4, 4]
    assert pick(ids, 3 * p, 0.5) == 9
    assert pick(ids, [1.0, 1.0, 0.0, 0.0], last) == 3
    assert pick(ids, [0.0, 0.0, 1.0, 0.0], 0.0) == 9


def test_uniform_numbers_are_the_documented_words():
    for purpose in (PICK, ACCEPT, RESIDUAL, DRAFTER):
        got = uniform(11, [0, 5, 2**40], purpose)
        assert got.tolist() == [(int(words(11, purpose, 4 * n, 1)[0]) >> 8) / 2**24 for n in (0, 5, 2**40)]
        assert (got.astype(np.float32) == got).all()
    assert len({float(uniform(11, 5, purpose)[0]) for purpose in (PICK, ACCEPT, RESIDUAL, DRAFTER)}) == 4


def test_sample_depends_on_seed_and_position_alone():
    row = np.zeros(50)
    run = [sample(row, [], Sampling(), 11, n) for n in range(40)]
    assert [sample(row, [], Sampling(), 11, n) for n in reversed(range(40))] == run[::-1]
    assert [sample(row, [], Sampling(), 12, n) for n in range(40)] != run
    assert len(set(run)) > 10  # 40 draws of 50: 28 distinct ones are expected, 10 or fewer never happen


def test_sample_draws_the_distribution_with_the_pick_number():
    rng = np.random.default_rng(2)
    options = Sampling(temperature=0.7, top_p=0.9)
    for position in range(50):
        row = rng.normal(0, 2, 200)
        assert sample(row, [3], options, 5, position) == pick(
            *distribution(row, [3], options), uniform(5, position, PICK)[0]
        )


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": float("nan")},
        {"temperature": "1"},
        {"top_k": -1},
        {"top_k": 2.0},
        {"top_k": True},
        {"top_p": 1.01},
        {"top_p": -0.1},
        {"min_p": 2},
        {"min_keep": 0},
        {"last_n": -2},
        {"repeat": 0},
        {"repeat": float("inf")},
        {"frequency": None},
        {"presence": float("inf")},
        {"max_candidates": -1},
    ],
)
def test_wrong_options_name_themselves(wrong):
    (name, value), *_ = wrong.items()
    with pytest.raises(ValueError, match=rf"^{name} = .*: must be "):
        Sampling(**{name: value})


@pytest.mark.parametrize("logits, history, named", WRONG_ROWS)
def test_wrong_rows_are_named(logits, history, named):
    for options in (Sampling(), GREEDY):
        with pytest.raises(ValueError, match=named):
            sample(logits, history, options, 0, 0)
