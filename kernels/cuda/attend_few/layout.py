"""Where the exact ``attend`` of few rows keeps things in a block's shared memory.

A block takes ``room`` cells, a multiple of 32, of four query heads, with ``parts`` times four warps. A name in
``_OFFSET`` counts bytes from the start. There are, in this order: mbarriers; the heads' records and the block's own
maxima (``attend_exact/shared_memory.py``); the query's limbs; for each cell its row, K scales, exponents and scales of
V, and the powers and floors of its scores; the sums of the warps and their masses; and what the blocks of the cluster
send: sums, maxima, masses.
"""

from ..attend_exact.shared_memory import DIM, HEAD_BYTES, TILE

HEADS = 4
"""Query heads of a block: 4 heads of 4 limbs of weights are the 16 rows of one product."""

PRODUCTS = 2
"""Products of the scores: two limbs of four heads, and the third."""

PAIRS = HEADS * DIM // 2
"""Pairs of a block's sums: blocks send each other pairs, of 16 bytes."""

BARRIERS_OFFSET = 0
RECORDS_OFFSET = 16
MAXIMA_OFFSET = RECORDS_OFFSET + HEADS * HEAD_BYTES
LIMBS_OFFSET = (MAXIMA_OFFSET + HEADS * HEAD_BYTES + 127) // 128 * 128
CELLS_OFFSET = LIMBS_OFFSET + 4 * PRODUCTS * 32 * 16

PADDING = 8
"""Words between the powers of two heads beyond the cells: with a room that is a multiple of 32, the lanes of four heads
that store eight cells each meet 32 different banks."""

BOX_BYTES = 32
"""Bytes of a head's maxima as the blocks send them."""

BOX_STRIDE = HEADS * BOX_BYTES + 16
"""Bytes between the maxima of two blocks: 16 more than they take, so that the lanes which fold them read other banks
for each sender."""

SENDER_LANES = 4
"""Lanes that share the senders of a pair of sums."""

WARP_PAIRS = 32 // SENDER_LANES
"""Pairs of its share that a warp puts together at once."""

MOST_BLOCKS = 16
"""Blocks of a cluster at most."""


CELL_BYTES = 4 + 16 + 16 + 16
"""Bytes of a cell beside its powers: row, K scales, exponents and scales of V."""


def cells_bytes(room: int) -> int:
    """Bytes of what is kept for each of ``room`` cells, a multiple of 128."""
    return (room * CELL_BYTES + 2 * HEADS * (room + PADDING) * 4 + 127) // 128 * 128


def sums_bytes(parts: int) -> int:
    """Bytes of the warps' sums, in two halves of int32, and of their masses; a multiple of 16."""
    return parts * HEADS * (2 * DIM * 4 + 8)


def owned_pairs(blocks: int) -> int:
    """Pairs of sums of which one of so many blocks makes outputs, at most."""
    return -(-PAIRS // blocks)


def shared_bytes(room: int, parts: int, blocks: int) -> int:
    """Bytes of dynamic shared memory of a block."""
    inbox = blocks * (BOX_STRIDE + HEADS * 8 + owned_pairs(blocks) * 16)
    return CELLS_OFFSET + cells_bytes(room) + sums_bytes(parts) + inbox


def turns_of(room: int, parts: int) -> int:
    """Tiles of 16 cells that a warp scores at most."""
    return -(-room // (TILE * 4 * parts))
