"""How the thread blocks of a row's cluster exchange in the schedule ``bounded`` (sm_90).

Every rank sends its bound and its greatest key to the *box* of every rank, and then what it has left to the list of
rank 0, asynchronously: each store counts its bytes on an mbarrier of the receiver. How many bytes the list waits for no
one knows before, so every rank arrives at the list's mbarrier with its own number. A rank ends when it has sent all;
nothing is sent to it any more by then.
"""

from ..toolchain.compiler import cuda, device_function, int32, int64, uint32
from ..toolchain.ptx import (
    cluster_wait,
    fence_mbarrier_init,
    ld_shared_v2_i32,
    map_shared,
    mbarrier_arrive_expect,
    mbarrier_arrive_expect_at,
    mbarrier_init,
    mbarrier_try_wait,
    redux_max,
    redux_min,
    st_async_i64,
)
from .bounded_keys import NO_KEY, SEARCH_END
from .radix_search import lane_index

MOST_RANKS = 16
"""Thread blocks of a cluster at most."""

BOX_OFFSET = SEARCH_END
COUNTS_OFFSET = BOX_OFFSET + 8 * MOST_RANKS
BARRIERS_OFFSET = COUNTS_OFFSET + 8 * MOST_RANKS
MAP_OFFSET = BARRIERS_OFFSET + 16


@device_function
def await_bytes(barrier):
    while mbarrier_try_wait(barrier, int32(0)) == 0:
        pass


@device_function
def open_barriers(active, rank, shared):
    """One lane: set up the barrier of the box, and in rank 0 that of the list."""
    box, listed = int32(shared + BARRIERS_OFFSET), int32(shared + BARRIERS_OFFSET + 8)
    mbarrier_init(box, int32(1))
    if rank == 0:
        mbarrier_init(listed, active)
    fence_mbarrier_init()
    mbarrier_arrive_expect(box, int32(active * 8))


@device_function
def bound_of_row(bound, most, active, rank, shared):
    """(bound, greatest key) of the row, of those of its ``active`` thread blocks."""
    cluster_wait()
    if cuda.threadIdx.x < active:
        at = map_shared(int32(shared + BOX_OFFSET + rank * 8), int32(cuda.threadIdx.x))
        barrier = map_shared(int32(shared + BARRIERS_OFFSET), int32(cuda.threadIdx.x))
        st_async_i64(at, int64((int64(most) << 32) | int64(uint32(bound))), barrier)
    await_bytes(int32(shared + BARRIERS_OFFSET))
    bound, most = int32(0x7FFFFFFF), int32(NO_KEY)
    if lane_index() < active:
        bound, most = ld_shared_v2_i32(int32(shared + BOX_OFFSET + lane_index() * 8))
    return redux_min(bound), redux_max(most)


@device_function
def announce(total, rank, shared):
    """One lane: tell rank 0 how many entries of this rank are on their way."""
    barrier = map_shared(int32(shared + BARRIERS_OFFSET + 8), int32(0))
    mbarrier_arrive_expect_at(barrier, int32(total * 8 + 8))
    st_async_i64(map_shared(int32(shared + COUNTS_OFFSET + rank * 8), int32(0)), int64(total), barrier)
