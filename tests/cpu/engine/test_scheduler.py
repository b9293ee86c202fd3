"""The scheduler: slots, groups and the rows of a window are shared fairly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsa.engine import Engine
from qsa.engine.scheduler import Scheduler, allocate_rows
from support.engine_models import engine_model, prompt


@pytest.mark.parametrize("groups", [1, 2, 5])
def test_more_slots_than_a_window_has_rows_rotate(groups):
    """Ten slots of one row: no slot is two windows ahead of another, and every window is of one group."""
    engine = Engine(engine_model(), 10, 80, groups=groups)
    requests = [engine.submit(prompt(4, i), 60) for i in range(10)]
    while any(request.status != "decoding" for request in requests):
        engine.step()
    served = [request.statistics.rounds for request in requests]
    for _ in range(23):
        gained = engine.step()
        assert len(gained) == min(8, 10 // groups)
        assert len({request.slot // (10 // groups) for request in gained}) == 1
        rounds = [request.statistics.rounds - before for request, before in zip(requests, served, strict=True)]
        assert max(rounds) - min(rounds) <= 1
    engine.run()
    assert [request.status for request in requests] == ["finished"] * 10


@given(st.lists(st.integers(1, 8), min_size=1, max_size=8))
def test_rows_are_shared_fairly_and_none_is_left(requested):
    allocated = allocate_rows(requested)
    assert all(1 <= given_rows <= count for given_rows, count in zip(allocated, requested, strict=True))
    assert sum(allocated) == min(8, sum(requested))
    satisfied = [given_rows == count for given_rows, count in zip(allocated, requested, strict=True)]
    assert all(a or allocated[i] >= max(allocated) - 1 for i, a in enumerate(satisfied))


def test_a_new_request_goes_to_the_emptiest_group():
    scheduler = Scheduler(6, 3)
    occupied = []
    while (slot := scheduler.free_slot(occupied)) is not None:
        occupied.append(slot)
    assert occupied == [0, 2, 4, 1, 3, 5]
