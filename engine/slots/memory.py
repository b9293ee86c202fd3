"""How much memory a slot takes, and a check that the machine has it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from qsa.model import TextModel
from qsa.reference.kv import Pool

MAX_CELLS = 2**31 - 1
"""Largest number of cells of a sequence, and of a page: a step record holds positions in int32."""


def slot_bytes(model: TextModel, capacity: int, page_size: int, kv_format: str, index_format: str = "fp32") -> int:
    """Bytes of a slot's K/V pools, page tables and indexes over all QSA layers.

    The arguments are those of :class:`~qsa.engine.slots.slot.Slot`, in the ranges that it allows. The draft layer's
    cells and the recurrent memories are not counted: beyond one window they do not grow with the capacity.
    """
    geometry = model.geometry
    pages, blocks = -(-capacity // page_size), capacity // geometry.ratio + 1
    cell = Pool(kv_format, 1, 1, geometry).nbytes
    # A pooled key, with its exponent where it is encoded, and in float32 cos and sin of its rotation.
    key = 4 * geometry.idx_dim if index_format == "fp32" else 2 * (geometry.idx_dim + 1)
    index = blocks * (key + 4 * geometry.n_rot)
    return model.config.layer_types.count("indexed_attention") * (pages * (page_size * cell + 4) + index)


def host_bytes() -> int | None:
    """Bytes of this machine's memory, or None where the system does not report it."""
    names = "SC_PHYS_PAGES", "SC_PAGE_SIZE"
    if not set(names) <= set(getattr(os, "sysconf_names", ())):
        return None
    pages, size = map(os.sysconf, names)
    return pages * size if pages > 0 else None


@contextmanager
def memory_check(
    model: TextModel, capacity: int, page_size: int, kv_format: str, slots: int = 1, index_format: str = "fp32"
) -> Iterator[None]:
    """Context in which ``slots`` slots of these sizes are allocated.

    Raises ValueError that names the sizes and the bytes needed when there is not enough memory. On a host this is
    checked beforehand: a system may promise memory that it does not have, and end the process once it is written. On a
    device the allocator's error is translated (CuPy's error is a MemoryError).
    """
    sizes = capacity, page_size, kv_format, index_format
    needed = slot_bytes(model, *sizes) if kv_format in model.kv_formats else 0
    text = f"capacity = {capacity}, page_size = {page_size}: a slot takes at least {needed:,} bytes"
    if slots > 1:
        text += f", and slots = {slots} times as many"
    available = None if hasattr(model.backend, "to_device") else host_bytes()
    if available is not None and needed * slots > available:
        raise ValueError(f"{text}: this machine has {available:,}")
    try:
        yield
    except MemoryError as error:
        raise ValueError(f"{text}: out of memory") from error
