"""Paged K/V: pools of pages, page tables, pages that are not resident.

Source: design section 7. A page holds ``page_size`` consecutive cells of one sequence; the page table maps logical to
physical pages, -1 where a page is not resident. Operations see logical cells alone, so every page size and every table
give the same results.
"""

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from .formats import (
    EXACT_FORMATS,
    FORMATS,
    GROUP,
    decode,
    encode_int8,
    encode_q4_0,
    pack_nibbles,
    rotate,
    unpack_nibbles,
)
from .geometry import REAL, Geometry


class Side(NamedTuple):
    """K or V of a pool.

    ``codes`` [pages, n_head_kv, page_size, x]: int8 codes (x = head_dim), q4_0 nibbles uint8 (x = head_dim / 2), or
    float16 or float64 values. ``scale`` [pages, n_head_kv, page_size, groups] float16; no groups where the coding has
    no scale.
    """

    coding: str
    codes: np.ndarray
    scale: np.ndarray


class Cells(NamedTuple):
    """Logical cells of a sequence, as :func:`read_kv` gives them. K and V are still rotated where their coding is q4_0.

    ``k_codes``, ``v_codes`` [n, n_head_kv, head_dim] int8 (or float16, float64 values); ``k_scale``, ``v_scale`` [n,
    n_head_kv, groups] float32; ``resident`` [n] bool, False where the cell's page is not resident (its codes and scales
    are then 0).
    """

    k_codes: np.ndarray
    k_scale: np.ndarray
    v_codes: np.ndarray
    v_scale: np.ndarray
    resident: np.ndarray

    def values(self) -> tuple[np.ndarray, np.ndarray]:
        """K and V as float64 [n, n_head_kv, head_dim], dequantised, in the coding's own (rotated or plain) basis."""
        k, v = (
            decode(codes, scale) if scale.shape[-1] else codes.astype(np.float64)
            for codes, scale in ((self.k_codes, self.k_scale), (self.v_codes, self.v_scale))
        )
        return k, v


def encode(x: npt.ArrayLike, coding: str) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales of vectors ``x`` [..., head_dim] float32 in one coding, as :class:`Side` stores them (q4_0 is
    rotated and packed). Raises ValueError on values that are not finite, or that the coding cannot hold."""
    if coding == "int8":
        return encode_int8(x)
    if coding == "q4_0":
        codes, scale = encode_q4_0(rotate(np.asarray(x, np.float32)))
        return pack_nibbles(codes), scale
    x = np.asarray(x)
    none = np.zeros((*x.shape[:-1], 0), np.float16)
    with np.errstate(over="ignore"):
        stored = x.astype(np.float64 if coding == "f64" else np.float16)
    if not np.isfinite(stored).all():
        limit = "" if coding == "f64" else f" and at most {np.finfo(np.float16).max:.0f} in magnitude"
        raise ValueError(f"{coding}: values must be finite{limit}")
    return stored, none


def _side(coding: str, shape: tuple[int, ...], head_dim: int) -> Side:
    groups = head_dim // GROUP[coding] if coding in GROUP else 0
    dtype, size = {
        "int8": (np.int8, head_dim),
        "q4_0": (np.uint8, head_dim // 2),
        "fp16": (np.float16, head_dim),
        "f64": (np.float64, head_dim),
    }[coding]
    return Side(coding, np.zeros((*shape, size), dtype), np.zeros((*shape, groups), np.float16))


class Pool:
    """Physical pages of K and V in one format.

    Raises ValueError on an unknown format, a page count or page size below 1, or a head_dim the format cannot group.
    """

    def __init__(self, format: str, n_pages: int, page_size: int = 4, geometry: Geometry = REAL) -> None:
        if format not in FORMATS:
            raise ValueError(f"format = {format!r}: allowed are {', '.join(FORMATS)}")
        if n_pages < 1 or page_size < 1:
            raise ValueError(f"n_pages = {n_pages}, page_size = {page_size}: both must be at least 1")
        for coding in FORMATS[format]:
            if geometry.head_dim % GROUP.get(coding, 1):
                raise ValueError(f"head_dim = {geometry.head_dim}: {coding} groups {GROUP[coding]} dims")
        self.format = format
        self.n_pages = n_pages
        self.page_size = page_size
        self.geometry = geometry
        shape = (n_pages, geometry.n_head_kv, page_size)
        self.k, self.v = (_side(coding, shape, geometry.head_dim) for coding in FORMATS[format])

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return sum(array.nbytes for side in (self.k, self.v) for array in (side.codes, side.scale))


def check_entries(table: np.ndarray, n_pages: int, name: str = "") -> np.ndarray:
    """``table`` [logical pages]. Raises IndexError that names an entry other than -1 and pages 0 to ``n_pages`` - 1,
    ValueError on another shape or dtype. ``name``: of the K/V in errors, such as ``kv[1].``"""
    if table.ndim != 1 or table.dtype.kind not in "iu":
        raise ValueError(f"{name}table: {table.dtype}, {table.ndim} axes: must be int32, one entry per logical page")
    if table.size and (table.min() < -1 or table.max() >= n_pages):
        entry = int(np.flatnonzero((table < -1) | (table >= n_pages))[0])
        allowed = f"the pool has {n_pages} pages: must be from 0 to {n_pages - 1}, or -1"
        raise IndexError(f"{name}table[{entry}] = {table[entry]}: {allowed}")
    return table


def shared_pages(pages: np.ndarray) -> tuple[int, int, int] | None:
    """(index, another index, page) of a page from 0 on that stands twice in ``pages`` [n]; None when there is none."""
    order = np.argsort(pages, kind="stable")
    sorted_pages = pages[order]
    twice = np.flatnonzero((sorted_pages[1:] == sorted_pages[:-1]) & (sorted_pages[1:] >= 0))
    if not twice.size:
        return None
    at = twice[0]
    return int(order[at]), int(order[at + 1]), int(sorted_pages[at])


@dataclass
class PagedKV:
    """K and V of one slot: a pool, the page table that leads into it, and an optional copy of every cell on the host.

    ``table`` [logical pages] int32, physical page or -1. ``host`` is a pool in identity layout (logical page = physical
    page) that ``append_kv`` always writes, so that a page can become resident later. Raises ValueError when an entry of
    the table lies outside the pool or two logical pages share a physical one, or when the host pool has another format,
    page size or too few pages.

    ``table`` may be changed in place. Every operation on the host holds it to the pool again (:meth:`check_table`)
    before it reads or writes a cell.
    """

    pool: Pool
    table: np.ndarray
    host: Pool | None = None

    def __post_init__(self) -> None:
        self.table = np.ascontiguousarray(self.table, np.int32)
        try:
            self.check_table()
        except IndexError as error:
            raise ValueError(str(error)) from error
        shared = shared_pages(self.table)
        if shared is not None:
            first, second, page = shared
            raise ValueError(f"table: two logical pages share a physical page: [{first}] and [{second}] are {page}")

    def check_table(self, name: str = "") -> None:
        """Hold the table to the pools as they are now: it may have been changed since this object was made.

        name  of this object in errors, such as ``kv[1].``

        Raises IndexError that names an entry outside the pool; ValueError on a table of another shape or dtype, and on
        a host pool of another format, page size or geometry, or with fewer pages than the table.
        """
        pool, host = self.pool, self.host
        table = check_entries(self.table, pool.n_pages, name)
        if host is not None:
            if (host.format, host.page_size, host.geometry) != (pool.format, pool.page_size, pool.geometry):
                raise ValueError(f"{name}host: must have the pool's format, page size and geometry")
            if host.n_pages < table.size:
                raise ValueError(f"{name}host: {host.n_pages} pages: the table has {table.size}")

    def set_table(self, table: npt.ArrayLike) -> None:
        """Replace the entries of the table by ``table`` [logical pages].

        Raises, and changes nothing, IndexError on an entry outside the pool, ValueError on another number of pages.
        """
        table = check_entries(np.asarray(table), self.pool.n_pages)
        if table.shape != self.table.shape:
            raise ValueError(f"table: {table.size} pages: must be {self.table.size}")
        self.table[...] = table

    @classmethod
    def new(
        cls,
        format: str,
        capacity: int,
        page_size: int = 4,
        geometry: Geometry = REAL,
        table: npt.ArrayLike | None = None,
        host: bool = False,
    ) -> Self:
        """Empty K/V for ``capacity`` cells; the identity page table unless ``table`` is given, with a host copy when
        ``host`` is true."""
        n_pages = -(-capacity // page_size)
        table = np.arange(n_pages, dtype=np.int32) if table is None else np.asarray(table, np.int32)
        physical = max(1, int(table.max(initial=-1)) + 1)
        copy = Pool(format, max(1, table.size), page_size, geometry) if host else None
        return cls(Pool(format, physical, page_size, geometry), table, copy)

    @property
    def capacity(self) -> int:
        """Cells that the page table can address."""
        return self.table.size * self.pool.page_size

    @property
    def exact(self) -> bool:
        """Whether the exact arithmetic is defined for this format."""
        return self.pool.format in EXACT_FORMATS

    def locate(self, cells: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """(physical page, offset in the page), both int64 [n], of logical ``cells`` [n].

        The page is -1 where the cell is -1 or its page is not resident. Raises IndexError on a cell below -1 or beyond
        the capacity, and as :meth:`check_table` does.
        """
        self.check_table()
        cells = np.asarray(cells, np.int64)
        if cells.size and (cells.min() < -1 or cells.max() >= self.capacity):
            bad = cells[(cells < -1) | (cells >= self.capacity)][0]
            raise IndexError(f"cell {bad}: the page table addresses cells 0 to {self.capacity - 1}")
        valid = cells >= 0
        page = np.full(cells.shape, -1, np.int64)
        page[valid] = self.table[cells[valid] // self.pool.page_size]
        return page, np.where(valid, cells % self.pool.page_size, 0)


def read_kv(kv: PagedKV, cells: npt.ArrayLike) -> Cells:
    """The logical ``cells`` [n] of ``kv`` as :class:`Cells`; a cell of -1 or of a page that is not resident reads as 0
    and not resident.

    Raises IndexError on a cell beyond the capacity.
    """
    page, offset = kv.locate(cells)
    resident = page >= 0

    def cells_of(stored: Side) -> tuple[np.ndarray, np.ndarray]:
        codes, scale = stored.codes[page, :, offset], stored.scale[page, :, offset].astype(np.float32)
        codes = unpack_nibbles(codes) if stored.coding == "q4_0" else codes
        return np.where(resident[:, None, None], codes, 0).astype(codes.dtype), np.where(
            resident[:, None, None], scale, 0
        )

    k_codes, k_scale = cells_of(kv.pool.k)
    v_codes, v_scale = cells_of(kv.pool.v)
    return Cells(k_codes, k_scale, v_codes, v_scale, resident)
