"""The sampling chain on one row of logits, in float64.

Order, after Strata's sampler: penalties, top-k, top-p, min-p, temperature, one draw. Top-p and min-p look at the
probabilities at temperature 1, and min-p at what top-p has left; the temperature only reshapes the survivors. Every
order is by descending logit with ties to the lower id, so that equal logits never depend on a sort.

Uniform numbers: each row of a sequence has its own position, and each purpose at that position its own Philox stream
(:data:`PICK`, :data:`ACCEPT`, :data:`RESIDUAL`, :data:`DRAFTER`). The key is the seed, the block index is the position,
and u = (first word >> 8) / 2^24, so 0 <= u < 1 exactly in float32 and float64. A draw so depends on seed, position and
purpose alone, not on what was drawn before or in which batch.
"""

from dataclasses import dataclass, fields
from math import isfinite, log
from typing import Any

import numpy as np
import numpy.typing as npt

from .philox import blocks

PICK, ACCEPT, RESIDUAL, DRAFTER = 1, 2, 3, 4
"""Philox streams: the plain draw, the acceptance of a draft, the draw after its rejection, the drafter's own draw."""


@dataclass(frozen=True)
class Sampling:
    """Options of the chain; the defaults change nothing but the length of the list.

    =====================  ==========================================================================================
    ``temperature``        divides the logits that are left; 0 takes the largest logit and draws nothing
    ``top_k``              keeps the k largest; 0 keeps ``max_candidates``
    ``top_p``              keeps the shortest prefix whose probability reaches top_p; 1 keeps all
    ``min_p``              keeps tokens with at least min_p times the probability of the most probable; 0 keeps all
    ``min_keep``           top_p keeps at least so many
    ``last_n``             tokens at the end of the history that the penalties count; 0 none, -1 all
    ``repeat``             divides a positive logit of a counted token and multiplies any other one; 1 is off
    ``frequency``          subtracted once for each occurrence
    ``presence``           subtracted once when it occurs at all
    ``max_candidates``     cap on top_k, the length of list a GPU sampler carries; 0 is no cap: the whole vocabulary
    =====================  ==========================================================================================

    Raises ValueError, naming the option, on a value outside what is allowed.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    min_keep: int = 1
    last_n: int = 64
    repeat: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    max_candidates: int = 64

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            kinds = (int, np.integer) if field.type is int else (int, float, np.integer, np.floating)
            if isinstance(value, bool) or not isinstance(value, kinds) or not isfinite(value):
                kind = "an integer" if field.type is int else "a finite number"
                raise ValueError(f"{field.name} = {value!r}: must be {kind}")
        for name, low, high in (
            ("temperature", 0, None),
            ("top_k", 0, None),
            ("top_p", 0, 1),
            ("min_p", 0, 1),
            ("min_keep", 1, None),
            ("last_n", -1, None),
            ("max_candidates", 0, None),
        ):
            value = getattr(self, name)
            if value < low or (high is not None and value > high):
                allowed = f"at least {low}" if high is None else f"from {low} to {high}"
                raise ValueError(f"{name} = {value!r}: must be {allowed}")
        if self.repeat <= 0:
            raise ValueError(f"repeat = {self.repeat!r}: must be above 0")

    @property
    def greedy(self) -> bool:
        """Whether nothing is drawn."""
        return self.temperature == 0


DEFAULT = Sampling()
"""One draw from the ``max_candidates`` largest logits as they are."""

GREEDY = Sampling(temperature=0.0)
"""The largest logit, no penalties."""


def uniform(seed: int, positions: npt.ArrayLike, purpose: int) -> np.ndarray:
    """The uniform numbers float64 [n] of ``positions`` for one ``purpose``.

    positions  an integer that is not negative, or [n] of them

    Raises ValueError on a seed or position out of range.
    """
    return (blocks(seed, purpose, positions)[:, 0] >> 8) / 2.0**24


def penalised(logits: npt.ArrayLike, history: npt.ArrayLike, options: Sampling) -> np.ndarray:
    """Logits float64 [vocab] after the repeat, frequency and presence penalties of the last ``last_n`` tokens.

    logits   [vocab]
    history  [n] token ids, the newest last: every token before the one to be drawn, drafted ones included

    Raises ValueError on a misshapen row, a NaN or +inf logit, no finite logit at all, or a token outside the
    vocabulary.
    """
    row = np.array(logits, np.float64)
    if row.ndim != 1 or not row.size:
        raise ValueError(f"logits: shape {row.shape}: must be one row [vocab]")
    bad = np.flatnonzero(np.isnan(row) | (row == np.inf))
    if bad.size:
        raise ValueError(f"logits[{bad[0]}] = {row[bad[0]]}: must be finite or -inf")
    if not np.isfinite(row).any():
        raise ValueError("logits: all -inf: at least one token must be possible")
    tokens = np.asarray(history, np.int64).reshape(-1)
    if options.last_n >= 0:
        tokens = tokens[max(0, tokens.size - options.last_n) :]
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < row.size:
        bad = tokens[(tokens < 0) | (tokens >= row.size)][0]
        raise ValueError(f"history: token {bad}: the vocabulary has {row.size} tokens")
    seen, count = np.unique(tokens, return_counts=True)
    old = row[seen]
    row[seen] = np.where(old <= 0, old * options.repeat, old / options.repeat)
    row[seen] -= count * options.frequency + options.presence
    return row


def _largest(row: np.ndarray, k: int) -> np.ndarray:
    """The ids of the k largest of ``row``, descending, ties to the lower id; -inf never among them."""
    ids = np.arange(row.size)
    if k < row.size:
        # Everything at or above the k-th value, so that the ties at the cut are settled by the sort below.
        ids = np.flatnonzero(row >= np.partition(row, row.size - k)[row.size - k])
    ids = ids[row[ids] > -np.inf]
    return ids[np.argsort(-row[ids], kind="stable")][:k]


def _softmax(logits: np.ndarray) -> np.ndarray:
    weight = np.exp(logits - logits[0])
    return weight / weight.sum()


def distribution(
    logits: npt.ArrayLike, history: npt.ArrayLike = (), options: Sampling = DEFAULT
) -> tuple[np.ndarray, np.ndarray]:
    """What the chain leaves of one row, in its order.

    logits   [vocab], finite or -inf
    history  [n] token ids before the one to be drawn, newest last

    Returns (ids int64 [k], probabilities float64 [k] with sum 1), descending by logit, ties to the lower id. A greedy
    chain leaves one id of probability 1. Raises ValueError as :func:`penalised` does.
    """
    row = penalised(logits, history, options)
    if options.greedy:
        return np.array([row.argmax()]), np.ones(1)
    caps = [cap for cap in (options.top_k, options.max_candidates) if cap]
    ids = _largest(row, min([*caps, row.size]))
    kept = row[ids]
    if options.top_p < 1:
        reached = np.cumsum(_softmax(kept)) >= options.top_p
        shortest = int(reached.argmax()) + 1 if reached.any() else kept.size
        kept = kept[: max(shortest, options.min_keep)]
    if options.min_p > 0:
        kept = kept[kept >= kept[0] + log(options.min_p)]
    # The largest logit is taken off first: with a tiny temperature the quotient itself may overflow.
    with np.errstate(over="ignore"):
        return ids[: kept.size], _softmax((kept - kept[0]) / options.temperature)


def pick(ids: np.ndarray, probabilities: np.ndarray, u: npt.ArrayLike) -> Any:
    """Inverse of the distribution function: the first id whose cumulative probability exceeds u, in the list's order.

    ids [k]; probabilities [k], not negative, not all 0, of any sum; u in [0, 1), a number or an array [n].

    Returns an id, or ids [n]. An id of probability 0 is never returned.
    """
    reach = np.cumsum(probabilities)
    return ids[np.searchsorted(reach, np.asarray(u) * reach[-1], side="right")]


def sample(logits: npt.ArrayLike, history: npt.ArrayLike, options: Sampling, seed: int, position: int) -> int:
    """The token id drawn from one row at ``position``, with the uniform number of purpose :data:`PICK`.

    Arguments as :func:`distribution`; a greedy chain uses neither seed nor position. Returns an int. Raises ValueError
    as :func:`penalised` and :func:`uniform` do.
    """
    ids, probabilities = distribution(logits, history, options)
    if options.greedy:
        return int(ids[0])
    return int(pick(ids, probabilities, uniform(seed, position, PICK)[0]))
