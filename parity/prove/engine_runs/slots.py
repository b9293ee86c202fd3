"""Checks of slots, by name, for ``prove/engine_mutants.py``: forks, saved states, admission, memory, the draft ring."""

import numpy as np

from qsa.engine import Drafting, Engine, Slot
from qsa.engine.slots import memory
from qsa.engine.slots.draft_cache import DRAFT_ROWS, DraftCells

from ..patching import Check, FoundError
from .model import CONFIG, Scripted, decoded, model, other_experts, prompt
from .texts import TEXTS, Text, held, refused, run, same, same_state


def slots() -> None:
    """Forks, saved states and resets of a slot, and what a restore must refuse."""
    text, count = TEXTS[0], 6
    truth = decoded(text.ids, count)
    before = [*text.ids, *truth.tokens]
    whole = decoded(text.ids, count + 4)

    def goes_on(what: str, slot: Slot) -> None:
        same_state(what, truth.state, slot.state)
        slot.model.run([[before[-1], *whole.tokens[count : count + 3]]], [slot.state])
        same_state(f"{what}, continued", whole.state, slot.state)

    slot = Slot(model(), 40)
    model().run([before[:-1]], [slot.state])
    digest, saved = slot.digest(), slot.save()
    fork, other = slot.fork(), slot.fork()
    fork.model.run([[9] * 6], [fork.state])
    same("digest after a fork went on", digest, slot.digest())
    same("digest of a fork", digest, other.digest())
    goes_on("fork", other)
    for capacity, page_size in ((20, 4), (40, 7)):
        target = Slot(model(), capacity, page_size)
        model().run([prompt(17, 9)], [target.state])
        target.restore(saved)
        goes_on("restored slot", target) if capacity == 40 else same_state("restored", truth.state, target.state)
    slot.reset()
    same("digest of a slot that was reset", Slot(model(), 40).digest(), slot.digest())
    refused("a slot that is too small", lambda: Slot(model(), 10).restore(saved), "the slot holds 10")
    refused("a saved slot with one other bit", lambda: slot.restore(_flipped(saved)), "digest")
    refused("a saved slot that was cut", lambda: slot.restore(saved[:-40]), "saved")
    refused("other weights", lambda: Slot(model(4), 40).restore(saved), "other weights")
    refused("another rule", lambda: Slot(model(rule="cells"), 40).restore(saved), "another configuration")
    refused("another K/V format", lambda: Slot(model(), 40, 4, "k8v4").restore(saved), "K/V format")


def identities() -> None:
    """A saved slot of a model whose last expert alone is another one is refused."""
    saved = Slot(model(), 8).save()
    refused("another expert", lambda: Slot(other_experts(), 8).restore(saved), "other weights")
    Slot(model(), 8).restore(saved)


def _flipped(saved: bytes) -> bytes:
    """``saved`` with one bit changed in the middle of its arrays."""
    changed = bytearray(saved)
    changed[len(changed) * 3 // 4] ^= 1
    return bytes(changed)


def admission() -> None:
    """A text that just fits is taken and runs to its end, a longer one is refused and nothing is queued."""
    ids = list(TEXTS[1].ids)
    engine = Engine(model(), 1, 10, drafter=Scripted({tuple(ids): decoded(tuple(ids), 6).tokens}))
    refused("one token too many", lambda: engine.submit(ids, 7), "capacity = 10")
    refused("a stop id outside the vocabulary", lambda: engine.submit(ids, 2, stop=[61]), "stop")
    same("idle after refusals", True, engine.idle)
    text = Text(tuple(ids), 6, drafting=Drafting(8))
    request = text.submit(engine)
    run(engine)
    held(text, request)


def memory_limit() -> None:
    """Slots that the machine has no memory for are refused before anything is allocated."""
    sizes = 60, 4, "int8"
    needed, host = memory.slot_bytes(model(), *sizes), memory.host_bytes
    cells = 60 * (2 * CONFIG.head_dim + 2 * 2 * CONFIG.head_dim // 64)
    index = 16 * 4 * (CONFIG.indexer_head_dim + model().geometry.n_rot)
    if not cells + index <= needed <= 2 * (cells + index):
        raise FoundError(f"a slot of 60 cells: {needed} bytes, must be at least {cells + index}")
    memory.host_bytes = lambda: 3 * needed  # type: ignore[assignment]
    try:
        Engine(model(), 3, 60)
        refused("an engine of four slots", lambda: Engine(model(), 4, 60), "slots = 4")
        refused("a slot", lambda: Slot(model(), 240), "capacity = 240")
    finally:
        memory.host_bytes = host


def ring() -> None:
    """The draft layer's pages: every cell that a draft may read has a place of its own, and keeps it."""
    cells = DraftCells(model().draft_layer, 700, 4, "int8", lambda x: x)
    places: dict[int, tuple[int, int]] = {}
    for end in (1, 30, DRAFT_ROWS, 300, 301, 460, 699, 700):
        cells.ensure_pages(end)
        first = max(0, end - cells.retained_cells)
        page, offset = cells.state.kv.locate(np.arange(first, end))
        found = list(zip(page.tolist(), offset.tolist(), strict=True))
        if min(page) < 0 or len(set(found)) != len(found):
            raise FoundError(f"cells {first} to {end - 1}: not every cell has a place of its own")
        for cell, place in zip(range(first, end), found, strict=True):
            same(f"place of cell {cell}", places.setdefault(cell, place), place)
    cells.n, cells.incomplete = 5, True
    cells.reset(7)
    found_state = (cells.n, cells.incomplete, cells.window, cells.last_output)
    same("cells after a reset", (0, False, 7, None), found_state)
    same("pages after a reset", list(range(cells.ring_pages)), cells.state.kv.table[: cells.ring_pages].tolist())


CHECKS: dict[str, Check] = {each.__name__: each for each in (slots, identities, admission, memory_limit, ring)}
"""Name -> check of slots."""
