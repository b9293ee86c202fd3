"""Draws where the logits are: of a window's rows only their tokens come to the host.

Greedy and exact-match draws of backends that have a sampler of their own (``row_sampler``,
``kernels/cuda/sampler.py``); its tokens are the host's, integer masses being the same everywhere. Rejection sampling
needs the rows' whole lists, and keeps to the host's rule with the logits there.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from qsa.reference.exact.sampler import option_rows
from qsa.reference.sampler import GREEDY, Sampling

LEAST_LINE = 16
"""Tokens that a line of the history has room for at least. It grows in powers of two: every size is a program."""


class Draw(NamedTuple):
    """What the rows of one slot draw with.

    ``line``: the tokens of the sequence that the penalties look at, and behind these ``length`` tokens the drafts. Row
    t is drawn at ``position`` + t, after ``length`` + t tokens of the line.
    """

    options: Sampling
    line: list
    length: int
    seed: int
    position: int


@lru_cache(256)
def option_row(options):
    """The option row int32 [1, words] of a Sampling, not to be written."""
    row = option_rows(options, 1)
    row.setflags(write=False)
    return row


def taken(sampler, draws):
    """``draws`` with None for those whose lists have no room in the device's ``sampler`` (None: there is none); the
    refusals are counted."""
    if sampler is None:
        return [None] * len(draws)
    return [one if one is not None and sampler.takes(option_row(one.options)) else None for one in draws]


def draw_arrays(draws, counts):
    """The sampler's inputs on the host, by the names of its arguments; slot i has ``counts[i]`` rows. Rows of a slot
    whose draw is None are not in use."""
    slots = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    places = np.concatenate([np.arange(count) for count in counts])
    most = max([LEAST_LINE, *(len(one.line) for one in draws if one is not None)])
    history = np.zeros((len(counts), 1 << (most - 1).bit_length()), np.int32)
    first = np.zeros((2, len(counts)), np.int64)
    first[1] = -len(slots)  # below 0 for all rows of a slot
    options, seeds = [GREEDY] * len(counts), np.zeros(len(counts), np.uint64)
    for slot, one in enumerate(draws):
        if one is not None:
            history[slot, : len(one.line)] = one.line
            first[:, slot], options[slot], seeds[slot] = (one.length, one.position), one.options, one.seed
    return {
        "options": np.concatenate([option_row(options[slot]) for slot in slots]),
        "history": history,
        "lengths": np.where(first[1, slots] < 0, 0, first[0, slots] + places).astype(np.int32),
        "seeds": seeds[slots],
        "positions": first[1, slots] + places,
        "slots": slots,
    }


class WindowDraws:
    """A program of the sampler over ``logits`` [rows, vocab] of a window's program, of inputs as large as ``arrays``.

    ``runner``: a ``graphs.GraphRunner``; ``generation`` that of the window's result, whose array the logits are.
    """

    def __init__(self, runner, logits, arrays, generation):
        self.generation, self.staging = generation, runner.staging(arrays)
        self._sample, self._logits = runner.sampler.sample, logits
        self.program = runner.program(self._record)

    def _record(self):
        self.staging.move()
        return self._sample(self._logits, **self.staging.arrays)

    def run(self, arrays):
        """Tokens int32 [rows] on the device, which hold until the next call, or False: refused."""
        self.program.wait()
        self.staging.fill(arrays)
        return self.program()
