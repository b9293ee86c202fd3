"""Requests: a text to continue, the options with which it is continued, its tokens and its status."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from qsa.kernels.ops import WINDOW_ROWS
from qsa.model import TextModel
from qsa.model.mtp import DRAFT_WINDOW
from qsa.reference.exact.sampler import constants
from qsa.reference.sampler import GREEDY, Sampling

from .draws.sampling import ACCEPTANCES
from .statistics import Statistics

if TYPE_CHECKING:
    from .slots.slot import Slot

MAX_ROWS = WINDOW_ROWS
"""Rows of a window, which are of one slot, and slots of a batch window."""

BATCH_ROWS = MAX_ROWS * MAX_ROWS
"""Rows of a batch window over all its slots in the exact arithmetic, whose rows do not depend on one another's number.
In the float arithmetic it has as many as a window."""

STATUSES = "waiting", "prompt", "decoding", "finished", "cancelled", "failed"
"""Values of ``Request.status``, in the order of a request's life; the last three end it."""


def integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """``value`` as int. Raises ValueError that names the argument unless it is an integer from ``low`` to ``high``."""
    kind = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not kind or value < low or (high is not None and value > high):
        allowed = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} = {value!r}: must be an integer, {allowed}")
    return int(value)


def check_model(model: Any) -> TextModel:
    """``model``. Raises ValueError unless it is a :class:`~qsa.model.TextModel`."""
    if not isinstance(model, TextModel):
        raise ValueError(f"model: {type(model).__name__}: must be a TextModel, as load_model returns it")
    return model


@dataclass(frozen=True)
class Drafting:
    """How many tokens are drafted for a window, and when drafting stops.

    spec    rows of a verify window, 1 to 8: the last token and spec - 1 drafts; 1 drafts nothing
    min_p   drafting continues while the last draft has at least this probability; 0 turns the check off. The draft that
            ends the chain is verified too: dropping it by its probability would shift the distribution under rejection
            sampling.
    max_t   rows of a window that the draft layer may fill, 1 to 8; at most min(spec, max_t) - 1 tokens are drafted
    window  number of latest cells that a draft attends to, at least 1; the draft layer's own window limits it

    Raises ValueError that names the option outside its range.
    """

    spec: int = 4
    min_p: float = 0.0
    max_t: int = MAX_ROWS
    window: int = DRAFT_WINDOW

    def __post_init__(self) -> None:
        integer("spec", self.spec, 1, MAX_ROWS)
        integer("max_t", self.max_t, 1, MAX_ROWS)
        integer("window", self.window, 1)
        number = isinstance(self.min_p, (int, float, np.integer, np.floating)) and not isinstance(self.min_p, bool)
        if not number or not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p = {self.min_p!r}: must be a number from 0 to 1")

    @property
    def rows(self) -> int:
        """Largest number of rows of a window."""
        return min(self.spec, self.max_t)


@dataclass(eq=False)
class Request:
    """A text being continued; created by ``Engine.submit``.

    ids           prompt, a list of int
    tokens        ids emitted so far, a stop token included
    status        ``waiting`` for a slot, ``prompt`` while its prompt is read, ``decoding``, then ``finished``,
                  ``cancelled`` or ``failed``
    reason        why it finished: ``stop`` or ``length``; else None
    error         exception of a failed request; else None
    slot          index of its slot, None while waiting. After the end its state stays in the slot until another request
                  takes the slot
    sequence      prompt and tokens
    prefilled     number of prompt ids read so far
    statistics    :class:`Statistics`
    draft_error   last error that the statistics count as a failure of the drafter
    window_error  last error that the statistics count as a rerun
    prefix        :class:`~qsa.engine.Slot` that has read the first of ``ids``, or None
    """

    ids: list[int]
    max_tokens: int
    sampling: Sampling = GREEDY
    seed: int = 0
    acceptance: str = "greedy"
    drafting: Drafting | None = None
    stop: frozenset[int] = frozenset()
    tokens: list[int] = field(default_factory=list)
    status: str = "waiting"
    error: BaseException | None = None
    reason: str | None = None
    slot: int | None = None
    statistics: Statistics = field(default_factory=Statistics)
    draft_error: Exception | None = None
    window_error: Exception | None = None
    prefix: "Slot | None" = field(default=None, repr=False)
    sequence: list[int] = field(default_factory=list, repr=False)
    prefilled: int = 0

    def __post_init__(self) -> None:
        self.sequence = list(self.ids)

    @property
    def ended(self) -> bool:
        """Whether the request is finished, cancelled or failed."""
        return self.status in ("finished", "cancelled", "failed")

    @property
    def drafts(self) -> bool:
        """Whether tokens are drafted for this request."""
        return self.drafting is not None and self.drafting.rows > 1

    def emit(self, tokens: Sequence[int]) -> int:
        """Append the ``tokens`` of one window, up to the first stop token or the maximum length.

        Returns how many were appended. Sets ``reason`` when they end the text.
        """
        for count, token in enumerate(tokens, 1):
            self.tokens.append(token)
            self.sequence.append(token)
            self.statistics.tokens += 1
            self.reason = "stop" if token in self.stop else "length" if len(self.tokens) == self.max_tokens else None
            if self.reason:
                return count
        return len(tokens)


def checked_request(
    model: TextModel,
    ids: Any,
    capacity: int,
    max_tokens: int,
    sampling: Sampling | None,
    seed: int,
    acceptance: str | None,
    drafting: Drafting | None,
    stop: Iterable[int],
) -> Request:
    """A waiting :class:`Request` for a slot of ``capacity`` cells; the other arguments are those of ``Engine.submit``.

    Raises ValueError that names the argument outside its range.
    """
    vocab = model.config.vocab_size
    ids = model.check_ids(ids).tolist()
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
        raise ValueError(f"acceptance = 'greedy': temperature = {sampling.temperature!r}: must be 0")
    if drafting is not None and not isinstance(drafting, Drafting):
        raise ValueError(f"drafting = {drafting!r}: must be a Drafting, or None")
    if not isinstance(stop, Iterable):
        raise ValueError(f"stop = {stop!r}: must be a collection of ids")
    stop = frozenset(integer("stop", token, 0, vocab - 1) for token in stop)
    seed = integer("seed", seed, 0, 2**64 - 1)
    return Request(ids, max_tokens, sampling, seed, acceptance, drafting, stop)
