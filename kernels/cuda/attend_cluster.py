"""What the blocks of one row tell each other in the exact ``attend`` where a cluster holds them (sm_90).

Blocks write straight into each other's shared memory, and ``barrier.cluster`` says when all has come: maxima are folded
into every block's records; mass and sums land in the *inbox* of the block whose share of the outputs they are. The
blocks of a row and KV head are one cluster, so a block's split is its rank. Three barriers:

1. all records are set (arrived at early, waited for late), so that maxima may be folded into them
2. all maxima have come
3. all sums have come; after it no block looks into another, so blocks may end

int8 V alone. Blocks beyond a row's ``active`` ones end at once; barriers do not wait for them.
"""

from .attend_layout import HEAD_BYTES, HEADS
from .attend_outputs import owner_of
from .compiler import device_function, int32, int64, uint32
from .ptx import (
    ld_shared_i32,
    ld_shared_i64,
    ld_shared_v2_i64,
    map_shared,
    red_cluster_max_i32,
    st_cluster_i64,
    st_cluster_v2_i64,
)

KINDS = 5
"""Maxima of a head."""

LANES = 2
"""Lanes that share the senders of a pair."""


@device_function
def fold_maxima(maxima, records, active, thread, threads):
    """Fold this block's maxima into the records of all ``active`` blocks; 64 lanes a block, of which 60 have a word."""
    word = int32(thread & 63)
    if word < HEADS * KINDS:
        head = int32(uint32(word) // uint32(KINDS))
        at = int32(head * HEAD_BYTES + (word - head * KINDS) * 4)
        value = ld_shared_i32(int32(maxima + at))
        for rank in range(thread >> 6, active, int32(threads >> 6)):
            red_cluster_max_i32(map_shared(int32(records + at), int32(rank)), value)


@device_function
def tell_mass(masses, split, active, head, mass_of, lane):
    """One warp, one head: this block's mass of it to every block's inbox, int64 [senders, 12]."""
    if lane < active:
        st_cluster_i64(map_shared(int32(masses + (split * HEADS + head) * 8), lane), mass_of)


@device_function
def tell_pair(inbox, split, own, share_of, told, x, y):
    """This block's two sums of a place to the inbox of its owner, int64 [senders, own, 2]."""
    owner = owner_of(told, share_of)
    st_cluster_v2_i64(map_shared(int32(inbox + ((split - owner) * own + told) * 16), owner), x, y)


@device_function
def read_inbox(inbox, masses, own, active, place, head, part):
    """Two sums of the share's place ``place`` and the mass of ``head``, over every ``LANES``-th block from ``part``
    on."""
    x, y, mass_of = int64(0), int64(0), int64(0)
    for sender in range(part, active, int32(LANES)):
        a, b = ld_shared_v2_i64(int32(inbox + (sender * own + place) * 16))
        x += a
        y += b
        mass_of += ld_shared_i64(int32(masses + (sender * HEADS + head) * 8))
    return x, y, mass_of
