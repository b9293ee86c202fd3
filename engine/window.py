"""Windows: rows of several slots in one call of the model, of which each slot keeps as many as are accepted."""

from dataclasses import dataclass

import numpy as np


@dataclass
class Part:
    """One slot's rows of a window that has run.

    logits   [rows, vocab] float32 on the host, None where every slot's tokens are drawn; streams [rows, hc_count,
             hidden], the backend's
    rows     slice of the window's rows
    tokens   int32 [rows] drawn on the device as asked, or error codes; None where the logits are to be drawn from
    error    None, or what the window raised before its slots ran again one by one, or this one without its drafts
    """

    runner: object
    slot: object
    logits: np.ndarray | None
    streams: object
    rows: slice
    journal: list
    snapshot: object
    tokens: np.ndarray | None = None
    error: Exception | None = None

    def commit(self, keep):
        """Keep the first ``keep`` rows (1 or more) and take the others back.

        Recurrences and the indexer's tail go back to where they were before the window and take the kept rows again,
        from the journal. K/V and pooled keys of rows taken back are written over by those that come in their places.
        Raises ValueError unless keep is from 1 to the number of rows.
        """
        count = self.rows.stop - self.rows.start
        if not 1 <= keep <= count:
            raise ValueError(f"keep = {keep}: the window has {count} rows of this slot")
        if keep < count:
            self.runner.restore(self.slot, self.snapshot)
            self.runner.replay(self.journal, slice(self.rows.start, self.rows.start + keep), self.slot)


def run_window(runner, ids, slots, draws=None):
    """Run a window: for every one of ``slots`` its entry of ``ids`` (a list: the last token and its drafts).

    ``draws``: for every slot a :class:`~qsa.engine.draws.Draw`, or None for one whose logits are needed; without them
    all are.

    Returns for every slot a :class:`Part`, or the exception that its first row raised. When a call fails, its slots go
    back to where they were and run one by one: the bytes are the same. A slot that fails alone runs once more without
    its drafts, whose part has one row then: a draft must not end a text that goes on without it.
    """
    # One row alone cannot be rejected, and nobody is there whom its failure could harm.
    reversible = len(slots) > 1 or len(ids[0]) > 1
    draws = [None] * len(slots) if draws is None else draws
    snapshots = [runner.snapshot(slot) if reversible else None for slot in slots]
    journal = []
    try:
        output = runner.run([np.asarray(one, np.int64) for one in ids], slots, journal)
        drawn = runner.draw(output.x, draws, [len(one) for one in ids])
        logits = runner.logits(output.x) if any(tokens is None for tokens in drawn) else None
    except Exception as error:
        if not reversible:
            return [error]
        for slot, snapshot in zip(slots, snapshots, strict=True):
            runner.restore(slot, snapshot)
        again = zip(ids, slots, draws, strict=True) if len(slots) > 1 else [(ids[0][:1], slots[0], draws[0])]
        parts = [run_window(runner, [one], [slot], [draw])[0] for one, slot, draw in again]
        for part in parts:
            if isinstance(part, Part):
                part.error = part.error or error
        return parts
    ends = np.cumsum([len(one) for one in ids]).tolist()
    parts = []
    for one, slot, end, snapshot, tokens in zip(ids, slots, ends, snapshots, drawn, strict=True):
        rows = slice(end - len(one), end)
        own = None if logits is None else logits[rows]
        parts.append(Part(runner, slot, own, output.streams[rows], rows, journal, snapshot, tokens))
    return parts
