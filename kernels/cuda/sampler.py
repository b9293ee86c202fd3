"""The sampling chain on the device, with the tokens and masses of ``reference/exact/sampler.py``.

One launch for all rows: of a window, or of a batch window over several slots. What changes from token to token
(history, lengths, seeds, positions, options) is read on the device, so a captured launch serves every step. Nothing
waits, and integer sums make every order of the thread blocks give the same bytes. A list has at most 64 tokens.
"""

from typing import Any, Literal, NamedTuple

import numpy as np

from qsa.reference.exact import sampler as exact
from qsa.reference.exact.sampler import option_rows
from qsa.reference.sampler import GREEDY, PICK

from .. import ops
from .common.checks import check_array
from .device.scratch import StreamScratch
from .sampler_kernels.kernel import SLICE, TURNS, sampler
from .sampler_kernels.row import MOST_KEPT
from .toolchain.compiler import array_module, launch, specialised
from .toolchain.host import DeviceArray
from .topk.radix_search import THREADS

__all__ = ["MOST_VOCAB", "Lists", "argmax", "load_options", "new_lists", "sample", "scratch_shape", "takes"]

MOST_VOCAB = SLICE * (SLICE // MOST_KEPT)
"""Vocabulary whose slices' lists one thread block can still hold."""


class Lists(NamedTuple):
    """What the chain left of every row, on the device: ``ids`` int32 [rows, 64] and ``masses`` uint64 [rows, 64], of
    which ``counts`` int32 [rows] entries are the list. A failed row's count is its error code."""

    ids: Any
    masses: Any
    counts: Any


def new_lists(rows: int) -> Lists:
    """:class:`Lists` on the device."""
    xp = array_module()
    return Lists(xp.empty((rows, MOST_KEPT), "int32"), xp.empty((rows, MOST_KEPT), "uint64"), xp.empty(rows, "int32"))


_scratch = StreamScratch()


def _slices(vocab):
    return -(-vocab // SLICE)


def scratch_shape(rows: int, vocab: int) -> tuple[int, int]:
    """Shape of the int32 scratch of a call. Zero it once; every call leaves its first column zero, and may use fewer
    rows."""
    return rows, 1 + _slices(vocab) * (1 + 2 * MOST_KEPT) + vocab


def takes(table: np.ndarray) -> bool:
    """Whether the lists of option rows ``table`` int32 [rows, WORDS] have room: at most 64 tokens each. Where not, the
    refusal (``capacity``) is counted."""
    if ((table[:, 0] < 1) | (table[:, 0] > MOST_KEPT)).any():
        return ops.refuse("sample", "capacity")
    return True


def load_options(options: Any, rows: int) -> DeviceArray | Literal[False]:
    """Option rows int32 [rows, WORDS] on the device, which a captured launch reads again at every replay.

    options  a Sampling for all rows, a sequence of one for each, or what :func:`option_rows` made of them

    Returns False, a refusal (``capacity``), where a list is longer than 64 tokens: with ``max_candidates`` 0 or above.
    Raises ValueError as ``reference.exact.sampler.option_rows`` does.
    """
    table = options if isinstance(options, np.ndarray) else option_rows(options, rows)
    return array_module().array(table) if takes(table) else False


def sample(
    logits: DeviceArray,
    options: Any,
    history: DeviceArray,
    lengths: DeviceArray,
    seeds: DeviceArray,
    positions: DeviceArray,
    *,
    slots: DeviceArray | None = None,
    purpose: int = PICK,
    tokens: DeviceArray | None = None,
    lists: Lists | None = None,
    scratch: DeviceArray | None = None,
) -> DeviceArray | Literal[False]:
    """One token for each row, as ``reference.exact.sampler.sample``; greedy rows draw nothing.

    logits     [rows, vocab] float32 on the device
    options    int32 [rows, WORDS] of :func:`load_options`; or a Sampling, or one for each row, which are loaded here
               and cannot be captured
    history    [slots, capacity] int32, a line for each sequence; the rows of a window share a line, in which the drafts
               stand behind the accepted tokens
    lengths    int32 [rows]: tokens of its line that come before the row's own
    seeds      uint64 [rows]
    positions  int64 [rows]; negative: a row that is not in use
    slots      int32 [rows]: the row's line; None: line i for row i
    purpose    the Philox stream: PICK, or DRAFTER for a drafter's own draw
    tokens     int32 [rows] to be written; a new array when None
    lists      :class:`Lists` to be filled; new ones when None
    scratch    :func:`scratch_shape` int32, the first column zero; one that the stream's calls share when None

    Returns tokens int32 [rows]: an id, or one of ``reference.exact.sampler.ERRORS`` where the row cannot be drawn from.
    Returns False before any launch when a list is too long (``capacity``), the vocabulary beyond :data:`MOST_VOCAB`
    (``geometry``) or the scratch too small (``scratch``). Raises ValueError on mismatched arrays.
    """
    if logits.ndim != 2 or not logits.shape[1]:
        raise ValueError(f"logits: shape {logits.shape}: must be [rows, vocab]")
    rows, vocab = logits.shape
    if history.ndim != 2 or not history.size:
        raise ValueError(f"history: shape {history.shape}: must be [slots, capacity], room for a token at least")
    xp = array_module()
    if not isinstance(options, xp.ndarray):
        options = load_options(options, rows)
        if options is False:
            return False
    tokens = xp.empty(rows, "int32") if tokens is None else tokens
    lists = new_lists(rows) if lists is None else lists
    for name, array, dtype, shape in (
        ("logits", logits, "float32", (rows, vocab)),
        ("options", options, "int32", (rows, exact.WORDS)),
        ("history", history, "int32", history.shape),
        ("lengths", lengths, "int32", (rows,)),
        ("seeds", seeds, "uint64", (rows,)),
        ("positions", positions, "int64", (rows,)),
        ("tokens", tokens, "int32", (rows,)),
        ("ids", lists.ids, "int32", (rows, MOST_KEPT)),
        ("masses", lists.masses, "uint64", (rows, MOST_KEPT)),
        ("counts", lists.counts, "int32", (rows,)),
        *([] if slots is None else [("slots", slots, "int32", (rows,))]),
    ):
        check_array(name, array, dtype, shape, alignment=array.dtype.itemsize)
    if vocab > MOST_VOCAB:
        return ops.refuse("sample", "geometry")
    needed = scratch_shape(rows, vocab)
    if scratch is None:
        scratch = _scratch.get(needed)
    check_array("scratch", scratch, "int32", scratch.shape, alignment=4)
    if len(scratch.shape) != 2 or any(have < need for have, need in zip(scratch.shape, needed, strict=True)):
        return ops.refuse("sample", "scratch")
    if rows == 0:
        return tokens
    slices = _slices(vocab)
    sizes = (vocab, -(-vocab // slices), 0 if slots is None else 1, *history.shape, scratch.shape[1], purpose)
    slots = lengths if slots is None else slots
    arguments = (logits, options, history, slots, lengths, seeds, positions, scratch, tokens, *lists)
    launch(sampler(TURNS), (rows, slices), THREADS, (*arguments, tuple(map(int, sizes))))
    return tokens


@specialised
def _greedy_inputs(rows):
    """Options, history, lengths, seeds, positions and slots of rows of which only the largest logit is asked."""
    xp = array_module()
    zeros = [xp.zeros(rows, dtype) for dtype in ("int32", "uint64", "int64", "int32")]
    return xp.array(option_rows(GREEDY, rows)), xp.zeros((1, 1), "int32"), *zeros


def argmax(
    logits: DeviceArray,
    tokens: DeviceArray | None = None,
    *,
    lists: Lists | None = None,
    scratch: DeviceArray | None = None,
) -> DeviceArray | Literal[False]:
    """The largest logit of each row, ties to the lower id; arguments and result as :func:`sample`. Call it once before
    a capture."""
    options, history, lengths, seeds, positions, slots = _greedy_inputs(len(logits))
    inputs = options, history, lengths, seeds, positions
    return sample(logits, *inputs, slots=slots, tokens=tokens, lists=lists, scratch=scratch)
