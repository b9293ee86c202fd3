"""Verdicts of ``qsa ab`` on made-up arms: figures, changes, rates over 1,000 draws, and which texts differ."""

import msgspec
import numpy as np
import pytest

from qsa.parity.ab import judge
from qsa.parity.speed.verdict import AMBIGUOUS, FASTER, SAME, SLOWER, Floors
from support.ab_runs import arm_run, checks, sides

FLOORS = Floors(relative=0.02, absolute=0.2)
DRAWS = 1000


def verdict(times, higher=False, **options):
    """The verdict on times of arms 1 to 4 in their order."""
    first, second, third, fourth = times
    return judge.judge("total, s", (first, fourth), (second, third), higher, FLOORS, **options).verdict


def test_figures_of_an_arm():
    found = {name: figure.value for name, figure in judge.figures(arm_run()).items()}
    assert found == pytest.approx(
        {
            "decode, tokens/s": 70,  # 40 + 20 + 4 + 6 tokens in a second of windows
            "ms per verify round": 40,  # 25 windows
            "device ms per verify round": 20,
            "tokens per round": 2.8,  # 25 rounds
            "acceptance, %": 45,  # 45 of 100
            "maths, tokens/s": 100,
            "code, tokens/s": 50,
            "short questions, tokens/s": 40,
            "long prompt, tokens/s": 60,
            "first token of 100, ms": 100,
            "first token of 200, ms": 200,
            "first token of 400, ms": 400,
            "first token of 800, ms": 800,
            "total, s": 3,
        }
    )


def test_a_window_of_two_slots_is_one_window_and_two_rounds():
    run = msgspec.structs.replace(arm_run(), windows=20, decode=0.8)
    found = judge.figures(run)
    assert found["ms per verify round"].value == pytest.approx(40)
    assert found["tokens per round"].value == pytest.approx(70 / 25)
    assert found["decode, tokens/s"].value == pytest.approx(70 / 0.8)


@pytest.mark.parametrize(
    ("times", "lower", "higher"),
    [
        ((10, 10, 10, 10), SAME, SAME),
        ((10, 10.1, 10.1, 10), SAME, SAME),  # 1 %, floor 2 %
        ((10, 10.5, 10.51, 10.01), SLOWER, FASTER),
        ((10, 9.5, 9.51, 10.01), FASTER, SLOWER),
        ((10, 10.5, 10.5, 10.3), AMBIGUOUS, AMBIGUOUS),  # 3.4 %, noise 3 %
        ((10, 12, 12.5, 10), SLOWER, FASTER),  # noise is above the floor, the change far above the noise
        ((10, 10.1, 10.2, 10.3), AMBIGUOUS, AMBIGUOUS),  # a drift of 1 % an arm cancels, its noise stays
        ((10, 15, 10, 10), AMBIGUOUS, AMBIGUOUS),  # one arm of four
    ],
)
def test_verdicts(times, lower, higher):
    assert (verdict(times), verdict(times, higher=True)) == (lower, higher)


def test_a_disturbed_time_has_no_verdict_and_a_count_has_one():
    assert verdict((10, 20, 20, 10), disturbed=("the clock was lowered: heat",)) == AMBIGUOUS
    runs = [arm_run(others=share) for share in (0.0, 0.6, 0.2, 0.1)]
    why = judge.disturbances(sides(), runs)
    assert why == ["other work took 60 % (arm 2), 20 % (arm 3) of the processors"]
    found = {row.name: row for row in judge.rows(runs, FLOORS, why)}
    assert found["tokens per round"].verdict == SAME
    assert found["total, s"].verdict == SAME, "equal times need no quiet machine"
    slow = [arm_run(1.0), arm_run(1.5), arm_run(1.5), arm_run(1.0)]
    assert {row.verdict for row in judge.rows(slow, FLOORS, why) if row.change} == {AMBIGUOUS}
    assert {row.verdict for row in judge.rows(slow, FLOORS) if row.change} == {SLOWER}


def test_beside_a_gpu_other_work_takes_more_of_the_host():
    runs = [arm_run(others=0.4)] * 4
    assert judge.disturbances(sides(backend="cuda"), runs) == []
    assert judge.disturbances(sides(), runs)
    assert judge.disturbances(sides(), [arm_run(others=None)] * 4) == []
    throttled = [arm_run(throttled=["power"]), arm_run(), arm_run(throttled=["power"]), arm_run()]
    assert judge.disturbances(sides(), throttled) == ["the clock was lowered: power"]


def test_a_short_time_has_an_absolute_floor():
    a, b = (0.5, 0.5), (0.5001, 0.5001)
    wide = Floors(relative=0.0001, absolute=0.2)
    assert judge.judge("ms per verify round", a, b, False, wide).verdict == SAME  # 0.1 us
    assert judge.judge("total, s", a, b, False, wide).verdict == SLOWER


def test_nothing_is_not_compared_with_something():
    row = judge.judge("acceptance, %", (0.0, 0.0), (70.0, 70.0), True, FLOORS)
    assert (row.change, row.verdict, row.reason) == (None, "", "not compared: an arm has none")
    assert judge.judge("acceptance, %", (0.0, 0.0), (0.0, 0.0), True, FLOORS).verdict == SAME


@pytest.mark.parametrize(
    ("change", "spread", "verdicts", "least"),
    [(1.0, 0.003, (SAME,), 0.97), (1.05, 0.003, (SLOWER,), 0.97), (0.95, 0.003, (FASTER,), 0.97)],
)
def test_rates_where_the_machine_is_quiet(change, spread, verdicts, least):
    rng = np.random.default_rng(7)
    factors = np.array([1, change, change, 1])
    found = [verdict(100 * factors * np.exp(spread * rng.standard_normal(4))) for _ in range(DRAWS)]
    assert sum(one in verdicts for one in found) >= least * DRAWS


def test_the_stated_rate_of_false_alarms():
    """Equal arms on a machine so noisy that the floor is no hindrance: 7 % of rows."""
    rng = np.random.default_rng(7)
    found = [verdict(100 * np.exp(0.2 * rng.standard_normal(4))) for _ in range(20 * DRAWS)]
    for wrong in (FASTER, SLOWER):
        assert 0.025 < found.count(wrong) / len(found) < 0.045


def test_first_difference():
    assert judge.first_difference([1, 2, 3], [1, 2, 3]) == -1
    assert judge.first_difference([1, 2, 3], [1, 9, 9]) == 1
    assert judge.first_difference([1, 2, 3], [1, 2]) == 2
    assert judge.first_difference([], [1]) == 0


def test_outputs_name_what_differs():
    found = {one.name: one for one in judge.outputs(arm_run(), arm_run(changed={7: 99}))}
    assert found["code"].first == 7 and found["code"].a != found["code"].b
    assert {one.first for name, one in found.items() if name != "code"} == {-1}


def test_logits_behind_equal_tokens_count():
    a = checks().seven
    b = [a[0], msgspec.structs.replace(a[1], logits="c" * 32)]
    assert [one.first for one in judge.seven_outputs(a, b)] == [-1, 3]


def test_four_arms_are_needed():
    with pytest.raises(ValueError, match="runs: 3: must be 4"):
        judge.rows([arm_run()] * 3, FLOORS)
