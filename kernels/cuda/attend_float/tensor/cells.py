"""Cells of the tensor-core form: rows of the pool, copies of K and V into shared memory, scales."""

from typing import Any

from ...toolchain.compiler import cuda, device_function, int32, int64, uint32
from ...toolchain.ptx import (
    cp_async_16_zfill,
    half_to_float,
    ld_global_i32,
    ld_global_v2_i32_nc,
    ld_global_v4_i32_nc,
    ld_shared_i32,
    st_shared_f32,
)
from .layout import CHUNK, THREADS


@device_function
def page_of(cell, table, capacity, page_size):
    """(physical page of a cell, or -1 where it is none or its page not resident, the cell's place in it). The page is
    on its way: nothing waits for it before :func:`row_of`."""
    page, offset = int32(-1), int32(0)
    if cell >= 0 and cell < capacity:
        # A division takes as long as a load.
        if page_size & (page_size - 1) == 0:
            logical = int32(cell >> (31 - cuda.clz(page_size)))
        else:
            logical = int32(uint32(cell) // uint32(page_size))
        offset = int32(cell - logical * page_size)
        page = ld_global_i32(table + int64(logical) * 4)
    return page, offset


@device_function
def row_of(page, offset, page_size, n_head_kv, g):
    """Row of the pool of what :func:`page_of` found; -1 where that is nothing."""
    return int32((page * n_head_kv + g) * page_size + offset) if page >= 0 else int32(-1)


def copy_of(row_bytes: int) -> Any:
    """``copy(codes, ring, rows, thread)``: the block's share of a chunk's codes from the global address ``codes`` of
    row 0 to the shared address ``ring``, the rows of its cells at ``rows``; zeros for a cell that is not selected,
    whose memory is not read."""
    pieces = row_bytes // 16
    step = THREADS // pieces
    each = CHUNK // step

    @device_function
    def copy(codes, ring, rows, thread):
        piece, cell = int32(thread & (pieces - 1)), int32(thread // pieces)
        to = int32(ring + cell * row_bytes + (piece ^ (cell & 7)) * 16)
        at = int32(rows + cell * 4)
        source = codes + piece * 16
        row = cuda.local.array(each, int32)
        for i in range(each):
            row[i] = ld_shared_i32(int32(at + i * (step * 4)))
        for i in range(each):
            taken = int32(16 if row[i] >= 0 else 0)
            first = source + int64(max(row[i], int32(0))) * row_bytes
            cp_async_16_zfill(int32(to + i * (step * row_bytes)), first, taken)

    return copy


@device_function
def power_place(cell):
    """Where a cell of a chunk stands among powers and V scales: a lane's four of every sixteen side by side."""
    return int32((cell & 0x30) + ((cell >> 1) & 3) * 4 + ((cell >> 3) & 1) * 2 + (cell & 1))


def scales_of(groups: int, ordered: bool) -> tuple[Any, Any]:
    """(load, store) of a cell's scales, ``groups`` of them; ``ordered``: V's, which stand as powers do."""
    words = groups // 2

    @device_function
    def load(raw, base, row):
        """The scales of the row, two to a word, to the local ``raw``; 0 where the row is -1."""
        for i in range(words):
            raw[i] = int32(0)
        if row >= 0:
            if groups == 4:
                raw[0], raw[1] = ld_global_v2_i32_nc(base + int64(row) * 8)
            if groups == 8:
                raw[0], raw[1], raw[2], raw[3] = ld_global_v4_i32_nc(base + int64(row) * 16)

    @device_function
    def store(raw, to, cell):
        """The scales as float32 to shared memory, [group][cell]."""
        at = int32(to + (power_place(cell) if ordered else cell) * 4)
        for i in range(words):
            st_shared_f32(int32(at + 2 * i * (CHUNK * 4)), half_to_float(raw[i]))
            st_shared_f32(int32(at + (2 * i + 1) * (CHUNK * 4)), half_to_float(int32(raw[i] >> 16)))

    return load, store
