"""Where everything of a round lies: which slots draft in each step, and the arrays that the host gives.

A round's window has ``rows`` rows of every slot, those of a slot one after the other. Draft j of a slot is drawn at the
position of the slot's row j, which judges it, and is run by row j + 1. The draft layer runs on it at row j's position.
"""

import operator
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from qsa.model import State, qsa
from qsa.reference.geometry import Geometry
from qsa.reference.sampler import GREEDY, Sampling

from ..draws.device_sampling import DrawParameters, draw_arrays, option_row
from ..slots.slot import Slot

NO_DRAFT = -1
NO_STEP = np.array([-1, 0, 0, 0], np.int32)
"""Step record of a row that is not in use."""

NO_POSITION = -1
NO_PLACE = np.iinfo(np.int32).max
"""Position of a row that is not drawn, and a place beyond every history."""

_NO_DRAW = DrawParameters(GREEDY, [], 0, 0, 0)
MAX_SLOTS = 8
"""Slots of a round: sequences of one launch of the recurrences."""


class RoundSlot(NamedTuple):
    """One slot's part of a round.

    last           the token that has been emitted and not been run yet
    rows           rows of the window: the last token and rows - 1 drafts; 0: the slot takes no part
    most           rows that a round of this request has at most: those of its programs
    draw           draw parameters of the rows; their history ends with rows - 1 places for the drafts
    draft_options  the Sampling with which the drafts are drawn
    drafts         whether the draft layer has cells of the slot, and is to have those of the kept rows
    rejection      whether drafts are judged by rejection sampling; otherwise the rows draw their own tokens
    """

    slot: Slot
    last: int
    rows: int
    most: int
    draw: DrawParameters
    draft_options: Sampling
    drafts: bool
    rejection: bool


def chosen_rows(x: Any, indices: Sequence[int]) -> Any:
    """Rows ``indices``, ascending, of ``x``: a view where they follow one another, else a copy, run by run."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([index, index + 1])
    if len(runs) == 1:
        return x[runs[0][0] : runs[0][1]]
    out, at = np.empty_like(x, shape=(len(indices), *x.shape[1:])), 0
    for begin, end in runs:
        out[at : at + end - begin] = x[begin:end]
        at += end - begin
    return out


class RoundLayout:
    """The layout of a round over slots with at most ``counts`` rows each.

    A round may use fewer rows of a slot, or none: the others have position -1, which the kernels leave out, and lie
    outside the bounds within which the recurrences advance.

    drafting  indices of the slots whose rows become cells of the draft layer
    judged    for every slot whether its drafts are judged by rejection sampling

    ==============  ================================================================================================
    ``rows``        rows of the window; ``spans``: slice of every slot's
    ``slot_of``     int32 [rows], the slot of each row; ``offsets``: its place among the slot's rows
    ``steps``       for every draft step the drafting slots that draft in it, as indices into ``drafting``
    ``chain``       for every draft, in the order in which they are drawn, the row at whose position it is drawn
    ``runs``        for every row of the draft layer on a draft, in their order, the row that has its position
    ``places``      for every draft the row that runs it; ``lines``: int32, its slot
    ``which``       int32 [rows], the place in ``chain`` of the draft that a row judges; -1: it judges none
    ``dense``       the drafting slots' rows, in order, and ``dense_spans`` the slices of each slot's among them
    ==============  ================================================================================================
    """

    def __init__(self, counts: Sequence[int], drafting: Sequence[int], judged: Sequence[bool]) -> None:
        self.counts, self.drafting = list(counts), list(drafting)
        ends = np.cumsum([0, *counts]).tolist()
        self.rows, self.begins = ends[-1], np.array(ends[:-1])
        self.spans = [slice(begin, end) for begin, end in pairwise(ends)]
        self.slot_of = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        self.offsets = np.concatenate([np.arange(count, dtype=np.int32) for count in counts])
        own = [counts[index] for index in drafting]
        self.steps = [[k for k, count in enumerate(own) if count - 1 > j] for j in range(max(own, default=1) - 1)]
        self.chain = [ends[drafting[k]] + j for j, active in enumerate(self.steps) for k in active]
        # The layer runs on the draft before, which lies a row behind the draw's position.
        self.runs = [row - 1 for row in self.chain[len(self.steps[0]) :]] if self.steps else []
        self.places = [row + 1 for row in self.chain]
        self.lines = self.slot_of[self.chain]
        self.which = np.full(self.rows, NO_DRAFT, np.int32)
        for place, row in enumerate(self.chain):
            if judged[self.slot_of[row]]:
                self.which[row] = place
        self.dense = [row for index in drafting for row in range(ends[index], ends[index + 1])]
        dense_ends = np.cumsum([0, *own]).tolist()
        self.dense_spans = [slice(begin, end) for begin, end in pairwise(dense_ends)]
        self.dense_begins = np.array(dense_ends[:-1], np.int32)
        self.dense_slots = np.repeat(np.arange(len(own), dtype=np.int32), own)
        self._ready: tuple[tuple[tuple[int, ...], tuple[int, ...]], dict[str, np.ndarray]] | None = None
        self._options: list[Sampling] = []
        self._seeds: list[int] = []
        self._used: list[int] = []

    def absent(self, index: int, slot: Slot, drafts: bool, rejection: bool) -> RoundSlot:
        """The part of a slot that takes none."""
        return RoundSlot(slot, 0, 0, self.counts[index], _NO_DRAW, GREEDY, drafts, rejection)

    def unused(self, used: Sequence[int]) -> np.ndarray | None:
        """bool [rows], the rows beyond the first ``used`` of every slot; None where all are used."""
        return None if list(used) == self.counts else self.offsets >= np.asarray(used)[self.slot_of]

    def bounds(self, used: Sequence[int]) -> np.ndarray:
        """int64 [16], first and last row + 1 of the first ``used`` rows of every slot: a backend's ``RowBounds``."""
        bounds = np.zeros(2 * MAX_SLOTS, np.int64)
        bounds[: 2 * len(used)] = np.stack([self.begins, self.begins + used], 1).reshape(-1)
        return bounds

    def arrays(
        self,
        parts: Sequence[RoundSlot],
        states: Sequence[State],
        windows: Sequence[int],
        hashed: Sequence[int],
        geometry: Geometry,
        rule: str,
        history: int = 0,
    ) -> dict[str, np.ndarray]:
        """The inputs of a round on the host: argument name -> array. What is as in the round before is left out.

        history  places of the sampler's history at least
        windows  cells that the draft layer attends to at most, of every drafting slot
        hashed   indices of the layers with PLE
        """
        ids = np.zeros(self.rows, np.int64)
        ids[self.begins] = [part.last for part in parts]
        at = tuple(state.n for state in states), tuple(windows)
        if self._ready is None or self._ready[0] != at:
            self.prepare(*at, geometry, rule)
        assert self._ready is not None, "it was prepared"
        used = [part.rows for part in parts]
        unused = self.unused(used)
        ready = self._ready[1] if unused is None else self._without(unused, self._ready[1])
        arrays = {"ids": ids, **ready, **self._draws(parts, used, unused, history)}
        if used != self._used:
            arrays["bounds"], self._used = self.bounds(used), used
        for index in hashed:
            arrays[f"before.{index}"] = np.stack([_tokens_before(state, index) for state in states])
        return arrays

    def _without(self, unused: np.ndarray, ready: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """``ready`` with empty step records in the ``unused`` rows."""
        found = dict(ready)
        for name, rows in (("steps", slice(None)), ("dense", slice(None)), ("run.steps", self.runs)):
            if name in found:
                found[name] = np.where(unused[rows, None], NO_STEP, found[name])
        return found

    def prepare(self, starts: tuple[int, ...], windows: tuple[int, ...], geometry: Geometry, rule: str) -> None:
        """Make the arrays that depend on the positions alone, for the next call of :meth:`arrays`. ``starts``: first
        position of every slot."""
        rows = qsa.rows_of(starts, self.counts, geometry, rule)
        arrays = {"steps": rows.steps, "table": rows.table}
        if self.drafting:
            dense = rows.steps.copy()
            for index, window in zip(self.drafting, windows, strict=True):
                span = self.spans[index]
                dense[span, 3] = np.minimum(dense[span, 1], window)
            arrays["dense"] = dense
            if self.runs:
                arrays |= {"run.steps": dense[self.runs], "run.table": rows.table[self.runs]}
        self._ready = (starts, windows), arrays

    def _draws(
        self, parts: Sequence[RoundSlot], used: list[int], unused: np.ndarray | None, history: int
    ) -> dict[str, np.ndarray]:
        """The sampler's arrays, of the window's rows and of the drafts. Of requests without penalties positions alone
        change from round to round."""
        options = [chosen for part in parts for chosen in (part.draw.options, part.draft_options)]
        plain = not any(part.draw.length for part in parts)
        held = self._options
        same = len(held) == len(options) and all(map(operator.is_, held, options)) and used == self._used
        positions = np.array([part.draw.position for part in parts])[self.slot_of] + self.offsets
        chained = positions[self.chain] if self.chain else None
        if unused is not None:
            positions[unused] = NO_POSITION
            if chained is not None:
                # A draft is wanted where the next row, which runs it, is used.
                chained[unused[self.places]] = NO_POSITION
        arrays = {"positions": positions} | ({} if chained is None else {"chain.positions": chained})
        if same and self._seeds == [part.draw.seed for part in parts]:
            return arrays
        self._options, self._seeds = options if plain else [], [part.draw.seed for part in parts]
        draws = draw_arrays([part.draw for part in parts], self.counts, history)
        arrays |= {name: draws[name] for name in ("history", "options", "lengths", "seeds")}
        arrays["drafts"] = np.full(self.rows, NO_DRAFT, np.int32)
        if chained is not None:
            chosen = np.concatenate([option_row(part.draft_options) for part in parts])
            ends = np.where(chained < 0, NO_PLACE, draws["lengths"][self.chain])
            places = np.stack([self.places, self.lines, ends], 1)
            arrays |= {"chain.places": places.astype(np.int32), "chain.options": chosen[self.lines]}
            arrays |= {f"chain.{name}": draws[name][self.chain] for name in ("lengths", "seeds")}
        return arrays


def _tokens_before(state: State, layer: int) -> np.ndarray:
    """The last ids that the PLE of a layer has seen."""
    ple_state = state.ple[layer]
    assert ple_state is not None, "the layer has a PLE"
    return ple_state.tokens
