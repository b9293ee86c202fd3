"""What a slot takes of memory, and what is said where there is not so much."""

import os
from contextlib import contextmanager

from qsa.reference.kv import Pool

MAX_CELLS = 2**31 - 1
"""Cells of a sequence, and of a page: a step record holds positions in int32."""


def slot_bytes(model, capacity, page_size, kv_format):
    """Bytes of the K/V, page tables and indexes of a slot's QSA layers; arguments as :class:`~qsa.engine.slot.Slot`,
    in ranges that it takes. The draft layer's cells and the recurrent memories, which do not grow with the capacity
    beyond a window, are not counted."""
    geometry = model.geometry
    pages, blocks = -(-capacity // page_size), capacity // geometry.ratio + 1
    cell = Pool(kv_format, 1, 1, geometry).nbytes
    # float32: a pooled key, and cos and sin of its rotation.
    index = 4 * blocks * (geometry.idx_dim + geometry.n_rot)
    return model.config.layer_types.count("indexed_attention") * (pages * (page_size * cell + 4) + index)


def host_bytes():
    """Bytes of this machine's memory; None where the system does not say."""
    names = "SC_PHYS_PAGES", "SC_PAGE_SIZE"
    if not set(names) <= set(getattr(os, "sysconf_names", ())):
        return None
    pages, size = map(os.sysconf, names)
    return pages * size if pages > 0 else None


@contextmanager
def room(model, capacity, page_size, kv_format, slots=1):
    """Inside, so many slots of these sizes are made. Raises ValueError naming them, and the bytes that they would take,
    where there is no memory for them: on a host beforehand, since there a system may promise memory that it does not
    have and end the process once it is written; on a device when its allocator says so (CuPy's error is a
    MemoryError)."""
    needed = slot_bytes(model, capacity, page_size, kv_format) if kv_format in model.kv_formats else 0
    text = f"capacity = {capacity}, page_size = {page_size}: a slot takes at least {needed:,} bytes"
    if slots > 1:
        text += f", and slots = {slots} times as many"
    there = None if hasattr(model.backend, "to_device") else host_bytes()
    if there is not None and needed * slots > there:
        raise ValueError(f"{text}: this machine has {there:,}")
    try:
        yield
    except MemoryError as error:
        raise ValueError(f"{text}: out of memory") from error
