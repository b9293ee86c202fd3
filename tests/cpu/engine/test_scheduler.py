"""Whose turn it is: slots, groups and the rows of a window are shared fairly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsa.engine import Engine
from qsa.engine.scheduler import Turns, share_rows
from support.engine_models import engine_model, prompt


@pytest.mark.parametrize("groups", [1, 2, 5])
def test_more_slots_than_a_window_has_rows_take_turns(groups):
    """Ten slots of one row: nobody is two windows ahead of another, and every window is of one group."""
    engine = Engine(engine_model(), 10, 80, groups=groups)
    requests = [engine.submit(prompt(4, i), 60) for i in range(10)]
    while any(one.status != "decoding" for one in requests):
        engine.step()
    served = [one.statistics.rounds for one in requests]
    for _ in range(23):
        gained = engine.step()
        assert len(gained) == min(8, 10 // groups)
        assert len({one.slot // (10 // groups) for one in gained}) == 1
        rounds = [one.statistics.rounds - before for one, before in zip(requests, served, strict=True)]
        assert max(rounds) - min(rounds) <= 1
    engine.run()
    assert [one.status for one in requests] == ["finished"] * 10


@given(st.lists(st.integers(1, 8), min_size=1, max_size=8))
def test_rows_are_shared_fairly_and_none_is_left(wanted):
    shares = share_rows(wanted)
    assert all(1 <= share <= want for share, want in zip(shares, wanted, strict=True))
    assert sum(shares) == min(8, sum(wanted))
    content = [share == want for share, want in zip(shares, wanted, strict=True)]
    assert all(a or shares[i] >= max(shares) - 1 for i, a in enumerate(content))


def test_a_new_request_goes_to_the_emptiest_group():
    turns = Turns(6, 3)
    taken = []
    while (slot := turns.free_slot(taken)) is not None:
        taken.append(slot)
    assert taken == [0, 2, 4, 1, 3, 5]
