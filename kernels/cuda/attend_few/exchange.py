"""How the blocks of a cluster exchange maxima, masses and sums in the exact ``attend`` of few rows.

The means and the rules are those of ``attend_exact/exchange_cluster.py``. A block has an mbarrier for the maxima of all
blocks and one for their masses and sums. All blocks of a cluster take part, whether they have cells or not.
"""

from ..attend_exact.exchange_cluster import await_bytes
from ..attend_exact.shared_memory import HEAD_BYTES
from ..toolchain.compiler import cuda, device_function, int32, int64, uint32
from ..toolchain.constants import FULL_WARP
from ..toolchain.ptx import (
    fence_mbarrier_init,
    ld_shared_i64,
    ld_shared_v2_i64,
    ld_shared_v4_i32,
    map_shared,
    mbarrier_arrive_expect,
    mbarrier_init,
    st_async_i64,
    st_async_v2_i64,
    st_async_v4_i32,
)
from .layout import BOX_BYTES, BOX_STRIDE, HEADS, MOST_BLOCKS, SENDER_LANES

__all__ = ["await_bytes"]


def reciprocal_of(own: int) -> int:
    """What :func:`owner_of` multiplies by: 2^21 / ``own``, rounded up."""
    return ((1 << 21) + own - 1) // own


@device_function
def open_barriers(maxima_here, sums_here, blocks, pairs):
    """One lane: set up this block's barriers for the maxima of all ``blocks``, and for their masses and their sums of
    ``pairs`` pairs."""
    mbarrier_init(maxima_here, int32(1))
    mbarrier_init(sums_here, int32(1))
    fence_mbarrier_init()
    mbarrier_arrive_expect(maxima_here, int32(blocks * (HEADS * BOX_BYTES)))
    mbarrier_arrive_expect(sums_here, int32(blocks * (HEADS * 8 + pairs * 16)))


@device_function
def send_maxima(box, maxima, split, blocks, maxima_here, thread):
    """Send this block's maxima to the boxes of all blocks; a lane sends a piece of 16 bytes."""
    pieces = HEADS * BOX_BYTES // 16
    if thread < blocks * pieces:
        rank = int32(uint32(thread) // uint32(pieces))
        piece = int32(thread - rank * pieces)
        a, b, c, d = ld_shared_v4_i32(int32(maxima + (piece >> 1) * HEAD_BYTES + (piece & 1) * 16))
        at = map_shared(int32(box + split * BOX_STRIDE + piece * 16), rank)
        st_async_v4_i32(at, a, b, c, d, map_shared(maxima_here, rank))


@device_function
def owner_of(index, reciprocal):
    """index // own of the ``reciprocal`` of own (:func:`reciprocal_of`). Rounding up adds less than index / 2^21 to the
    quotient, which is below 1 / own as index * own stays below 2^21; the product stays below 2^31."""
    return int32(int32(index * reciprocal) >> 21)


@device_function
def send_pair(inbox, split, own, share_of, index, x, y, sums_here):
    """Send this block's two sums of a pair to the inbox of the pair's owner, int64 [senders, own, 2]."""
    owner = owner_of(index, share_of)
    at = map_shared(int32(inbox + ((split - owner) * own + index) * 16), owner)
    st_async_v2_i64(at, x, y, map_shared(sums_here, owner))


@device_function
def send_mass(own, inbox, split, blocks, parts, head, sums_here, lane):
    """One warp adds a head's mass over this block's warps and sends it to every inbox, int64 [senders, heads]."""
    if lane < blocks:
        total = int64(0)
        for part in range(parts):
            total += ld_shared_i64(int32(own + (part * HEADS + head) * 8))
        st_async_i64(map_shared(int32(inbox + (split * HEADS + head) * 8), lane), total, map_shared(sums_here, lane))


@device_function
def read_inbox(inbox, masses, own, blocks, index, head, part):
    """Two sums of the share's pair ``index`` and the mass of ``head``: over every ``SENDER_LANES``-th block from block
    ``part`` on."""
    x, y, mass_of = int64(0), int64(0), int64(0)
    for i in range(MOST_BLOCKS // SENDER_LANES):
        sender = int32(part + i * SENDER_LANES)
        if sender < blocks:
            a, b = ld_shared_v2_i64(int32(inbox + (sender * own + index) * 16))
            x += a
            y += b
            mass_of += ld_shared_i64(int32(masses + (sender * HEADS + head) * 8))
    return x, y, mass_of


@device_function
def sum_senders(x):
    """Sum over the four lanes, 8 apart, that share the senders of a pair."""
    x += cuda.shfl_xor_sync(FULL_WARP, x, 8)
    x += cuda.shfl_xor_sync(FULL_WARP, x, 16)
    return x
