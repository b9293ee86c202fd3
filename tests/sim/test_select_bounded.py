"""The schedule ``bounded`` of ``select`` in the simulator: the ids of ``reference.exact`` for scores that no buffer,
bin or bound holds, by one thread block and by a cluster."""

from dataclasses import replace

import numpy as np
import pytest

from qsa.kernels.cuda import simulator
from qsa.reference import exact
from qsa.reference.geometry import REAL, Geometry, step_records

select = simulator.load("select")
bounded, keys = simulator.load("topk.bounded"), simulator.load("topk.bounded_keys")

SMALL = Geometry(budget=64)


def close(rng, n):
    """Neighbouring float32 numbers, in one bin of any range that holds 0."""
    return (1 + rng.integers(0, 4096, n) * 2.0**-23).astype(np.float32)


def one_bin(rng, n):
    """One great outlier, which leaves all others in the last bin."""
    scores = close(rng, n)
    scores[n // 3] = 1e30
    return scores


def outliers(rng, n):
    """As many outliers as there is room for ties, and a few more: the last choice is in a bin of many members."""
    scores = close(rng, n)
    scores[rng.choice(n, keys.TIES + 9, False)] += np.float32(1000)
    return scores


def extremes(rng, n):
    """Few levels with NaN, infinities and both zeros."""
    return rng.choice(np.array([-1, -0.0, 0.0, 1, 2, np.nan, np.inf, -np.inf], np.float32), n)


def few_above_zero(rng, n):
    """Fewer above zero than are chosen."""
    return np.where(rng.random(n) < 0.01, 1 + rng.random(n), 0).astype(np.float32)


KINDS = {
    "normal": lambda rng, n: rng.standard_normal(n).astype(np.float32),
    "equal": lambda rng, n: np.full(n, 3, np.float32),
    "zeros": lambda rng, n: np.where(rng.random(n) < 0.5, -0.0, 0.0).astype(np.float32),
    "nan": lambda rng, n: np.full(n, np.nan, np.float32),
    "lowest": lambda rng, n: np.full(n, -np.inf, np.float32),
    "levels": lambda rng, n: rng.integers(0, 4, n).astype(np.float32),
    "ascending": lambda rng, n: np.arange(n, dtype=np.float32),
    "descending": lambda rng, n: -np.arange(n, dtype=np.float32),
    "wide": lambda rng, n: (rng.standard_normal(n) * 10.0 ** rng.integers(-38, 38, n)).astype(np.float32),
    "subnormal": lambda rng, n: (rng.standard_normal(n) * 1e-40).astype(np.float32),
    "close": close,
    "one_bin": one_bin,
    "outliers": outliers,
    "extremes": extremes,
    "few_above_zero": few_above_zero,
}


def launched(scores, steps, geometry, size, blocks):
    """Ids of one launch in clusters of ``size``, whatever the capacity."""
    ids = np.full((len(scores), geometry.max_width), 77, np.int32)
    arguments = scores, steps, ids, scores.shape[1], geometry.max_width
    kernel, lanes = bounded.bounded(blocks, size, geometry.ratio), bounded.lanes_of(size)
    shared = bounded.shared_bytes(blocks, size)
    simulator.launch(kernel, len(scores) * size, lanes, arguments, shared=shared, cluster=size)
    return ids


def check(kind, n, rule, geometry=REAL, size=1, tail=2, order="forwards"):
    """One row of ``n`` blocks; what it does not have is +inf, which would win."""
    scores = np.full((1, n + 5), np.inf, np.float32)
    scores[0, :n] = KINDS[kind](np.random.default_rng(n), n)
    steps = step_records([4 * n + tail - 1], rule, geometry)
    expected = exact.select(scores, steps, rule=rule, geometry=geometry)
    with simulator.configured(order=order):
        ids = launched(scores, steps, geometry, size, bounded.BUILDS[1])
    np.testing.assert_array_equal(ids[:, : expected.shape[1]], expected)
    assert (ids[:, expected.shape[1] :] == -1).all()


@pytest.mark.parametrize("n", [515, 1100, bounded.FEW])
@pytest.mark.parametrize("kind", KINDS)
def test_all_scores_held(kind, n):
    """No bound; one key a lane and less, one and a part of another, four."""
    check(kind, n, "cells", tail=n % 4)


@pytest.mark.parametrize("rule", ["blocks", "cells"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_bound_and_one_thread_block(kind, rule):
    """Of equal, close and low scores more are left than the list has room for."""
    check(kind, bounded.FEW + 300, rule)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cluster(kind):
    """Two ranks of three; the places of those that take part have the third's room."""
    check(kind, bounded.FEW + 300, "cells", size=3)


@pytest.mark.parametrize("kind", ["normal", "equal", "extremes", "few_above_zero"])
def test_a_cluster_in_any_order(kind):
    """All ranks take part, a row fewer than their number divides; blocks and warps run the other way round."""
    check(kind, 2 * bounded.FEW + 7, "blocks", size=3, tail=3, order="backwards")


def test_every_place_of_the_list_full():
    """Ranks that pass on their own best, each as many as there can be: a budget of 1,024 blocks."""
    check("equal", 2 * bounded.FEW + 7, "blocks", Geometry(budget=4096), size=3)


@pytest.mark.parametrize("n", [80, 700])
def test_small_budgets(n):
    check("levels", n, "cells", SMALL)


def test_more_ties_than_are_compared():
    """129 and 128 members of the bin that decides, of one key and of two."""
    for members in (keys.TIES, keys.TIES + 1):
        scores = np.arange(2000, dtype=np.float32)[::-1] / 8
        scores[480 : 480 + members] = scores[480]
        scores[480 : 480 + members : 2] -= np.float32(2**-18)
        steps = step_records([4 * 2000 - 1])
        given = np.ascontiguousarray(scores[None])
        np.testing.assert_array_equal(launched(given, steps, REAL, 1, 5120), exact.select(given, steps))


def test_rows_beside_each_other():
    """A row of a padded graph, rows that select everything, short and long ones in one launch of clusters."""
    counts = [0, 5, 2048, 2056, 4 * 1200 + 1, 4 * (bounded.FEW + 50)]
    rng = np.random.default_rng(9)
    scores = rng.standard_normal((len(counts), bounded.FEW + 60)).astype(np.float32)
    steps = step_records([n - 1 for n in counts], "cells")
    expected = exact.select(scores, steps, rule="cells")
    ids = launched(scores, steps, REAL, 2, bounded.BUILDS[0])
    np.testing.assert_array_equal(ids[:, : expected.shape[1]], expected)


def test_refusals_and_the_choice_of_a_cluster():
    """A device without clusters takes what one thread block holds; the first size that fits all rows at once wins."""
    properties = simulator.settings.properties
    alone = bounded.BUILDS[-1]
    held = {"properties": properties, "clusters": ((8, 30), (16, 7))}

    def planned(rows, blocks):
        plan = select.plan_select(rows, blocks, schedule="bounded")
        return plan and [(launch.grid, launch.block, launch.cluster) for launch in plan.launches]

    with simulator.configured(clusters=()):
        assert planned(3, alone) == [(3, 1024, 1)]
        assert planned(3, alone + 1) is False
    with simulator.configured(**held):
        assert planned(7, alone + 1) == [(56, 512, 8)]
        assert planned(31, alone + 1) == [(248, 512, 8)]
        assert planned(7, 1 << 18) == [(112, 512, 16)]
        assert planned(9, 1 << 18) == [(144, 512, 16)]
        assert planned(1, 16 * alone + 1) is False
    with simulator.configured(properties=replace(properties, compute_capability=(7, 5))):
        assert planned(1, 1000) is False
