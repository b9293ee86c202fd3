"""Sizes that do not fit into memory: a clear error, before or in place of a failing allocation."""

import re

import pytest

from qsa.engine import Engine, Slot, generate, score
from qsa.engine.slots import memory
from qsa.model.qsa import State
from support.engine_models import engine_model, prompt

TOO_MANY = 2**31


def arrays(state):
    """The arrays of a slot's QSA layers that grow with its size."""
    for layer_state in state.attention:
        if isinstance(layer_state, State):
            pool, index = layer_state.kv.pool, layer_state.index
            yield from (pool.k.codes, pool.k.scale, pool.v.codes, pool.v.scale)
            yield from (layer_state.kv.table, index.pooled, index.rope)


@pytest.mark.parametrize("kv_format", ["int8", "q4_0", "k8v4"])
@pytest.mark.parametrize("page_size", [1, 4, 64])
def test_the_bytes_are_those_of_the_arrays(kv_format, page_size):
    model = engine_model()
    slot = Slot(model, 500, page_size, kv_format)
    held = sum(array.nbytes for array in arrays(slot.state))
    needed = memory.slot_bytes(model, 500, page_size, kv_format)
    # An index is made for a multiple of four blocks: at most three more a layer.
    spare = 3 * 4 * (model.geometry.idx_dim + model.geometry.n_rot)
    assert needed <= held <= needed + spare * model.config.layer_types.count("indexed_attention")


@pytest.mark.parametrize("name", ["capacity", "page_size"])
def test_sizes_beyond_a_step_record_are_refused(name):
    model, sizes = engine_model(), {"capacity": 8, name: TOO_MANY}
    message = f"{name} = {TOO_MANY}: must be an integer, from 1 to {TOO_MANY - 1}"
    for make in (lambda: Engine(model, **sizes), lambda: Slot(model, **sizes), lambda: score(model, [1, 2], **sizes)):
        with pytest.raises(ValueError, match=message):
            make()


def test_a_text_beyond_a_step_record_is_refused():
    with pytest.raises(ValueError, match=f"max_tokens = {TOO_MANY}: must be an integer, from 1 to {TOO_MANY - 5}$"):
        generate(engine_model(), prompt(5), max_tokens=TOO_MANY)


@pytest.mark.parametrize("sizes", [{"capacity": 2_000_000_000}, {"capacity": 8, "page_size": 2_000_000_000}])
def test_what_the_machine_does_not_have_is_not_asked_of_it(monkeypatch, sizes):
    model = engine_model()
    monkeypatch.setattr(type(model), "init_state", lambda *_: pytest.fail("asked for it"))
    monkeypatch.setattr(memory, "host_bytes", lambda: 2**34)
    page_size = sizes.get("page_size", 4)
    needed = memory.slot_bytes(model, sizes["capacity"], page_size, "int8")
    message = f"capacity = {sizes['capacity']}, page_size = {page_size}: a slot takes at least {needed:,} bytes"
    with pytest.raises(ValueError, match=re.escape(f"{message}: this machine has 17,179,869,184")):
        Engine(model, 1, **sizes)


def test_all_slots_of_an_engine_must_fit(monkeypatch):
    model = engine_model()
    needed = memory.slot_bytes(model, 64, 4, "int8")
    monkeypatch.setattr(memory, "host_bytes", lambda: 3 * needed)
    assert len(Engine(model, 3, 64).slots) == 3
    with pytest.raises(ValueError, match=r"capacity = 64, .* bytes, and slots = 4 times as many: this machine has"):
        Engine(model, 4, 64)


def test_the_memory_of_this_machine():
    assert memory.host_bytes() is None or memory.host_bytes() > 2**28


class OutOfMemoryError(MemoryError):
    """As CuPy's, which is a MemoryError of its own."""


@pytest.mark.parametrize("error", [MemoryError, OutOfMemoryError])
@pytest.mark.parametrize("allocation", ["state", "draft"])
def test_an_allocation_that_fails_says_which_sizes_it_was(monkeypatch, error, allocation):
    model = engine_model()

    def fails(*_):
        raise error("no more")

    if allocation == "state":
        monkeypatch.setattr(type(model), "init_state", fails)
    else:
        monkeypatch.setattr("qsa.engine.slots.slot.DraftCells", fails)
    needed = memory.slot_bytes(model, 30, 4, "int8")
    message = f"capacity = 30, page_size = 4: a slot takes at least {needed:,} bytes: out of memory"
    for make in (
        lambda: Engine(model, 1, 30),
        lambda: score(model, [1, 2, 3], capacity=30),
        lambda: generate(model, prompt(5), max_tokens=26),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            make()


def test_a_device_is_asked_whatever_the_host_has(monkeypatch):
    """Its memory is not the host's; its allocator says what is too much."""
    model = engine_model()
    monkeypatch.setattr(memory, "host_bytes", lambda: 1)
    with pytest.raises(ValueError, match=r"this machine has 1$"):
        Slot(model, 8)
    monkeypatch.setattr(model.backend, "to_device", lambda x: x, raising=False)
    assert Slot(model, 8).capacity == 8
