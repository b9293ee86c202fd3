"""A whole model on two backends: the same story told to both must give the same bytes."""

from dataclasses import fields
from pathlib import Path

import numpy as np

from qsa.engine.graph_runner import make_runner
from qsa.engine.slot import Slot
from qsa.engine.window import run_window
from qsa.reference.model.config import Config
from qsa.reference.model.presets import TINY_CONFIG


def _config(**changes):
    kept = {field.name: getattr(TINY_CONFIG, field.name) for field in fields(TINY_CONFIG)}
    return Config(**kept | changes)


NARROW_CONFIG = _config(
    vocab_size=32,
    hidden_size=64,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=256,
    linear_num_key_heads=1,
    linear_num_value_heads=2,
    moe_intermediate_size=16,
    shared_expert_intermediate_size=16,
    num_experts=4,
    num_experts_per_tok=2,
    indexer_n_heads=4,
    indexer_head_dim=128,
    indexer_budget=8,
    hc_count=2,
    hc_lowrank=8,
    heads_per_ngram=2,
    ngram_vocab_size_base=20,
)
"""Four layers with every part, as narrow as the CUDA kernels take them; a row selects 2 blocks and the tail."""

GOLDEN_CONFIG = Config.from_file(Path(__file__).parents[2] / "golden" / "model" / "config.json")
"""The golden model's configuration; selection is at work from 260 cells on."""


class Story:
    """Calls over slots of one ``model``, whose answers on the host gather in ``said``: (name, array or digest).

    The ids come from ``seed``, so two models of one vocabulary are told the same.
    """

    def __init__(self, model, slots, capacity, seed=1, runner=None):
        self.model, self.runner = model, make_runner(model) if runner is None else runner
        self.slots = [Slot(model, capacity) for _ in range(slots)]
        self.rng, self.said = np.random.default_rng(seed), []
        self.tips = [None] * slots

    def ids(self, count):
        """Random ids, int64 [count]."""
        return self.rng.integers(0, self.model.config.vocab_size, count)

    def prompt(self, place, *chunks):
        """Read a prompt into the slot at ``place`` in chunks."""
        for chunk in chunks:
            output = self.runner.run([self.ids(chunk)], [self.slots[place]])
        self.said.append((f"prompt of slot {place}", self.runner.logits(output.x)))

    def window(self, counts, keeps=None):
        """A window of ``counts`` rows of the slots (0: none), of which ``keeps`` are kept; all of them when None."""
        live = [place for place, count in enumerate(counts) if count]
        parts = run_window(self.runner, [self.ids(counts[place]).tolist() for place in live], self._slots(live))
        for place, part in zip(live, parts, strict=True):
            if isinstance(part, Exception):
                raise part
            keep = counts[place] if keeps is None else keeps[place]
            self.said.append((f"window {counts}, slot {place}", part.logits.copy()))
            self.tips[place] = self.runner.host(part.streams[:keep]), keep
            part.commit(keep)

    def draft(self, *places, steps=2):
        """The draft layer over the kept rows of slots, then ``steps`` further steps on its own streams."""
        slots = self._slots(places)
        kept = [self.tips[place] for place in places]
        counts = [keep for _, keep in kept]
        starts = [slot.n - keep for slot, keep in zip(slots, counts, strict=True)]
        streams = self.model.to_device(np.concatenate([streams for streams, _ in kept]))
        output = self.runner.draft(streams, self.ids(sum(counts)), starts, counts, slots)
        self.said.append((f"draft {counts}", self.runner.logits(output.x)))
        last, starts = np.cumsum(counts) - 1, [slot.n - 1 for slot in slots]
        streams = self.model.to_device(self.runner.host(output.streams)[last])
        for step in range(steps):
            starts = [start + 1 for start in starts]
            output = self.runner.draft(streams, self.ids(len(slots)), starts, [1] * len(slots), slots)
            self.said.append((f"draft step {step}", self.runner.logits(output.x)))
            streams = output.streams

    def digests(self):
        """Digests of all slots: every byte of their states."""
        self.said.append(("digests", [slot.digest(draft=False) for slot in self.slots]))

    def _slots(self, places):
        return [self.slots[place] for place in places]


def same(one, other):
    """Two stories have said the same bytes."""
    assert len(one.said) == len(other.said) > 0
    for (name, got), (also, want) in zip(one.said, other.said, strict=True):
        assert name == also
        if isinstance(want, list):
            assert got == want, name
        else:
            assert got.dtype == want.dtype and got.shape == want.shape, name
            bad = np.flatnonzero((got.view(np.uint32) != want.view(np.uint32)).any(axis=-1))
            assert not bad.size, f"{name}: rows {bad.tolist()} differ"
