"""``attend``: checks, schedules and the choice of arithmetic in front of the kernels.

A schedule cuts the work; the kernels are the same. ``batch``, ``multi``, ``prompt``: rows of one slot together, as many
as the scratch allows; ``step``: one row per launch; ``split``: besides, each row's cells in parts.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from qsa.reference.attend import check_attend
from qsa.reference.formats import rotate
from qsa.reference.kv import PagedKV

from ..ops import MAX_SPLITS, WINDOW_ROWS, check_schedule, check_splits, refuse
from ..switches import ARITHMETICS, switches
from . import attend_exact, attend_float
from .common.jit import writable

SCRATCH = 64 << 20
"""Bytes of scratch in one launch at most, unless a single row needs more; further rows take further launches."""

SPLIT_CELLS = 128
"""Cells that a part of a row has at least in the exact arithmetic, unless a call says how many parts. In windows of the
golden model, of some 300 cells a row, 20 parts took 1.37 times an undivided row's round, these take 1.04 times."""


def _settled(
    schedule: str | None, splits: int | None, arithmetic: str | None, rows: int
) -> tuple[str, int | None, str]:
    """The three keyword arguments with the defaults of schedule and arithmetic filled in."""
    arithmetic = switches().arithmetic if arithmetic is None else arithmetic
    if arithmetic not in ARITHMETICS:
        raise ValueError(f"arithmetic = {arithmetic!r}: allowed are {', '.join(ARITHMETICS)}")
    if schedule is None:
        switched = switches().split_attn and rows <= WINDOW_ROWS
        schedule = "split" if switched or splits is not None else "batch"
    check_schedule("attend", schedule)
    check_splits(schedule, splits)
    return schedule, splits, arithmetic


def _parts(arithmetic, width):
    """Parts into which ``split`` cuts rows of up to ``width`` cells, unless a call says how many."""
    if arithmetic == "float":
        # A constant: there the number of parts changes bits, and a number taken from the rows or the machine would make
        # a row's bits depend on its batch or on where it runs.
        return MAX_SPLITS
    return min(MAX_SPLITS, max(2, -(-width // SPLIT_CELLS)))


def _refusal(kvs: Sequence[PagedKV], arithmetic: str) -> str | None:
    """The reason for which these pools are refused, or None."""
    for kv in kvs:
        if not kv.exact if arithmetic == "exact" else kv.pool.format == "f64":
            return "format"
        if kv.pool.geometry.head_dim % 8:
            return "geometry"
    return None


def attend(
    q: np.ndarray,
    kv: PagedKV | Sequence[PagedKV],
    ids: np.ndarray,
    steps: np.ndarray,
    slots: np.ndarray | None = None,
    out: np.ndarray | None = None,
    *,
    schedule: str | None = None,
    splits: int | None = None,
    arithmetic: str | None = None,
) -> np.ndarray | Literal[False]:
    """Attention of every row over its selected cells; arguments as ``reference.attend``, bits as the arithmetic says.

    q           [rows, n_head, head_dim] float32, normed and rotated by position
    kv          a PagedKV, or a list of them, formats mixed at will, with ``slots`` [rows] int32 naming each row's
    ids         [rows, cap] int32; -1, and cells whose page is not resident, are not selected
    steps       [rows, 4] int32
    out         [rows, n_head, head_dim] of any layout, or None
    schedule    ``batch``, ``step``, ``split``, ``multi`` or ``prompt``; by default ``split`` when ``splits`` is given,
                or when the switch split_attn is on and the call has the rows of a window (8 at most), else ``batch``.
                No schedule changes a bit of the exact arithmetic; in the float arithmetic ``split`` differs from the
                others by rounding.
    splits      1 to MAX_SPLITS, for the split schedule alone; by default MAX_SPLITS in the float arithmetic, where it
                decides bits, and parts of SPLIT_CELLS cells or more in the exact one, where it does not
    arithmetic  ``exact`` or ``float``; by default the switch's

    Returns float32 [rows, n_head, head_dim] (or ``out``); a row that selects nothing gives 0, a query that is not
    finite makes its own row and head NaN. Returns False, with nothing written, for formats without integer codes in the
    exact arithmetic, for f64 in the float arithmetic, and for a head_dim that is no multiple of 8. Raises ValueError on
    mismatched shapes or keyword arguments that do not fit, IndexError on an id beyond the capacity and on an entry of a
    page table outside its pool; nothing is written then. Source: design sections 4 and 8.
    """
    kvs, slots, out = check_attend(q, kv, ids, steps, slots, out, np.float32)
    schedule, splits, arithmetic = _settled(schedule, splits, arithmetic, len(q))
    q = np.ascontiguousarray(q, np.float32)
    reason = _refusal(kvs, arithmetic)
    if reason:
        return refuse("attend", reason)
    for own in kvs:
        if own.pool.k.coding == "q4_0" or own.pool.v.coding == "q4_0":
            rotate(np.zeros(own.pool.geometry.head_dim, np.float32))  # raises on a dim that has no rotation
    ids, widths = writable(np.ascontiguousarray(ids, np.int32)), np.maximum(steps[:, 3], 0).astype(np.int64)
    if schedule == "split" and splits is None:
        splits = _parts(arithmetic, int(widths.max(initial=0)))
    kernels = attend_exact if arithmetic == "exact" else attend_float
    direct = out.dtype == np.float32 and out.flags.c_contiguous
    result = out if direct else np.empty(out.shape, np.float32)
    for slot, own in enumerate(kvs):
        rows = np.flatnonzero(slots == slot)
        if not rows.size:
            continue
        each = kernels.row_bytes(own.pool.geometry, int(widths[rows].max()), splits)
        together = 1 if schedule == "step" else max(1, SCRATCH // max(1, each))
        for start in range(0, len(rows), together):
            kernels.attend_rows(q, own, rows[start : start + together], ids, widths, splits, result)
    if not direct:
        out[...] = result
    return out
