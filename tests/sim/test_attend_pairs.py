"""Two rows that share a cluster (``attend_pairs``) in the simulator: the bytes of ``reference.exact``, whatever the rows
have in common."""

import numpy as np
import pytest

from cases.attend_cases import attend, check, exact_problem, random_kv
from qsa.kernels.cuda import simulator
from qsa.kernels.cuda.toolchain.host import Properties
from qsa.reference import exact
from support.arrays import bits
from support.plan_runs import clusters_of, recorded_runs

plans, tables = (simulator.load(name) for name in ("common.plans", "common.defaults"))


@pytest.fixture(autouse=True)
def two_rows_are_a_pair(monkeypatch):
    """On a device of one block for each row, calls of two rows and more go in pairs. Every launch must."""
    monkeypatch.setitem(tables.TABLES, (9, 0), tables.H200._replace(clusters=(), pair_rows=2))
    runs = recorded_runs(monkeypatch, plans)
    with simulator.configured(properties=Properties("one", (9, 0), 1, 227 * 1024, 228 * 1024, 50 << 20)):
        yield
    assert {launch.name for plan, _ in runs for launch in plan.launches} == {"attend_exact_pairs"}
    assert set(clusters_of(runs)) == {2}


def rows_with_common(seed, widths, common, cells=160):
    """(q, kv, ids, steps) of rows that select ``widths`` cells, of which all have the same ``common``."""
    q, kv, ids, steps = exact_problem(seed, widths, cells=cells)
    rng = np.random.default_rng(seed)
    order = rng.permutation(cells)
    shared, free = order[:common], order[common:]
    for row, width in enumerate(widths):
        own = rng.permutation(free)[: width - common]
        ids[row, :width] = np.sort(np.concatenate([shared, own]))
    return q, kv, ids, steps


@pytest.mark.parametrize("common", [0, 35, 63, 70])
def test_rows_that_share(backend, common):
    """None, half, nine tenths and all of 70 cells."""
    check(backend, *rows_with_common(1, [70, 70], common))
