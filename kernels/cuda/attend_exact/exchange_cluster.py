"""How the blocks of one row exchange maxima, mass and sums where they are one cluster (sm_90).

A block stores straight into the shared memory of the others, asynchronously. Every store counts its bytes on an
mbarrier of the block that receives it, and a block waits until the bytes that it expects are there; nothing else is
fenced or waited for. The blocks of a row and KV head are one cluster, so a block's split is its rank. A block has two
such mbarriers: one for the maxima of all blocks, one for their masses and sums. It keeps what it receives by sender:
maxima in the *box*, mass and sums of its own share of the outputs in the *inbox*.

The block arrives at ``barrier.cluster`` early and waits for it late, once: before that, the mbarriers of the others may
not be set up. A block ends when all that it expects has come, and nothing is sent to it later. V is int8. Blocks beyond
a row's ``active`` blocks end at once, and nobody waits for them.
"""

from qsa.reference.exact.attend import NO_CELL

from ..toolchain.compiler import cuda, device_function, int32, int64, uint32
from ..toolchain.constants import FULL_WARP
from ..toolchain.ptx import (
    fence_mbarrier_init,
    ld_shared_i32,
    ld_shared_i64,
    ld_shared_v2_i64,
    ld_shared_v4_i32,
    map_shared,
    mbarrier_arrive_expect,
    mbarrier_init,
    mbarrier_try_wait,
    st_async_i64,
    st_async_v2_i64,
    st_async_v4_i32,
    st_shared_i32,
)
from .outputs import owner_of
from .shared_memory import BOX_BYTES, HEAD_BYTES, HEADS, SENDER_LANES

KINDS = 5
"""Maxima of a head."""

MAXIMA_PIECES = HEADS * BOX_BYTES // 16
"""16-byte pieces of a block's maxima: 8 words a head, of which ``KINDS`` count."""


@device_function
def open_barriers(maxima_here, sums_here, active, pairs):
    """One lane: set up this block's barriers, at two shared addresses, for the maxima of ``active`` blocks and for
    their masses and sums of ``pairs`` pairs."""
    mbarrier_init(maxima_here, int32(1))
    mbarrier_init(sums_here, int32(1))
    fence_mbarrier_init()
    mbarrier_arrive_expect(maxima_here, int32(active * (HEADS * BOX_BYTES)))
    mbarrier_arrive_expect(sums_here, int32(active * (HEADS * 8 + pairs * 16)))


@device_function
def await_bytes(barrier):
    """Return once all that ``barrier`` expects has come."""
    while mbarrier_try_wait(barrier, int32(0)) == 0:
        pass


@device_function
def send_maxima(box, maxima, split, active, maxima_here, thread):
    """Send this block's maxima to the boxes, int32 [senders, 12, 8], of all ``active`` blocks; a lane sends a piece."""
    if thread < active * MAXIMA_PIECES:
        rank = int32(uint32(thread) // uint32(MAXIMA_PIECES))
        piece = int32(thread - rank * MAXIMA_PIECES)
        a, b, c, d = ld_shared_v4_i32(int32(maxima + (piece >> 1) * HEAD_BYTES + (piece & 1) * 16))
        at = map_shared(int32(box + (split * MAXIMA_PIECES + piece) * 16), rank)
        st_async_v4_i32(at, a, b, c, d, map_shared(maxima_here, rank))


@device_function
def fold_maxima(box, records, active, head, lane):
    """One warp folds a head's maxima over all ``active`` blocks, from the box into the head's record."""
    word, value = int32(lane & 7), int32(NO_CELL)
    for sender in range(lane >> 3, active, int32(4)):
        value = max(value, ld_shared_i32(int32(box + (sender * HEADS + head) * BOX_BYTES + word * 4)))
    for distance in (8, 16):
        value = max(value, int32(cuda.shfl_xor_sync(FULL_WARP, value, distance)))
    if lane < KINDS:
        st_shared_i32(int32(records + head * HEAD_BYTES + word * 4), value)
    cuda.syncwarp()


@device_function
def send_mass(masses, split, active, head, mass_of, sums_here, lane):
    """One warp sends this block's mass of a head to every block's inbox, int64 [senders, 12]."""
    if lane < active:
        st_async_i64(map_shared(int32(masses + (split * HEADS + head) * 8), lane), mass_of, map_shared(sums_here, lane))


@device_function
def send_pair(inbox, split, own, share_of, index, x, y, sums_here):
    """Send this block's two sums of a pair to the inbox of the pair's owner, int64 [senders, own, 2]."""
    owner = owner_of(index, share_of)
    at = map_shared(int32(inbox + ((split - owner) * own + index) * 16), owner)
    st_async_v2_i64(at, x, y, map_shared(sums_here, owner))


@device_function
def read_inbox(inbox, masses, own, active, index, head, part):
    """Two sums of the share's pair ``index`` and the mass of ``head``: over every ``SENDER_LANES``-th block from block
    ``part`` on."""
    x, y, mass_of = int64(0), int64(0), int64(0)
    for sender in range(part, active, int32(SENDER_LANES)):
        a, b = ld_shared_v2_i64(int32(inbox + (sender * own + index) * 16))
        x += a
        y += b
        mass_of += ld_shared_i64(int32(masses + (sender * HEADS + head) * 8))
    return x, y, mass_of
