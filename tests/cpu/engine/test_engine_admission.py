"""A slot that cannot be reset fails the request that would have had it, and no other request."""

import pytest

from qsa.engine import Engine
from support.engine_models import DRAFTED, engine_model, plain, prompt

TEXTS = [tuple(prompt(n, seed=n)) for n in (30, 21, 17, 25)]


def failing_reset(monkeypatch, slot, error, times=1):
    """Make the next ``times`` resets of ``slot`` raise ``error`` after they have changed a part of its state."""
    reset, left = slot.reset, [times]

    def failing(window=None):
        if left[0]:
            left[0] -= 1
            slot.state.n = 3
            raise error
        reset(window)

    monkeypatch.setattr(slot, "reset", failing)


@pytest.mark.parametrize("index, times", [(0, 1), (1, 1), (1, 2)])
def test_a_request_whose_slot_cannot_be_reset_fails(monkeypatch, index, times):
    engine, error = Engine(engine_model(), 2, 80), RuntimeError("no device today")
    failing_reset(monkeypatch, engine.slots[index], error, times)
    requests = [engine.submit(list(ids), 9, drafting=DRAFTED) for ids in TEXTS]
    engine.step()
    failed = requests[index : index + times]
    assert all(request.status == "failed" and request.error is error and request.slot is None for request in failed)
    assert not any(engine.cancel(request) for request in failed)
    engine.run()
    for ids, request in zip(TEXTS, requests, strict=True):
        if request not in failed:
            assert request.status == "finished" and request.tokens == plain(ids, 9).tokens
    again = engine.submit(list(TEXTS[index]), 9)
    engine.run()
    assert again.tokens == plain(TEXTS[index], 9).tokens


def test_an_interrupt_of_an_admission_goes_through(monkeypatch):
    engine = Engine(engine_model(), 1, 80)
    failing_reset(monkeypatch, engine.slots[0], KeyboardInterrupt())
    first, other = (engine.submit(list(ids), 9) for ids in TEXTS[:2])
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert first.status == "failed" and other.status == "waiting" and not engine.idle
    engine.run()
    assert engine.idle and other.tokens == plain(TEXTS[1], 9).tokens
