"""A whole model on two backends: the same calls must give the same bytes."""

from dataclasses import fields
from pathlib import Path

import numpy as np

from qsa.engine.programs.graph_runner import make_runner
from qsa.engine.slots.slot import Slot
from qsa.engine.window import run_window
from qsa.reference.model.config import Config
from qsa.reference.model.presets import TINY_CONFIG


def _config(**changes):
    unchanged = {field.name: getattr(TINY_CONFIG, field.name) for field in fields(TINY_CONFIG)}
    return Config(**unchanged | changes)


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
"""Four layers with every part, at the least widths that the CUDA kernels take. A row selects 2 blocks and the tail."""

GOLDEN_CONFIG = Config.from_file(Path(__file__).parents[2] / "golden" / "model" / "config.json")
"""The golden model's configuration; a row selects fewer cells than it has from 260 cells on."""


class Scenario:
    """Calls of one ``model`` over several slots. ``results`` gathers what they give: (name, NumPy array or digests).

    The token ids come from ``seed``: two models of one vocabulary get the same ids.
    """

    def __init__(self, model, slots, capacity, seed=1, runner=None):
        self.model, self.runner = model, make_runner(model) if runner is None else runner
        self.slots = [Slot(model, capacity) for _ in range(slots)]
        self.rng, self.results = np.random.default_rng(seed), []
        self.committed = [None] * slots

    def ids(self, count):
        """Random token ids, int64 [count]."""
        return self.rng.integers(0, self.model.config.vocab_size, count)

    def prompt(self, index, *chunks):
        """Run a prompt in the slot ``index``, in chunks of ``chunks`` tokens."""
        for chunk in chunks:
            output = self.runner.run([self.ids(chunk)], [self.slots[index]])
        self.results.append((f"prompt of slot {index}", self.runner.logits(output.x)))

    def window(self, counts, keeps=None):
        """Run a window of ``counts`` rows a slot (0: none) and commit ``keeps`` rows a slot; all when None."""
        live = [index for index, count in enumerate(counts) if count]
        parts = run_window(self.runner, [self.ids(counts[index]).tolist() for index in live], self._slots(live))
        for index, part in zip(live, parts, strict=True):
            if isinstance(part, Exception):
                raise part
            keep = counts[index] if keeps is None else keeps[index]
            self.results.append((f"window {counts}, slot {index}", part.logits.copy()))
            self.committed[index] = self.runner.host(part.streams[:keep]), keep
            part.commit(keep)

    def draft(self, *indices, steps=2):
        """Run the draft layer over the committed rows of slots, then ``steps`` times over its own streams."""
        slots = self._slots(indices)
        committed = [self.committed[index] for index in indices]
        counts = [count for _, count in committed]
        starts = [slot.n - count for slot, count in zip(slots, counts, strict=True)]
        streams = self.model.to_device(np.concatenate([streams for streams, _ in committed]))
        output = self.runner.draft(streams, self.ids(sum(counts)), starts, counts, slots)
        self.results.append((f"draft {counts}", self.runner.logits(output.x)))
        last, starts = np.cumsum(counts) - 1, [slot.n - 1 for slot in slots]
        streams = self.model.to_device(self.runner.host(output.streams)[last])
        for step in range(steps):
            starts = [start + 1 for start in starts]
            output = self.runner.draft(streams, self.ids(len(slots)), starts, [1] * len(slots), slots)
            self.results.append((f"draft step {step}", self.runner.logits(output.x)))
            streams = output.streams

    def digests(self):
        """Digests of all slots, over every byte of their states."""
        self.results.append(("digests", [slot.digest(draft=False) for slot in self.slots]))

    def _slots(self, indices):
        return [self.slots[index] for index in indices]


def check_same_results(scenario, expected):
    """Two scenarios have the same results, byte by byte."""
    assert len(scenario.results) == len(expected.results) > 0
    for (name, got), (expected_name, want) in zip(scenario.results, expected.results, strict=True):
        assert name == expected_name
        if isinstance(want, list):
            assert got == want, name
        else:
            assert got.dtype == want.dtype and got.shape == want.shape, name
            bad = np.flatnonzero((got.view(np.uint32) != want.view(np.uint32)).any(axis=-1))
            assert not bad.size, f"{name}: rows {bad.tolist()} differ"
