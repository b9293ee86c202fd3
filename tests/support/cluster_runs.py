"""Kernels of a cluster in the simulator: how the tests run them, and what they have in common."""

import numpy as np
import pytest

from qsa.kernels.cuda import simulator

ptx, compiler = simulator.load("toolchain.ptx"), simulator.load("toolchain.compiler")
cuda, int32, int64 = compiler.cuda, compiler.int32, compiler.int64

DATA = 64
"""Bytes after which a block's memory is not mbarriers."""

both_orders = pytest.mark.parametrize("order", ["forwards", "backwards"])


def run(body, order="forwards", cluster=3, lanes=32):
    """Run ``body(shared, rank, lane, out)`` on every lane of three blocks. Returns ``out`` [3, lanes] int64."""

    @compiler.kernel()
    def kernel(out):
        shared = ptx.shared_base(cuda.shared.array(0, int32))
        body(shared, cuda.blockIdx.x, cuda.threadIdx.x, out)

    out = np.full((3, lanes), -1, np.int64)
    with simulator.configured(order=order):
        simulator.launch(kernel, 3, lanes, (out,), shared=8192, cluster=cluster)
    return out


def each_fault(faults):
    """A test of ``faults``, (body, kind, what the message says) each, in both orders of blocks."""

    @both_orders
    @pytest.mark.parametrize(("body", "kind", "says"), faults, ids=[body.__name__ for body, *_ in faults])
    def test(body, kind, says, order):
        with pytest.raises(simulator.SimulationError, match=says) as found:
            run(body, order)
        assert found.value.kind == kind, found.value

    return test


def meet():
    """The cluster's barrier, which orders no memory."""
    ptx.cluster_arrive_relaxed()
    ptx.cluster_wait()


def opened(shared, lane, n_bytes, expects=True):
    """Initialise an mbarrier of one arrival at ``shared`` and make it visible to the cluster."""
    if lane == 0:
        ptx.mbarrier_init(shared, int32(1))
        ptx.fence_mbarrier_init()
        if expects:
            ptx.mbarrier_arrive_expect(shared, int32(n_bytes))
    cuda.syncthreads()
    meet()


def send(shared, to, index, value, counts=0):
    """Eight bytes to word ``index`` of eight bytes of rank ``to``."""
    at = ptx.map_shared(int32(shared + DATA + 8 * index), to)
    ptx.st_async_i64(at, int64(value), ptx.map_shared(int32(shared + counts), to))


def await_bytes(mbarrier):
    """Wait until the first phase of a block's own ``mbarrier`` is over."""
    while ptx.mbarrier_try_wait(mbarrier, int32(0)) == 0:
        pass


def signal(rank, lane, out):
    """Write a signal to global memory, which orders no other access."""
    if lane == 0:
        out[rank, 0] = 1


def wait_for_signal(rank, out):
    """Wait for the signal of ``rank``."""
    while ptx.ld_global_relaxed_i64(ptx.global_base(out) + 8 * 32 * rank) != 1:
        pass


def received(shared, index):
    """The word ``index`` that :func:`send` wrote."""
    return ptx.ld_shared_i64(int32(shared + DATA + 8 * index))
