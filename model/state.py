"""The state of a sequence, and the inputs and outputs of a run of the model."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from . import ple, qsa

Snapshot = tuple[int, list[Any]]
"""Number of tokens of a :class:`State`, and copies of its overwritten arrays."""


@dataclass
class State:
    """The state of one sequence.

    n          number of tokens so far
    attention  for every layer the state of its attention, a deltanet.State or a qsa.State
    ple        for every layer the ple.State of its PLE, or None
    """

    n: int
    attention: list[Any]
    ple: list[ple.State | None]

    def advance(self, ids: np.ndarray) -> None:
        """Advance the part of the state that is on the host by the tokens ``ids`` [n] int64."""
        for ple_state in self.ple:
            if ple_state is not None:
                ple_state.remember(ids)
        self.n += len(ids)

    def overwritten(self) -> Iterator[Any]:
        """The arrays whose earlier values a row destroys: recurrent memories, convolution inputs, PLE's ids, and the
        indexer's tails. They must be saved to roll a row back. K/V and pooled keys need not be: the row that takes the
        place of a rolled-back row writes its own."""
        for attention, ple_state in zip(self.attention, self.ple, strict=True):
            if isinstance(attention, qsa.State):
                yield attention.index.tail
            else:
                yield from (attention.memory, attention.past)
            if ple_state is not None:
                yield from (ple_state.tokens, ple_state.past)

    def snapshot(self) -> Snapshot:
        """A copy of everything that :meth:`restore` needs to roll back all later rows."""
        return self.n, [array.copy() for array in self.overwritten()]

    def restore(self, snapshot: Snapshot) -> None:
        """Roll back all rows that were run since ``snapshot`` was taken."""
        self.n = snapshot[0]
        for array, earlier in zip(self.overwritten(), snapshot[1], strict=True):
            array[...] = earlier


class Inputs(NamedTuple):
    """The inputs of a run, made on the host by :meth:`TextModel.inputs`.

    ids     [n] int64, of all sequences
    ngrams  layer index -> rows [n, heads] int64 of its PLE's table
    rows    :class:`~qsa.model.qsa.Rows`, which the QSA layers share
    """

    ids: np.ndarray
    ngrams: dict[int, np.ndarray]
    rows: qsa.Rows

    def placed(self, to_device: Callable[[Any], Any]) -> "Inputs":
        """The same with all arrays moved by ``to_device``."""
        ngrams = {layer: to_device(rows) for layer, rows in self.ngrams.items()}
        return Inputs(to_device(self.ids), ngrams, self.rows.placed(to_device))


class Output(NamedTuple):
    """The outputs of a run, float32 on the backend.

    x        [n, hidden], the mixed rows that the head reads
    streams  [n, hc_count, hidden], the final residual streams, which the draft layer reads
    """

    x: np.ndarray
    streams: np.ndarray
