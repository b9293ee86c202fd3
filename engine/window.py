"""Windows: rows of several slots in one call of the model, of which each slot keeps as many as are accepted."""

from dataclasses import dataclass

import numpy as np


@dataclass
class Part:
    """One slot's rows of a window that has run.

    logits   [rows, vocab] float32 on the host; streams [rows, hc_count, hidden], the backend's
    rows     slice of the window's rows
    error    None, or what the window raised before its slots ran again one by one, or this one without its drafts
    """

    runner: object
    slot: object
    logits: np.ndarray
    streams: object
    rows: slice
    journal: list
    snapshot: object
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


def run_window(runner, ids, slots):
    """Run a window: for every one of ``slots`` its entry of ``ids`` (a list: the last token and its drafts).

    Returns for every slot a :class:`Part`, or the exception that its first row raised. When a call fails, its slots go
    back to where they were and run one by one: the bytes are the same. A slot that fails alone runs once more without
    its drafts, whose part has one row then: a draft must not end a text that goes on without it.
    """
    # One row alone cannot be rejected, and nobody is there whom its failure could harm.
    reversible = len(slots) > 1 or len(ids[0]) > 1
    snapshots = [runner.snapshot(slot) if reversible else None for slot in slots]
    journal = []
    try:
        output = runner.run([np.asarray(one, np.int64) for one in ids], slots, journal)
        logits = runner.logits(output.x)
    except Exception as error:
        if not reversible:
            return [error]
        for slot, snapshot in zip(slots, snapshots, strict=True):
            runner.restore(slot, snapshot)
        again = zip(ids, slots, strict=True) if len(slots) > 1 else [(ids[0][:1], slots[0])]
        parts = [run_window(runner, [one], [slot])[0] for one, slot in again]
        for part in parts:
            if isinstance(part, Part):
                part.error = part.error or error
        return parts
    ends = np.cumsum([len(one) for one in ids]).tolist()
    parts = []
    for one, slot, end, snapshot in zip(ids, slots, ends, snapshots, strict=True):
        rows = slice(end - len(one), end)
        parts.append(Part(runner, slot, logits[rows], output.streams[rows], rows, journal, snapshot))
    return parts
