"""Teacher-forced scoring: the probability of a given text under the model, through the verify windows of decoding."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from qsa.model import TextModel

from .programs.graph_runner import make_runner
from .request import MAX_ROWS, check_model, integer
from .runner import Runner
from .slots.memory import MAX_CELLS
from .slots.slot import Slot
from .window import run_window


@dataclass(frozen=True)
class Scores:
    """Scores of a text of n tokens.

    nll  [n - 1] float64, negative log-probability in nats of tokens 1 to n - 1, each given the tokens before it
    top  [n - 1] int64, the most probable token at each of these positions, ties to the lower id
    """

    nll: np.ndarray
    top: np.ndarray

    @property
    def mean(self) -> float:
        """Mean NLL in nats."""
        return float(self.nll.mean())


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    """Log-softmax float64 [rows, vocab] of ``logits`` [rows, vocab] float32."""
    x = logits.astype(np.float64)
    x = x - x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def teacher_forced(
    model: TextModel,
    ids: Any,
    window: int = MAX_ROWS,
    chunk: int | None = None,
    capacity: int | None = None,
    page_size: int = 4,
    kv_format: str = "int8",
    runner: Runner | None = None,
    index_format: str = "fp32",
) -> Iterator[tuple[int, np.ndarray]]:
    """Run all tokens of ``ids`` [n] but the last, whatever tokens the model would draw.

    window  rows of a verify window, 1 to 8
    chunk   rows of a prompt chunk: the text is then read as a prompt, without windows; None to use windows
    index_format  format of the indexer's keys, as of :class:`~qsa.engine.slots.slot.Slot`

    Yields (position of the first row, logits float32 [rows, vocab] on the host); row t predicts the token at position +
    t + 1. Raises ValueError on bad arguments and on fewer than two ids before anything runs, and the error of a row
    that fails.
    """
    ids = check_model(model).check_ids(ids)
    if len(ids) < 2:
        raise ValueError(f"ids: {len(ids)} token: scoring needs at least 2")
    rows = integer("window", window, 1, MAX_ROWS) if chunk is None else integer("chunk", chunk, 1)
    capacity = len(ids) - 1 if capacity is None else integer("capacity", capacity, 1, MAX_CELLS)
    if len(ids) - 1 > capacity:
        raise ValueError(f"ids: {len(ids)} tokens need {len(ids) - 1} cells: capacity = {capacity}")
    runner = make_runner(model) if runner is None else runner
    return _rows(runner, Slot(model, capacity, page_size, kv_format, index_format), ids, rows, chunk is None)


def _rows(runner: Runner, slot: Slot, ids: np.ndarray, rows: int, verify: bool) -> Iterator[tuple[int, np.ndarray]]:
    for start in range(0, len(ids) - 1, rows):
        window_ids = ids[start : min(start + rows, len(ids) - 1)]
        if verify:
            yield start, _window_logits(runner, slot, window_ids)
        else:
            yield start, runner.logits(runner.run([window_ids], [slot]).x)


def _window_logits(runner: Runner, slot: Slot, ids: np.ndarray) -> np.ndarray:
    """Logits [rows, vocab] of a window whose rows are all kept. Raises what the window raised."""
    (result,) = run_window(runner, [ids], [slot])
    if isinstance(result, Exception):
        raise result
    if result.error is not None:
        # The first row ran again without the others, so the window itself has no result.
        raise result.error
    result.commit(len(ids))
    assert result.logits is not None, "no draws were requested"
    return result.logits


def score(
    model: TextModel,
    ids: Any,
    window: int = MAX_ROWS,
    chunk: int | None = None,
    capacity: int | None = None,
    on_result: Callable[[int, np.ndarray], object] | None = None,
    **options: Any,
) -> Scores:
    """:class:`Scores` of a text. Arguments and errors are those of :func:`teacher_forced`.

    ``on_result(position, log_probabilities)``, where given, is called for every window or chunk with the position of
    its first row and float64 [rows, vocab]. Raises ValueError also on logits that are not finite.
    """
    ids = np.asarray(ids)
    nll: list[np.ndarray] = []
    top: list[np.ndarray] = []
    for start, logits in teacher_forced(model, ids, window, chunk, capacity, **options):
        if not np.isfinite(logits).all():
            bad = start + int(np.flatnonzero(~np.isfinite(logits).all(axis=1))[0])
            raise ValueError(f"logits: not finite at position {bad}")
        logs = log_probabilities(logits)
        next_ids = ids[start + 1 : start + 1 + len(logs)]
        nll.append(-logs[np.arange(len(logs)), next_ids])
        top.append(logits.argmax(axis=1))
        if on_result is not None:
            on_result(start, logs)
    return Scores(np.concatenate(nll), np.concatenate(top))
