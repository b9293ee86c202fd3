"""``append_kv``: write K and V of new cells into pages and the host copy.

The codes are exact to the bit (``formats.py``), so this one form serves the reference and the exact arithmetic.
"""

import numpy as np

from .index import check_steps
from .kv import PagedKV, encode


def slots_of(rows, kv, slots):
    """(list of PagedKV, slot of every row [rows]) from one or several PagedKV and an optional ``slots`` [rows] int32.

    Raises ValueError when several are given without ``slots``, or when a slot lies outside the list.
    """
    kvs = [kv] if isinstance(kv, PagedKV) else list(kv)
    if slots is None:
        if len(kvs) != 1:
            raise ValueError(f"slots: missing: {len(kvs)} slots need the slot of every row")
        slots = np.zeros(rows, np.int32)
    slots = np.asarray(slots)
    if slots.shape != (rows,):
        raise ValueError(f"slots: shape {slots.shape}: must be ({rows},)")
    if rows and not 0 <= slots.min() <= slots.max() < len(kvs):
        raise ValueError(f"slots: {slots.min()} to {slots.max()}: must be from 0 to {len(kvs) - 1}")
    return kvs, slots


def append_kv(k, v, kv, steps, slots=None):
    """Write the cell at ``pos`` of every row: into its page where that is resident, and always into the host copy.

    k, v   [rows, n_head_kv, head_dim] float32, finite; K already normed and rotated by position
    kv     a PagedKV, or a list of them with ``slots`` [rows] int32 naming each row's
    steps  [rows, 4] int32; a row with pos -1 writes nothing

    Returns True. Raises ValueError on mismatched shapes, values no scale can hold, or a position beyond the capacity;
    nothing is written then. Source: design sections 5 and 7.
    """
    rows = len(k)
    check_steps(steps, rows)
    kvs, slots = slots_of(rows, kv, slots)
    writes = []
    for row in range(rows):
        target, pos = kvs[slots[row]], int(steps[row, 0])
        g = target.pool.geometry
        if k[row].shape != (g.n_head_kv, g.head_dim) or v[row].shape != k[row].shape:
            raise ValueError(f"k, v: {k.shape}, {v.shape}: must both be [rows, {g.n_head_kv}, {g.head_dim}]")
        if pos < 0:
            continue
        if pos >= target.capacity:
            raise ValueError(f"steps: pos = {pos}: row {row}'s slot holds {target.capacity} cells")
        writes.append((target, pos, encode(k[row], target.pool.k.coding), encode(v[row], target.pool.v.coding)))
    for target, pos, *coded in writes:
        logical, place = divmod(pos, target.pool.page_size)
        for pool, page in ((target.pool, int(target.table[logical])), (target.host, logical)):
            if pool is not None and page >= 0:
                for side, (codes, scale) in zip((pool.k, pool.v), coded, strict=True):
                    side.codes[page, :, place] = codes
                    side.scale[page, :, place] = scale
    return True
