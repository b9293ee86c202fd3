"""Shared memory of the blocks of ``attend_pairs``, and when two rows share their cells.

A block's memory begins with what each of the two rows has for itself, ``ROW_BYTES`` a row, laid out as in
``attend_exact/shared_memory.py``: limbs of the query, records, maxima, factors and masses of its heads. Then come the
box (the other block's maxima), the row's places, counters and mbarriers, and from ``FIXED`` on, in this order:

====================  =====================================================  ==========================
part                  what                                                   bytes
====================  =====================================================  ==========================
K scales, exponents   of the slots, fp16 and of the V scales                 24 a slot
powers of the others  scores of the row that the other block finishes        48 a cell of it
rows, V scales        of the slots                                           20 a slot
powers                scores of the row that this block finishes             48 a cell of it
inbox                 sums and masses that the other block sends, at the end ``INBOX_BYTES``
====================  =====================================================  ==========================

The first two parts also hold the sums of the warps, once for each row, so they are at least ``STAGING`` bytes where
rows share their cells. Before any of it the ids of both rows stand there while they are compared.
"""

from ..attend_exact.shared_memory import BOX_BYTES, HEADS, PADDING, STEP, SUMS, TOTALS_OFFSET, staging

PARTS = 3
"""Warps that share a product's columns."""

WARPS, THREADS = 4 * PARTS, 128 * PARTS

EACH = 6
"""Ids of a row, and slots, that a lane looks up."""

SCALE_WORDS = 2 * EACH
"""Words of a lane's K or V scales, two to a word."""

IDS = EACH * THREADS
"""Ids of a row at most."""

ROW_BYTES = (TOTALS_OFFSET + HEADS * 8 + 127) // 128 * 128
BOX_OFFSET = 2 * ROW_BYTES
PLACES_OFFSET = BOX_OFFSET + 2 * HEADS * BOX_BYTES
"""For each row the address of its powers, the words between two heads of them, its cells, and by how many slots those
that it has alone stand off."""

COUNTERS_OFFSET = PLACES_OFFSET + 32
BARRIERS_OFFSET = COUNTERS_OFFSET + 32
FIXED = (BARRIERS_OFFSET + 16 + 127) // 128 * 128

STAGING = staging(PARTS)
MASSES = SUMS * 8
"""Offset of the masses in the inbox."""

INBOX_BYTES = (MASSES + HEADS * 8 + 127) // 128 * 128

LOW_BYTES, HIGH_BYTES, POWER_BYTES = 24, 20, 4 * HEADS


def alone_bytes(cap: int) -> int:
    """Bytes of shared memory of a block that has a row of ``cap`` cells alone."""
    slots = max(STEP, -(-cap // STEP) * STEP)
    cells = slots * (LOW_BYTES + HIGH_BYTES + POWER_BYTES) + PADDING * POWER_BYTES
    return FIXED + max(cells, STAGING, 3 * IDS * 4 + INBOX_BYTES)
