"""Kernels of ``select``: a thread block to a row, or several; from the chosen blocks to the row of ids."""

from collections.abc import Iterator
from typing import Any

from ..toolchain.compiler import cuda, device_function, int32, int64, kernel, specialised, uint32
from ..toolchain.ptx import (
    atom_global_inc,
    global_base,
    ld_global_f32_nc,
    ld_global_i32,
    ld_global_v4_i32_nc,
    ld_shared_i32,
    shared_base,
    st_global_i32,
    st_shared_i32,
)
from ..toolchain.ptx_rows import F2, I2, PtxRow, signature_of
from .radix_search import CHOSEN_OFFSET, MOST_BEST, SHARED_WORDS, STATE_OFFSET, THREADS, selection_key
from .row_search import held_search, reading_search

REGISTER_TURNS = (9, 17, 33)
"""Keys a lane holds in the builds of the register form; a call takes the first with room for its capacity."""

CHUNK_TURNS = 8
"""Keys a lane holds at a time in the forms that read them again."""

SLICE_TURNS = 16
"""Keys a lane holds of a slice, and then of the slices' best."""


def expansion(ratio: int, lanes: int = THREADS) -> tuple[Any, Any]:
    """Device functions (record, write) of rows of selected blocks of ``ratio`` cells, for ``lanes`` lanes."""

    @device_function
    def record(steps, row, max_blocks):
        """(n_kv, n_bid, width, best) of a step record, best = blocks to select; all 0 for a record that selects
        nothing or does not belong to ``max_blocks``."""
        _, n_kv, n_bid, width = ld_global_v4_i32_nc(global_base(steps) + int64(row) * 16)
        tail = int32(n_kv - n_bid * ratio)
        # Below 0 only in a record that is refused.
        best = int32(uint32(width - tail + ratio - 1) // uint32(ratio))
        fits = n_kv > 0 and 0 <= n_bid <= max_blocks and 0 <= tail < ratio and tail <= width <= n_kv
        if not fits or best > MOST_BEST or best > n_bid:
            return int32(0), int32(0), int32(0), int32(0)
        return n_kv, n_bid, width, best

    @device_function
    def write(ids, row, cap, n_kv, n_bid, width, labels, shared):
        """Writes a row of ids: the chosen blocks' cells, the tail, then -1. A chosen element's block is the word of
        ``labels`` (an address) at it, or itself when that is 0. The block at the rank in the state is cut to fit."""
        tail = int32(n_kv - n_bid * ratio)
        cells = int32(width - tail)
        missing = int32((ratio - cells % ratio) % ratio)
        cut = cells
        if missing > 0:
            cut = int32(ld_shared_i32(int32(shared + STATE_OFFSET + 8)) * ratio + ratio - missing)
        index = int32(cuda.threadIdx.x)
        out = global_base(ids) + int64(row) * cap * 4
        while index < cap:
            cell = int32(-1)
            if width == n_kv and index < width:
                cell = index
            elif index < cells:
                source = int32(index + missing) if index >= cut else index
                block = ld_shared_i32(int32(shared + CHOSEN_OFFSET + source // ratio * 4))
                if labels != 0:
                    block = ld_global_i32(labels + int64(block) * 4)
                cell = int32(block * ratio + source % ratio)
            elif index < width:
                cell = int32(n_bid * ratio + index - cells)
            st_global_i32(out + int64(index) * 4, cell)
            index = int32(index + lanes)

    return record, write


@specialised
def one_block(turns: int, held: bool, scanned: bool, ratio: int) -> Any:
    """The kernel that gives a thread block to a row: grid (rows), 1,024 lanes.

    ``held``: ``turns`` keys a lane stay in registers, up to 1,024 * ``turns`` blocks a row; otherwise keys are read
    again in every pass, ``turns`` at a time, and any number will do. ``scanned`` as for :func:`search`.
    """
    best_of = held_search(turns) if held else reading_search(turns, scanned)
    record, write = expansion(ratio)

    @kernel(launch_bounds=(THREADS, 1))
    def select(scores, steps, ids, max_blocks, cap):
        words = cuda.shared.array(SHARED_WORDS, int32)
        shared = shared_base(words)
        row = int32(cuda.blockIdx.x)
        n_kv, n_bid, width, best = record(steps, row, max_blocks)
        if width < n_kv and best > 0:
            source = global_base(scores) + int64(row) * max_blocks * 4
            best_of(source, False, n_bid, best, shared)
        write(ids, row, cap, n_kv, n_bid, width, int64(0), shared)

    return select


@specialised
def spread(turns: int, ratio: int) -> Any:
    """The kernel that spreads a row over thread blocks: grid (rows, slices), 1,024 lanes.

    A thread block finds the best of its slice of at most 1,024 * ``turns`` blocks and puts their keys and numbers into
    the row's scratch; the one that comes last selects among those. It waits for nobody, so any number of them may be
    resident. A row that fits one slice is selected by one thread block. ``scratch`` [rows, words_per_row] int32: a
    counter, 0 before and after, then keys, then numbers.
    """
    best_of = held_search(turns)
    record, write = expansion(ratio)

    @kernel(launch_bounds=(THREADS, 1))
    def select(scores, steps, ids, scratch, max_blocks, cap, words_per_row):
        words = cuda.shared.array(SHARED_WORDS, int32)
        shared = shared_base(words)
        row, slice_ = int32(cuda.blockIdx.x), int32(cuda.blockIdx.y)
        n_kv, n_bid, width, best = record(steps, row, max_blocks)
        slices = int32((n_bid + THREADS * turns - 1) // (THREADS * turns))
        if width == n_kv or best == 0:
            slices = int32(1)
        if slice_ >= slices:
            return
        labels = int64(0)
        if width < n_kv and best > 0:
            source = global_base(scores) + int64(row) * max_blocks * 4
            length = int32((uint32(n_bid) + uint32(slices) - uint32(1)) // uint32(slices))
            start = int32(slice_ * length)
            source = source + int64(start) * 4
            best_of(source, False, min(length, int32(n_bid - start)), best, shared)
            if slices > 1:
                counter = global_base(scratch) + int64(row) * words_per_row * 4
                found = counter + 4
                labels = found + int64(cuda.gridDim.y * best) * 4
                rank = int32(cuda.threadIdx.x)
                if rank < best:
                    element = ld_shared_i32(int32(shared + CHOSEN_OFFSET + rank * 4))
                    offset = int64(slice_ * best + rank) * 4
                    st_global_i32(found + offset, int32(selection_key(ld_global_f32_nc(source + int64(element) * 4))))
                    st_global_i32(labels + offset, int32(start + element))
                cuda.syncthreads()
                if cuda.threadIdx.x == 0:
                    # Orders the thread block's words before, and those of the ones that came earlier after.
                    st_shared_i32(int32(shared + STATE_OFFSET), atom_global_inc(counter, int32(slices - 1)))
                cuda.syncthreads()
                if ld_shared_i32(int32(shared + STATE_OFFSET)) != slices - 1:
                    return
                best_of(found, True, int32(slices * best), best, shared)
        write(ids, row, cap, n_kv, n_bid, width, labels, shared)

    return select


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each."""
    arrays = (F2, I2, I2)
    forms = [(turns, True, True) for turns in REGISTER_TURNS] + [(CHUNK_TURNS, False, scan) for scan in (False, True)]
    for turns, held, scan in forms:
        name = f"select_{'registers' if held else 'scan' if scan else 'wide'}_{turns}"
        yield PtxRow(name, one_block.build(turns, held, scan, 4), signature_of(*arrays, "int64", "int64"))
    yield PtxRow("select_spread", spread.build(SLICE_TURNS, 4), signature_of(*arrays, I2, *["int64"] * 3))
