"""A text that goes on from a slot which has read the beginning of its prompt: the bytes are those of reading it all."""

import re

import numpy as np
import pytest

from qsa.engine import Engine, Slot
from support.engine_models import DRAFTED, engine_model, plain, prompt

CAPACITY = 120
IDS = prompt(60, seed=3)


@pytest.fixture(scope="module")
def model():
    return engine_model()


def read(engine, count, **sizes):
    """A slot that has read the first ``count`` of IDS."""
    slot = Slot(engine.model, **{"capacity": CAPACITY} | sizes)
    if count:
        engine.runner.run([np.array(IDS[:count])], [slot])
    return slot


@pytest.mark.parametrize("count", [1, 37, 59])
def test_the_text_and_the_state_are_those_of_reading_the_whole_prompt(model, count):
    whole, engine = Engine(model, 1, CAPACITY), Engine(model, 2, CAPACITY, chunk=8)
    expected = whole.submit(IDS, 30)
    whole.run()
    prefix = read(engine, count)
    before = prefix.digest()
    # The others are read in whole, and one of them follows a text that was not.
    texts = [engine.submit(IDS, 30, prefix=prefix), engine.submit(prompt(25), 20), engine.submit(IDS, 30)]
    texts.append(engine.submit(IDS, 30, prefix=prefix))
    engine.run()
    assert texts[0].tokens == texts[2].tokens == texts[3].tokens == expected.tokens == plain(tuple(IDS), 30).tokens
    assert texts[1].tokens == plain(tuple(prompt(25)), 20).tokens
    digest = whole.slots[0].digest(draft=False)
    assert engine.slots[texts[3].slot].digest(draft=False) == digest
    # What it went on from is as it was.
    assert prefix.digest() == before and prefix.n == count


def test_the_prefix_is_not_read_again(model):
    engine = Engine(model, 1, CAPACITY, chunk=8)
    prefix, rows, run = read(engine, 40), [], engine.runner.run

    def counted(ids, slots, journal=None):
        rows.append(len(ids[0]))
        return run(ids, slots, journal)

    engine.runner.run = counted
    engine.submit(IDS, 1, prefix=prefix)
    engine.run()
    assert rows == [8, 8, 4]


def test_a_prefix_that_does_not_fit_is_refused(model):
    engine = Engine(model, 1, CAPACITY)
    other = Engine(engine_model(draft=False), 1, CAPACITY)
    sizes = "prefix: must be a Slot of the engine's model, capacity, page size, K/V and index format"
    for prefix, message in (
        (7, sizes),
        (read(engine, 5, capacity=CAPACITY + 1), sizes),
        (read(engine, 5, page_size=8), sizes),
        (read(other, 5), sizes),
        (read(engine, 0), "prefix: 0 tokens read: must be 1 to 59"),
        (read(engine, 60), "prefix: 60 tokens read: must be 1 to 59"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            engine.submit(IDS, 4, prefix=prefix)
    with pytest.raises(ValueError, match="drafting: a prefix has no cells of the drafter"):
        engine.submit(IDS, 4, drafting=DRAFTED, prefix=read(engine, 5))
    assert engine.idle
