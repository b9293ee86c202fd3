"""Filling a backend's own storage, and reading back what it holds: truth is made of these values."""

from typing import TYPE_CHECKING, Any

import numpy as np

from qsa.reference.geometry import REAL
from qsa.reference.index import Index
from qsa.reference.kv import PagedKV, Pool

from .kernel import Kernel, UnsupportedError
from .storage import Own, OwnIndex, OwnKV

if TYPE_CHECKING:
    from ..isolation import RemoteKernel

    AnyKernel = Kernel | RemoteKernel


def _run(kernel: "AnyKernel", name: str, arguments: dict[str, Any], gives: Any = "own") -> Any:
    if not kernel.has(name):
        raise UnsupportedError(f"{name}: the backend has none")
    return kernel.run(name, arguments, {}, gives, None)


def _after(before: Own, returned: Own) -> Own:
    """The storage after an append: what it returned, where it returned something, else the one given."""
    return before if returned.handle is None or returned.handle is True else returned


def store(
    kernel: "AnyKernel", k: np.ndarray, v: np.ndarray, positions: np.ndarray, capacity: int, pieces: int = 1
) -> OwnKV:
    """K and V [n, kv heads, dim] float32 of cells ``positions`` [n] int64 in own storage of ``capacity`` cells,
    appended in ``pieces`` calls, with the values that are read back. A position that comes again is written again.

    Raises UnsupportedError where the backend has no storage, or has not declared that many cells."""
    most = kernel.declaration.shapes.context
    if most is not None and capacity > most:
        raise UnsupportedError(f"cache: {capacity} cells: declared are {most} at most (shapes.context)")
    own = _run(kernel, "cache", {"capacity": capacity})
    for part in np.array_split(np.arange(len(positions)), pieces):
        if len(part):
            given = {"k": k[part], "v": v[part], "positions": positions[part]}
            own = _after(own, _run(kernel, "append", {"cache": own, **given}))
    held = np.unique(positions)
    table = np.full(capacity, -1, np.int32)
    table[held] = np.arange(len(held))
    paged = PagedKV(Pool("f64", max(1, len(held)), 1), table)
    values = read(kernel, own.handle, held)
    paged.pool.k.codes[: len(held), :, 0], paged.pool.v.codes[: len(held), :, 0] = values
    return OwnKV(own.handle, paged)


def read(kernel: "AnyKernel", handle: Any, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(K, V) float64 [n, kv heads, dim] that own storage holds at ``positions``. Raises ValueError on another shape."""
    result = _run(kernel, "read", {"cache": Own(handle), "positions": positions}, "pair")
    if len(result) != 2:
        raise ValueError(f"read: gave {len(result)} parts: must be (K, V)")
    k, v = (side.astype(np.float64) for side in result)
    shape = (len(positions), REAL.n_head_kv, REAL.head_dim)
    for name, side in (("K", k), ("V", v)):
        if side.shape != shape:
            raise ValueError(f"read: gave {name} of shape {list(side.shape)}: must be {list(shape)}")
    return k, v


def store_index(kernel: "AnyKernel", raw: np.ndarray, index: Index) -> OwnIndex:
    """Raw keys [n, idx_dim] of cells 0 to n - 1 in an own index. ``index``, a filled one of the reference in float64,
    gives the tables; its pooled keys are replaced by those read back.

    Raises UnsupportedError where the backend has no index, ValueError where it reads keys of another shape."""
    tables = {"weight": index.weight, "rope": index.rope, "rope0": index.rope0}
    own = _run(kernel, "index_cache", {"max_blocks": index.max_blocks, **tables})
    own = _after(own, _run(kernel, "index_append", {"index": own, "raw": raw, "positions": np.arange(len(raw))}))
    blocks = np.arange(len(raw) // index.geometry.ratio)
    if len(blocks):
        keys = _run(kernel, "index_read", {"index": own, "blocks": blocks}, "array")
        if keys.shape != (len(blocks), index.geometry.idx_dim):
            expected = [len(blocks), index.geometry.idx_dim]
            raise ValueError(f"index_read: gave keys of shape {list(keys.shape)}: must be {expected}")
        index.pooled[: len(blocks)] = keys
    return OwnIndex(own.handle, index)
