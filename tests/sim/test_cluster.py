"""Clusters in the simulator: what blocks send each other arrives; ``barrier.cluster``; which devices have them."""

from dataclasses import replace

import numpy as np
import pytest

from qsa.kernels.cuda import simulator
from qsa.kernels.cuda.simulator import SimulationError
from support.cluster_runs import (
    DATA,
    await_bytes,
    both_orders,
    cuda,
    each_fault,
    int32,
    int64,
    meet,
    opened,
    ptx,
    received,
    run,
    send,
)


@both_orders
def test_stores_of_every_form_arrive(order):
    """Every lane of every block sends to every block, its own included; what came is kept by sender."""

    def body(shared, rank, lane, out):
        opened(shared, lane, 3 * 32 * 40)
        for to in range(3):
            mine = int32(shared + DATA + (rank * 32 + lane) * 40)
            wide = int32(shared + DATA + 3840 + (rank * 32 + lane) * 32)
            counts = ptx.map_shared(shared, to)
            ptx.st_async_i64(ptx.map_shared(mine, to), int64(100 * rank + lane), counts)
            ptx.st_async_v2_i64(ptx.map_shared(wide, to), int64(rank), int64(-lane), counts)
            # A register's 32 bits, of either sign.
            values = int32(7), int32(-lane), 0xFFFFFFFF, int32(to)
            ptx.st_async_v4_i32(ptx.map_shared(int32(wide + 16), to), *values, counts)
        await_bytes(shared)
        total = 0
        for sender in range(3):
            wide = int32(shared + DATA + 3840 + (sender * 32 + lane) * 32)
            total += ptx.ld_shared_i64(int32(shared + DATA + (sender * 32 + lane) * 40))
            x, y = ptx.ld_shared_v2_i64(wide)
            a, b, c, d = ptx.ld_shared_v4_i32(int32(wide + 16))
            assert (x, y, a, b, c, d) == (sender, -lane, 7, -lane, -1, rank)
        out[rank, lane] = total

    np.testing.assert_array_equal(run(body, order), np.tile(300 + 3 * np.arange(32), (3, 1)))


@both_orders
def test_bytes_may_come_before_they_are_expected(order):
    """Rank 0 expects them once all have been sent, and more arrives than bytes."""

    def body(shared, rank, lane, out):
        if lane == 0:
            ptx.mbarrier_init(shared, int32(2))
            ptx.fence_mbarrier_init()
        cuda.syncthreads()
        meet()
        if rank > 0:
            send(shared, 0, 32 * rank + lane, rank)
        meet()
        if rank == 0:
            assert ptx.mbarrier_try_wait(shared, int32(0)) == 0
            cuda.syncthreads()
            if lane == 0:
                ptx.mbarrier_arrive_expect(shared, int32(512))
                assert ptx.mbarrier_try_wait(shared, int32(0)) == 0
            cuda.syncthreads()
            if lane == 1:
                ptx.mbarrier_arrive_expect(shared, int32(0))
            await_bytes(shared)
            out[0, lane] = received(shared, 32 + lane) + received(shared, 64 + lane)

    np.testing.assert_array_equal(run(body, order)[0], 3)


@both_orders
def test_senders_say_how_many_bytes_they_send(order):
    """Rank 0 waits for arrivals alone; each brings its number of bytes, before or after the bytes themselves."""

    def body(shared, rank, lane, out):
        if rank == 0 and lane == 0:
            ptx.mbarrier_init(shared, int32(2))
            ptx.fence_mbarrier_init()
        cuda.syncthreads()
        meet()
        if rank == 0:
            await_bytes(shared)
            out[0, lane] = received(shared, 32 + lane % 16) + received(shared, 64 + lane)
            return
        if rank == 1 and lane == 0:
            ptx.mbarrier_arrive_expect_at(ptx.map_shared(shared, 0), int32(128))
        if rank == 2 or lane < 16:
            send(shared, 0, 32 * rank + lane, rank)
        if rank == 2 and lane == 31:
            ptx.mbarrier_arrive_expect_at(ptx.map_shared(shared, 0), int32(256))

    np.testing.assert_array_equal(run(body, order)[0], 3)


@both_orders
def test_blocks_that_end_are_not_awaited(order):
    def body(shared, rank, lane, out):
        if rank == 2:
            return
        opened(shared, lane, 32 * 8)
        send(shared, 1 - rank, lane, rank)
        await_bytes(shared)
        out[rank, lane] = received(shared, lane)

    np.testing.assert_array_equal(run(body, order)[:, 0], [1, 0, -1])


def test_phases_have_parities():
    """Until its first phase ends, an mbarrier's phase of parity 1 counts as over."""

    def body(shared, rank, lane, out):
        if lane == 0:
            ptx.mbarrier_init(shared, int32(1))
            found = []
            for _ in range(3):
                found += [ptx.mbarrier_try_wait(shared, int32(parity)) for parity in (0, 1)]
                ptx.mbarrier_arrive_expect(shared, int32(0))
            for i in range(6):
                out[rank, i] = found[i]

    assert run(body)[1, :6].tolist() == [0, 1, 1, 0, 0, 1]


def test_a_block_knows_its_own_by_its_barrier():
    """No fence and no barrier of the cluster is needed for that."""

    def body(shared, rank, lane, out):
        if lane == 0:
            ptx.mbarrier_init(shared, int32(1))
        cuda.syncthreads()
        if lane == 1:
            ptx.mbarrier_arrive_expect(shared, int32(0))
        await_bytes(shared)
        out[rank, lane] = 1

    assert (run(body) == 1).all()


def test_a_warp_may_know_by_the_barrier_of_the_cluster():
    """A fenced mbarrier needs no ``syncthreads`` in its own block."""

    def body(shared, rank, lane, out):
        if lane == 0:
            ptx.mbarrier_init(shared, int32(1))
            ptx.fence_mbarrier_init()
        meet()
        if lane == 40:
            ptx.mbarrier_arrive_expect(shared, int32(0))
        await_bytes(shared)
        out[rank, lane] = 1

    assert (run(body, lanes=64) == 1).all()


@both_orders
def test_a_later_fence_leaves_an_earlier_one_as_it_is(order):
    def body(shared, rank, lane, out):
        opened(shared, lane, 256)
        if lane == 0:
            ptx.mbarrier_init(int32(shared + 8), int32(1))
            ptx.fence_mbarrier_init()
        send(shared, (rank + 1) % 3, lane, rank)
        await_bytes(shared)
        out[rank, lane] = received(shared, lane)

    assert run(body, order)[:, 31].tolist() == [2, 0, 1]


@both_orders
def test_a_long_relay(order):
    """Block to block and on, an mbarrier each time: bytes that come are progress, though all else polls."""
    hops, mbarriers = 200, 4096

    def body(shared, rank, lane, out):
        if lane == 0:
            for hop in range(rank, hops, 3):
                ptx.mbarrier_init(int32(shared + mbarriers + 8 * hop), int32(1))
                ptx.mbarrier_arrive_expect(int32(shared + mbarriers + 8 * hop), int32(8 if hop else 0))
            ptx.fence_mbarrier_init()
        meet()
        if lane == 0:
            for hop in range(rank, hops, 3):
                await_bytes(int32(shared + mbarriers + 8 * hop))
                value = received(shared, hop) if hop else 0
                if hop + 1 < hops:
                    send(shared, (hop + 1) % 3, hop + 1, value + 2, counts=mbarriers + 8 * (hop + 1))
            out[rank, 0] = value

    assert run(body, order)[:, 0].tolist() == [396, 398, 394]


@both_orders
def test_blocks_of_a_cluster_begin_in_order(order):
    def body(shared, rank, lane, out):
        if lane == 0:
            out[rank, 0] = sum(int(out[other, 0] >= 0) for other in range(3))

    assert run(body, order)[:, 0].tolist() == ([0, 1, 2] if order == "forwards" else [2, 1, 0])


def arrives_twice_at_the_cluster(shared, rank, lane, out):
    ptx.cluster_arrive_relaxed()
    ptx.cluster_arrive_relaxed()


def waits_alone_at_the_cluster(shared, rank, lane, out):
    ptx.cluster_wait()


def one_block_stays_away(shared, rank, lane, out):
    if rank == 1:
        while True:
            ptx.ld_global_relaxed_i64(ptx.global_base(out))
    meet()


def orders_memory_by_the_cluster(shared, rank, lane, out):
    """The relaxed arrival does not."""
    if lane == 0:
        ptx.st_shared_i32(shared, int32(1))
    meet()
    out[rank, lane] = ptx.ld_shared_i32(shared)


test_faults = each_fault(
    [
        (arrives_twice_at_the_cluster, "barrier", "arrives again without a wait"),
        (waits_alone_at_the_cluster, "barrier", "without having arrived"),
        (one_block_stays_away, "barrier", "spins .* 32 lanes at barrier.cluster 0"),
        (orders_memory_by_the_cluster, "race", "lane 0 wrote"),
    ]
)


INSTRUCTIONS = {
    "map_shared": (0, 0),
    "cluster_arrive_relaxed": (),
    "cluster_wait": (),
    "mbarrier_init": (0, 1),
    "fence_mbarrier_init": (),
    "mbarrier_arrive_expect": (0, 0),
    "mbarrier_arrive_expect_at": (0, 0),
    "mbarrier_try_wait": (0, 0),
    "st_async_i64": (0, 0, 0),
    "st_async_v2_i64": (0, 0, 0, 0),
    "st_async_v4_i32": (0, 0, 0, 0, 0, 0),
}


@pytest.mark.parametrize(("name", "arguments"), INSTRUCTIONS.items())
def test_instructions_of_sm_90(name, arguments):
    older = replace(simulator.settings.properties, compute_capability=(8, 9))
    with simulator.configured(properties=older), pytest.raises(SimulationError, match="needs sm_90") as found:
        run(lambda shared, rank, lane, out: getattr(ptx, name)(*arguments))
    assert found.value.kind == "device"


@pytest.mark.parametrize(("name", "arguments"), INSTRUCTIONS.items())
def test_a_launch_that_is_no_cluster(name, arguments):
    with pytest.raises(SimulationError, match=r"not launched as a cluster|the cluster has 0 blocks"):
        run(lambda shared, rank, lane, out: getattr(ptx, name)(*arguments), cluster=1)


def test_clusters_fill_the_grid():
    with pytest.raises(ValueError, match="cluster = 2"):
        run(lambda shared, rank, lane, out: None, cluster=2)
