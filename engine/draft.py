"""Drafters: they propose the tokens that a window verifies.

Whatever a drafter proposes, the text is the model's: drafts change its speed, not its tokens or their distribution. An
exception in a drafter costs the drafts of that step; the engine counts it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from .draws import sampling
from .draws.sampling import Distribution
from .request import MAX_ROWS, Request
from .runner import Runner
from .slots.draft_cache import DRAFT_ROWS, DraftCells
from .slots.slot import Slot, draft_cells


class CommittedRows(NamedTuple):
    """Rows that have become part of a slot's sequence.

    start     position of the first row
    streams   the model's final streams [rows, hc_count, hidden] float32, on the backend
    next_ids  [rows], the token after each row
    """

    request: Request
    slot: Slot
    start: int
    streams: Any
    next_ids: Sequence[int]

    @property
    def cells(self) -> DraftCells:
        """The draft layer's cells of the slot."""
        return draft_cells(self.slot)


class DraftRequest(NamedTuple):
    """A request for at most ``max_drafts`` drafts after ``request.sequence``, whose last token has not been run yet."""

    request: Request
    slot: Slot
    max_drafts: int


@dataclass
class Proposal:
    """Proposed ``tokens``, and for each the distribution it was drawn from: (ids, masses), or None when the token was
    chosen without a draw."""

    tokens: list[int] = field(default_factory=list)
    distributions: list[Distribution | None] = field(default_factory=list)

    def add(self, token: int, distribution: Distribution | None = None) -> None:
        """Append one draft."""
        self.tokens.append(token)
        self.distributions.append(distribution)


class Drafter(Protocol):
    """The methods that an engine calls on its drafter."""

    def on_commit(self, committed: list[CommittedRows]) -> None:
        """Take note of rows that have just become part of their sequences."""

    def propose(self, requests: list[DraftRequest]) -> list[Proposal]:
        """A :class:`Proposal` for each request, of at most ``max_drafts`` tokens."""
        ...


class LayerDrafter:
    """Drafts with the model's own draft layer; every call of the layer serves all slots together."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    def on_commit(self, committed: list[CommittedRows]) -> None:
        """Append the cells of committed rows, and keep the layer's output at the last of each slot's rows."""
        remaining = [self._reachable(rows) for rows in committed if not rows.cells.incomplete]
        while remaining:
            chunks = [
                rows._replace(streams=rows.streams[:DRAFT_ROWS], next_ids=rows.next_ids[:DRAFT_ROWS])
                for rows in remaining
            ]
            call_isolated(chunks, self._append, mark_incomplete)
            remaining = [
                rows._replace(
                    start=rows.start + DRAFT_ROWS,
                    streams=rows.streams[DRAFT_ROWS:],
                    next_ids=rows.next_ids[DRAFT_ROWS:],
                )
                for rows in remaining
                if len(rows.next_ids) > DRAFT_ROWS and not rows.cells.incomplete
            ]

    @staticmethod
    def _reachable(rows: CommittedRows) -> CommittedRows:
        """``rows`` without those that lie a whole window before the prompt's end: no draft attends to their cells."""
        skip = max(0, len(rows.request.ids) - rows.cells.window - rows.start)
        skip = min(skip, len(rows.next_ids) - 1)
        return rows._replace(start=rows.start + skip, streams=rows.streams[skip:], next_ids=rows.next_ids[skip:])

    def _append(self, chunks: list[CommittedRows]) -> None:
        counts = [len(rows.next_ids) for rows in chunks]
        streams = np.concatenate([rows.streams for rows in chunks]) if len(chunks) > 1 else chunks[0].streams
        next_ids = np.concatenate([np.asarray(rows.next_ids, np.int64) for rows in chunks])
        slots, starts = [rows.slot for rows in chunks], [rows.start for rows in chunks]
        output = self.runner.draft(streams, next_ids, starts, counts, slots)
        last = (np.cumsum(counts) - 1).tolist()
        if sum(counts) <= MAX_ROWS:
            # A graph runner has the logits of so few rows already.
            logits = self.runner.logits(output.x)[last]
        else:
            logits = self.runner.logits(np.concatenate([output.x[index : index + 1] for index in last]))
        for rows, row_logits, index in zip(chunks, logits, last, strict=True):
            rows.cells.n = rows.start + len(rows.next_ids)
            rows.cells.last_output = row_logits, output.streams[index : index + 1].copy()

    def propose(self, requests: list[DraftRequest]) -> list[Proposal]:
        """A chain of drafts for every slot. Each step takes the layer's own streams and its last draft as input."""
        chains = [DraftChain(*request) for request in requests]
        while growing := [chain for chain in chains if chain.has_next()]:
            for chain in growing:
                chain.extend()
            unfinished = [chain for chain in growing if chain.has_next()]
            if unfinished:
                call_isolated(unfinished, self._step, DraftChain.stop)
        return [chain.proposal for chain in chains]

    def _step(self, chains: list["DraftChain"]) -> None:
        """Run the layer on the last draft of each chain."""
        last_streams = [chain.streams for chain in chains]
        streams = np.concatenate(last_streams) if len(last_streams) > 1 else last_streams[0]
        tokens = np.array([chain.proposal.tokens[-1] for chain in chains], np.int64)
        # Draft j (from 0) is at position n + 1 + j; it is paired with the streams of the position before it.
        starts = [chain.cells.n + len(chain.proposal.tokens) - 1 for chain in chains]
        output = self.runner.draft(streams, tokens, starts, [1] * len(chains), [chain.slot for chain in chains])
        for index, (chain, logits) in enumerate(zip(chains, self.runner.logits(output.x), strict=True)):
            chain.logits, chain.streams = logits, output.streams[index : index + 1]


class DraftChain:
    """The drafts of one slot while they grow.

    ``logits`` [vocab] float32 on the host and ``streams`` [1, hc_count, hidden] are the layer's latest output.
    """

    def __init__(self, request: Request, slot: Slot, max_drafts: int) -> None:
        self.request, self.slot, self.proposal = request, slot, Proposal()
        self.cells = draft_cells(slot)
        self.logits: Any = None
        self.streams: Any = None
        self.max_drafts = 0
        if self.cells.last_output is not None and not self.cells.incomplete:
            self.logits, self.streams = self.cells.last_output
            self.max_drafts = max_drafts

    def has_next(self) -> bool:
        """Whether another draft follows."""
        return len(self.proposal.tokens) < self.max_drafts

    def extend(self) -> None:
        """Draft one token from the last output. The chain ends after an improbable token, and when the draw fails."""
        try:
            token, distribution, probable = sampling.propose(self.request, self.logits, self.proposal.tokens)
        except Exception as error:
            self.stop(error)
            return
        self.proposal.add(token, distribution)
        if not probable:
            self.max_drafts = 0

    def stop(self, error: Exception) -> None:
        """End the chain because of ``error``. Its drafts so far are proposed; their cells will be overwritten."""
        record_failure(self.request, error)
        self.max_drafts = 0


Item = TypeVar("Item")


def call_isolated(
    items: list[Item], call: Callable[[list[Item]], None], on_failure: Callable[[Item, Exception], None]
) -> None:
    """Call ``call(items)``. If it raises, call it for each item alone, so that one slot's failure does not affect the
    others. ``on_failure(item, error)`` is called for each item that fails alone."""
    try:
        call(items)
    except Exception as error:
        if len(items) == 1:
            on_failure(items[0], error)
            return
        for item in items:
            call_isolated([item], call, on_failure)


def mark_incomplete(rows: CommittedRows, error: Exception) -> None:
    """Record that the cells of ``rows`` are missing: nothing is drafted in this slot until it is reset."""
    mark_incomplete_request(rows.request, rows.slot, error)


def mark_incomplete_request(request: Request, slot: Slot, error: Exception) -> None:
    """As :func:`mark_incomplete`, of a request's slot."""
    cells = draft_cells(slot)
    cells.incomplete, cells.last_output = True, None
    record_failure(request, error)


def record_failure(request: Request, error: Exception) -> None:
    """Count an error of the drafter, and keep it in ``request.draft_error``."""
    request.statistics.draft_failures += 1
    request.draft_error = error
