"""Teacher forcing: how probable the model finds a given text, through the verify windows that decoding uses."""

from dataclasses import dataclass

import numpy as np

from .graph_runner import make_runner
from .memory import MAX_CELLS
from .request import MAX_ROWS, integer
from .slot import Slot
from .window import run_window


@dataclass(frozen=True)
class Scores:
    """``nll`` [n - 1] float64: negative log-probability in nats of tokens 1 to n - 1, each given those before it;
    ``top`` [n - 1] int64: the most probable token there, ties to the lower id."""

    nll: np.ndarray
    top: np.ndarray

    @property
    def mean(self):
        """Mean NLL in nats."""
        return float(self.nll.mean())


def log_probabilities(logits):
    """Log-softmax float64 [rows, vocab] of ``logits`` [rows, vocab] float32."""
    x = logits.astype(np.float64)
    x = x - x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def teacher_forced(model, ids, window=MAX_ROWS, chunk=None, capacity=None, page_size=4, kv_format="int8", runner=None):
    """Run the tokens of ``ids`` [n] but the last, whatever the model says of them.

    window  rows of a verify window, 1 to 8
    chunk   None, or rows of a prompt chunk: the text is then read as a prompt is, without windows

    Yields (position of the first row, logits float32 [rows, vocab] on the host): row t of them speaks of the token at
    position + t + 1. Raises ValueError on bad arguments and fewer than two ids before anything runs, and what a row
    raises.
    """
    ids = model.check_ids(ids)
    if len(ids) < 2:
        raise ValueError(f"ids: {len(ids)} token: scoring needs at least 2")
    rows = integer("window", window, 1, MAX_ROWS) if chunk is None else integer("chunk", chunk, 1)
    capacity = len(ids) - 1 if capacity is None else integer("capacity", capacity, 1, MAX_CELLS)
    if len(ids) - 1 > capacity:
        raise ValueError(f"ids: {len(ids)} tokens need {len(ids) - 1} cells: capacity = {capacity}")
    runner = make_runner(model) if runner is None else runner
    return _rows(runner, Slot(model, capacity, page_size, kv_format), ids, rows, chunk is None)


def _rows(runner, slot, ids, rows, verify):
    for start in range(0, len(ids) - 1, rows):
        mine = ids[start : min(start + rows, len(ids) - 1)]
        if verify:
            part = run_window(runner, [mine], [slot])[0]
            # One that ran again, without the rows behind its first, is no window.
            error = part if isinstance(part, Exception) else part.error
            if error is not None:
                raise error
            part.commit(len(mine))
            yield start, part.logits
        else:
            yield start, runner.logits(runner.run([mine], [slot]).x)


def score(model, ids, window=MAX_ROWS, chunk=None, capacity=None, each=None, **options):
    """Score a text; arguments and errors as :func:`teacher_forced`, and ValueError on logits that are not finite.

    ``each(position, log_probabilities)``, where given, gets every piece: float64 [rows, vocab], for divergences.
    Returns :class:`Scores`.
    """
    ids = np.asarray(ids)
    nll, top = [], []
    for start, logits in teacher_forced(model, ids, window, chunk, capacity, **options):
        if not np.isfinite(logits).all():
            bad = start + int(np.flatnonzero(~np.isfinite(logits).all(axis=1))[0])
            raise ValueError(f"logits: not finite at position {bad}")
        logs = log_probabilities(logits)
        next_ids = ids[start + 1 : start + 1 + len(logs)]
        nll.append(-logs[np.arange(len(logs)), next_ids])
        top.append(logits.argmax(axis=1))
        if each is not None:
            each(start, logs)
    return Scores(np.concatenate(nll), np.concatenate(top))
