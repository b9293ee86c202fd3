"""Where the tensor-core form of the float ``attend`` keeps things: sizes, and a block's shared memory.

Shared memory holds, in this order: two chunks of K and two of V as they lie in the pool, in pieces of 16 bytes whose
order within a cell is turned by the cell's number (so that eight cells meet 32 different banks); the parts of the
scores, twice; the powers, twice; the scales of K (two chunks) and V (four); the cells' rows of the pool (four chunks);
what is known of each head; the pool's fields, and the address of the row's ids. The query lies, while it is made ready,
where the second scores come to lie.
"""

from typing import NamedTuple

from ...attend_exact.shared_memory import DIM, HEADS, POOL_FIELDS

CHUNK = 64
"""Cells that a block takes at a time."""

WARPS = 8
THREADS = 32 * WARPS

WEIGHERS = HEADS // 2
"""Warps that make powers, of two heads each."""

QUARTERS = 4
"""Parts of 64 dims, each the work of two warps: half of a chunk's cells in scores, half of the dims in values."""

NO_TOP = -(1 << 30)
"""Reference exponent of a head without a cell."""

CODE_BYTES = {"int8": DIM, "q4_0": DIM // 2, "fp16": 2 * DIM}
"""Bytes of a cell's codes in one KV head."""

SCALES = {"int8": 4, "q4_0": 8, "fp16": 0}
"""Scales of a cell."""

PRODUCTS = {"int8": 5, "q4_0": 5, "fp16": 3}
"""Products whose columns hold the parts of all heads' queries."""

QUERY_WORDS = {"int8": 4, "q4_0": 4, "fp16": 8}
"""Words of the query that a lane has of each product: 64 dims."""

SCORE_ROW = CHUNK + 8
"""Words of a head's parts of scores: four heads times eight cells meet 32 different banks."""

PART_BYTES = HEADS * SCORE_ROW * 4
SCORES_BYTES = QUARTERS * PART_BYTES

POWER_ROW = (CHUNK + 16) * 4
"""Bytes of a head's powers: two heads times 64 bytes meet 32 different banks."""

POWER_HEADS = 16
"""Heads of the powers: those beyond the last are zeros."""

POWERS_BYTES = POWER_HEADS * POWER_ROW

HEAD_WORDS = POWER_HEADS * 4
"""Bytes of a word for each head."""


class Layout(NamedTuple):
    """Offsets in bytes from the start of a block's shared memory."""

    k: int
    v: int
    scores: int
    powers: int
    k_scale: int
    v_scale: int
    rows: int
    factors: int
    poison: int
    fades: int
    tops: int
    masses: int
    fields: int
    end: int


def layout_of(k_coding: str, v_coding: str) -> Layout:
    """:class:`Layout` for K and V in these codings."""
    sizes = (
        2 * CHUNK * CODE_BYTES[k_coding],
        2 * CHUNK * CODE_BYTES[v_coding],
        2 * SCORES_BYTES,
        2 * POWERS_BYTES,
        2 * CHUNK * 4 * SCALES[k_coding],
        4 * CHUNK * 4 * SCALES[v_coding],
        4 * CHUNK * 4,
        HEAD_WORDS,
        HEAD_WORDS,
        2 * HEAD_WORDS,
        2 * HEAD_WORDS,
        2 * HEAD_WORDS,
        (POOL_FIELDS + 1) * 8,
    )
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + size)
    return Layout(*offsets)
