"""Clusters in the simulator: what blocks send each other arrives, and what is not ordered by a barrier is found."""

import numpy as np
import pytest

from qsa.kernels.cuda import simulate
from qsa.kernels.cuda.host import Properties
from qsa.kernels.cuda.simulate import SimulationError

ptx, compiler = simulate.load("ptx"), simulate.load("compiler")
cuda, int32, int64 = compiler.cuda, compiler.int32, compiler.int64


def run(body, blocks=3, cluster=3, lanes=32):
    """``body(shared, rank, lane, out)`` on every lane of a cluster; what it wrote to ``out`` [blocks, lanes]."""

    @compiler.kernel()
    def kernel(out):
        shared = ptx.shared_base(cuda.shared.array(0, int32))
        body(shared, cuda.blockIdx.x, cuda.threadIdx.x, out)

    out = np.full((blocks, lanes), -1, np.int64)
    simulate.launch(kernel, blocks, lanes, (out,), shared=4096, cluster=cluster)
    return out


def meet():
    ptx.cluster_arrive()
    ptx.cluster_wait()


def test_stores_arrive():
    """Every block sends lane + 100 * rank to the next one, and to all a pair."""

    def body(shared, rank, lane, out):
        meet()
        ptx.st_cluster_i64(ptx.map_shared(int32(shared + lane * 8), (rank + 1) % 3), int64(lane + 100 * rank))
        for to in range(3):
            at = int32(shared + 512 + (rank * 32 + lane) * 16)
            ptx.st_cluster_v2_i64(ptx.map_shared(at, to), int64(rank), int64(-lane))
        meet()
        total = ptx.ld_shared_i64(int32(shared + lane * 8))
        for sender in range(3):
            x, y = ptx.ld_shared_v2_i64(int32(shared + 512 + (sender * 32 + lane) * 16))
            total += 10000 * x + 1000000 * y
        out[rank, lane] = total

    lane = np.arange(32)
    wanted = [lane + 100 * ((rank + 2) % 3) + 30000 - 3000000 * lane for rank in range(3)]
    np.testing.assert_array_equal(run(body), wanted)


@pytest.mark.parametrize("order", ["forwards", "backwards"])
def test_maxima_fold(order):
    def body(shared, rank, lane, out):
        ptx.st_shared_i32(int32(shared + lane * 4), int32(-5))
        meet()
        for to in range(3):
            ptx.red_cluster_max_i32(ptx.map_shared(int32(shared + lane * 4), to), int32(lane * (rank - 1)))
        meet()
        out[rank, lane] = ptx.ld_shared_i32(int32(shared + lane * 4))

    with simulate.configured(order=order):
        np.testing.assert_array_equal(run(body), np.tile(np.arange(32), (3, 1)))


def test_blocks_that_end_are_not_awaited():
    def body(shared, rank, lane, out):
        if rank == 2:
            return
        meet()
        ptx.st_cluster_i64(ptx.map_shared(int32(shared + lane * 8), 1 - rank), int64(rank))
        meet()
        out[rank, lane] = ptx.ld_shared_i64(int32(shared + lane * 8))

    np.testing.assert_array_equal(run(body)[:, 0], [1, 0, -1])


def send(shared, rank, lane):
    ptx.st_cluster_i64(ptx.map_shared(int32(shared + lane * 8), (rank + 1) % 3), int64(lane))


def read_without_a_barrier(shared, rank, lane, out):
    ptx.st_shared_i64(int32(shared + lane * 8), int64(0))
    meet()
    send(shared, rank, lane)
    out[rank, lane] = ptx.ld_shared_i64(int32(shared + lane * 8))


def read_between_arrival_and_wait(shared, rank, lane, out):
    ptx.st_shared_i64(int32(shared + lane * 8), int64(0))
    meet()
    send(shared, rank, lane)
    ptx.cluster_arrive()
    out[rank, lane] = ptx.ld_shared_i64(int32(shared + lane * 8))
    ptx.cluster_wait()


def send_to_what_is_in_use(shared, rank, lane, out):
    ptx.st_shared_i64(int32(shared + lane * 8), int64(0))
    send(shared, rank, lane)
    meet()


def send_twice(shared, rank, lane, out):
    meet()
    ptx.st_cluster_i64(ptx.map_shared(shared, 0), int64(rank))
    meet()


def fold_into_nothing(shared, rank, lane, out):
    meet()
    ptx.red_cluster_max_i32(ptx.map_shared(shared, 0), int32(rank))


def arrive_twice(shared, rank, lane, out):
    ptx.cluster_arrive()
    ptx.cluster_arrive()


def wait_alone(shared, rank, lane, out):
    ptx.cluster_wait()


def one_block_stays_away(shared, rank, lane, out):
    if rank == 1:
        while True:
            ptx.ld_global_relaxed_i64(ptx.global_base(out))
    meet()


def beyond_the_cluster(shared, rank, lane, out):
    ptx.map_shared(shared, 3)


def beyond_the_memory(shared, rank, lane, out):
    meet()
    ptx.st_cluster_i64(ptx.map_shared(int32(shared + 4096), 0), int64(0))


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (read_without_a_barrier, "race"),
        (read_between_arrival_and_wait, "race"),
        (send_to_what_is_in_use, "race"),
        (send_twice, "race"),
        (fold_into_nothing, "unwritten"),
        (arrive_twice, "barrier"),
        (wait_alone, "barrier"),
        (one_block_stays_away, "barrier"),
        (beyond_the_cluster, "bounds"),
        (beyond_the_memory, "bounds"),
    ],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_faults(body, kind):
    with pytest.raises(SimulationError) as found:
        run(body)
    assert found.value.kind == kind, found.value


def test_a_launch_that_is_no_cluster():
    with pytest.raises(SimulationError, match="not launched as a cluster"):
        run(lambda shared, rank, lane, out: meet(), cluster=1)
    with pytest.raises(ValueError, match="cluster = 2"):
        run(lambda shared, rank, lane, out: None, cluster=2)


def test_an_older_device():
    older = Properties("older", (8, 6), 4, 99 * 1024, 100 * 1024, 4 << 20)
    with simulate.configured(properties=older), pytest.raises(SimulationError) as found:
        run(lambda shared, rank, lane, out: ptx.map_shared(shared, 0))
    assert found.value.kind == "device"
