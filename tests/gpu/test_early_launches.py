"""Launches that start before the one ahead of them is over: what they read and write is as if they had waited."""

import contextlib

import numpy as np
import pytest

pytestmark = pytest.mark.gpu

BLOCKS, LANES, WORDS, ROUNDS = 132, 64, 64, 40


@pytest.fixture(scope="module")
def slow_kernels(needs_a_device):
    """(late, write, read): ``late`` reads all of x after a while, ``write`` writes x, ``read`` reads it at once. Each
    lets the next one start before anything else."""
    from qsa.kernels.cuda.toolchain.compiler import cuda, int32, int64, kernel
    from qsa.kernels.cuda.toolchain.ptx import (
        global_base,
        ld_global_i32_nc,
        st_global_i32,
        start_next,
        wait_for_earlier,
    )

    @kernel()
    def late(x, out, turns):
        start_next()
        wait_for_earlier()
        state = int32(cuda.threadIdx.x)
        for _ in range(turns):
            state = int32(state * 1664525 + 1013904223)
        word = int32(cuda.threadIdx.x)
        value = ld_global_i32_nc(global_base(x) + int64(word) * 4)
        # The sum hangs on the waiting, which so stays.
        out[cuda.blockIdx.x, word] = int32(value + (1 if state == 77777 else 0))

    @kernel()
    def write(x, value):
        start_next()
        wait_for_earlier()
        if cuda.blockIdx.x == 0:
            st_global_i32(global_base(x) + int64(cuda.threadIdx.x) * 4, int32(value))

    @kernel()
    def read(x, out):
        start_next()
        wait_for_earlier()
        out[cuda.blockIdx.x, cuda.threadIdx.x] = ld_global_i32_nc(global_base(x) + int64(cuda.threadIdx.x) * 4)

    return late, write, read


@pytest.mark.parametrize("captured", [False, True], ids=["stream", "graph"])
def test_a_launch_sees_what_earlier_ones_wrote_and_writes_after_they_read(slow_kernels, captured):
    """Thread blocks of ``read`` and ``write`` are there while ``late`` still runs: it brings the old words into the
    caches of their multiprocessors, and only then they are overwritten."""
    import cupy

    from qsa.kernels.cuda.device import Graph
    from qsa.kernels.cuda.toolchain.compiler import can_overlap, prepare

    if not can_overlap():
        pytest.skip("the device or its driver has no early launches")
    late, write, read = slow_kernels
    x = cupy.zeros(WORDS, "int32")
    old, new = (cupy.full((ROUNDS, BLOCKS, WORDS), -1, "int32") for _ in range(2))
    launches = []
    for i in range(ROUNDS):
        launches.append(prepare(late, BLOCKS, LANES, (x, old[i], 4000)))
        launches.append(prepare(write, BLOCKS, LANES, (x, i + 1)))
        launches.append(prepare(read, BLOCKS, LANES, (x, new[i])))
    for launch in launches:
        launch.start_early()
        assert launch.early

    def run():
        for launch in launches:
            launch.submit(cupy.cuda.get_current_stream().ptr)

    if captured:
        graph = Graph(run)
        graph.stream.synchronize()
        x.fill(0)
        old.fill(-1)
        new.fill(-1)
        graph.replay()
        graph.stream.synchronize()
    else:
        run()
    rounds = np.arange(ROUNDS)[:, None, None]
    np.testing.assert_array_equal(old.get(), np.broadcast_to(rounds, old.shape))
    np.testing.assert_array_equal(new.get(), np.broadcast_to(rounds + 1, new.shape))


def actions_of(step, other, rng):
    """(calls of the step's operations, in order; changes of its inputs by kernels and copies that know nothing of early
    launches, on this stream and on ``other``)."""
    import cupy

    there = step.there
    spare = {name: cupy.asarray(rng.standard_normal(there[name].shape, np.float32)) for name in ("q", "q_idx", "raw")}
    event, back = cupy.cuda.Event(disable_timing=True), cupy.cuda.Event(disable_timing=True)

    def copy(name):
        array, source = there[name], spare[name]
        cupy.cuda.runtime.memcpyAsync(
            array.data.ptr, source.data.ptr, array.nbytes, 3, cupy.cuda.get_current_stream().ptr
        )

    def turn(name):
        cupy.negative(there[name], out=there[name])

    def elsewhere(name):
        current = cupy.cuda.get_current_stream()
        other.wait_event(current.record(event))
        with other:
            turn(name)
            other.record(back)
        current.wait_event(back)

    changes = [lambda name=name, act=act: act(name) for name in spare for act in (copy, turn, elsewhere)]
    # An output that the next call writes again: here the last reader and the next writer meet.
    changes.append(lambda: there["scores"].fill(0))
    changes.append(lambda: there["ids"].fill(-1))
    return changes


@pytest.mark.parametrize("where", ["default stream", "stream", "graph"])
def test_any_order_of_calls_with_other_work_between_them(backend, where):
    """The five operations, in random order, between copies, other kernels and another stream: the same bytes as when
    every call is over before the next one."""
    import cupy

    from qsa.kernels.cuda.device import Graph
    from qsa.parity.bench.cuda_layer import STEP, Step

    rng = np.random.default_rng(6)
    step = Step(backend.module, ("append", *STEP), 4, cells=20479)
    other = cupy.cuda.Stream(non_blocking=True)
    changes = actions_of(step, other, rng)
    order = [int(i) for i in rng.integers(0, 5 + len(changes), 120)]
    inputs = {name: step.there[name].copy() for name in ("q", "q_idx", "raw")}

    def outputs():
        return {
            name: cupy.zeros((len(order), *step.there[name].shape), step.there[name].dtype) for name in ("ids", "out")
        }

    def run(calls, kept, wait):
        for number, which in enumerate(order):
            (calls[which] if which < 5 else changes[which - 5])()
            for name, copies in kept.items():
                cupy.copyto(copies[number], step.there[name])
            if wait:
                cupy.cuda.Device().synchronize()

    def reset():
        step.reset()
        for name, array in inputs.items():
            step.there[name][...] = array
        cupy.cuda.Device().synchronize()

    stream = cupy.cuda.Stream(non_blocking=True)
    with contextlib.nullcontext() if where == "default stream" else stream:
        wanted, got = outputs(), outputs()
        reset()
        run(step.operations(False), wanted, True)
        state = step.digest()
        early = step.operations(True)
        graph = Graph(lambda: run(early, got, False)) if where == "graph" else None
        reset()
        if graph is None:
            run(early, got, False)
        else:
            graph.replay()
        cupy.cuda.Device().synchronize()
    assert step.digest() == state
    for name, copies in wanted.items():
        np.testing.assert_array_equal(got[name].get(), copies.get())
