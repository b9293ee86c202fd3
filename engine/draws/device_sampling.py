"""Sampling on the device: tokens are drawn where the logits are, and only the tokens are copied to the host.

It serves greedy and exact-match draws of backends with a sampler of their own (``row_sampler``,
``kernels/cuda/sampler.py``). Its tokens equal those of the host, since integer masses are the same everywhere.
Rejection sampling needs the whole distributions of the rows, so it runs on the host.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from qsa.reference.exact.sampler import option_rows
from qsa.reference.sampler import GREEDY, Sampling

if TYPE_CHECKING:
    from ..programs.graph_runner import GraphRunner

MIN_HISTORY = 16
"""Smallest number of tokens that a row of the history array holds. The size grows in powers of two, since every size
is a program of its own."""


class DrawParameters(NamedTuple):
    """How the tokens of one slot's rows are drawn.

    options   the Sampling
    history   tokens of the sequence that the penalties count, followed by the drafts
    length    number of tokens of ``history`` before the drafts
    seed      seed of the draws; position: position of the slot's first row

    Row t is drawn at ``position`` + t, with the first ``length`` + t tokens of the history.
    """

    options: Sampling
    history: list[int]
    length: int
    seed: int
    position: int


@lru_cache(256)
def option_row(options: Sampling) -> np.ndarray:
    """The sampler's read-only option row int32 [1, words] of a Sampling."""
    row = option_rows(options, 1)
    row.setflags(write=False)
    return row


def supported(sampler: Any, draws: Sequence[DrawParameters | None]) -> list[DrawParameters | None]:
    """``draws`` with None in place of those that the device's ``sampler`` refuses because their lists are too long. The
    sampler counts its refusals. Without a sampler (None) all are None."""
    if sampler is None:
        return [None] * len(draws)
    return [draw if draw is not None and sampler.takes(option_row(draw.options)) else None for draw in draws]


def draw_arrays(
    draws: Sequence[DrawParameters | None], counts: Sequence[int], places: int = MIN_HISTORY
) -> dict[str, np.ndarray]:
    """The sampler's inputs on the host: argument name -> array. The history has ``places`` places of a slot, or more.

    Slot i has ``counts[i]`` rows and parameters ``draws[i]``. The rows of a slot without parameters get positions below
    0, which mark rows that are not drawn.
    """
    slots = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    offsets = np.concatenate([np.arange(count) for count in counts])
    longest = max([places, MIN_HISTORY, *(len(draw.history) for draw in draws if draw is not None)])
    history = np.zeros((len(counts), 1 << (longest - 1).bit_length()), np.int32)
    lengths, positions = np.zeros(len(counts), np.int64), np.full(len(counts), -len(slots), np.int64)
    options, seeds = [GREEDY] * len(counts), np.zeros(len(counts), np.uint64)
    for slot, draw in enumerate(draws):
        if draw is not None:
            history[slot, : len(draw.history)] = draw.history
            lengths[slot], positions[slot] = draw.length, draw.position
            options[slot], seeds[slot] = draw.options, draw.seed
    return {
        "options": np.concatenate([option_row(own) for own in options])[slots],
        "history": history,
        "lengths": np.where(positions[slots] < 0, 0, lengths[slots] + offsets).astype(np.int32),
        "seeds": seeds[slots],
        "positions": positions[slots] + offsets,
        "slots": slots,
    }


class DrawGraph:
    """A program of the sampler over the logits of a window's program.

    logits      [rows, vocab] float32 on the device, the result array of the window's program
    arrays      inputs of :func:`draw_arrays`, for their shapes and dtypes
    generation  that of the window's result
    """

    def __init__(self, runner: "GraphRunner", logits: Any, arrays: Mapping[str, np.ndarray], generation: int) -> None:
        self.generation, self.staging = generation, runner.staging(arrays)
        self._sample, self._logits = runner.sampler.sample, logits
        self._tokens, self._device_tokens = runner.pinned((len(logits),), np.int32)
        self.program = runner.program(self._record)

    def _record(self) -> Any:
        self.staging.move()
        # The kernel writes the tokens where the host reads them: nothing is copied afterwards.
        return self._sample(self._logits, tokens=self._device_tokens, **self.staging.arrays)

    def run(self, arrays: Mapping[str, np.ndarray]) -> Any:
        """Tokens int32 [rows] on the host, once they are drawn; False when the sampler refuses."""
        self.program.wait()
        self.staging.fill(arrays)
        if self.program() is False:
            return False
        self.program.wait()
        return self._tokens.copy()
