"""Clusters in the simulator: who may use an mbarrier, and when what it counts is wrong."""

import pytest

from qsa.kernels.cuda.simulator import SimulationError
from support.cluster_runs import (
    await_bytes,
    both_orders,
    cuda,
    each_fault,
    int32,
    int64,
    meet,
    opened,
    ptx,
    run,
    send,
    signal,
    wait_for_signal,
)


def to_nothing(shared, rank, lane, out):
    meet()
    send(shared, (rank + 1) % 3, lane, 0)


def without_a_fence(shared, rank, lane, out):
    if lane == 0:
        ptx.mbarrier_init(shared, int32(1))
    cuda.syncthreads()
    meet()
    send(shared, (rank + 1) % 3, lane, 0)


def with_a_fence_too_early(shared, rank, lane, out):
    if lane == 0:
        ptx.fence_mbarrier_init()
        ptx.mbarrier_init(shared, int32(1))
    cuda.syncthreads()
    meet()
    send(shared, (rank + 1) % 3, lane, 0)


def with_a_fence_after_the_arrival(shared, rank, lane, out):
    if lane == 0:
        ptx.mbarrier_init(shared, int32(1))
    cuda.syncthreads()
    ptx.cluster_arrive_relaxed()
    if lane == 0:
        ptx.fence_mbarrier_init()
    ptx.cluster_wait()
    send(shared, (rank + 1) % 3, lane, 0)


def before_the_wait(shared, rank, lane, out):
    if lane == 0:
        ptx.mbarrier_init(shared, int32(1))
        ptx.fence_mbarrier_init()
    cuda.syncthreads()
    ptx.cluster_arrive_relaxed()
    signal(rank, lane, out)
    for other in range(3):
        wait_for_signal(other, out)
    send(shared, (rank + 1) % 3, lane, 0)


def with_the_fence_of_another_lane(shared, rank, lane, out):
    if lane == 0:
        ptx.mbarrier_init(shared, int32(1))
    cuda.syncthreads()
    if lane == 1:
        ptx.fence_mbarrier_init()
    meet()
    send(shared, (rank + 1) % 3, lane, 0)


def waits_for_nothing(shared, rank, lane, out):
    ptx.mbarrier_try_wait(shared, int32(0))


def arrives_at_nothing(shared, rank, lane, out):
    ptx.mbarrier_arrive_expect(shared, int32(0))


def waits_without_a_barrier(shared, rank, lane, out):
    if lane == 0:
        ptx.mbarrier_init(shared, int32(1))
    if lane == 1:
        ptx.mbarrier_try_wait(shared, int32(1))


def arrives_without_a_barrier(shared, rank, lane, out):
    if lane == 0:
        ptx.mbarrier_init(shared, int32(1))
        ptx.fence_mbarrier_init()
    if lane == 1:
        ptx.mbarrier_arrive_expect(shared, int32(0))


def reads_an_mbarrier(shared, rank, lane, out):
    opened(shared, lane, 0)
    out[rank, lane] = ptx.ld_shared_i32(int32(shared + 4))


def writes_an_mbarrier(shared, rank, lane, out):
    opened(shared, lane, 0)
    if lane == 0:
        ptx.st_shared_i32(int32(shared + 4), int32(0))


def sends_to_an_mbarrier(shared, rank, lane, out):
    opened(shared, lane, 8)
    to = ptx.map_shared(shared, 1)
    ptx.st_async_i64(to, int64(0), to)


def opens_what_another_lane_uses(shared, rank, lane, out):
    if lane == 0:
        ptx.st_shared_i32(shared, int32(0))
    if lane == 1:
        ptx.mbarrier_init(shared, int32(1))


def opens_twice(shared, rank, lane, out):
    if lane == 0:
        ptx.mbarrier_init(shared, int32(1))
        ptx.mbarrier_init(shared, int32(1))


def expects_no_arrival(shared, rank, lane, out):
    ptx.mbarrier_init(shared, int32(0))


def expects_too_much(shared, rank, lane, out):
    opened(shared, lane, 1 << 20)


def expects_less_than_nothing(shared, rank, lane, out):
    opened(shared, lane, -8)


def counts_too_much(shared, rank, lane, out):
    if lane == 0:
        ptx.mbarrier_init(shared, int32(2))
        for _ in range(2):
            ptx.mbarrier_arrive_expect(shared, int32(1 << 19))


def arrives_too_often(shared, rank, lane, out):
    opened(shared, lane, 8)
    if lane == 0:
        ptx.mbarrier_arrive_expect(shared, int32(8))


def ends_before_it_has_waited(shared, rank, lane, out):
    opened(shared, lane, 256)
    send(shared, (rank + 1) % 3, lane, 0)
    meet()


def ends_before_all_have_come(shared, rank, lane, out):
    opened(shared, lane, 256)
    if lane < 31:
        send(shared, (rank + 1) % 3, lane, 0)
    meet()


def ends_and_nothing_has_come(shared, rank, lane, out):
    opened(shared, lane, 24)


def ends_and_expected_nothing(shared, rank, lane, out):
    opened(shared, lane, 0, expects=False)
    send(shared, (rank + 1) % 3, lane, 0)
    meet()


def more_than_expected_at_first(shared, rank, lane, out):
    opened(shared, lane, 0, expects=False)
    send(shared, (rank + 1) % 3, lane, 0)
    meet()
    if lane == 0:
        ptx.mbarrier_arrive_expect(shared, int32(248))


def more_than_expected_at_last(shared, rank, lane, out):
    opened(shared, lane, 248)
    send(shared, (rank + 1) % 3, lane, 0)


def one_sender_forgets(shared, rank, lane, out):
    opened(shared, lane, 24)
    if lane == 0:
        for to in range(3):
            if rank != 2 or to != 1:
                send(shared, to, rank, 0)
    await_bytes(shared)


def nobody_arrives(shared, rank, lane, out):
    opened(shared, lane, 0, expects=False)
    await_bytes(shared)


def waits_for_more_than_came(shared, rank, lane, out):
    opened(shared, lane, 0, expects=False)
    send(shared, (rank + 1) % 3, lane, 0)
    meet()
    if lane == 0:
        ptx.mbarrier_arrive_expect(shared, int32(248))
    await_bytes(shared)


test_faults = each_fault(
    [
        (to_nothing, "unwritten", "nothing has initialised an mbarrier"),
        (without_a_fence, "race", "without a fence after it"),
        (with_a_fence_too_early, "race", "without a fence after it"),
        (with_the_fence_of_another_lane, "race", "without a fence after it"),
        (with_a_fence_after_the_arrival, "race", "arrived after its fence"),
        (before_the_wait, "race", "arrived after its fence"),
        (waits_for_nothing, "unwritten", "try_wait: nothing has initialised"),
        (arrives_at_nothing, "unwritten", "mbarrier.arrive: nothing has initialised"),
        (waits_without_a_barrier, "race", "try_wait on the mbarrier .* lane 0 initialised"),
        (arrives_without_a_barrier, "race", "arrive on the mbarrier .* lane 0 initialised"),
        (reads_an_mbarrier, "race", "reads shared word 65540 of the mbarrier"),
        (writes_an_mbarrier, "race", "writes shared word 65540 of the mbarrier"),
        (sends_to_an_mbarrier, "race", "which uses it"),
        (opens_what_another_lane_uses, "race", "lane 0 wrote"),
        (opens_twice, "barrier", "a second time"),
        (expects_no_arrival, "overflow", "0 arrivals"),
        (expects_too_much, "overflow", "expects 1048576 bytes"),
        (expects_less_than_nothing, "overflow", "expects -8 bytes"),
        (counts_too_much, "overflow", "1048576 bytes missing"),
        (arrives_too_often, "barrier", "once more than the count of 1"),
        (ends_before_it_has_waited, "barrier", "has not waited for the 256 bytes"),
        (ends_before_all_have_come, "barrier", "ends before the mbarrier .* 8 bytes missing"),
        (ends_and_nothing_has_come, "barrier", "ends before the mbarrier .* 24 bytes missing"),
        (ends_and_expected_nothing, "barrier", "1 arrivals pending, 256 bytes more than it expects"),
        (more_than_expected_at_first, "barrier", "0 arrivals pending, 8 bytes more than it expects"),
        (more_than_expected_at_last, "barrier", "sends 8 bytes more than .* has had its 248 bytes"),
        (one_sender_forgets, "barrier", "spins .*address 65536 of rank 1: 0 arrivals pending, 8 bytes missing"),
        (nobody_arrives, "barrier", "spins .*address 65536 of rank 2: 1 arrivals pending, 0 bytes missing"),
        (waits_for_more_than_came, "barrier", "spins .* 8 bytes more than it expects"),
    ]
)


@both_orders
def test_of_a_lane_that_ended_instead(order):
    """The lane that initialised it never arrived: the barrier counts it as come, and tells nothing of it."""

    def body(shared, rank, lane, out):
        if rank == 0 and lane == 32:
            ptx.mbarrier_init(shared, int32(1))
            ptx.fence_mbarrier_init()
        if lane >= 32:
            return
        meet()
        if rank == 1:
            send(shared, 0, lane, 0)
        meet()

    with pytest.raises(SimulationError, match="arrived after its fence") as found:
        run(body, order, lanes=64)
    assert found.value.kind == "race"


def test_what_a_lane_has_waited_for_is_not_awaited():
    """It goes on to look at global memory for ever, and the message speaks of that alone."""

    def body(shared, rank, lane, out):
        opened(shared, lane, 256)
        meet()
        send(shared, (rank + 1) % 3, lane, 0)
        await_bytes(shared)
        while True:
            ptx.ld_global_relaxed_i64(ptx.global_base(out))

    with pytest.raises(SimulationError, match=r"0 not started$"):
        run(body)
