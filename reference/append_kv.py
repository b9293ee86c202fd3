"""``append_kv``: write K and V of new cells into pages and the host copy.

The codes are exact to the bit (``formats.py``), so this one form serves the reference and the exact arithmetic.
"""

from collections.abc import Callable, Sequence

import numpy as np

from .arguments import check_floats, check_steps, check_writable
from .kv import PagedKV, Pool, Side, encode
from .validation import shown


def slots_of(rows: int, kv: PagedKV | Sequence[PagedKV], slots: np.ndarray | None) -> tuple[list[PagedKV], np.ndarray]:
    """(list of PagedKV, slot of every row [rows]) from one or several PagedKV and an optional ``slots`` [rows] int32.

    Raises ValueError when none is given, when several are given without ``slots``, and when ``slots`` are no integers
    or one lies outside the list.
    """
    kvs = [kv] if isinstance(kv, PagedKV) else list(kv) if isinstance(kv, (list, tuple)) else []
    wrong = [slot for slot in kvs if not isinstance(slot, PagedKV)]
    if wrong or not kvs:
        found = f"a list with a {type(wrong[0]).__name__}" if wrong else shown(kv)
        raise ValueError(f"kv: {found}: must be a PagedKV, or a list of one or more")
    if slots is None:
        if len(kvs) != 1:
            raise ValueError(f"slots: missing: {len(kvs)} slots need the slot of every row")
        slots = np.zeros(rows, np.int32)
    slots = np.asarray(slots)
    if slots.shape != (rows,) or (rows and slots.dtype.kind not in "iu"):
        raise ValueError(f"slots: {slots.dtype} {slots.shape}: must be int32 ({rows},)")
    if rows and not 0 <= slots.min() <= slots.max() < len(kvs):
        raise ValueError(f"slots: {slots.min()} to {slots.max()}: must be from 0 to {len(kvs) - 1}")
    return kvs, slots


def rows_by_slot(
    k: np.ndarray, v: np.ndarray, kv: PagedKV | Sequence[PagedKV], steps: np.ndarray, slots: np.ndarray | None = None
) -> list[tuple[PagedKV, np.ndarray, np.ndarray]]:
    """(PagedKV, its rows [m], their positions [m]) of every slot; rows with pos -1 are left out. Arguments and errors
    as :func:`append_kv` has them."""
    if check_floats("k", k).ndim != 3 or check_floats("v", v).shape != k.shape:
        raise ValueError(f"k, v: {k.shape}, {v.shape}: must both be [rows, n_head_kv, head_dim]")
    n = len(k)
    check_steps(steps, n)
    kvs, slots = slots_of(n, kv, slots)
    found = []
    for slot, target in enumerate(kvs):
        target.check_table(f"kv[{slot}].")
        rows = np.flatnonzero((slots == slot) & (steps[:, 0] >= 0))
        pos = steps[rows, 0]
        g = target.pool.geometry
        if k.shape != (n, g.n_head_kv, g.head_dim):
            raise ValueError(f"k, v: {k.shape}, {v.shape}: must both be [{n}, {g.n_head_kv}, {g.head_dim}]")
        if pos.max(initial=-1) >= target.capacity:
            raise ValueError(f"steps: pos = {pos.max()}: slot {slot} holds {target.capacity} cells")
        if np.unique(pos).size != pos.size:
            raise ValueError(f"steps: two rows of slot {slot} share a position")
        for pool in (target.pool, target.host):
            for array in () if pool is None else (*pool.k[1:], *pool.v[1:]):
                check_writable(f"kv[{slot}]", array)
        found.append((target, rows, pos))
    check_writes(found)
    return found


def check_writes(found: Sequence[tuple[PagedKV, np.ndarray, np.ndarray]]) -> None:
    """Raises ValueError when a page would be written by two slots, or as two logical pages of one: the last would win.

    found  (PagedKV, its rows [m], their positions [m]) of every slot
    """
    written: dict[tuple[int, int], tuple[int, int]] = {}
    for slot, (target, _, pos) in enumerate(found):
        logical = np.unique(pos // target.pool.page_size)
        places = [("page", target.pool, target.table[logical])]
        if target.host is not None:
            places.append(("host page", target.host, logical))
        for what, pool, pages in places:
            # Two pools of the same memory are one.
            memory = pool.k.codes.__array_interface__["data"][0]
            for page, own in zip(pages.tolist(), logical.tolist(), strict=True):
                other, logical_page = written.setdefault((memory, page), (slot, own)) if page >= 0 else (slot, own)
                if other != slot:
                    raise ValueError(
                        f"kv: slots {other} and {slot} share {what} {page} and both write it: "
                        "each needs a page of its own"
                    )
                if logical_page != own:
                    raise ValueError(
                        f"kv[{slot}].table: logical pages {logical_page} and {own} share {what} {page} and both are "
                        "written: each needs a page of its own"
                    )


Encoded = tuple[np.ndarray, np.ndarray]
"""Codes and scales, as :class:`~qsa.reference.kv.Side` stores them."""


def encoded_rows(
    k: np.ndarray, v: np.ndarray, rows: np.ndarray, pool: Pool, encode_side: Callable[[np.ndarray, Side], Encoded]
) -> list[Encoded]:
    """What ``pool`` stores of the ``rows`` [m] of K and of V. Raises ValueError that names the first row with values
    that the format cannot hold.

    encode_side  function of vectors [m, n_head_kv, head_dim] and a :class:`~qsa.reference.kv.Side`
    """
    found = []
    for name, x, side in (("k", k, pool.k), ("v", v, pool.v)):
        try:
            found.append(encode_side(x[rows], side))
        except ValueError:
            for row in rows:
                try:
                    encode(x[row], side.coding)
                except ValueError as error:
                    raise ValueError(f"{name}: row {row}: {error}") from None
            raise
    return found


def write_cells(target: PagedKV, pos: np.ndarray, coded: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
    """Store ``coded``, the (codes, scales) of K and of V, at the positions ``pos`` [m] of the PagedKV ``target``."""
    logical, offset = np.divmod(pos, target.pool.page_size)
    for pool, page in ((target.pool, target.table[logical]), (target.host, logical)):
        if pool is None:
            continue
        kept = page >= 0
        for side, (codes, scale) in zip((pool.k, pool.v), coded, strict=True):
            side.codes[page[kept], :, offset[kept]] = codes[kept]
            side.scale[page[kept], :, offset[kept]] = scale[kept]


def append_kv(
    k: np.ndarray, v: np.ndarray, kv: PagedKV | Sequence[PagedKV], steps: np.ndarray, slots: np.ndarray | None = None
) -> bool:
    """Write the cell at ``pos`` of every row: into its page where that is resident, and always into the host copy.

    k, v   [rows, n_head_kv, head_dim] float32, finite; K already normed and rotated by position
    kv     a PagedKV, or a list of them with ``slots`` [rows] int32 naming each row's
    steps  [rows, 4] int32; a row with pos -1 writes nothing; the positions of one slot are distinct

    Returns True. Raises ValueError on mismatched shapes, values that the format cannot hold, a position beyond the
    capacity or given twice, and a page that two slots share and both write; IndexError on an entry of a page table
    outside its pool. Nothing is written then. Source: design sections 5 and 7.
    """
    # All is encoded before anything is written: an error leaves the pages as they were.
    writes = [
        (target, pos, encoded_rows(k, v, rows, target.pool, lambda x, side: encode(x, side.coding)))
        for target, rows, pos in rows_by_slot(k, v, kv, steps, slots)
    ]
    for target, pos, coded in writes:
        write_cells(target, pos, coded)
    return True
