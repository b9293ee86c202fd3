"""Verify windows: rows of several slots run in one call of the model; each slot then keeps its accepted rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .draws.device_sampling import DrawParameters
from .runner import Runner
from .slots.slot import Slot


@dataclass
class WindowResult:
    """The result of one slot's rows in a window.

    logits    [rows, vocab] float32 on the host; None when the tokens of all slots were drawn on the device
    streams   [rows, hc_count, hidden] float32 on the backend
    rows      slice of the slot's rows among the window's rows
    journal   what :meth:`Runner.replay` needs to run the accepted rows again
    snapshot  the slot's state before the window; None when the window cannot be rolled back
    tokens    int32 [rows] drawn on the device, ids or error codes; None when they are to be drawn from ``logits``
    error     the error of a failed window after which these rows ran again, alone or without drafts; else None
    judged    bool [rows], whether each row's draft stands, where the device decided by rejection sampling and
              ``tokens`` are what the rows emit; else None
    """

    runner: Runner
    slot: Slot
    logits: np.ndarray | None
    streams: Any
    rows: slice
    journal: list
    snapshot: Any
    tokens: np.ndarray | None = None
    error: Exception | None = None
    judged: np.ndarray | None = None

    def commit(self, keep: int) -> None:
        """Keep the first ``keep`` rows (at least 1) and roll the others back.

        Recurrent memories and the indexer's tail are restored to their state before the window and advanced by the kept
        rows, from the journal. K/V and pooled keys of the other rows are overwritten by the rows that follow. Raises
        ValueError unless ``keep`` is from 1 to the number of rows.
        """
        count = self.rows.stop - self.rows.start
        if not 1 <= keep <= count:
            raise ValueError(f"keep = {keep}: the window has {count} rows of this slot")
        if keep < count:
            self.runner.restore(self.slot, self.snapshot)
            self.runner.replay(self.journal, slice(self.rows.start, self.rows.start + keep), self.slot)


def run_window(
    runner: Runner,
    ids: Sequence[Sequence[int] | np.ndarray],
    slots: Sequence[Slot],
    draws: Sequence[DrawParameters | None] | None = None,
) -> list[WindowResult | Exception]:
    """Run one window.

    ids    token ids of every slot's rows: its last token, then its drafts
    slots  the slots, one or more
    draws  for every slot the parameters with which its tokens are drawn on the device, or None to get its logits; by
           default None for all

    Returns for every slot a :class:`WindowResult`, or the exception that its first row raised. When a call of several
    slots fails, they are restored and run again one by one, which gives the same bytes. A slot that fails alone runs
    once more without its drafts, and its result then has one row: a draft must not end a text that can go on without
    it.
    """
    # A single row is never rejected, and no other slot can be affected by its failure.
    can_roll_back = len(slots) > 1 or len(ids[0]) > 1
    draws = [None] * len(slots) if draws is None else draws
    snapshots = [runner.snapshot(slot) if can_roll_back else None for slot in slots]
    journal: list = []
    try:
        output = runner.run([np.asarray(slot_ids, np.int64) for slot_ids in ids], slots, journal)
        # Before the tokens are waited for, so that the device has something to do meanwhile.
        spans = _spans([len(slot_ids) for slot_ids in ids])
        streams = [output.streams[rows] for rows in spans]
        drawn = runner.draw(output.x, draws, [len(slot_ids) for slot_ids in ids])
        logits = runner.logits(output.x) if any(tokens is None for tokens in drawn) else None
    except Exception as error:
        if not can_roll_back:
            return [error]
        for slot, snapshot in zip(slots, snapshots, strict=True):
            runner.restore(slot, snapshot)
        return _rerun(runner, ids, slots, draws, error)
    results: list[WindowResult | Exception] = []
    for slot, rows, slot_streams, snapshot, tokens in zip(slots, spans, streams, snapshots, drawn, strict=True):
        slot_logits = None if logits is None else logits[rows]
        results.append(WindowResult(runner, slot, slot_logits, slot_streams, rows, journal, snapshot, tokens))
    return results


def _spans(counts: Sequence[int]) -> list[slice]:
    """The slice of the window's rows of every slot."""
    spans, end = [], 0
    for count in counts:
        spans.append(slice(end, end + count))
        end += count
    return spans


def _rerun(
    runner: Runner,
    ids: Sequence[Sequence[int] | np.ndarray],
    slots: Sequence[Slot],
    draws: Sequence[DrawParameters | None],
    error: Exception,
) -> list[WindowResult | Exception]:
    """Run the restored slots of a window that failed with ``error`` one by one; a single slot without its drafts."""
    if len(slots) == 1:
        ids = [ids[0][:1]]
    results = []
    for slot_ids, slot, draw in zip(ids, slots, draws, strict=True):
        (result,) = run_window(runner, [slot_ids], [slot], [draw])
        if isinstance(result, WindowResult):
            result.error = result.error or error
        results.append(result)
    return results
