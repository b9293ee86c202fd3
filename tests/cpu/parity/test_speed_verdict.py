"""The statistics of the gate's speed on synthetic times: verdicts, and their rates over 1,000 draws each."""

import math
from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest

from qsa.parity.speed import verdict
from qsa.parity.speed.verdict import AMBIGUOUS, FASTER, NOISE_ROUNDS, ROUNDS, SAME, SLOWER, Floors, Round

FLOORS = Floors(relative=0.02, absolute=0.5)
DRAWS = 1000
PROCESSES = 4 * (NOISE_ROUNDS + ROUNDS)


def arms(times, factor=1.0):
    """(noise rounds, rounds) of the times [36] of processes in their order; the change's are times ``factor``."""
    made = []
    for number in range(0, PROCESSES, 4):
        first, second, third, fourth = times[number : number + 4]
        by = factor if number >= 4 * NOISE_ROUNDS else 1.0
        made.append(Round((first, fourth), (second * by, third * by)))
    return made[:NOISE_ROUNDS], made[NOISE_ROUNDS:]


def quiet(rng):
    return 100 * np.exp(0.003 * rng.standard_normal(PROCESSES))


def bimodal(rng):
    """Every process is in one of two modes that are 8 % apart, as with two layouts of memory."""
    return quiet(rng) * np.where(rng.random(PROCESSES) < 0.5, 1.0, 1.08)


def drifting(rng):
    """Each process is 1 % slower than the one before it."""
    return quiet(rng) * 1.01 ** np.arange(PROCESSES)


def outlier(rng):
    """One process takes half as long again."""
    times = quiet(rng)
    times[rng.integers(PROCESSES)] *= 1.5
    return times


def noisy(rng):
    return 100 * np.exp(0.08 * rng.standard_normal(PROCESSES))


def rates(draw, factor=1.0, floors=FLOORS, seed=1):
    """Verdict -> share of the draws; SLOWER is measured once more, with noise of the first measurement."""
    rng, found = np.random.default_rng(seed), Counter()
    for _ in range(DRAWS):
        noise, rounds = arms(draw(rng), factor)
        judged = verdict.judge(noise, rounds, floors)
        if judged.verdict == SLOWER:
            judged = verdict.confirm(judged, verdict.judge(noise, arms(draw(rng), factor)[1], floors))
        found[judged.verdict] += 1
    assert sum(found.values()) == DRAWS
    return {name: found[name] / DRAWS for name in verdict.VERDICTS}


def test_equal_times_are_the_same():
    found = rates(quiet)
    assert found[SLOWER] == found[FASTER] == 0 and found[SAME] >= 0.99


@pytest.mark.parametrize(("factor", "expected"), [(1.03, SLOWER), (0.97, FASTER), (1.3, SLOWER), (0.5, FASTER)])
def test_a_difference_above_the_floor_is_found(factor, expected):
    found = rates(quiet, factor)
    assert found[expected] >= 0.98 and found[{SLOWER: FASTER, FASTER: SLOWER}[expected]] == 0


def test_a_difference_below_the_floor_does_not_count():
    found = rates(quiet, 1.01)
    assert found[SAME] >= 0.98 and found[SLOWER] <= 0.002


@pytest.mark.parametrize("factor", [1.0, 1.03, 0.97])
def test_noise_above_the_floor_is_ambiguous(factor):
    found = rates(noisy, factor)
    assert found[AMBIGUOUS] >= 0.95 and found[SLOWER] == 0


def test_two_modes_are_ambiguous_or_the_same_and_never_slower():
    found = rates(bimodal)
    assert found[SLOWER] == 0 and found[FASTER] <= verdict.ALPHA + 0.002
    assert found[AMBIGUOUS] >= 0.75 and found[AMBIGUOUS] + found[SAME] >= 0.99


def test_a_drift_is_no_difference_and_hides_none():
    found = rates(drifting)
    assert found[SAME] >= 0.98 and found[SLOWER] == found[FASTER] == 0
    assert rates(drifting, 1.05)[SLOWER] >= 0.98


def test_one_outlier_changes_no_verdict_to_a_wrong_one():
    found = rates(outlier)
    assert found[SLOWER] == found[FASTER] == 0 and found[SAME] >= 0.99
    slow = rates(outlier, 1.1)
    assert slow[SAME] == slow[FASTER] == 0 and slow[SLOWER] >= 0.98


def test_the_false_alarm_rate_is_at_most_what_is_stated():
    """Whatever the distribution: here the ranks alone decide, without noise and floors. The tolerance is four standard
    errors of the draws."""
    rng, count = np.random.default_rng(3), 5 * DRAWS
    for draw in (quiet, bimodal, noisy, outlier):
        alarms = sum(verdict.rank_probability(arms(draw(rng))[1]) <= verdict.ALPHA for _ in range(count))
        assert alarms / count <= verdict.ALPHA + 4 * math.sqrt(verdict.ALPHA / count), draw.__name__
        assert draw is bimodal or alarms > 0


def brute_force(rounds):
    """The share of all ways to place B in every round whose sum of ranks is at least the observed one."""

    def sums(one):
        pool = [*one.base, *one.change]
        rank = [sum(y < x for y in pool) + (1 + sum(y == x for y in pool)) / 2 for x in pool]
        return rank[2] + rank[3], [rank[i] + rank[j] for i, j in combinations(range(4), 2)]

    made = [sums(one) for one in rounds]
    observed, ways = sum(one for one, _ in made), list(product(*(each for _, each in made)))
    return sum(sum(way) >= observed for way in ways) / len(ways)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("levels", [2, 3, 10, 1000])
def test_the_rank_test_is_the_count_of_all_orders(count, levels):
    rng = np.random.default_rng(levels + count)
    for _ in range(20):
        rounds = [Round(tuple(t[:2]), tuple(t[2:])) for t in rng.integers(1, levels + 1, (count, 4)).tolist()]
        assert verdict.rank_probability(rounds) == pytest.approx(brute_force(rounds), rel=1e-12)


def test_the_smallest_probabilities():
    slow, mixed, outlier = (Round(*pair) for pair in (((1, 2), (3, 4)), ((1, 3), (2, 4)), ((1, 4), (2, 3))))
    assert verdict.rank_probability([slow] * 5) == 1 / 6**5
    assert verdict.rank_probability([slow] * 4 + [outlier]) == 26 / 6**5 <= verdict.ALPHA
    assert verdict.rank_probability([slow] * 3 + [mixed, outlier]) > verdict.ALPHA
    # With one round fewer an outlier would already be too likely.
    assert verdict.rank_probability([slow] * 3 + [mixed]) == 5 / 6**4 <= verdict.ALPHA
    assert verdict.rank_probability([slow] * 3 + [outlier]) > verdict.ALPHA
    assert verdict.rank_probability([Round((5, 5), (5, 5))] * 5) == 1.0


def steady(base=100.0, factor=1.0, count=ROUNDS):
    return [Round((base, base * 1.001), (base * factor, base * factor * 1.001))] * count


QUIET = steady(count=NOISE_ROUNDS)


def test_a_lowered_clock_is_ambiguous():
    judged = verdict.judge(QUIET, steady(factor=1.3), FLOORS, ["software power cap"])
    assert judged.verdict == AMBIGUOUS and "software power cap" in judged.reason and "30.0 %" in judged.reason


def test_both_floors_must_be_exceeded():
    short = [Round((4.0, 4.0), (4.0, 4.0))] * NOISE_ROUNDS
    assert verdict.judge(short, steady(4.0, 1.1), FLOORS).verdict == SAME  # 10 %, but 0.4 us
    assert verdict.judge(short, steady(4.0, 1.2), FLOORS).verdict == SLOWER
    assert verdict.judge(QUIET, steady(100.0, 1.015), FLOORS).verdict == SAME  # 1.5 us, but 1.5 %


def test_noise_counts_in_both_directions():
    for factor in (1.03, 1 / 1.03):
        noisy_round = Round((100.0, 100.0), (100.0 * factor, 100.0 * factor))
        judged = verdict.judge([*QUIET[2:], noisy_round, noisy_round], steady(factor=1.5), FLOORS)
        assert judged.verdict == AMBIGUOUS and judged.noise == pytest.approx(0.03)
        # A single round may hold an outlier.
        assert verdict.judge([*QUIET[1:], noisy_round], steady(factor=1.5), FLOORS).verdict == SLOWER


def test_noise_that_comes_after_the_noise_was_learnt_counts_too():
    calm, shaken = (Round((100.0, 100.0), (150.0, 150.0 * by)) for by in (1.0, 1.06))
    judged = verdict.judge(QUIET, [calm] * 3 + [shaken] * 2, FLOORS)
    assert judged.verdict == AMBIGUOUS and judged.noise == pytest.approx(1.06 ** (1 / math.sqrt(2)) - 1)
    assert verdict.judge(QUIET, [calm] * 4 + [shaken], FLOORS).verdict == SLOWER  # one may be an outlier


def test_mixed_ranks_above_the_floor_are_ambiguous():
    """A median above the floor of which the ranks are not sure is neither slower nor the same."""
    rounds = [Round((100.0, 110.0), (108.0, 109.0))] * 6
    judged = verdict.judge(QUIET, rounds, FLOORS)
    assert judged.verdict == AMBIGUOUS and "ranks are mixed" in judged.reason


def test_slower_must_be_so_twice():
    slow, same = (verdict.judge(QUIET, steady(factor=factor), FLOORS) for factor in (1.1, 1.0))
    assert verdict.confirm(slow, slow).verdict == SLOWER
    again = verdict.confirm(slow, same)
    assert again.verdict == AMBIGUOUS and "slower at first (10.0 %)" in again.reason and again.ratio == same.ratio
    with pytest.raises(ValueError, match=r"first\.verdict = 'SAME'"):
        verdict.confirm(same, slow)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_times_and_floors_must_be_above_zero_and_finite(bad):
    with pytest.raises(ValueError, match="above 0 and finite"):
        verdict.judge(QUIET, [*steady()[1:], Round((1.0, bad), (1.0, 1.0))], FLOORS)
    for floors in ({"relative": bad, "absolute": 1.0}, {"relative": 0.02, "absolute": bad}):
        with pytest.raises(ValueError, match="above 0 and finite"):
            Floors(**floors)


def test_too_few_rounds_are_refused():
    with pytest.raises(ValueError, match=r"^noise_rounds: 3 rounds: must be 4 or more"):
        verdict.judge(QUIET[1:], steady(), FLOORS)
    with pytest.raises(ValueError, match=r"^rounds: 4 rounds: must be 5 or more"):
        verdict.judge(QUIET, steady()[1:], FLOORS)
