"""Rows of one call that have cells in common, for the simulator and a device: the bytes of ``reference.exact``.

A kernel may take neighbouring rows together, as the rows of a window or a prompt select much the same cells. Each row
counts its own cells alone, whatever its neighbours select and in whatever order.
"""

import numpy as np
import pytest

from cases.attend_cases import check, exact_problem, random_kv
from qsa.reference import exact

WIDTH = 20


def neighbours(seed, common, rows=2, **options):
    """(q, kv, ids, steps) of rows of 20 cells that have the same ``common`` of them, and no others, in common."""
    q, kv, ids, steps = exact_problem(seed, [WIDTH] * rows, cap=WIDTH + 4, **options)
    order = np.random.default_rng(seed).permutation(90)
    same, free = order[:common], order[common:]
    for row in range(rows):
        own = free[row * (WIDTH - common) :][: WIDTH - common]
        ids[row, :WIDTH] = np.sort(np.concatenate([same, own]))
    return q, kv, ids, steps


@pytest.mark.parametrize("common", [0, 10, 18, 20], ids=["none", "half", "nine tenths", "all"])
def test_a_row_counts_its_own_cells_alone(backend, common):
    check(backend, *neighbours(40, common, rows=3))


def test_ids_in_another_order_and_given_twice(backend):
    """The same cells in three orders, and some of them twice in one row: the first three rows have equal bytes."""
    q, kv, ids, steps = neighbours(41, 18, rows=5)
    q[1:3], ids[1], ids[2] = q[0], ids[0], ids[0]
    ids[1, :WIDTH] = ids[1, :WIDTH][::-1]
    ids[2, :WIDTH] = np.random.default_rng(41).permutation(ids[2, :WIDTH])
    ids[4, 3], ids[4, 7] = ids[3, 0], ids[3, 0]
    wanted = check(backend, q, kv, ids, steps)
    np.testing.assert_array_equal(wanted[1:3], wanted[[0, 0]])


def test_absent_ids_short_rows_and_rows_without_cells(backend):
    """-1 in one of two rows alone, a row that ends early, one of width 0 between two that are alike."""
    q, kv, ids, steps = neighbours(42, 18, rows=5, missing=[3])
    ids[0, [2, 5]] = -1
    steps[1, 3], steps[3, 3] = 7, 0
    wanted = check(backend, q, kv, ids, steps)
    assert not wanted[3].any() and wanted[[0, 1, 2, 4]].any(axis=(1, 2)).all()


def test_one_query_that_is_not_finite(backend):
    """Of two rows of the same cells one head of one row becomes NaN."""
    q, kv, ids, steps = neighbours(43, 20)
    q[1, 2, 100] = np.inf
    poisoned = np.isnan(check(backend, q, kv, ids, steps)).any(axis=-1)
    assert poisoned.tolist() == [[False] * 3, [False, False, True]]


def test_equal_ids_of_different_slots(backend):
    """Neighbouring rows give the same ids and mean cells of different pools."""
    q, _, ids, steps = neighbours(44, 20, rows=4)
    rng = np.random.default_rng(44)
    kvs, slots = [random_kv(rng, "int8", 96) for _ in range(2)], np.array([0, 1, 1, 0], np.int32)
    check(backend, q, kvs, ids, steps, slots)
    q[1] = q[0]
    different = exact.attend(q, kvs, ids, steps, slots)
    assert (different[0] != different[1]).any()
