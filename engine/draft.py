"""Drafters: what proposes the tokens that a window verifies.

A drafter has two methods:

- ``catch_up(kept)``: a list of :class:`Kept`, the rows of each slot that have just become part of its sequence;
- ``propose(asked)``: a list of :class:`Asked`; returns a :class:`Proposal` for each, of ``count`` tokens at most.

Whatever it proposes, the text is the model's: a drafter is worth its acceptance and nothing else. An exception from it
costs the drafts of that step; the engine counts it.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from . import sampling
from .kv_state import DRAFT_ROWS
from .request import MAX_ROWS, Request
from .slot import Slot


class Kept(NamedTuple):
    """Rows that a slot keeps: cells from ``start`` on, with the model's final ``streams`` [rows, hc_count, hidden] and
    the token after each row, ``next_ids`` [rows]."""

    request: Request
    slot: Slot
    start: int
    streams: object
    next_ids: list


class Asked(NamedTuple):
    """At most ``count`` drafts are wanted to follow ``request.sequence``, whose last token is not run yet."""

    request: Request
    slot: Slot
    count: int


@dataclass
class Proposal:
    """Drafted ``tokens``, and for each what it was drawn from: (ids, masses), or None for a certain one."""

    tokens: list = field(default_factory=list)
    lists: list = field(default_factory=list)

    def add(self, token, listed=None):
        """Append one draft."""
        self.tokens.append(token)
        self.lists.append(listed)


class LayerDrafter:
    """Drafts of the model's own draft layer, all slots together in every call of it."""

    def __init__(self, runner):
        self.runner = runner

    def catch_up(self, kept):
        """Append the cells of kept rows, and keep what the layer says at the last of them."""
        live = [self._reachable(one) for one in kept if not one.slot.draft.lost]
        while live:
            pieces = [
                one._replace(streams=one.streams[:DRAFT_ROWS], next_ids=one.next_ids[:DRAFT_ROWS]) for one in live
            ]
            each(pieces, self._append, lose)
            live = [
                one._replace(
                    start=one.start + DRAFT_ROWS,
                    streams=one.streams[DRAFT_ROWS:],
                    next_ids=one.next_ids[DRAFT_ROWS:],
                )
                for one in live
                if len(one.next_ids) > DRAFT_ROWS and not one.slot.draft.lost
            ]

    @staticmethod
    def _reachable(kept):
        """``kept`` without the cells of a prompt that lie a whole window before its end: no draft looks at them."""
        skip = max(0, len(kept.request.ids) - kept.slot.draft.window - kept.start)
        skip = min(skip, len(kept.next_ids) - 1)
        return kept._replace(start=kept.start + skip, streams=kept.streams[skip:], next_ids=kept.next_ids[skip:])

    def _append(self, pieces):
        counts = [len(one.next_ids) for one in pieces]
        streams = np.concatenate([one.streams for one in pieces]) if len(pieces) > 1 else pieces[0].streams
        next_ids = np.concatenate([np.asarray(one.next_ids, np.int64) for one in pieces])
        slots, starts = [one.slot for one in pieces], [one.start for one in pieces]
        output = self.runner.draft(streams, next_ids, starts, counts, slots)
        last = (np.cumsum(counts) - 1).tolist()
        if sum(counts) <= MAX_ROWS:
            # A runner may have the logits of so few rows already.
            logits = self.runner.logits(output.x)[last]
        else:
            logits = self.runner.logits(np.concatenate([output.x[place : place + 1] for place in last]))
        for slot, start, count, row, place in zip(slots, starts, counts, logits, last, strict=True):
            slot.draft.n = start + count
            slot.draft.tip = row, output.streams[place : place + 1].copy()

    def propose(self, asked):
        """A chain of drafts for every slot: each step feeds on the layer's own streams and its last draft."""
        chains = [Chain(*one) for one in asked]
        while live := [one for one in chains if one.wants_more()]:
            for one in live:
                one.extend()
            going = [one for one in live if one.wants_more()]
            if going:
                each(going, self._step, Chain.end)
        return [one.proposal for one in chains]

    def _step(self, chains):
        streams = [one.tip[1] for one in chains]
        streams = np.concatenate(streams) if len(streams) > 1 else streams[0]
        tokens = np.array([one.proposal.tokens[-1] for one in chains], np.int64)
        # Draft j (from 0) stands at position n + 1 + j; the streams it is paired with stand one before it.
        starts = [one.slot.draft.n + len(one.proposal.tokens) - 1 for one in chains]
        output = self.runner.draft(streams, tokens, starts, [1] * len(chains), [one.slot for one in chains])
        for one, row, place in zip(chains, self.runner.logits(output.x), range(len(chains)), strict=True):
            one.tip = row, output.streams[place : place + 1]


class Chain:
    """The drafts of one slot as they grow. ``tip``: what the layer said last, (logits [vocab], streams)."""

    def __init__(self, request, slot, count):
        self.request, self.slot, self.proposal = request, slot, Proposal()
        self.tip = slot.draft.tip
        self.count = 0 if slot.draft.lost or self.tip is None else count

    def wants_more(self):
        """Whether a further draft is to follow."""
        return len(self.proposal.tokens) < self.count

    def extend(self):
        """Draft one token from the tip; an improbable one is the last, and where none can be drawn the chain ends."""
        try:
            token, listed, likely = sampling.propose(self.request, self.tip[0], self.proposal.tokens)
        except Exception as error:
            self.end(error)
            return
        self.proposal.add(token, listed)
        if not likely:
            self.count = 0

    def end(self, error):
        """End the chain because of ``error``: the drafts so far stand, and the cells they wrote are written again."""
        note_failure(self.request, error)
        self.count = 0


def each(rows, call, failed):
    """Do ``call`` with all ``rows``, and when that raises with each alone, so that one slot's failure is not another's;
    ``failed(row, error)`` hears of those that fail alone."""
    try:
        call(rows)
    except Exception as error:
        if len(rows) == 1:
            failed(rows[0], error)
            return
        for one in rows:
            each([one], call, failed)


def lose(kept, error):
    """Cells are missing from here on: nothing is drafted in this slot until it starts again."""
    kept.slot.draft.lost, kept.slot.draft.tip = True, None
    note_failure(kept.request, error)


def note_failure(request, error):
    """Count an error of the drafter; ``request.draft_error`` keeps the last one."""
    request.statistics.draft_failures += 1
    request.draft_error = error
