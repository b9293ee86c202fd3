"""Saved slots that are not what was saved: each is refused by name, and leaves the slot that reads it as it was."""

import numpy as np
import pytest
from safetensors.numpy import load, save

from qsa.engine import Engine, Slot
from qsa.engine.runner import Runner
from qsa.engine.slots.serialization import ORIGIN, pack
from support.engine_models import DRAFTED, engine_model, prompt

CELLS = 45 + 9 - 1
"""Cells of the saved text: the last of its tokens is not run."""


@pytest.fixture(scope="module")
def saved():
    """A slot with its draft layer's cells, as bytes."""
    engine = Engine(engine_model(), 1, 90)
    engine.submit(prompt(45), 9, drafting=DRAFTED)
    engine.run()
    return engine.slots[0].save()


@pytest.fixture
def begun():
    slot = Slot(engine_model(), 90)
    Runner(slot.model).run([prompt(7, seed=3)], [slot])
    return slot


def refused(slot, data, message):
    before = slot.digest()
    with pytest.raises(ValueError, match=message):
        slot.restore(data)
    assert slot.digest() == before and slot.n == 7


def cut(name):
    return lambda arrays: arrays | {name: arrays[name][:-1]}


def changed(**values):
    return lambda arrays: arrays | {name.replace("__", "."): np.array(value) for name, value in values.items()}


EDITS = {
    "dead key": (lambda arrays: {k: v for k, v in arrays.items() if k != "3.dead"}, "3.dead: missing"),
    "v codes": (cut("3.v_codes"), r"3.v_codes: int8 \(52, "),
    "k scale": (cut("3.k_scale"), r"3.k_scale: float16 \(52, "),
    "pooled": (cut("3.pooled"), r"3.pooled: float32 \(12, "),
    "memory": (cut("overwritten.0"), r"overwritten.0: "),
    "type": (lambda arrays: arrays | {"3.v_codes": arrays["3.v_codes"].view(np.uint8)}, "3.v_codes: uint8"),
    "axes": (lambda arrays: arrays | {"3.dead": arrays["3.dead"][None]}, "3.dead: float32"),
    "more cells": (changed(n=[CELLS + 5]), "3.k_codes: int8"),
    "too many cells": (changed(n=[91]), "91 cells: the slot holds 90"),
    "cells below 0": (changed(n=[-5]), "-5 cells"),
    "no n": (changed(n=np.empty(0, np.int64)), r"n: int64 \(0,\): must be int64 \(1,\)"),
    "n a fraction": (changed(n=[45.0]), "n: float64"),
    "n missing": (lambda arrays: {k: v for k, v in arrays.items() if k != "n"}, "n: missing"),
    "stranger": (changed(more=[1]), "more: unknown"),
    "draft codes": (cut("draft.k_codes"), "draft.k_codes: int8"),
    "draft span": (changed(draft__span=[3, CELLS, CELLS]), r"draft.span = \[3, 53, 53\]"),
    "no window": (changed(draft__span=[CELLS, CELLS, 0]), "draft.span"),
    "span cut": (cut("draft.span"), r"draft.span: int64 \(2,\)"),
    "span missing": (lambda arrays: {k: v for k, v in arrays.items() if k != "draft.span"}, "draft.*: unknown"),
    "tip": (cut("draft.tip_logits"), r"draft.tip_logits: float32 \(96,\): must be float32 \(97,\)"),
    "tip missing": (lambda arrays: {k: v for k, v in arrays.items() if k != "draft.tip_streams"}, "missing"),
}


@pytest.mark.parametrize("signed", [False, True], ids=["edited", "signed"])
@pytest.mark.parametrize("edit", EDITS)
def test_a_file_with_other_entries_is_refused(saved, begun, edit, signed):
    """A file edited after it was saved has a wrong digest. Saved again after the edit, the bad entry is named."""
    change, message = EDITS[edit]
    arrays = load(saved)
    if signed:
        origin = arrays.pop(ORIGIN).tobytes().decode()
        del arrays["digest"]
        refused(begun, pack(change(arrays), origin), message)
    else:
        refused(begun, save(change(arrays)), "its digest is another one")


@pytest.mark.parametrize("name", [ORIGIN, "digest"])
def test_so_is_one_without_an_origin_or_a_digest(saved, begun, name):
    arrays = load(saved)
    del arrays[name]
    refused(begun, save(arrays), "no state of a slot: 'made_by'" if name == ORIGIN else "its digest is another one")


def test_a_bit_turned_anywhere_is_seen(saved, begun):
    """Of the whole file, its header and the last bytes included."""
    rng = np.random.default_rng(1)
    offsets = {*range(16), *range(len(saved) - 16, len(saved)), *rng.integers(0, len(saved), 300).tolist()}
    before = begun.digest()
    for offset in sorted(offsets):
        data = bytearray(saved)
        data[offset] ^= 1 << int(rng.integers(8))
        with pytest.raises(ValueError, match="saved: "):
            begun.restore(bytes(data))
    assert begun.digest() == before


def test_what_was_saved_is_what_a_slot_saves_again(saved):
    for page_size, capacity in ((4, 90), (7, CELLS)):
        slot = Slot(engine_model(), capacity, page_size)
        slot.restore(saved)
        assert slot.n == CELLS and slot.save() == saved
    # Signed anew without a change it is read too: what the edits above are refused for is the edit.
    arrays = load(saved)
    origin = arrays.pop(ORIGIN).tobytes().decode()
    del arrays["digest"]
    slot.restore(pack(arrays, origin))
    assert slot.save() == saved
