"""An engine whose indexer keys have 16 bits: one text and state whatever cuts it, other selections than fp32's."""

import numpy as np
import pytest

from qsa.engine import Drafting, Engine, Slot, generate, score
from qsa.engine.slots import memory
from qsa.reference import exact
from qsa.reference.index import written
from support.engine_models import Scripted, engine_model, prompt

IDS = tuple(prompt(60))


def finished(engine, **options):
    """(tokens, digest) of a text run alone in ``engine``."""
    request = engine.submit(list(IDS), **options)
    engine.run()
    assert request.status == "finished", request.error
    return request.tokens, engine.slots[request.slot].digest(draft=False)


@pytest.fixture(scope="module")
def single():
    """(tokens, digest) of 40 tokens decoded one by one."""
    return finished(Engine(engine_model(), capacity=110, index_format="int16"), max_tokens=40)


@pytest.mark.parametrize("spec, chunk, page_size", [(2, 1, 4), (4, 7, 64), (8, 1000, 1)])
def test_windows_chunks_and_pages_change_neither_text_nor_state(single, spec, chunk, page_size):
    drafter = Scripted({IDS: single[0]}, wrong=range(2, 40, 5), rest=6)
    engine = Engine(engine_model(), 1, 110, page_size, chunk=chunk, drafter=drafter, index_format="int16")
    assert finished(engine, max_tokens=40, drafting=Drafting(spec)) == single


def test_numpy_gives_the_same_text_and_state(single):
    engine = Engine(engine_model(exact), capacity=110, index_format="int16")
    assert finished(engine, max_tokens=40) == single


def test_the_keys_are_encoded_and_the_state_is_another_one(single):
    plain = Engine(engine_model(), capacity=110)
    assert finished(plain, max_tokens=40)[1] != single[1]
    assert {state.index.pooled.dtype for _, state in plain.slots[0]._qsa_states()} == {np.dtype("float32")}
    slot = Slot(engine_model(), 40, index_format="int16")
    assert {state.index.pooled.dtype for _, state in slot._qsa_states()} == {np.dtype("int16")}


def test_a_slot_is_forked_saved_and_restored_with_its_exponents(single):
    engine = Engine(engine_model(), capacity=110, index_format="int16")
    finished(engine, max_tokens=40)
    slot = engine.slots[0]
    fork, other = slot.fork(), Slot(engine_model(), 120, 64, index_format="int16")
    other.restore(slot.save())
    for copy in (fork, other):
        assert copy.digest() == slot.digest()
        for (_, mine), (_, theirs) in zip(slot._qsa_states(), copy._qsa_states(), strict=True):
            assert mine.index.dead_exponent[0] == theirs.index.dead_exponent[0] != 0
            blocks = slot.n // 4
            for name in written(mine.index):
                if name.startswith("pooled"):
                    a, b = (getattr(state.index, name)[:blocks] for state in (mine, theirs))
                    assert np.array_equal(a, b) and a.any()
    fork.reset()
    assert all(state.index.dead_exponent[0] == 0 for _, state in fork._qsa_states())
    assert slot.digest() != fork.digest()


@pytest.mark.parametrize("name", ["pooled_exponent", "dead_exponent"])
def test_the_digest_sees_every_exponent(name):
    engine = Engine(engine_model(), capacity=110, index_format="int16")
    finished(engine, max_tokens=40)
    slot = engine.slots[0]
    before = slot.digest()
    (_, state), *_ = slot._qsa_states()
    getattr(state.index, name)[0] += 1
    assert slot.digest() != before


@pytest.mark.parametrize(("saved", "into"), [("fp32", "int16"), ("int16", "fp32")])
def test_a_slot_of_the_other_format_is_refused(saved, into):
    source, target = (Slot(engine_model(), 40, index_format=name) for name in (saved, into))
    with pytest.raises(ValueError, match=f"saved with index format '{saved}': this slot has '{into}'"):
        target.restore(source.save())


def test_a_text_is_scored_with_either_format():
    ids = prompt(90, seed=3)
    by_window, by_chunk = (
        score(engine_model(), ids, index_format="int16", **cut).nll for cut in ({"window": 5}, {"chunk": 32})
    )
    assert np.array_equal(by_window, by_chunk)


def test_the_bytes_of_a_slot():
    model = engine_model()
    sizes = 500, 4, "int8"
    slot = Slot(model, *sizes, "int16")
    arrays = [state.index for _, state in slot._qsa_states()]
    per_block = sum(index.pooled[0].nbytes + 2 + index.rope[0].nbytes for index in arrays)
    plain, coded = memory.slot_bytes(model, *sizes), memory.slot_bytes(model, *sizes, "int16")
    dim = model.geometry.idx_dim
    assert plain - coded == len(arrays) * 126 * (4 * dim - 2 * dim - 2)
    assert per_block == len(arrays) * (2 * dim + 2 + 4 * model.geometry.n_rot)


@pytest.mark.parametrize("make", [Slot, Engine, lambda model, index_format: generate(model, [1], index_format="x")])
def test_an_unknown_format_is_refused_by_name(make):
    with pytest.raises(ValueError, match=r"index_format = 'x': allowed are fp32, int16"):
        make(engine_model(), **({"capacity": 40} if make is Slot else {}), index_format="x")
