"""Known faults of ``select``; see ``known_faults``."""

import numpy as np
import pytest

from cases.known_faults import new_index
from qsa.reference.geometry import RULES, Geometry, step_records
from qsa.reference.select import select as select_float64
from support.arrays import generator


@pytest.mark.parametrize("rule", RULES)
def test_a1_the_rank_of_a_tied_block_counts_ties_alone(backend, rule):
    """2,052 distinct scores have no tie: a rank that counts greater scores as ties drops a block."""
    n, geometry = 70 if backend.small else 2052, Geometry(budget=backend.geometry.budget)
    scores = generator(1).permutation(n).astype(np.float32)[None]
    # The best one first: every other has a greater one before it.
    best = scores.argmax()
    scores[0, [0, best]] = scores[0, [best, 0]]
    steps = step_records([4 * n + 1], rule, geometry)
    want = select_float64(scores, steps, rule=rule, geometry=geometry)
    for schedule in backend.schedules["select"]:
        got = backend.select(scores, steps, rule, geometry, schedule=schedule)
        assert np.array_equal(got, want), schedule


@pytest.mark.parametrize("rule", RULES)
def test_a4_the_tail_is_selected_when_every_score_is_zero(backend, rule):
    """One cell more than the full width of the budget, which is 16 cells in the simulator."""
    geometry = Geometry(budget=backend.geometry.budget)
    n_kv, blocks = geometry.budget + 5, geometry.budget // 4 + 1
    steps = step_records([n_kv - 1], rule, geometry)
    index = new_index(blocks + 1)
    scores = backend.block_scores(np.zeros((1, 4, 128), np.float32), index, steps)
    assert scores[0, blocks] == np.float32(1e9) and not scores[0, :blocks].any()
    ids = backend.select(scores[:, :blocks], steps, rule, geometry)[0, : steps[0, 3]]
    first = geometry.budget if rule == "blocks" else geometry.budget + 2
    assert ids.tolist() == [*range(first), n_kv - 1]


def test_c1_a_tie_at_the_cut_goes_to_the_lower_index(backend):
    """n_kv = 2052 under ``cells``: of 513 blocks two are equal and lowest, and the later one loses its last cell."""
    geometry = Geometry(budget=backend.geometry.budget)
    n, tied = (5, (1, 3)) if backend.small else (513, (100, 300))
    scores = np.arange(n, 0, -1, dtype=np.float32)[None]
    scores[0, tied] = 0.5
    steps = step_records([4 * n - 1], "cells", geometry)
    want = [cell for cell in range(4 * n) if cell != 4 * tied[1] + 3]
    for schedule in backend.schedules["select"]:
        for _ in range(1 if backend.small else 3):
            assert backend.select(scores, steps, "cells", geometry, schedule=schedule)[0].tolist() == want, schedule


def test_c11_more_close_scores_than_any_bin_holds(backend):
    """Up to 100,000 scores, as many as a schedule takes, lie within 1e-3 of each other; the best are last.

    In the simulator 1,500: a thread block keeps at most 1,024 of a bin at a time.
    """
    rng = generator(11)
    for schedule in backend.schedules["select"]:
        n = 1500 if backend.small else 33_000 if schedule == "registers" else 100_000
        scores = (1 + 1e-3 * rng.random((1, n))).astype(np.float32)
        scores[0, -600:] += np.float32(1e-3)
        steps = step_records([4 * n - 1])
        got = backend.select(scores, steps, schedule=schedule)
        assert np.array_equal(got, select_float64(scores, steps)), schedule
