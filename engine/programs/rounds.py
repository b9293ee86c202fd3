"""Captured rounds in the engine: which windows are rounds on the device, and their results as the engine takes them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from qsa.kernels.cpu.sampler import check_tokens
from qsa.reference.sampler import Sampling

from ..draft import Drafter, LayerDrafter, Proposal, mark_incomplete_request, record_failure
from ..draws import sampling
from ..draws.device_sampling import option_row
from ..request import MAX_ROWS, Request
from ..runner import Runner
from ..slots.slot import Slot
from ..window import WindowResult
from .graph_runner import GraphRunner
from .round_graph import RoundGraph
from .round_layout import MAX_SLOTS, RoundSlot

MOST_TAKEN = 256
"""Options that are remembered as taken by the sampler."""


@dataclass
class RoundResult(WindowResult):
    """The result of one slot's rows in a captured round. What :meth:`commit` keeps is carried out by
    :meth:`Round.finish`, for all slots together. ``kept``: number of rows; None: all."""

    kept: int | None = None

    def commit(self, keep: int) -> None:
        """As :meth:`WindowResult.commit`, later."""
        count = self.rows.stop - self.rows.start
        if not 1 <= keep <= count:
            raise ValueError(f"keep = {keep}: the window has {count} rows of this slot")
        self.kept = keep


@dataclass
class Round:
    """A round that has run: a Proposal and a result for every request."""

    graph: RoundGraph
    requests: list[Request]
    proposals: list[Proposal]
    results: Sequence[RoundResult | Exception]

    def finish(self) -> None:
        """Roll back the rows that were not kept, and give the kept ones to the draft layer. Does not wait for the
        device. An error of the draft layer costs the slots' drafts and nothing else."""
        kept = []
        if not all(isinstance(result, RoundResult) for result in self.results):
            return
        for request, result in zip(self.requests, self.results, strict=True):
            assert isinstance(result, RoundResult)
            # Of a request that failed nothing is read again: its slot is reset.
            count = result.rows.stop - result.rows.start
            keep = count if result.kept is None else result.kept
            kept.append([0] * count if result.kept is None else request.sequence[-keep:])
        try:
            self.graph.finish(kept)
        except Exception as error:
            for request, result in zip(self.requests, self.results, strict=True):
                if request.drafts and isinstance(result, RoundResult):
                    mark_incomplete_request(request, result.slot, error)


@lru_cache(256)
def _most_probable(options: Sampling) -> Sampling:
    """``options`` without a draw: drafts that are compared with the model's own tokens match more often so."""
    return replace(options, temperature=0.0)


def _drafts_on_device(request: Request, slot: Slot) -> bool:
    """Whether the device can draft for the request: the number of drafts is known, and the layer has all cells."""
    cells, drafting = slot.draft, request.drafting
    if cells is None or drafting is None or drafting.min_p:
        return False
    return not cells.incomplete and cells.last_output is not None and cells.n == slot.n


_taken: set[Sampling] = set()


def _fits(sampler: Any, options: Sampling) -> bool:
    """Whether the device's sampler takes ``options``; it counts its refusals. Asked once of those that it takes."""
    if options not in _taken:
        if not sampler.takes(option_row(options)):
            return False
        if len(_taken) >= MOST_TAKEN:
            _taken.clear()
        _taken.add(options)
    return True


def run_round(
    runner: Runner, drafter: Drafter | None, requests: Sequence[Request], slots: Sequence[Slot], rows: Sequence[int]
) -> tuple[Round | None, Exception | None]:
    """A round over the slots of ``requests``, with at most ``rows`` rows of each; None where its drafts must be drawn
    one by one on the host, and the error of a round that failed and left the states as they were.

    The device drafts for all or for none: with the model's draft layer, of a number that is known beforehand (without
    ``min_p``), and draws from lists that it holds. A window without drafts is a round too.
    """
    if not isinstance(runner, GraphRunner) or not runner.captures_rounds or len(requests) > MAX_SLOTS:
        return None, None
    own = type(drafter) is LayerDrafter and drafter.runner is runner
    if not own and any(request.drafts for request in requests):
        return None, None
    parts = []
    for request, slot, count in zip(requests, slots, rows, strict=True):
        if request.drafts and not _drafts_on_device(request, slot):
            return None, None
        rejection = request.acceptance == "rejection"
        options = request.sampling if rejection else _most_probable(request.sampling)
        draw = sampling.draw_parameters(request, [0] * (count - 1))
        most = request.drafting.rows if request.drafting is not None else 1
        sizes = request.sequence[-1], count, max(count, min(most, MAX_ROWS))
        parts.append(RoundSlot(slot, *sizes, draw, options, request.drafts, rejection))
    if not all(_fits(runner.sampler, part.draw.options) for part in parts):
        return None, None
    graph = runner.round(parts)
    try:
        tokens = graph.run(parts)
    except Exception as error:
        if not graph.can_roll_back:
            return Round(graph, list(requests), [Proposal()], [error]), None
        return None, error
    proposals, results = [], []
    for request, part, span, found in zip(requests, parts, graph.spans, tokens, strict=True):
        drafts = found.drafts.tolist()
        if drafts and min(drafts) < 0:
            # As on the host, the drafts end before the first that could not be drawn.
            drafts = drafts[: next(index for index, token in enumerate(drafts) if token < 0)]
            try:
                check_tokens(found.drafts[len(drafts) : len(drafts) + 1])
            except ValueError as error:
                record_failure(request, error)
        count = len(drafts) + 1
        proposals.append(Proposal(drafts, [None] * len(drafts)))
        judged = None if found.accepted is None else found.accepted[:count]
        kept = slice(span.start, span.start + count)
        streams = graph.program.result[0].streams[kept]
        given = found.tokens[:count]
        results.append(RoundResult(runner, part.slot, None, streams, kept, [], None, given, judged=judged))
    return Round(graph, list(requests), proposals, results), None
