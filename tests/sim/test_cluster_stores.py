"""Clusters in the simulator: where asynchronous stores may go, and who may read what they bring."""

from support.cluster_runs import (
    DATA,
    await_bytes,
    cuda,
    each_fault,
    int32,
    int64,
    meet,
    opened,
    ptx,
    received,
    send,
    signal,
    wait_for_signal,
)


def to_a_word_written_before(shared, rank, lane, out):
    if lane == 0:
        ptx.st_shared_i64(int32(shared + DATA), int64(0))
    opened(shared, lane, 8)
    if rank == 1 and lane == 0:
        send(shared, 0, 0, 1)
    await_bytes(shared)


def to_a_word_sent_before(shared, rank, lane, out):
    opened(shared, lane, 0, expects=False)
    if rank == 1 and lane < 2:
        send(shared, 0, 0, 1)
    meet()


def reads_before_it_waits(shared, rank, lane, out):
    opened(shared, lane, 256)
    send(shared, rank, lane, 0)
    out[rank, lane] = received(shared, lane)


def another_lane_has_waited(shared, rank, lane, out):
    opened(shared, lane, 256)
    send(shared, rank, lane, 0)
    if lane == 0:
        await_bytes(shared)
    cuda.syncthreads()
    out[rank, lane] = received(shared, lane)


def has_seen_another_parity(shared, rank, lane, out):
    """It has looked before the phase ended, when that of parity 1 counts as over."""
    opened(shared, lane, 256)
    assert ptx.mbarrier_try_wait(shared, int32(1)) == 1
    cuda.syncthreads()
    send(shared, rank, lane, 0)
    out[rank, lane] = received(shared, lane)


def has_waited_at_another(shared, rank, lane, out):
    if lane == 0:
        ptx.mbarrier_init(int32(shared + 8), int32(1))
        ptx.mbarrier_arrive_expect(int32(shared + 8), int32(0))
    opened(shared, lane, 256)
    send(shared, rank, lane, 0)
    await_bytes(int32(shared + 8))
    out[rank, lane] = received(shared, lane)


def writes_what_was_sent(shared, rank, lane, out):
    opened(shared, lane, 256)
    send(shared, rank, lane, 0)
    await_bytes(shared)
    ptx.st_shared_i64(int32(shared + DATA + 8 * lane), int64(0))


def folds_into_what_was_sent(shared, rank, lane, out):
    opened(shared, lane, 256)
    send(shared, rank, lane, 0)
    await_bytes(shared)
    ptx.red_shared_max_i32(int32(shared + DATA + 8 * lane), int32(0))


def to_a_block_that_has_ended(shared, rank, lane, out):
    opened(shared, lane, 0)
    if rank == 2:
        signal(rank, lane, out)
        return
    wait_for_signal(2, out)
    send(shared, 2, lane, 0)


def beyond_the_cluster(shared, rank, lane, out):
    ptx.map_shared(shared, 3)


def below_the_cluster(shared, rank, lane, out):
    ptx.map_shared(shared, -1)


def at_an_address_of_its_own(shared, rank, lane, out):
    opened(shared, lane, 0)
    ptx.st_async_i64(int32(shared + DATA), int64(0), ptx.map_shared(shared, 0))


def counted_at_an_address_of_its_own(shared, rank, lane, out):
    opened(shared, lane, 0)
    ptx.st_async_i64(ptx.map_shared(int32(shared + DATA), 0), int64(0), shared)


def counted_by_another_block(shared, rank, lane, out):
    opened(shared, lane, 0)
    ptx.st_async_i64(ptx.map_shared(int32(shared + DATA), 1), int64(0), ptx.map_shared(shared, 2))


def beyond_the_memory(shared, rank, lane, out):
    opened(shared, lane, 8)
    send(shared, 1, (8192 - DATA) // 8, 0)


def misaligned(shared, rank, lane, out):
    opened(shared, lane, 16)
    at = ptx.map_shared(int32(shared + DATA + 8), 1)
    ptx.st_async_v2_i64(at, int64(0), int64(0), ptx.map_shared(shared, 1))


def opens_misaligned(shared, rank, lane, out):
    ptx.mbarrier_init(int32(shared + 4), int32(1))


def counted_by_a_misaligned_one(shared, rank, lane, out):
    opened(shared, lane, 8)
    ptx.st_async_i64(ptx.map_shared(int32(shared + DATA), 1), int64(0), ptx.map_shared(int32(shared + 4), 1))


def opens_beyond_the_memory(shared, rank, lane, out):
    ptx.mbarrier_init(int32(shared + 8192), int32(1))


test_faults = each_fault(
    [
        (to_a_word_written_before, "race", "which uses it"),
        (to_a_word_sent_before, "race", "sent to before"),
        (reads_before_it_waits, "race", "has not seen the end"),
        (another_lane_has_waited, "race", "has not seen the end"),
        (has_seen_another_parity, "race", "has not seen the end"),
        (has_waited_at_another, "race", "has not seen the end"),
        (writes_what_was_sent, "race", "writes shared word .* which is sent"),
        (folds_into_what_was_sent, "race", "writes shared word .* which is sent"),
        (to_a_block_that_has_ended, "bounds", "rank 2, all of whose lanes have ended"),
        (beyond_the_cluster, "bounds", "rank 3: the cluster has 3 blocks"),
        (below_the_cluster, "bounds", "rank -1"),
        (at_an_address_of_its_own, "bounds", "none that map_shared made"),
        (counted_at_an_address_of_its_own, "bounds", "none that map_shared made"),
        (counted_by_another_block, "bounds", "rank 1, counted by an mbarrier of rank 2"),
        (beyond_the_memory, "bounds", "st.async of 8 bytes at shared address"),
        (misaligned, "alignment", "st.async of 16 bytes"),
        (opens_misaligned, "alignment", "8 bytes at shared address 65540"),
        (counted_by_a_misaligned_one, "alignment", "8 bytes at shared address 65540"),
        (opens_beyond_the_memory, "bounds", "8 bytes at shared address"),
    ]
)
