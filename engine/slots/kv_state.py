"""Reads, writes and copies the K/V cells of one sequence as plain arrays, whatever backend and page size hold them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from qsa.reference.kv import PagedKV

ARRAY_NAMES = "k_codes", "k_scale", "v_codes", "v_scale"
"""Names of the arrays of a K/V."""

Transfer = Callable[[Any], Any]
"""A function that moves an array or a container (PagedKV, Index) to the host or to the device."""

Spec = tuple[tuple[int, ...], Any]
"""Shape and dtype of an array."""


def transfers(backend: Any) -> tuple[Transfer, Transfer]:
    """(transfer to the host, transfer to the device) of a backend. NumPy's arrays stay as they are."""
    return getattr(backend, "to_host", lambda x: x), getattr(backend, "to_device", lambda x: x)


def _offsets(kv: PagedKV, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """(physical page, offset in the page) of the cells ``first`` to ``end`` - 1 of a K/V on the host."""
    return kv.locate(np.arange(first, end))


def _arrays(kv: PagedKV) -> dict[str, np.ndarray]:
    """Name -> array of codes and scales of a K/V, in the order of ARRAY_NAMES."""
    pools = ("k", kv.pool.k), ("v", kv.pool.v)
    return {f"{name}_{kind}": getattr(pool, kind) for name, pool in pools for kind in ("codes", "scale")}


def read_cells(kv: PagedKV, first: int, end: int, host: Transfer) -> dict[str, np.ndarray]:
    """Codes and scales of the cells ``first`` to ``end`` - 1 as stored: name -> array [cells, heads, x].

    ``host`` transfers a backend's containers to the host. Cells come in the order of the sequence, so the result does
    not depend on page size or page table.
    """
    kv = host(kv)
    page, offset = _offsets(kv, first, end)
    return {name: array[page, :, offset] for name, array in _arrays(kv).items()}


def cell_specs(kv: PagedKV, count: int) -> dict[str, Spec]:
    """Name -> (shape, dtype) of the arrays that :func:`read_cells` returns for ``count`` cells."""
    return {name: ((count, a.shape[1], *a.shape[3:]), a.dtype) for name, a in _arrays(kv).items()}


def write_cells(kv: PagedKV, first: int, cells: dict[str, np.ndarray], host: Transfer, device: Transfer) -> None:
    """Store ``cells``, as :func:`read_cells` returns them, from cell ``first`` on. Their pages must be resident."""
    stored = host(kv)
    page, offset = _offsets(stored, first, first + len(cells["k_codes"]))
    for name, array in _arrays(stored).items():
        array[page, :, offset] = cells[name]
    for target, array in zip(_arrays(kv).values(), _arrays(stored).values(), strict=True):
        target[...] = device(array)


def copy_pool(target: PagedKV, source: PagedKV) -> None:
    """Copy pool and page table of ``source`` into ``target``, which has the same sizes."""
    for mine, other in zip(_arrays(target).values(), _arrays(source).values(), strict=True):
        mine[...] = other
    target.table[...] = source.table
