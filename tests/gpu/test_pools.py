"""Slots with a pool each on a device: the simulator's cases, full size, what a captured graph keeps, streams."""

import numpy as np
import pytest

from cases.attend_cases import exact_problem, random_kv
from cases.pool_cases import *  # noqa: F403
from cases.pool_cases import KERNEL, Calls, several
from qsa.kernels.cuda.toolchain.host import launches
from qsa.reference import exact
from qsa.reference.geometry import REAL
from support.arrays import bits

pytestmark = pytest.mark.gpu


def same(got, wanted):
    np.testing.assert_array_equal(bits(got.get()), bits(wanted))


class Captured:
    """A graph of one call of ``calls`` with a plan, on a stream of its own; ``warm``: called once before."""

    def __init__(self, calls, warm):
        import cupy

        self.calls, self.stream = calls, cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()
        with self.stream:
            module = calls.backend.module
            self.plan = module.plan_attend(calls.there, len(calls.q), calls.ids.shape[1], arithmetic="exact")
            self.out = cupy.full(calls.q.shape, np.nan, "float32")
            if warm:
                self.eager()
            self.stream.synchronize()
            self.stream.begin_capture()
            self._launch()
            self.graph = self.stream.end_capture()

    def _launch(self):
        calls = self.calls
        arguments = calls.q, calls.there, calls.ids, calls.steps, calls.slots, self.out
        assert calls.backend.module.attend(*arguments, plan=self.plan) is self.out

    def eager(self):
        """The output of a call on the stream."""
        with self.stream:
            self.out.fill(np.nan)
            self._launch()
            self.stream.synchronize()
        return self.out

    def replay(self):
        """The output of the graph."""
        with self.stream:
            self.out.fill(np.nan)
            self.graph.launch(stream=self.stream)
            self.stream.synchronize()
        return self.out


@pytest.mark.parametrize("warm", [True, False], ids=["called before", "first call"])
def test_a_graph_keeps_the_pools_of_its_capture(backend, warm):
    """Calls with other pools come between its replays; page tables that change in place are followed."""
    import cupy

    q, kvs, ids, steps, slots = several(300, 6)
    slots[:] = [5, 0, 2, 5, 1]
    wanted = exact.attend(q, kvs, ids, steps, slots)
    calls = Calls(backend, q, kvs, ids, steps, slots)
    graph = Captured(calls, warm)
    same(graph.replay(), wanted)
    there = calls.there[5]
    held = there.pool, there.table
    for seed in range(301, 310):
        other = random_kv(np.random.default_rng(seed), "int8", 24, kvs[5].pool.page_size)
        moved = backend.to_device(other)
        # Copied on the current stream, of which the graph's knows nothing.
        cupy.cuda.Device().synchronize()
        there.pool, there.table = moved.pool, moved.table
        same(graph.eager(), exact.attend(q, [*kvs[:5], other], ids, steps, slots))
        same(graph.replay(), wanted)
    kvs[5].table[:] = kvs[5].table[::-1].copy()
    held[1].set(kvs[5].table)
    cupy.cuda.Device().synchronize()
    same(graph.replay(), exact.attend(q, kvs, ids, steps, slots))


def test_two_graphs_of_one_plan_keep_their_own_pools(backend):
    """Both were captured before either ran, the second with pools that no call had before."""
    import cupy

    q, kvs, ids, steps, slots = several(320, 5)
    calls = Calls(backend, q, kvs, ids, steps, slots)
    first = Captured(calls, True)
    wanted = exact.attend(q, kvs, ids, steps, slots)
    other = several(330, 5)[1]
    calls.there = backend.to_device(other)
    cupy.cuda.Device().synchronize()
    with first.stream:
        first.stream.begin_capture()
        first._launch()
        second = first.stream.end_capture()
    for _ in range(2):
        same(first.replay(), wanted)
        with first.stream:
            second.launch(stream=first.stream)
        first.stream.synchronize()
        same(first.out, exact.attend(q, other, ids, steps, slots))


@pytest.mark.parametrize("rows", [16, 64])
def test_full_size_slots_are_one_pool(backend, rows):
    """A pool for every row, all of the same contents: the bytes of one shared pool, which are the reference's."""
    import cupy

    rng = np.random.default_rng(340)
    kv = random_kv(rng, "int8", 4096, geometry=REAL)
    q = rng.standard_normal((rows, REAL.n_head, REAL.head_dim)).astype(np.float32)
    ids = np.stack([np.sort(rng.permutation(4096)[:2051]) for _ in range(rows)]).astype(np.int32)
    steps = np.zeros((rows, 4), np.int32)
    steps[:] = 4095, 4096, 1024, 2051
    arrays = [backend.to_device(x) for x in (q, ids, steps)]
    kvs, slots = [backend.to_device(kv) for _ in range(rows)], cupy.arange(rows, dtype="int32")[::-1].copy()
    before = launches()[KERNEL]
    got = backend.module.attend(arrays[0], kvs, *arrays[1:], slots, arithmetic="exact")
    assert launches()[KERNEL] == before + 1
    shared = backend.module.attend(arrays[0], kvs[0], *arrays[1:], arithmetic="exact")
    np.testing.assert_array_equal(bits(got.get()), bits(shared.get()))
    some = slice(None, None, 13)
    same(got[some], exact.attend(q[some], kv, ids[some], steps[some]))


def test_a_call_on_another_stream_waits_for_nothing_of_the_current_one(backend):
    """Given as ``stream``, while the current one is busy: table and scratch are made on the call's own stream."""
    import cupy

    q, _, ids, steps = exact_problem(350, [70])
    kvs = [random_kv(np.random.default_rng(seed), "int8", 96) for seed in range(351, 356)]
    slots = np.array([4], np.int32)
    wanted = exact.attend(q, kvs, ids, steps, slots)
    calls = Calls(backend, q, kvs, ids, steps, slots)
    out, options = cupy.empty(q.shape, "float32"), {"arithmetic": "exact", "schedule": "split", "splits": 2}
    cupy.cuda.Device().synchronize()
    for _ in range(3):
        stream, busy = cupy.cuda.Stream(non_blocking=True), cupy.ones(1 << 24)
        for _ in range(20):
            busy = busy * busy
        arguments = calls.q, calls.there, calls.ids, calls.steps, calls.slots, out
        backend.module.attend(*arguments, stream=stream, **options)
        stream.synchronize()
        same(out, wanted)
    cupy.cuda.Device().synchronize()
