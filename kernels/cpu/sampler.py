"""The sampling chain on rows of logits, with the tokens and masses of ``reference/exact/sampler.py``."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from qsa.reference.exact import sampler as exact
from qsa.reference.exact.sampler import ERRORS, option_rows
from qsa.reference.sampler import GREEDY, PICK, Sampling

from .common.jit import kernel
from .common.philox import uniform
from .common.threads import share
from .sampler_row import draw, row_list

__all__ = ["ERRORS", "Lists", "argmax", "check_tokens", "new_lists", "option_rows", "sample"]


class Lists(NamedTuple):
    """What the chain left of every row: ``ids`` int32 [rows, cap] and ``masses`` uint64 [rows, cap], of which
    ``counts`` int32 [rows] entries are the list and the others are not written. A failed row's count is its error code.
    """

    ids: np.ndarray
    masses: np.ndarray
    counts: np.ndarray

    def of(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """(ids, masses) of one row; raises ValueError where it failed."""
        n = int(self.counts[row])
        if n < 0:
            raise ValueError(f"row {row}: {ERRORS[n]}")
        return self.ids[row, :n], self.masses[row, :n]


LIST_DTYPES = (np.int32, np.uint64, np.int32)


def new_lists(rows: int, cap: int = 64) -> Lists:
    """:class:`Lists` with room for ``cap`` tokens a row."""
    shapes = ((rows, cap), (rows, cap), rows)
    return Lists(*(np.empty(shape, dtype) for shape, dtype in zip(shapes, LIST_DTYPES, strict=True)))


def check_tokens(tokens: npt.ArrayLike) -> None:
    """Raises ValueError naming the first row of ``tokens`` that holds an error code, and what is wrong with it."""
    for row, token in enumerate(np.asarray(tokens).tolist()):
        if token < 0:
            raise ValueError(f"row {row}: {ERRORS[token]}")


ALONE = 1 << 16
"""A call of one row, or of fewer logits than this, runs on one thread: waking the others would cost as much."""


@kernel
def _sample_row(i, logits, options, history, slots, lengths, seeds, positions, purpose, tokens, lists):
    ids, masses, counts = lists
    if positions[i] < 0:
        tokens[i], counts[i] = exact.NO_ROW, exact.NO_ROW
        return
    count, own_ids, own_masses = row_list(logits[i], options[i], history[slots[i], : lengths[i]])
    if count > ids.shape[1] and ids.shape[1] > 0:
        count = exact.TOO_LONG
    counts[i] = count
    if count < 0:
        tokens[i] = count
        return
    tokens[i] = own_ids[draw(own_masses, uniform(seeds[i], positions[i], purpose))]
    if ids.shape[1] > 0:
        # Assigning a part would make numba compile the checks and messages of any shapes.
        for j in range(count):
            ids[i, j], masses[i, j] = own_ids[j], own_masses[j]


@kernel
def _sample(begin, stop, logits, options, history, slots, lengths, seeds, positions, purpose, tokens, lists):
    for i in range(begin, stop):
        _sample_row(i, logits, options, history, slots, lengths, seeds, positions, purpose, tokens, lists)


def integers(name: str, value: npt.ArrayLike, rows: int, dtype: npt.DTypeLike, least: int, most: int) -> np.ndarray:
    """``value`` (an integer, or [rows] of them) as dtype [rows]; ValueError unless from ``least`` to ``most``."""
    array = np.asarray(value)
    if array.dtype.kind not in "iu" or array.shape not in ((), (rows,)):
        raise ValueError(f"{name}: {array.dtype} {array.shape}: must be an integer, or one for each of {rows} rows")
    for worst in (array.min(), array.max()) if array.size else ():
        if not least <= int(worst) <= most:
            raise ValueError(f"{name}: {worst}: must be from {least} to {most}")
    return np.ascontiguousarray(np.broadcast_to(array, rows).astype(dtype))


def sample(
    logits: npt.ArrayLike,
    options: Sampling | Sequence[Sampling] | np.ndarray,
    history: npt.ArrayLike,
    lengths: npt.ArrayLike,
    seeds: npt.ArrayLike,
    positions: npt.ArrayLike,
    *,
    slots: npt.ArrayLike | None = None,
    purpose: int = PICK,
    tokens: np.ndarray | None = None,
    lists: Lists | None = None,
) -> np.ndarray:
    """One token for each row, as ``reference.exact.sampler.sample``; greedy rows draw nothing.

    logits     [rows, vocab] float32
    options    a Sampling, one for each row, or int32 [rows, WORDS] of :func:`option_rows`
    history    [slots, capacity] int32 tokens, a line for each sequence; the rows of a window share a line, in which
               the drafts stand behind the accepted tokens
    lengths    an integer or [rows]: tokens of its line that come before the row's own
    seeds      an integer or [rows], below 2^64
    positions  an integer or [rows]; negative: a row that is not in use
    slots      an integer or [rows]: the row's line; None: line i for row i
    purpose    the Philox stream: PICK, or DRAFTER for a drafter's own draw
    tokens     int32 [rows] to be written, or None: a new array
    lists      :class:`Lists` to be filled, or None

    Returns tokens int32 [rows]: an id, or one of :data:`ERRORS` where the row cannot be drawn from, for which
    :func:`check_tokens` raises; ``TOO_LONG`` where ``lists`` has no room for the row's. Raises ValueError on
    mismatched arguments.
    """
    logits = np.ascontiguousarray(logits, np.float32)
    if logits.ndim != 2 or not 0 < logits.shape[1] <= exact.MOST_TOKENS:
        raise ValueError(f"logits: shape {logits.shape}: must be [rows, vocab] of at most {exact.MOST_TOKENS} tokens")
    rows = len(logits)
    if not isinstance(options, np.ndarray):
        options = option_rows(options, rows)
    if options.dtype != np.int32 or options.shape != (rows, exact.WORDS):
        raise ValueError(f"options: {options.dtype} {options.shape}: must be int32 {(rows, exact.WORDS)}")
    history = np.ascontiguousarray(history)
    if history.ndim != 2 or history.dtype != np.int32:
        raise ValueError(f"history: {history.dtype} {history.shape}: must be int32 [slots, capacity]")
    lines = np.arange(rows) if slots is None else slots
    slots = integers("slots", lines, rows, np.int64, 0, len(history) - 1)
    lengths = integers("lengths", lengths, rows, np.int64, 0, history.shape[1])
    seeds = integers("seeds", seeds, rows, np.uint64, 0, 2**64 - 1)
    positions = integers("positions", positions, rows, np.int64, -(2**63), 2**63 - 1)
    tokens = np.empty(rows, np.int32) if tokens is None else tokens
    lists = new_lists(rows, 0) if lists is None else lists
    for name, array, dtype in (("tokens", tokens, np.int32), *zip(lists._fields, lists, LIST_DTYPES, strict=True)):
        if array.dtype != dtype or len(array) != rows:
            raise ValueError(f"{name}: {array.dtype} {array.shape}: must be {dtype.__name__}, {rows} rows")
    arguments = (logits, np.ascontiguousarray(options), history, slots, lengths, seeds, positions, purpose)
    alone = rows == 1 or logits.size < ALONE
    share(alone, rows, _sample, *arguments, tokens, tuple(lists))
    return tokens


def argmax(logits: npt.ArrayLike, tokens: np.ndarray | None = None) -> np.ndarray:
    """The largest logit of each row, ties to the lower id; arguments and result as :func:`sample`."""
    return sample(logits, GREEDY, np.empty((1, 0), np.int32), 0, 0, 0, slots=0, tokens=tokens)
