"""The operations of a window of several slots on a backend: once for the window, or once for each of its rows."""

from types import SimpleNamespace

import numpy as np

from qsa.golden.families import verify_batch as family
from qsa.golden.families.block_scores import seen
from qsa.kernels.ops import MAX_SPLITS
from qsa.reference.geometry import REAL

CAPACITY_BLOCKS = 200_000 // REAL.ratio
"""Blocks behind which scores end, that selection sees: a capacity of 200,000 cells, beyond the register form."""


class Operations:
    """The operations of a window on a backend: in the batch form, or one call for each row alone."""

    def __init__(self, backend, w):
        self.backend, self.w = backend, w
        wide = np.full((len(w.scores), CAPACITY_BLOCKS + 1), np.inf, np.float32)
        self.wide = w.scores if w.scores.shape[1] > CAPACITY_BLOCKS else wide
        self.wide[:, : w.scores.shape[1]] = w.scores

    def scores(self, schedule=None, alone=False):
        """[N, blocks]; one call per slot in the batch form."""
        w = self.w

        def one(q_idx, index, steps):
            return self.backend.block_scores(q_idx, index, steps, schedule=schedule)

        if not alone:
            return family.batch_scores(SimpleNamespace(block_scores=one), w.q_idx, w.indexes, w.steps, w.slots)
        out = np.full((len(w.q_idx), max(index.max_blocks for index in w.indexes)), -np.inf, np.float32)
        for row, slot in enumerate(w.slots):
            index = w.indexes[slot]
            out[row, : index.max_blocks] = seen(one(w.q_idx[[row]], index, w.steps[[row]]), w.steps[[row]])[0]
        return out

    def ids(self, schedule=None, alone=False):
        """[N, 2051]; one call in the batch form. The register form has no room for a capacity of 200,000 cells."""
        w, scores = self.w, self.w.scores if schedule == "registers" else self.wide
        rows = [[row] for row in range(len(scores))] if alone else [slice(None)]
        return np.concatenate(
            [self.backend.select(scores[row], w.steps[row], rule=w.rule, schedule=schedule) for row in rows]
        )

    def attention(self, schedule=None, alone=False):
        """[N, 24, 256]; one call over all slots' pools in the batch form."""
        w, keywords = self.w, {"schedule": schedule or "batch"}
        if schedule == "split":
            keywords["splits"] = MAX_SPLITS
        if not alone:
            return self.backend.attend(w.q, w.kvs, w.ids, w.steps, w.slots, **keywords)
        rows = ([row] for row in range(len(w.q)))
        return np.concatenate(
            [self.backend.attend(w.q[r], w.kvs[w.slots[r[0]]], w.ids[r], w.steps[r], **keywords) for r in rows]
        )
