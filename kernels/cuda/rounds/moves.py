"""Copies by tables of addresses, and the places of a drafted token.

One launch copies any number of arrays: a round keeps some twenty arrays of every slot for its rollback, and a launch
for each would take longer than the bytes do.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..common.checks import check_array
from ..toolchain.compiler import address, array_module, cuda, int32, int64, kernel, launch
from ..toolchain.host import DeviceArray
from ..toolchain.ptx import (
    ld_global_i32,
    ld_global_i64_nc,
    ld_global_v4_i32,
    st_global_i32,
    st_global_i64,
    st_global_v4_i32,
)
from ..toolchain.ptx_rows import PtxRow, integers

THREADS = 256
WIDE = 4
"""Words of 4 bytes that a lane moves at a time, where addresses and counts allow it."""

PIECE = 4 * THREADS * WIDE
"""Words of a table's line at most: longer arrays have several lines, a thread block each."""

FIELDS = 5
"""Words of a table's line: source, target, words, stride in bytes of the source's rows, its place in ``rows``."""

PLACES = 3
"""Words of a draft's line: its row of the window, its line of the history, its place in that line."""


class CopyTable(NamedTuple):
    """Arrays to be copied: ``lines`` int64 [lines, 5] on the device, and the number of ``arrays``."""

    lines: DeviceArray
    arrays: int


def _table(arrays: Sequence[tuple[int, int, int, int]]) -> CopyTable:
    """:class:`CopyTable` of ``arrays``: address of the source, of the target, words of 4 bytes, and the stride in bytes
    between rows of the source."""
    lines = [
        (source + 4 * first, target + 4 * first, min(PIECE, words - first), stride, place)
        for place, (source, target, words, stride) in enumerate(arrays)
        for first in range(0, words, PIECE)
    ]
    if not lines:
        raise ValueError("arrays: none: at least one is required")
    return CopyTable(array_module().array(np.array(lines, np.int64)), len(arrays))


def _size(array: Any) -> int:
    """Bytes of ``array``. Raises ValueError unless it is C-contiguous, of whole words."""
    if not array.flags.c_contiguous or array.nbytes % 4:
        raise ValueError(f"array: strides {array.strides}, {array.nbytes} bytes: must be C-contiguous, of whole words")
    return int(array.nbytes)


def array_table(pairs: Sequence[tuple[Any, Any]]) -> CopyTable:
    """The table that copies every source whole into its target; ``pairs`` of arrays of one size."""
    for source, target in pairs:
        if _size(source) != _size(target):
            raise ValueError(f"pairs: {source.nbytes} and {target.nbytes} bytes: must be as many")
    return _table([(address(source), address(target), _size(source) // 4, 0) for source, target in pairs])


def scatter_table(targets: Sequence[Any]) -> CopyTable:
    """The table that copies a row of a call's ``source`` into each of ``targets``, arrays of a row's size."""
    return _table([(0, address(target), _size(target) // 4, _size(target)) for target in targets])


def gather_table(sources: Sequence[Any]) -> CopyTable:
    """The table that copies each of ``sources``, arrays of one size, into a row of a call's ``target``."""
    return _table([(address(source), i * _size(source), _size(source) // 4, 0) for i, source in enumerate(sources)])


def rows_table(count: int, size: int) -> CopyTable:
    """The table that copies ``count`` chosen rows of a call's ``source`` into its ``target``; ``size`` bytes of a
    row."""
    return _table([(0, i * size, size // 4, size) for i in range(count)])


@kernel()
def copies_kernel(lines, rows, source, target):
    """Grid (lines). ``rows`` address of int32 [arrays] or 0."""
    line = lines + int64(cuda.blockIdx.x) * (FIELDS * 8)
    begin = source + ld_global_i64_nc(line)
    if rows != 0:
        row = ld_global_i32(rows + ld_global_i64_nc(line + 32) * 4)
        if row < 0:
            return
        begin = begin + int64(row) * ld_global_i64_nc(line + 24)
    end = target + ld_global_i64_nc(line + 8)
    words = int32(ld_global_i64_nc(line + 16))
    first = int32(cuda.threadIdx.x * WIDE)
    aligned = (begin | end) & 15 == 0
    while first < words:
        here, there = begin + int64(first) * 4, end + int64(first) * 4
        if aligned and first + WIDE <= words:
            a, b, c, d = ld_global_v4_i32(here)
            st_global_v4_i32(there, a, b, c, d)
        else:
            for i in range(min(WIDE, int32(words - first))):
                st_global_i32(there + i * 4, ld_global_i32(here + i * 4))
        first = int32(first + THREADS * WIDE)


def copies(
    table: CopyTable, rows: DeviceArray | None = None, source: DeviceArray | None = None, target: Any = None
) -> None:
    """Copy every array of ``table``; one launch.

    rows            int32 [arrays] on the device: the row of every source, below 0 to leave its target as it is; None:
                    row 0
    source, target  the arrays that the table leaves to its calls
    """
    if rows is not None:
        check_array("rows", rows, "int32", (table.arrays,), alignment=4)
    given = [0 if array is None else address(array) for array in (rows, source, target)]
    launch(copies_kernel, len(table.lines), THREADS, (address(table.lines), *given))


@kernel()
def push_kernel(tokens, places, next_ids, ids, history, drafts, seen, capacity, count):
    """Grid (drafts / 256), a lane to a draft. All arguments but the last two are addresses."""
    item = int32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
    if item >= count:
        return
    token = ld_global_i32(tokens + int64(item) * 4)
    at = places + int64(item) * (PLACES * 4)
    row, line, place = int64(ld_global_i32(at)), int64(ld_global_i32(at + 4)), int64(ld_global_i32(at + 8))
    # What failed goes on as token 0: the host ends the drafts before it.
    safe = int32(max(token, int32(0)))
    st_global_i64(next_ids + int64(item) * 8, int64(safe))
    st_global_i64(ids + row * 8, int64(safe))
    if place < capacity:
        st_global_i32(history + (line * capacity + place) * 4, safe)
    st_global_i32(drafts + (row - 1) * 4, token)
    st_global_i32(seen + int64(item) * 4, token)


def push_drafts(
    tokens: DeviceArray,
    places: DeviceArray,
    next_ids: DeviceArray,
    ids: DeviceArray,
    history: DeviceArray,
    drafts: DeviceArray,
    seen: DeviceArray,
) -> None:
    """Write drafted tokens to all places that read them; one launch.

    tokens    int32 [n], drawn by the sampler: ids, or error codes, which are read as id 0 everywhere but in ``drafts``
              and ``seen``
    places    int32 [n, 3]: row of the window that runs the draft; line of the history and place in it
    next_ids  int64 [n], the draft layer's next ids
    ids       int64 [rows], the window's ids
    history   int32 [lines, capacity], the sampler's
    drafts    int32 [rows]: the row before a draft's own judges it
    seen      int32 [n], memory that the host reads

    Raises ValueError on mismatched arrays.
    """
    n, rows = len(tokens), len(ids)
    for name, array, dtype, shape in (
        ("tokens", tokens, "int32", (n,)),
        ("places", places, "int32", (n, PLACES)),
        ("next_ids", next_ids, "int64", (n,)),
        ("ids", ids, "int64", (rows,)),
        ("history", history, "int32", history.shape),
        ("drafts", drafts, "int32", (rows,)),
        ("seen", seen, "int32", (n,)),
    ):
        check_array(name, array, dtype, shape, alignment=array.dtype.itemsize)
    arrays: list[Any] = [tokens, places, next_ids, ids, history, drafts, seen]
    launch(push_kernel, -(-n // THREADS), THREADS, (*map(address, arrays), history.shape[1], n))


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each."""
    yield PtxRow("round_copies", copies_kernel, integers(4))
    yield PtxRow("round_push", push_kernel, integers(9))
