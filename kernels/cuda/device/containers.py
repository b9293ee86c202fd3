"""Containers on the device: K/V, the indexer's buffers, graphs, scratch, guarded buffers.

The pool's layout is the reference's: codes [pages, n_head_kv, page_size, x], scales [pages, n_head_kv, page_size,
groups] float16. Only ``append_kv``, ``attend`` and ``to_host`` know it. A kernel finds the pools of a slot through one
row of a slot table (:func:`slot_table`), so that any number of slots costs one argument.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qsa.reference.geometry import Geometry
from qsa.reference.index import Index
from qsa.reference.kv import Cells, PagedKV, Pool, Side, check_entries
from qsa.reference.kv import read_kv as _read_kv

from ..toolchain.compiler import address, array_module, as_numpy, pinned
from ..toolchain.host import DeviceArray

CODINGS = ("int8", "q4_0", "fp16")
"""Codings that a device pool may have; a slot table holds their indices in this tuple."""

SLOT_FIELDS = (
    "k_codes",
    "k_scale",
    "v_codes",
    "v_scale",
    "table",
    "host_k_codes",
    "host_k_scale",
    "host_v_codes",
    "host_v_scale",
    "page_size",
    "table_size",
    "k_coding",
    "v_coding",
)
"""Columns of a slot table: addresses (0 where there is no host copy), sizes, indices in :data:`CODINGS`."""


ADDRESSES = SLOT_FIELDS.index("page_size")
"""Columns of a slot table that are addresses."""


@dataclass
class DevicePool:
    """Physical pages of K and V on the device: a ``reference.kv.Pool`` whose sides hold device arrays."""

    format: str
    n_pages: int
    page_size: int
    geometry: Geometry
    k: Side
    v: Side


class DeviceKV:
    """K and V of one slot on the device: a ``reference.kv.PagedKV`` of device arrays.

    pool   a :class:`DevicePool`
    table  [logical pages] int32 on the device, to be changed in place, by :meth:`set_table` or by a kernel
    host   a ``reference.kv.Pool`` in page-locked memory, or None

    The table is held to the pool when this object is made and by :meth:`set_table`, which have it on the host. The
    operations read it on the device without waiting for it, so what is written there directly is checked by nobody: an
    entry outside the pool then reads or writes other memory.

    Raises ValueError on format ``f64``, which exists in the reference alone, and IndexError on an entry of the table
    outside the pool.
    """

    def __init__(self, kv: PagedKV) -> None:
        xp = array_module()
        pool = kv.pool
        kv.check_table()
        if pool.k.coding not in CODINGS:
            raise ValueError(f"format = {pool.format!r}: a device pool is int8, q4_0, k8v4 or fp16")
        k, v = (Side(side.coding, xp.array(side.codes), xp.array(side.scale)) for side in (pool.k, pool.v))
        self.pool = DevicePool(pool.format, pool.n_pages, pool.page_size, pool.geometry, k, v)
        self.table = xp.array(kv.table)
        self.host, self._host_views = None, ()
        if kv.host is not None:
            self.host = Pool(pool.format, kv.host.n_pages, pool.page_size, pool.geometry)
            sides, views = [], []
            for side in (kv.host.k, kv.host.v):
                codes, codes_view = pinned(side.codes.shape, side.codes.dtype)
                scale, scale_view = pinned(side.scale.shape, side.scale.dtype)
                codes[...], scale[...] = side.codes, side.scale
                sides.append(Side(side.coding, codes, scale))
                views += [codes_view, scale_view]
            self.host.k, self.host.v = sides
            self._host_views = tuple(views)
        self._slot_tables: dict[tuple[int, ...], tuple[list[tuple[int, ...]], DeviceArray]] = {}

    @property
    def capacity(self) -> int:
        """Cells that the page table can address."""
        return self.table.size * self.pool.page_size

    def set_table(self, table: Any) -> None:
        """Copy the page table ``table`` [logical pages] int32, on the host, into this object's own.

        Raises, and changes nothing, IndexError on an entry outside the pool, ValueError on another number of pages.
        """
        table = check_entries(np.asarray(table), self.pool.n_pages)
        if table.shape != self.table.shape:
            raise ValueError(f"table: {table.size} pages: must be {self.table.size}")
        self.table[...] = array_module().array(table.astype(np.int32))

    def slot_row(self) -> tuple[int, ...]:
        """This slot's row of a slot table: its 13 numbers."""
        pool, table = self.pool, self.table
        k, v = pool.k, pool.v
        arrays = (k.codes, k.scale, v.codes, v.scale, table, *self._host_views)
        addresses = [address(array) if array.size else 0 for array in arrays]
        addresses += [0] * (ADDRESSES - len(addresses))
        return (*addresses, pool.page_size, table.size, CODINGS.index(k.coding), CODINGS.index(v.coding))


class DeviceIndex:
    """The indexer's buffers of one slot on the device, with the fields of ``reference.index.Index``.

    Raises ValueError on an Index of float64, the truth's own.
    """

    NAMES = ("tail", "dead", "pooled", "weight", "rope", "rope0")
    EXPONENTS = ("dead_exponent", "pooled_exponent")
    """Arrays of the format ``int16`` alone, else None."""
    tail: DeviceArray
    dead: DeviceArray
    pooled: DeviceArray
    weight: DeviceArray
    rope: DeviceArray
    rope0: DeviceArray
    dead_exponent: DeviceArray | None
    pooled_exponent: DeviceArray | None

    def __init__(self, index: Index) -> None:
        if index.tail.dtype != np.float32:
            raise ValueError(f"index: {index.tail.dtype}: a device index is float32")
        self.geometry, self.format = index.geometry, index.format
        for name in (*self.NAMES, *self.EXPONENTS):
            setattr(self, name, to_device(getattr(index, name)))

    @property
    def max_blocks(self) -> int:
        """Blocks that fit, the spare one included."""
        return len(self.pooled)


def slot_table(kvs: Sequence[DeviceKV]) -> DeviceArray:
    """Slot table int64 [slots, 13] on the device of a list of :class:`DeviceKV`; made once per list of slots. When one
    of them has other arrays now, or is another one, its row is written anew.

    Make it, by one call of the operation, before a graph capture.
    """
    first, key = kvs[0], tuple(map(id, kvs))
    rows = [kv.slot_row() for kv in kvs]
    found = first._slot_tables.get(key)
    if found is not None and found[0] == rows:
        return found[1]
    table = array_module().array(np.array(rows, np.int64))
    if found is not None:
        # A captured graph reads the table where it lies.
        found[1][...] = table
        table = found[1]
    first._slot_tables[key] = rows, table
    return table


def to_device(x: Any) -> Any:
    """A copy on the device of a NumPy array, a PagedKV, an Index, or a list of them; None stays."""
    if isinstance(x, PagedKV):
        return DeviceKV(x)
    if isinstance(x, Index):
        return DeviceIndex(x)
    if isinstance(x, (list, tuple)):
        return [to_device(item) for item in x]
    return None if x is None else array_module().array(x)


def to_host(x: Any) -> Any:
    """The inverse of :func:`to_device`: NumPy arrays and the reference's containers; waits for the device."""
    if isinstance(x, DeviceKV):
        there = x.pool
        pool = Pool(there.format, there.n_pages, there.page_size, there.geometry)
        pool.k, pool.v = (Side(s.coding, as_numpy(s.codes), as_numpy(s.scale)) for s in (there.k, there.v))
        host = None
        if x.host is not None:
            host = Pool(there.format, x.host.n_pages, there.page_size, there.geometry)
            host.k, host.v = (Side(s.coding, s.codes.copy(), s.scale.copy()) for s in (x.host.k, x.host.v))
        return PagedKV(pool, as_numpy(x.table), host)
    if isinstance(x, DeviceIndex):
        index = Index.__new__(Index)
        index.geometry, index.format = x.geometry, x.format
        for name in (*x.NAMES, *x.EXPONENTS):
            setattr(index, name, to_host(getattr(x, name)))
        return index
    if isinstance(x, (list, tuple)):
        return [to_host(item) for item in x]
    return None if x is None else as_numpy(x)


def read_kv(kv: DeviceKV, cells: Any) -> Cells:
    """The logical ``cells`` of a :class:`DeviceKV`, as ``reference.kv.read_kv`` gives them, on the host."""
    return _read_kv(to_host(kv), cells)
