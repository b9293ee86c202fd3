"""``select`` in the simulator: every schedule gives the ids of ``reference.exact``, on the least that crosses a warp,
a tile, a slice and a tail."""

import numpy as np
import pytest

from qsa.kernels import ops
from qsa.kernels.cuda import simulator
from qsa.kernels.switches import override
from qsa.reference import exact
from qsa.reference.geometry import REAL, Geometry, step_records

select = simulator.load("select")
spread, THREADS = simulator.load("topk.kernels").spread, simulator.load("topk.radix_search").THREADS

SCHEDULES = ops.OPERATIONS["select"].schedules
RULES = ("blocks", "cells")
SMALL = Geometry(budget=64)


def distinct(rng, n):
    """Distinct scores in random order, of both signs."""
    return (rng.permutation(n).astype(np.float32) - np.float32(n // 3)) / np.float32(7)


def with_extremes(rng, n):
    """Few levels, so that ties straddle every cut, with NaN, infinities and both zeros among them."""
    scores = rng.integers(-2, 3, n).astype(np.float32)
    odd = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0], np.float32)
    indices = rng.integers(0, n, n // 2)
    scores[indices] = odd[rng.integers(0, len(odd), len(indices))]
    return scores


def check(result, scores, steps, rule, geometry=REAL):
    """Ids of :mod:`reference.exact` and -1 beyond."""
    expected = exact.select(scores, steps, rule=rule, geometry=geometry)
    width = expected.shape[1]
    np.testing.assert_array_equal(result[:, :width], expected)
    assert (result[:, width:] == -1).all()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rows(schedule, rule):
    # 65 blocks: two turns of a warp and one key of a third, were they one warp's; tails 0 to 3; a row of a padded
    # graph; rows that select everything; the scores of blocks that a row does not have are poison.
    rng = np.random.default_rng(7)
    counts = [0, 5, 67, 260, 263]
    steps = step_records([n - 1 for n in counts], rule, SMALL)
    scores = np.full((len(counts), 70), np.nan, np.float32)
    for row, n in enumerate(counts):
        scores[row, : n // 4] = distinct(rng, n // 4) if row % 2 else with_extremes(rng, n // 4)
        scores[row, n // 4 :] = np.inf
    ids = np.full((len(counts), SMALL.max_width + 6), 77, np.int32)
    assert select.select(scores, steps, ids, rule=rule, geometry=SMALL, schedule=schedule) is ids
    check(ids, scores, steps, rule, SMALL)


@pytest.mark.parametrize(
    "make", [distinct, with_extremes, lambda rng, n: np.zeros(n, np.float32)], ids=["distinct", "extremes", "equal"]
)
def test_registers_beyond_one_chunk(make):
    # 2,250 blocks: more than the few of the short search; equal scores leave all of them for the long one.
    steps = step_records([9001 - 1], "cells")
    scores = make(np.random.default_rng(3), 2251)[None].copy()
    check(select.select(scores, steps, rule="cells", schedule="registers"), scores, steps, "cells")


@pytest.mark.parametrize("schedule", ["wide", "scan"])
def test_several_chunks_a_pass(schedule):
    # 9,000 blocks are nine keys a lane; a pass takes eight at a time.
    steps = step_records([36001 - 1])
    scores = with_extremes(np.random.default_rng(4), 9001)[None].copy()
    check(select.select(scores, steps, schedule=schedule), scores, steps, "blocks")


@pytest.mark.parametrize(("make", "order"), [(with_extremes, "forwards"), (distinct, "backwards")])
def test_several_slices(make, order):
    # Slices of one key a lane, 1,024 blocks; the second row fits one slice, the third is a padded one. The second call
    # finds the scratch as the first left it.
    rng = np.random.default_rng(5)
    counts = [4 * 2050 + 2, 4 * 900, 0]
    steps = step_records([n - 1 for n in counts], "cells", SMALL)
    scores = np.stack([make(rng, 2052) for _ in counts])
    words = 1 + 2 * 3 * 17
    scratch = np.full((3, words), -5, np.int32)
    scratch[:, 0] = 0
    ids = np.full((3, SMALL.max_width), 77, np.int32)
    kernel = spread(1, SMALL.ratio)
    with simulator.configured(order=order):
        for _ in range(2):
            kernel[(3, 3), THREADS](scores, steps, ids, scratch, 2052, SMALL.max_width, words)
    check(ids, scores, steps, "cells", SMALL)
    assert (scratch[:, 0] == 0).all()


def test_record_of_other_scores_selects_nothing():
    steps = step_records([4 * 40 - 1])
    scores = np.zeros((1, 39), np.float32)
    ids = select.select(scores, steps, schedule="registers")
    assert (ids == -1).all()


def refused(reason, *args, **kwargs):
    """Whether the call returns False, is counted under ``reason``, and launches nothing."""
    before, launched = ops.refusals(), simulator.launches()
    result = select.select(*args, **kwargs)
    after = ops.refusals()
    key = ("select", reason)
    return result is False and after[key] == before.get(key, 0) + 1 and simulator.launches() == launched


def test_refusals():
    steps = step_records([99])
    beyond = np.zeros((1, 33 * 1024 + 1), np.float32)
    assert refused("capacity", beyond, steps, schedule="registers")
    assert refused("capacity", np.zeros((1, 16 * 1024 * 31 + 1), np.float32), steps, schedule="spread")
    rows, words = select.scratch_shape(1, beyond.shape[1])
    small = np.zeros((rows, words - 1), np.int32)
    assert refused("scratch", beyond, steps, schedule="spread", scratch=small)
    assert refused("geometry", beyond, steps, geometry=Geometry(budget=4100))
    for wrong, message in (
        (np.zeros(words, np.int32), rf"scratch: shape \({words},\): must be \[rows, words\]"),
        (np.zeros((rows, words)), "scratch: float64"),
        ([[0]], "scratch: list: must be an array on the device"),
    ):
        for schedule in ("spread", None):
            with pytest.raises(ValueError, match=message):
                select.select(beyond, steps, schedule=schedule, scratch=wrong)
    with pytest.raises(ValueError, match="schedule = 'fast'"):
        select.select(beyond, steps, schedule="fast")
    with pytest.raises(ValueError, match="rule = 'best'"):
        select.select(beyond, steps, rule="best")
    with pytest.raises(ValueError, match="ids"):
        select.select(beyond, steps, np.zeros((1, 2050), np.int32))


def test_a_scratch_says_whether_rows_are_spread():
    more = 33 * 1024 + 1
    scratch = np.zeros(select.scratch_shape(1, more), np.int32)
    for state, other in ((None, "scan"), (False, "wide"), (True, "scan")):
        with override(topk_scan=state):
            assert select.default_schedule(1, more, scratch) == "spread"
            assert select.default_schedule(2, more, scratch) == other


def test_a_million_cells_need_no_scratch_of_the_caller():
    # Few complete blocks in a capacity of 262,144: the scratch is made once and kept, and left as it was.
    steps = step_records([4 * 40 + 1], geometry=SMALL)
    scores = np.full((1, (1 << 18) + 1), np.inf, np.float32)
    scores[0, :40] = distinct(np.random.default_rng(8), 40)
    assert select.default_schedule(*scores.shape, geometry=SMALL) == "spread"
    kept = select._scratch.get(select.scratch_shape(*scores.shape, SMALL))
    for _ in range(2):
        check(select.select(scores, steps, geometry=SMALL), scores[:, :41], steps, "blocks", SMALL)
        assert select._scratch.get((1, 1)) is kept and not kept[:, 0].any()
