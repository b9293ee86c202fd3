"""``attend``: checks, schedules and the choice of arithmetic in front of the kernels.

A schedule cuts the work; the kernels are the same. ``batch`` and ``multi``: every row at once, rows of one slot per
launch; ``step``: one row per launch; ``split``: a row's cells in parts; ``prompt``: as ``batch``, for thousands of rows.
"""

import os

import numpy as np

from ...reference.attend import check_attend
from ...reference.formats import rotate
from ..ops import MAX_SPLITS, OPERATIONS, refuse
from ..switches import ARITHMETICS, switches
from .attend_exact import attend_rows
from .gather import first_bad_row, flat

SCRATCH = 64 << 20
"""Bytes of scratch in one launch at most, as long as one row fits; more rows take more launches."""


def _check_schedule(schedule, splits, arithmetic):
    if schedule not in OPERATIONS["attend"].schedules:
        raise ValueError(f"schedule = {schedule!r}: allowed are {', '.join(OPERATIONS['attend'].schedules)}")
    if arithmetic not in ARITHMETICS:
        raise ValueError(f"arithmetic = {arithmetic!r}: allowed are {', '.join(ARITHMETICS)}")
    if splits is not None and not 1 <= splits <= MAX_SPLITS:
        raise ValueError(f"splits = {splits}: must be from 1 to {MAX_SPLITS}")


def default_splits(rows, geometry, width):
    """Splits of the split schedule when none are asked for: about two items per core over ``rows`` and KV heads, at
    most MAX_SPLITS and one per chunk of 64 cells."""
    wanted = 2 * (os.cpu_count() or 1) // max(1, rows * geometry.n_head_kv)
    return max(1, min(MAX_SPLITS, wanted, -(-width // 64)))


def attend(q, kv, ids, steps, slots=None, out=None, *, schedule=None, splits=None, arithmetic=None):
    q = np.ascontiguousarray(q, np.float32)
    kvs, slots, out = check_attend(q, kv, ids, steps, slots, out, np.float32)
    widths = np.maximum(steps[:, 3], 0).astype(np.int64)
    ids = np.ascontiguousarray(ids, np.int32)
    capacity = np.array([one.capacity for one in kvs], np.int64)[slots]
    bad = first_bad_row(ids, widths, capacity)
    if bad >= 0:
        kvs[slots[bad]].locate(ids[bad, : widths[bad]])
    steps=np.ascontiguousarray(steps)
    for slot,one in enumerate(kvs):
        rows=np.flatnonzero(slots==slot)
        g=one.pool.geometry
        attend_rows(q,rows,ids,steps,one.table,one.pool.page_size,g.n_head_kv,flat(one.pool.k),flat(one.pool.v),splits or 1,np.float32(np.log2(np.e) / np.sqrt(g.head_dim)),out)
    return out
