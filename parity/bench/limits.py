"""The limits of a device, measured in the run that is judged by them: an empty launch, a copy, reads of the bytes that
an operation must read, in the pieces in which it must read them."""

from collections.abc import Callable

import numpy as np

from qsa.kernels.cuda.toolchain.compiler import array_module, cuda, int32, int64, kernel, launch
from qsa.kernels.cuda.toolchain.ptx import global_base, ld_global_v4_i32, st_global_i32

from ..screen.limits.floors import cell_bytes

WORD = 16
"""Bytes of one load."""

PIECE = 256
"""Words of a piece at most: 8 loads in flight for each lane of a warp."""

THREADS = 256
NEVER = 0x7FABCDEF

__all__ = ["cell_bytes", "copy", "empty", "gather", "reader", "sequential"]

EMPTY, READ, GATHER = "an empty kernel", "a read of the same bytes", "a gather of the same bytes"
"""Names of the limits in a benchmark's rows."""


@kernel()
def _empty():
    pass


@kernel()
def _read_pieces(words, starts, pieces, size, out):
    """A warp loads piece after piece: ``size`` words of 16 bytes from the word ``starts[piece]`` on. It stores only
    what never happens, so that the loads stay."""
    base = global_base(words)
    lane = int32(cuda.threadIdx.x & 31)
    piece = int32((cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x) >> 5)
    stride = int32((cuda.gridDim.x * cuda.blockDim.x) >> 5)
    found = int32(0)
    while piece < pieces:
        start = int64(starts[piece])
        for i in range(8):
            word = int32(lane + 32 * i)
            if word < size:
                a, b, c, d = ld_global_v4_i32(base + (start + word) * 16)
                found = int32(found | (a & b & c & d))
        piece = int32(piece + stride)
    if found == NEVER:
        st_global_i32(global_base(out), found)


def empty() -> None:
    """Launch a kernel of one warp that does nothing."""
    launch(_empty, 1, 32, ())


def reader(nbytes: int, starts: np.ndarray, size: int) -> Callable[[], object]:
    """A function that launches a read of the pieces at ``starts`` (int32, in words of 16 bytes), each of ``size``
    words, in a buffer of ``nbytes``. Raises ValueError on a piece beyond the buffer or longer than :data:`PIECE`."""
    cupy = array_module()
    starts = np.asarray(starts, np.int32)
    if not 1 <= size <= PIECE or int(starts.max()) + size > nbytes // WORD:
        raise ValueError(f"pieces of {size} words up to word {int(starts.max()) + size}: must be up to {PIECE}, inside")
    # Not zeros: a device may move those faster.
    words = cupy.arange(nbytes // 4, dtype="int32") * np.int32(-1640531527)
    offsets, out = cupy.asarray(starts), cupy.zeros(1, "int32")
    blocks = -(-len(starts) * 32 // THREADS)
    return lambda: launch(_read_pieces, blocks, THREADS, (words, offsets, len(starts), size, out))


def sequential(nbytes: int) -> Callable[[], object]:
    """A function that launches a read of ``nbytes`` in order; the end that fills no piece of 4 KiB is left out."""
    pieces = max(1, nbytes // (WORD * PIECE))
    return reader(max(nbytes, WORD * PIECE), np.arange(pieces) * PIECE, PIECE)


def gather(
    ids: np.ndarray, slots: np.ndarray, n_slots: int, capacity: int, n_head_kv: int, cell: int, block: int = 4
) -> Callable[[], object]:
    """A function that launches a read of what rows of attention must read: for each row and KV head the blocks of its
    selected cells, a piece each, out of pools of ``n_slots`` slots.

    ids       [rows, width] int32, ascending, -1 for none
    slots     [rows] int32
    capacity  cells of a slot
    cell      bytes of a cell of one KV head
    """
    size = block * cell // WORD
    per_slot = -(-capacity // block) * n_head_kv
    starts = []
    for row, slot in zip(ids, slots, strict=True):
        blocks = np.unique(row[row >= 0] // block)
        pieces = slot * per_slot + blocks[:, None] * n_head_kv + np.arange(n_head_kv)
        starts.append(pieces.ravel() * size)
    return reader(n_slots * per_slot * size * WORD, np.concatenate(starts), size)


def copy(nbytes: int = 1 << 30) -> tuple[Callable[[], object], int]:
    """(function, bytes that it moves): launches a copy of ``nbytes`` on the device, read and written."""
    cupy = array_module()
    source, target = (cupy.arange(nbytes // 4, dtype="int32") for _ in range(2))
    return lambda: cupy.copyto(target, source), 2 * nbytes
