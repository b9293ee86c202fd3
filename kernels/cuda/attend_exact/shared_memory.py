"""Where the exact ``attend`` keeps things: the fields of a pool, a block's shared memory, the sums of its outputs.

A name in ``_OFFSET`` is an offset in bytes from the start of a block's shared memory; a name in ``_BYTES`` is a size; a
name in ``_WORD`` is the index of a word in a head's record. Shared memory holds, in this order: the query's limbs, the
heads' records, the block's own maxima before they are exchanged, the heads' factors, the heads' masses, values kept for
the end because registers have no room, the mbarriers of a cluster; then, for each cell, row, K scales, exponents and
scales of V, scores and, for q4_0, signs. The sums of the warps overwrite the cells once these are done with. In a
cluster, what the other blocks send comes last.
"""

DIM = 256
HEADS = 12
"""Query heads of one KV head that the products hold; fewer leave columns and rows of them empty."""

TILE = 16
"""Cells of one product of the scores."""

STEP = 32
"""Cells of one product of the values."""

MAX_POOLS = 4
POOL_FIELDS = 7
"""int64 per pool: addresses of K's codes and scales, V's codes and scales and the page table; cells that the table
addresses; cells in a page."""

K_CODES, K_SCALE, V_CODES, V_SCALE, TABLE, CELLS_OF_TABLE, PAGE_SIZE = range(POOL_FIELDS)

PRODUCTS = 5
"""Products that one tile of cells takes for the three limbs of all heads."""

QUERY_BYTES = 4 * PRODUCTS * 32 * 16
"""Bytes of the query's limbs: for each pair of 32-dim steps and product, four registers of each lane."""

HEAD_BYTES = 64
"""Bytes of a head's record: words 0 to 8 the maxima, then the factor of its scores and whether it is poisoned."""

FACTOR_WORD, POISON_WORD = 9, 10

BOX_BYTES = 32
"""Bytes of a head's maxima as the blocks of a cluster send them."""

FACTORS_BYTES = 32
"""Bytes of a head's factors of its weights, one float32 per V group."""

RECORDS_OFFSET = QUERY_BYTES
MAXIMA_OFFSET = RECORDS_OFFSET + HEADS * HEAD_BYTES
FACTORS_OFFSET = MAXIMA_OFFSET + HEADS * HEAD_BYTES
TOTALS_OFFSET = FACTORS_OFFSET + HEADS * FACTORS_BYTES
KEPT_OFFSET = TOTALS_OFFSET + HEADS * 8
BARRIERS_OFFSET = KEPT_OFFSET + 32
V_CODES_OFFSET = BARRIERS_OFFSET + 16
CELLS_OFFSET = (V_CODES_OFFSET + 8 + 127) // 128 * 128
"""Bytes of shared memory before what is kept per cell, a multiple of 128; the order is that of the constants above."""

PADDING = 16
"""Words between the scores of two heads beyond the cells: with room a multiple of 32, eight lanes that read 16 bytes
each meet 32 different banks."""

SUMS = HEADS * DIM
"""Sums that a block makes."""

UNITS = 6
"""Pieces of 4 dims of the sums that a lane holds: four of head g, then two of head 8 + g / 2."""

SUM_PIECES = SUMS // 4
"""Pieces of a block's sums."""

SUM_PAIRS = SUMS // 2
"""Pairs of a block's sums: blocks send each other pairs, of 16 bytes (``outputs.py``)."""

SENDER_LANES = 2
"""Lanes that share the senders of a pair."""

WARP_PAIRS = 32 // SENDER_LANES
"""Pairs of its share that a warp puts together at once."""


def cell_bytes(k_groups: int, v_groups: int) -> int:
    """Bytes of shared memory for each cell."""
    return 4 + 4 * k_groups + 8 * v_groups + 4 * HEADS + (4 if v_groups == 8 else 0)


def cells_bytes(room: int, k_groups: int, v_groups: int) -> int:
    """Bytes of shared memory for ``room`` cells (a multiple of 32), a multiple of 128."""
    return (room * cell_bytes(k_groups, v_groups) + HEADS * PADDING * 4 + 127) // 128 * 128


def staging(parts: int) -> int:
    """Bytes in which the warps add up their sums; outputs to be rotated come after them."""
    return parts * SUMS * 8


def inbox_bytes(cluster: int) -> int:
    """Bytes in which a block of a cluster finds the others' maxima, masses and sums."""
    return cluster * ((-(-SUM_PAIRS // cluster) + 1) * 16 + HEADS * (BOX_BYTES + 8)) if cluster > 1 else 0


def shared_bytes(room: int, k_groups: int, v_groups: int, parts: int, cluster: int = 1) -> int:
    """Bytes of dynamic shared memory of a block for up to ``room`` cells (a multiple of 32)."""
    cells = cells_bytes(room, k_groups, v_groups)
    sums = staging(parts) + SUMS * 4 * (v_groups == 8)
    # In a cluster the sums have memory of their own, which saves a barrier.
    return CELLS_OFFSET + (cells + sums + inbox_bytes(cluster) if cluster > 1 else max(cells, sums))
