"""What is asked of the engine: how to draft, which text to continue and how, and what has become of it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from qsa.kernels.ops import WINDOW_ROWS
from qsa.model.mtp import WINDOW
from qsa.reference.exact.sampler import constants
from qsa.reference.sampler import GREEDY, Sampling

from .sampling import ACCEPTANCES
from .statistics import Statistics

MAX_ROWS = WINDOW_ROWS
"""Rows of a window, and of a batch window over all its slots."""

STATUSES = "waiting", "prompt", "decoding", "finished", "cancelled", "failed"


def integer(name, value, low, high=None):
    """``value`` as int. Raises ValueError naming it unless it is an integer from ``low`` to ``high``."""
    kind = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not kind or value < low or (high is not None and value > high):
        allowed = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} = {value!r}: must be an integer, {allowed}")
    return int(value)


@dataclass(frozen=True)
class Drafting:
    """How many tokens are drafted, and when drafting stops.

    spec    rows of a verify window: the last token and spec - 1 drafts; 1 to 8, 1 drafts nothing
    min_p   a further draft follows while the last one's probability is at least this; 0 is off. The last draft itself
            is verified whatever its probability, so that the gate never looks at a draft that it drops: that would
            shift the distribution under rejection sampling.
    max_t   rows of a window that the draft layer may fill; 1 to 8. min(spec, max_t) - 1 tokens are drafted at most.
    window  cells that a draft attends to, at least 1; more than the draft layer's own window are not kept

    Raises ValueError naming the option outside what is allowed.
    """

    spec: int = 4
    min_p: float = 0.0
    max_t: int = MAX_ROWS
    window: int = WINDOW

    def __post_init__(self):
        integer("spec", self.spec, 1, MAX_ROWS)
        integer("max_t", self.max_t, 1, MAX_ROWS)
        integer("window", self.window, 1)
        number = isinstance(self.min_p, (int, float, np.integer, np.floating)) and not isinstance(self.min_p, bool)
        if not number or not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p = {self.min_p!r}: must be a number from 0 to 1")

    @property
    def rows(self):
        """Rows that a window has at most."""
        return min(self.spec, self.max_t)


@dataclass(eq=False)
class Request:
    """A text being continued; made by ``Engine.submit``.

    ids         prompt, list of int; tokens: the ids emitted so far, a stop token included
    status      ``waiting`` for a slot, ``prompt`` being read, ``decoding``, then ``finished``, ``cancelled`` or
                ``failed``
    error       the exception of a failed request; reason: ``stop`` or ``length`` of a finished one
    slot        number of its slot, None while waiting; after the end its state stays there until another takes it
    statistics  :class:`Statistics`; draft_error, window_error: the last error that it counts as a failure of the
                drafter, or as a rerun
    """

    ids: list
    max_tokens: int
    sampling: Sampling = GREEDY
    seed: int = 0
    acceptance: str = "greedy"
    drafting: Drafting | None = None
    stop: frozenset = frozenset()
    tokens: list = field(default_factory=list)
    status: str = "waiting"
    error: BaseException | None = None
    reason: str | None = None
    slot: int | None = None
    statistics: Statistics = field(default_factory=Statistics)
    draft_error: Exception | None = None
    window_error: Exception | None = None
    sequence: list = field(default_factory=list, repr=False)
    read: int = 0

    def __post_init__(self):
        self.sequence = list(self.ids)

    @property
    def ended(self):
        """Whether nothing more will come."""
        return self.status in ("finished", "cancelled", "failed")

    @property
    def drafts(self):
        """Whether the draft layer follows this request."""
        return self.drafting is not None and self.drafting.rows > 1

    def emit(self, tokens):
        """Append the ``tokens`` of one window up to the first stop token or the length. Returns how many were taken;
        sets ``reason`` where they end the text."""
        for count, token in enumerate(tokens, 1):
            self.tokens.append(token)
            self.sequence.append(token)
            self.statistics.tokens += 1
            self.reason = "stop" if token in self.stop else "length" if len(self.tokens) == self.max_tokens else None
            if self.reason:
                return count
        return len(tokens)


def checked_request(model, ids, capacity, max_tokens, sampling, seed, acceptance, drafting, stop):
    """A waiting :class:`Request`. Raises ValueError naming the argument that is outside what is allowed; arguments as
    ``Engine.submit``."""
    vocab = model.config.vocab_size
    ids = [int(one) for one in model.check_ids(ids)]
    max_tokens = integer("max_tokens", max_tokens, 1)
    # The last token is emitted and never run, so it takes no cell.
    if len(ids) + max_tokens - 1 > capacity:
        needed = f"{len(ids)} prompt tokens and max_tokens = {max_tokens}"
        raise ValueError(f"ids: {needed} need {len(ids) + max_tokens - 1} cells: capacity = {capacity}")
    sampling = GREEDY if sampling is None else sampling
    if not isinstance(sampling, Sampling):
        raise ValueError(f"sampling = {sampling!r}: must be a Sampling")
    constants(sampling)  # raises on a penalty that float32 cannot hold
    if acceptance is None:
        acceptance = "greedy" if sampling.greedy else "exact_match"
    if acceptance not in ACCEPTANCES:
        raise ValueError(f"acceptance = {acceptance!r}: allowed are {', '.join(ACCEPTANCES)}")
    if acceptance == "greedy" and not sampling.greedy:
        raise ValueError(f"acceptance = 'greedy': temperature = {sampling.temperature!r}: must be 0 or less")
    if drafting is not None and not isinstance(drafting, Drafting):
        raise ValueError(f"drafting = {drafting!r}: must be a Drafting, or None")
    if not isinstance(stop, Iterable):
        raise ValueError(f"stop = {stop!r}: must be a collection of ids")
    stop = frozenset(integer("stop", one, 0, vocab - 1) for one in stop)
    seed = integer("seed", seed, 0, 2**64 - 1)
    return Request(ids, max_tokens, sampling, seed, acceptance, drafting, stop)
