"""Whether a kernel became slower: the statistics on times of two arms, measured in alternating fresh processes.

A *round* is four processes in the order A B B A: A is the base, B the change. Its *effect* is the logarithm of B's mean
time over A's; a drift that is even over the round cancels in it. Before the comparison come rounds of the base against
itself (A/A): the second largest effect among them, of either sign, is the *noise* of this machine at this time. The
largest may be the outlier of a single process. Where the two processes of the change, which run one after the other,
differ by more than that in the comparison itself, the machine became noisier since, and this is the noise.

The *rank test*: if A and B are equally fast, then in each round the six ways to give two of the four places to B are
equally likely, however the times are distributed and however they change between rounds. The statistic is the sum of
B's ranks within its rounds (the mean rank where times are equal); its distribution is computed exactly. This is the
stratified form of the test of Wilcoxon, Mann and Whitney.

This file measures nothing and reads no file.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

FASTER, SLOWER, SAME, AMBIGUOUS = "FASTER", "SLOWER", "SAME", "AMBIGUOUS"
VERDICTS = (FASTER, SLOWER, SAME, AMBIGUOUS)

ALPHA = 0.004
"""Largest false-alarm rate of one measurement of one case in one direction. Five rounds have 6^5 = 7,776 equally likely
orders; 26 of them, 0.33 %, reach the sum of ranks that is asked for. SLOWER is measured twice."""

ROUNDS = 5
"""Rounds of a comparison. With five the sum of ranks may be 2 below the largest, so one outlier does not hide what is
slower; with four it may be 1 below."""

NOISE_ROUNDS = 4
"""Rounds of the base against itself."""


class Round(NamedTuple):
    """Times of one round, microseconds: two processes of the base, two of the change, each in the order of running."""

    base: tuple[float, float]
    change: tuple[float, float]


@dataclass(frozen=True)
class Floors:
    """The smallest difference that matters: ``relative`` to the base's time (0.02 is 2 %), and ``absolute`` in
    microseconds. A difference counts when it is above both."""

    relative: float
    absolute: float

    def __post_init__(self) -> None:
        for name in ("relative", "absolute"):
            value = getattr(self, name)
            if not (0 < value < math.inf):
                raise ValueError(f"{name} = {value}: must be above 0 and finite")

    def share(self, time: float) -> float:
        """The floor as a share of ``time`` microseconds."""
        return max(self.relative, self.absolute / time)


@dataclass(frozen=True)
class Judgement:
    """The verdict on one case.

    verdict  one of :data:`VERDICTS`
    ratio    the change's time over the base's
    noise    second largest difference of a tree to itself, as a share of the time
    floor    smallest difference that counts, as a share of the time
    p        the rank test's probability of such ranks, or of more extreme ones in the direction of ``ratio``, if both
             are equally fast
    base     median time of the base, microseconds
    change   median time of the change
    reason   the verdict's reason, one line
    """

    verdict: str
    ratio: float
    noise: float
    floor: float
    p: float
    base: float
    change: float
    reason: str


def check(rounds: Sequence[Round], least: int, name: str) -> None:
    """Raises ValueError unless there are ``least`` rounds or more, and every time is above 0 and finite."""
    if len(rounds) < least:
        raise ValueError(f"{name}: {len(rounds)} rounds: must be {least} or more")
    for number, one in enumerate(rounds):
        for time in (*one.base, *one.change):
            if not (0 < time < math.inf):
                raise ValueError(f"{name}[{number}]: {time}: must be microseconds above 0 and finite")


def effect(one: Round) -> float:
    """Logarithm of the change's time over the base's in one round, each the geometric mean of its two."""
    return sum(map(math.log, one.change)) / 2 - sum(map(math.log, one.base)) / 2


def noise(noise_rounds: Sequence[Round], rounds: Sequence[Round]) -> float:
    """The noise as a share of the time: of the base against itself, or of the comparison where that is more."""
    before = sorted(abs(effect(one)) for one in noise_rounds)[-2]
    # The difference of two processes spreads by sqrt 2 more than that of two means of two.
    during = sorted(abs(math.log(one.change[0] / one.change[1])) / math.sqrt(2) for one in rounds)[-2]
    return math.expm1(max(before, during))


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two in the middle."""
    found = sorted(values)
    return (found[(len(found) - 1) // 2] + found[len(found) // 2]) / 2


def doubled_ranks(times: Sequence[float]) -> list[int]:
    """Twice the rank of each time from 1 on; equal times share the mean of their ranks, which doubling makes whole."""
    return [sum(other < time for other in times) + sum(other <= time for other in times) + 1 for time in times]


def rank_probability(rounds: Sequence[Round]) -> float:
    """Probability that B's ranks sum to what they do, or to more, if the places in a round are given at random.

    Small when the change is slower. The other direction is the same of the rounds with the two arms exchanged.
    """
    observed, ways = 0, Counter({0: 1})
    for one in rounds:
        ranks = doubled_ranks([*one.base, *one.change])
        observed += sum(ranks[2:])
        sums = Counter(sum(pair) for pair in combinations(ranks, 2))
        together: Counter[int] = Counter()
        for total, count in ways.items():
            for more, times in sums.items():
                together[total + more] += count * times
        ways = together
    return sum(count for total, count in ways.items() if total >= observed) / ways.total()


def judge(
    noise_rounds: Sequence[Round], rounds: Sequence[Round], floors: Floors, throttled: Sequence[str] = ()
) -> Judgement:
    """The :class:`Judgement` on one case.

    noise_rounds  of the base against itself, :data:`NOISE_ROUNDS` or more
    rounds        of the base against the change, :data:`ROUNDS` or more
    throttled     why the processor's clock was lowered in one of them

    Raises ValueError on fewer rounds, or a time that is not above 0 and finite.
    """
    check(noise_rounds, NOISE_ROUNDS, "noise_rounds")
    check(rounds, ROUNDS, "rounds")
    base = median([time for one in rounds for time in one.base])
    change = median([time for one in rounds for time in one.change])
    difference = median([effect(one) for one in rounds])
    ratio = math.exp(difference)
    noisy = noise(noise_rounds, rounds)
    floor = floors.share(base)
    slower = difference > 0
    p = rank_probability(rounds if slower else [Round(one.change, one.base) for one in rounds])

    def found(verdict: str, reason: str) -> Judgement:
        return Judgement(verdict, ratio, noisy, floor, p, base, change, reason)

    measured = f"{percent(ratio - 1)} ({base:.1f} to {change:.1f} us)"
    if throttled:
        return found(AMBIGUOUS, f"{measured}; the clock was lowered: {', '.join(throttled)}")
    if noisy > floor:
        return found(AMBIGUOUS, f"{measured}; noise {percent(noisy)} is above the floor of {percent(floor)}")
    if abs(difference) <= math.log1p(floor):
        return found(SAME, f"{measured}; within the floor of {percent(floor)}")
    if p > ALPHA:
        return found(AMBIGUOUS, f"{measured}; above the floor of {percent(floor)}, but ranks are mixed, p = {p:.2g}")
    return found(SLOWER if slower else FASTER, f"{measured}; floor {percent(floor)}, p = {p:.2g}")


def confirm(first: Judgement, second: Judgement) -> Judgement:
    """The verdict on a case that was SLOWER and was measured once more: SLOWER when it is so again, else AMBIGUOUS.

    The second measurement's figures are kept. Raises ValueError when the first was not SLOWER.
    """
    if first.verdict != SLOWER:
        raise ValueError(f"first.verdict = {first.verdict!r}: must be {SLOWER!r}")
    if second.verdict == SLOWER:
        return replace(second, reason=f"{second.reason}; at first {percent(first.ratio - 1)}")
    reason = f"slower at first ({percent(first.ratio - 1)}), not when measured again: {second.reason}"
    return replace(second, verdict=AMBIGUOUS, reason=reason)


def percent(share: float) -> str:
    """A share as text."""
    return f"{100 * share:.1f} %"
