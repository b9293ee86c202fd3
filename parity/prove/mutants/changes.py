"""Pieces that several mutants are made of."""

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from qsa.reference.kv import PagedKV, Side

ROWS = (3, 5, 6, 7, 9, 16, 33, 65)
"""Numbers of rows for which a kernel is wrong by itself."""

BY_VALUE = 4
"""Slots whose pools a launch takes by value (``kernels/cuda/attend_exact/shared_memory.py``)."""


def but(a: Any, **replaced: Any) -> Any:
    """The arguments ``a`` with some replaced."""
    return SimpleNamespace(**{**vars(a), **replaced})


def each_kv(a: Any, change: Callable[[PagedKV], PagedKV]) -> Any:
    """The arguments ``a`` with every PagedKV changed; ``change`` must not write to the one it gets."""
    return but(a, kv=[change(kv) for kv in a.kv] if isinstance(a.kv, list) else change(a.kv))


def with_table(kv: PagedKV, table: np.ndarray) -> PagedKV:
    """``kv`` with another page table, which may be one that no PagedKV takes."""
    other = copy.copy(kv)
    other.table = np.clip(table, -1, kv.pool.n_pages - 1).astype(np.int32)
    return other


def with_side(kv: PagedKV, name: str, codes: Any = None, scale: Any = None) -> PagedKV:
    """``kv`` with the codes or scales of its side ``name`` (k or v) replaced."""
    other, pool = copy.copy(kv), copy.copy(kv.pool)
    side: Side = getattr(pool, name)
    setattr(
        pool, name, Side(side.coding, side.codes if codes is None else codes, side.scale if scale is None else scale)
    )
    other.pool = pool
    return other


def kvs_of(a: Any) -> list[PagedKV]:
    """The PagedKV of every slot."""
    return a.kv if isinstance(a.kv, list) else [a.kv]


def kv_of(a: Any, row: int) -> PagedKV:
    """The PagedKV of a row."""
    return kvs_of(a)[0 if a.slots is None else int(a.slots[row])]


def each_row(a: Any, change: Callable[[int, np.ndarray], np.ndarray | None]) -> Any:
    """The arguments ``a`` whose rows have the ids ``change(row, ids[:width])``, absent ones filling up."""
    ids = a.ids.copy()
    for row, width in enumerate(a.steps[:, 3].tolist()):
        changed = change(row, a.ids[row, :width].copy())
        if changed is not None:
            ids[row, :width] = -1
            ids[row, : min(width, len(changed))] = changed[:width]
    return but(a, ids=ids)


def cached(a: Any, *names: str, stride: int = 0) -> Any:
    """The arguments ``a`` with those ``names`` as they were when an array of the same address was first seen, and with
    a ``stride`` of the same elements at every ``stride``-th place: of a PagedKV ``table`` or ``k_codes`` and its like,
    of an Index its arrays. ``pools``: the PagedKVs of more slots than go by value, as a call of these shapes had them
    first."""
    out = a
    for name in names:
        if name in ("table", "k_codes", "k_scale", "v_codes", "v_scale"):
            out = each_kv(out, lambda kv, name=name: _cached_kv(a.memory, kv, name, stride))  # type: ignore[misc]
        elif name == "pools":
            if isinstance(out.kv, list) and len(out.kv) > BY_VALUE:
                key = name, len(out.kv), a.q.shape, a.ids.shape
                out = but(out, kv=a.memory.setdefault(key, list(out.kv)))
        elif name in ("pooled", "dead", "pooled_exponent", "dead_exponent", "weight", "rope"):
            index = copy.copy(out.index)
            setattr(index, name, _kept(a.memory, name, getattr(a.index, name), stride))
            out = but(out, index=index)
        elif getattr(a, name) is not None:
            out = but(out, **{name: _kept(a.memory, name, getattr(a, name), stride)})
    return out


def _cached_kv(memory: dict[Any, Any], kv: PagedKV, name: str, stride: int) -> PagedKV:
    if name == "table":
        return with_table(kv, _kept(memory, name, kv.table, stride))
    side, part = name.split("_")
    return with_side(kv, side, **{part: _kept(memory, name, getattr(getattr(kv.pool, side), part), stride)})


def _kept(memory: dict[Any, Any], name: str, array: np.ndarray, stride: int) -> np.ndarray:
    seen = array.reshape(-1)[::stride].tobytes() if stride else b""
    key = name, address(array), seen
    if key not in memory:
        # The array itself is kept too: its address must not be given to another one.
        memory[key] = array, array.copy()
    return memory[key][1]


def address(array: np.ndarray) -> tuple[Any, ...]:
    """What a kernel that caches by pointer compares."""
    return array.__array_interface__["data"][0], array.shape, array.dtype.str


def counted(a: Any) -> int:
    """The number of this call, from 1."""
    a.memory["calls"] = a.memory.get("calls", 0) + 1
    return int(a.memory["calls"])
