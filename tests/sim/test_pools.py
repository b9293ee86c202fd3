"""Slots with a pool each in the simulator: the cases of a device, and what a capture keeps."""

from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest

from cases.pool_cases import *  # noqa: F403
from cases.pool_cases import KERNEL, WRITE, Calls, several
from qsa.kernels.cuda import simulator
from support.plan_runs import clusters_of, recorded_runs

pool_tables, plans = simulator.load("common.pool_tables"), simulator.load("common.plans")


@pytest.fixture
def capture(monkeypatch):
    """A context in which the stream is being captured; what is launched is carried out all the same."""

    @contextmanager
    def capturing():
        with monkeypatch.context() as patch:
            patch.setattr(pool_tables, "capturing", lambda stream: True)
            yield

    return capturing


def table_of(monkeypatch, calls):
    """The table that a call reads, and its words."""
    with monkeypatch.context() as patch:
        runs = recorded_runs(patch, plans)
        calls.run()
    ((plan, _),) = runs
    table = plan.table._table
    return table, table.copy()


def replaced(calls, slot, other):
    """The slot's pool is another call's."""
    calls.there[slot].pool, calls.kvs[slot].pool = other.there[slot].pool, other.kvs[slot].pool
    calls.there[slot].table, calls.kvs[slot].table = other.there[slot].table, other.kvs[slot].table


@pytest.mark.parametrize("warm", [True, False], ids=["called before", "first call"])
def test_a_captured_table_is_never_written_again(backend, tables, capture, monkeypatch, warm):
    """What a graph reads stays as it was, whatever is called later, and however much."""
    monkeypatch.setattr(pool_tables, "MOST_TABLES", 1)
    calls, other = Calls(backend, *several(210, 5)), Calls(backend, *several(212, 5))
    if warm:
        calls.check()
    with capture():
        made = calls.check()
        table, words = table_of(monkeypatch, calls)
    # After a call the graph needs no launch but its own; otherwise it writes its table itself.
    assert made == (Counter({KERNEL: 1}) if warm else Counter({KERNEL: 1, WRITE: 1}))
    for _ in range(2):
        replaced(calls, 4, other)
        calls.check()
        later, _ = table_of(monkeypatch, calls)
        assert later is not table
        other.check()
    tables.clear()
    held = (*tables._captured.values(), *tables._written_by_graphs)
    assert any(kept is table for kept in held)
    np.testing.assert_array_equal(table, words)


def test_a_table_that_a_graph_writes_serves_no_other_call(backend, tables, capture, monkeypatch):
    """It holds nothing before the graph has run."""
    calls = Calls(backend, *several(220, 5))
    with capture():
        calls.check()
        first, _ = table_of(monkeypatch, calls)
    assert calls.check()[WRITE] == 1
    second, _ = table_of(monkeypatch, calls)
    assert second is not first
    with capture():
        assert calls.check() == Counter({KERNEL: 1})
        third, _ = table_of(monkeypatch, calls)
    assert third is second


def test_tables_have_an_end(backend, tables, monkeypatch):
    """The one that was used longest ago goes, and is written again when it is needed."""
    monkeypatch.setattr(pool_tables, "MOST_TABLES", 2)
    calls = [Calls(backend, *several(seed, 5, rows=1)) for seed in (230, 232, 234)]
    assert [each.check()[WRITE] for each in (calls[0], calls[1], calls[0], calls[2])] == [1, 1, 0, 1]
    assert len(tables._recent) == 2
    # Plans of one shape are one plan, so that each call asks for its table.
    assert [each.check()[WRITE] for each in (calls[0], calls[2], calls[1])] == [0, 0, 1]


def test_a_table_of_many_slots_is_written_in_parts(backend, tables):
    """Parameters of a kernel have an end: 32 slots a launch."""
    assert Calls(backend, *several(240, 65, rows=1)).check()[WRITE] == 3


def test_rows_of_a_table_in_clusters(backend, monkeypatch):
    """Four blocks of a row, which tell each other by way of shared memory."""
    q, kvs, ids, steps, slots = several(250, 5, rows=1, width=20)
    wide = np.full((1, 128), 1, np.int32)
    wide[:, :20] = ids
    runs = recorded_runs(monkeypatch, plans)
    Calls(backend, q, kvs, wide, steps, slots).check()
    assert clusters_of(runs) == [4]
