"""The sampler in the exact arithmetic: each rule by hand, and float64's sampler within stated bounds."""

import numpy as np
import pytest

from qsa.reference import sampler as float64
from qsa.reference.exact import sampler as exact
from qsa.reference.exact.sampler import UNIT, constants, distribution, draw, penalised, sample, uniform
from qsa.reference.sampler import DEFAULT, DRAFTER, GREEDY, PICK, Sampling
from support.sampler_problems import BINARY, CHAINS, KINDS, WRONG_ROWS, problem


def logs(*probabilities):
    return np.log(np.array(probabilities)).astype(np.float32)


def scaled(row, ids, temperature):
    """s of a list in log2 units, in float64."""
    kept = row[ids].astype(np.float64)
    return (kept - kept[0]) * (BINARY / temperature)


# Against float64


@pytest.mark.parametrize("kind", KINDS)
def test_distribution_within_its_bound_of_float64(kind):
    """On the same penalised logits. Where the lists differ, a cut lies within its own bound."""
    compared, worst = 0, 0.0
    for vocab in (5, 200, 4000):
        made = problem(2 * len(CHAINS), vocab, kinds=(kind,), seed=1)
        for row, options in zip(made.logits, made.options, strict=True):
            if options.greedy:
                continue
            for cap in (64, 0):
                chain = Sampling(
                    options.temperature, options.top_k, options.top_p, options.min_p, options.min_keep,
                    last_n=0, max_candidates=cap,
                )  # fmt: skip
                ids, masses = distribution(row, (), chain)
                expected_ids, expected = float64.distribution(row, (), chain)
                n = min(len(ids), len(expected_ids))
                assert ids[:n].tolist() == expected_ids[:n].tolist()
                if len(ids) != len(expected_ids):
                    assert cut_is_close(row, chain, n), chain
                    continue
                distance = np.abs(masses / masses.sum() - expected).sum() / 2
                # 1e-13: float64's own roundings, of exp (2^-53 |x|, x to 745) and of the sum of 4,000.
                bound = exact.distance_bound(masses, scaled(row, ids, chain.temperature)) + 1e-13
                assert distance <= bound, (chain, distance, bound)
                compared, worst = compared + 1, max(worst, distance / bound)
    assert compared > 120
    # The bound is not idle: rounded masses do differ, where they are neither all alike nor all apart.
    assert worst > 0.05 or kind not in ("normal", "levels", "sparse")


def cut_is_close(row, chain, n):
    """Whether float64 has the prefix of ``n`` tokens within the bound of top_p, or the token at ``n`` of min_p."""
    whole = Sampling(top_k=chain.top_k, max_candidates=chain.max_candidates)
    ids, masses = distribution(row, (), whole)
    _, p = float64.distribution(row, (), whole)
    s = scaled(row, ids, 1)
    close = np.log2(max(chain.min_p, 1e-300))
    near = abs(p[:n].sum() - chain.top_p) <= exact.distance_bound(masses, s) + 2.0**-30
    return near or abs(s[n] - close) <= abs(s[n]) * 3.9e-7 + 1e-7


def test_a_draw_differs_from_float64_only_at_a_boundary():
    rng = np.random.default_rng(4)
    differ = 0
    for seed, options in enumerate((Sampling(), CHAINS["server"], Sampling(temperature=1.3, max_candidates=0))):
        for position in range(400):
            row = rng.normal(0, 2, 300).astype(np.float32)
            token, other = (s(row, (), options, seed, position) for s in (sample, float64.sample))
            if token != other:
                ids, masses = distribution(row, (), options)
                reach = np.cumsum(masses / masses.sum())
                bound = exact.distance_bound(masses, scaled(row, ids, options.temperature))
                assert np.abs(reach - uniform(seed, position, PICK)[0] / 2**24).min() <= bound
                differ += 1
    assert differ <= 3  # 1,200 draws, some 60 boundaries each, each 1e-7 wide: a few in a thousand runs


def test_distance_bound_is_that_of_the_module():
    for k, bound in ((64, 5.5e-7), (248_320, 1.9e-6)):
        worst = 0.0
        for s in np.arange(0.0, 30.0, 0.125):
            masses = np.r_[1.0, np.full(k - 1, 2.0**-s)] * UNIT
            worst = max(worst, exact.distance_bound(masses, np.r_[0.0, np.full(k - 1, s)]))
        assert 0.8 * bound < worst < 1.02 * bound


def test_penalties_within_their_roundings_of_float64():
    """Four roundings of 2^-24, each relative to a magnitude that meets there."""
    for seed, chain in enumerate(("penalties", "penalties of all", "rewards", "everything")):
        made = problem(40, 500, seed=seed, kinds=("normal", "levels"))
        for row in range(40):
            options, history = CHAINS[chain], made.history[made.slots[row], : made.lengths[row]]
            got = penalised(made.logits[row], history, options).astype(np.float64)
            expected = float64.penalised(made.logits[row], history, options)
            count = np.bincount(history, minlength=500)
            meets = np.abs(made.logits[row]) * max(options.repeat, 1 / options.repeat) + abs(options.presence)
            meets = meets + count * abs(options.frequency)
            assert (np.abs(got - expected) <= 4 * 2.0**-24 * meets).all()


# The rules


def test_masses_are_the_rounded_powers_of_two():
    row = -np.array([0, 1, 2, 2.5, 39, 40, 40.5, 41, 42, 100, 3e38], np.float32)
    ids, masses = distribution(row, (), Sampling(temperature=BINARY))
    assert ids.tolist() == list(range(11))
    half = masses[3] / UNIT * 2**2.5
    assert masses[[0, 1, 2]].tolist() == [UNIT, UNIT >> 1, UNIT >> 2] and abs(half - 1) < 1.2e-7
    # 2^-0.5 is above a half; 2^-1 is a tie, to even.
    assert masses[4:].tolist() == [2, 1, 1, 0, 0, 0, 0]


def test_constants():
    c = constants(Sampling(temperature=0.5, top_k=70, top_p=0.5, min_p=0.25, last_n=-1, repeat=1.1))
    assert (c.limit, c.top_p, c.last_n, c.least) == (64, 1 << 29, -1, -2)
    assert c.scale == np.float32(2 * BINARY) and c.repeat == np.float32(1.1)
    assert constants(Sampling(max_candidates=0)).limit == 0
    assert constants(Sampling(min_p=0)).least == -np.inf
    assert constants(Sampling(temperature=5e-324)).scale == np.finfo(np.float32).max
    assert constants(Sampling(temperature=1e300)).scale == np.finfo(np.float32).tiny
    assert constants(GREEDY)[:3] == (1, 1 << 30, 1)
    assert not constants(GREEDY).penalises and constants(Sampling(presence=1)).penalises


def test_option_rows_hold_the_constants():
    chains = list(CHAINS.values())
    for row, options in zip(exact.option_rows(chains, len(chains)), chains, strict=True):
        c = constants(options)
        assert row[:4].tolist() == list(c[:4]) and row[4:].view(np.float32).tolist() == list(c[4:])
    assert (exact.option_rows(DEFAULT, 3) == exact.option_rows([DEFAULT] * 3, 3)).all()
    with pytest.raises(ValueError, match="options: 2 given"):
        exact.option_rows([DEFAULT, DEFAULT], 3)


def test_draw_by_integers():
    assert [draw([2, 0, 1, 1], u) for u in (0, (1 << 23) - 1, 1 << 23, 3 << 22, (1 << 24) - 1)] == [0, 0, 2, 3, 3]
    assert draw([0, 0, 1], 0) == 2 and draw([1, 0, 0], (1 << 24) - 1) == 0
    # Sums that no float holds: u * S / 2^24 is the boundary itself, then one below.
    big = (1 << 100) + 1
    assert draw([big, big], 1 << 23) == 1 and draw([big, big - 1], (1 << 23) - 1) == 0


def test_uniform_numbers_are_those_of_the_reference():
    for purpose in (PICK, DRAFTER):
        assert (uniform(11, [0, 5, 2**40], purpose) / 2**24 == float64.uniform(11, [0, 5, 2**40], purpose)).all()


def test_penalties_by_sign_count_and_presence():
    options = Sampling(repeat=2.0, frequency=0.25, presence=0.5, last_n=4)
    got = penalised([3.0, -3.0, 0.0, 1.0, 1.0], [3, 0, 1, 0, 2], options)
    assert got.tolist() == [3 / 2 - 0.5 - 0.5, -6 - 0.25 - 0.5, 0 - 0.25 - 0.5, 1.0, 1.0] and got.dtype == np.float32


def test_penalties_round_each_operation():
    """0.1f * 3 and + 0.9f are rounded before the difference: a fused or a float64 form gives other bits."""
    f = np.float32
    off = f(f(f(3) * f(0.1)) + f(0.9))
    got = penalised([1.7, 0.0], [0, 0, 0], Sampling(repeat=1.1, frequency=0.1, presence=0.9))[0]
    assert got == f(f(f(1.7) / f(1.1)) - off)
    assert off != f(np.float64(f(0.1)) * 3 + np.float64(f(0.9)))


def test_a_possible_token_stays_possible_and_an_impossible_one_impossible():
    most = np.finfo(np.float32).max
    harsh = Sampling(repeat=1e38, frequency=3e38, presence=3e38)
    assert penalised([-1e30, 5.0, -np.inf], [0, 0, 2], harsh).tolist() == [-most, 5.0, -np.inf]
    kind = Sampling(repeat=1e-37, frequency=-3e38, presence=-3e38)
    assert penalised([1e30, 5.0, -np.inf], [0, 0, 2], kind).tolist() == [most, 5.0, -np.inf]


def test_ties_go_to_the_lower_id_and_zeros_are_equal():
    assert distribution([1.0, 5.0, 2.0, 5.0, 5.0], options=Sampling(top_k=2))[0].tolist() == [1, 3]
    assert distribution([-0.0, 0.0, -0.0], options=Sampling(top_k=2))[0].tolist() == [0, 1]
    assert sample([-0.0, 0.0], [], GREEDY, 0, 0) == 0


def test_lists_end_where_the_possible_tokens_end():
    assert distribution([-np.inf, 1.0, -np.inf, 0.0])[0].tolist() == [1, 3]
    assert len(distribution(np.arange(100.0))[0]) == 64
    assert len(distribution(np.arange(100.0), options=Sampling(max_candidates=0))[0]) == 100


def test_top_p_at_its_boundary_is_decided_in_integers():
    """Two tokens of one mass: the first is exactly half, so it reaches a half and not a unit of 2^-30 more."""
    row = [1.0, 1.0]
    assert distribution(row, options=Sampling(top_p=0.5))[0].tolist() == [0]
    assert distribution(row, options=Sampling(top_p=0.5 + 2.0**-30))[0].tolist() == [0, 1]
    assert distribution(row, options=Sampling(top_p=0.0, min_keep=2))[0].tolist() == [0, 1]
    # 19 of 20 reach 0.95 however the additions are ordered.
    assert len(distribution(np.zeros(20), options=Sampling(top_p=0.95))[0]) == 19


def test_min_p_at_its_boundary():
    row = np.array([0, -1, -2], np.float32) / np.float32(BINARY)
    half = distribution(row, options=Sampling(min_p=0.25 - 1e-6))[0]
    assert half.tolist() == [0, 1, 2]
    assert distribution(row, options=Sampling(min_p=0.25 + 1e-6))[0].tolist() == [0, 1]
    assert distribution([3.0, 3.0, 2.9999998], options=Sampling(min_p=1))[0].tolist() == [0, 1]
    # Below float32's range it keeps all.
    assert len(distribution([0.0, -100.0, -1e30], options=Sampling(min_p=1e-60))[0]) == 3


def test_cuts_see_temperature_1_and_masses_the_temperature():
    row = logs(0.7, 0.15, 0.1, 0.05)
    assert distribution(row, options=Sampling(temperature=4.0, top_p=0.69))[0].tolist() == [0]
    ids, masses = distribution(row, options=Sampling(temperature=4.0, min_p=0.2))
    assert ids.tolist() == [0, 1] and masses[0] == UNIT
    # 1e-6: of log's and exp2's float32 roundings.
    assert masses[1] / masses[0] == pytest.approx((0.15 / 0.7) ** 0.25, rel=1e-6)


def test_extreme_temperatures():
    row = [1.0, 3.0, 2.0, 3.0]
    ids, masses = distribution(row, options=Sampling(temperature=1e-308))
    assert ids.tolist() == [1, 3, 2, 0] and masses.tolist() == [UNIT, UNIT, 0, 0]
    assert distribution(row, options=Sampling(temperature=1e300))[1].tolist() == [UNIT] * 4
    assert distribution([3e38, -3e38], options=Sampling())[1].tolist() == [UNIT, 0]


def test_sample_depends_on_seed_position_and_purpose_alone():
    row = np.zeros(50)
    run = [sample(row, [], Sampling(), 11, n) for n in range(40)]
    assert [sample(row, [], Sampling(), 11, n) for n in reversed(range(40))] == run[::-1]
    assert [sample(row, [], Sampling(), 12, n) for n in range(40)] != run
    assert [sample(row, [], Sampling(), 11, n, DRAFTER) for n in range(40)] != run


@pytest.mark.parametrize("logits, history, named", WRONG_ROWS)
def test_wrong_rows_are_named(logits, history, named):
    for options in (DEFAULT, GREEDY):
        with pytest.raises(ValueError, match=named):
            sample(logits, history, options, 0, 0)


@pytest.mark.parametrize("wrong", [{"repeat": 1e-39}, {"repeat": 1e39}, {"frequency": -1e39}, {"presence": 4e38}])
def test_penalties_beyond_float32_are_named(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=rf"^{name} = {value!r}: must be from".replace("+", r"\+")):
        sample([0.0], [], Sampling(**wrong), 0, 0)


def test_a17_top_p_comes_before_min_p():
    """Min-p first would leave two tokens, of which the first alone has 0.66."""
    assert distribution(logs(0.5, 0.26, 0.24), options=Sampling(top_p=0.6, min_p=0.5))[0].tolist() == [0, 1]
