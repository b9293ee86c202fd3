"""The simulator finds what it says it finds: one deliberately wrong kernel per fault, each beside its right form. A
list of faults, so longer than most files."""

import numpy as np
import pytest

from qsa.kernels.cuda import simulator
from support.simulator_runs import fails, run, zeros

compiler, ptx = simulator.load("toolchain.compiler"), simulator.load("toolchain.ptx")
cuda, int32, float32 = compiler.cuda, compiler.int32, compiler.float32
FULL = 0xFFFFFFFF


def test_barrier_that_some_lanes_skip():
    def skipped(out):
        if cuda.threadIdx.x != 5:
            cuda.syncthreads()

    def reached(out):
        cuda.syncthreads()

    run(reached, zeros())
    fails("barrier", skipped, zeros(), says="63 of 64 lanes; lane 5 is finished")


def test_barrier_by_different_lines_of_one_warp():
    def split(out):
        if cuda.threadIdx.x & 1:
            cuda.syncthreads()
        else:
            cuda.syncthreads()

    fails("barrier", split, zeros(), says="different lines")


def test_named_barrier_orders_its_warps_and_no_others():
    def produce(out):
        shared, t = cuda.shared.array(32, int32), cuda.threadIdx.x
        if t < 32:
            shared[t] = t
            ptx.barrier_arrive(1, 64)
        else:
            ptx.barrier_sync(1, 64)
            out[t] = shared[t - 32]

    def too_few(out):
        if cuda.threadIdx.x < 32:
            ptx.barrier_arrive(1, 96)
        else:
            ptx.barrier_sync(1, 96)

    def backwards(out):
        shared, t = cuda.shared.array(32, int32), cuda.threadIdx.x
        if t < 32:
            shared[t] = t
            ptx.barrier_arrive(1, 64)
            shared[t] = 0
        else:
            ptx.barrier_sync(1, 64)
            out[t] = shared[t - 32]

    out = zeros()
    run(produce, out)
    assert out[32:].tolist() == list(range(32))
    fails("barrier", too_few, zeros(), says="64 of 96")
    fails("race", backwards, zeros())


def test_shuffle_from_a_lane_that_left():
    def left(out):
        if cuda.threadIdx.x != 3:
            out[cuda.threadIdx.x] = cuda.shfl_xor_sync(FULL, cuda.threadIdx.x, 1)

    def outside(out):
        cuda.shfl_xor_sync(0xFFFF, cuda.threadIdx.x, 1)

    def beyond(out):
        if cuda.threadIdx.x < 16:
            cuda.shfl_sync(0xFFFF, 1, 20)

    def two_places(out):
        if cuda.threadIdx.x & 1:
            cuda.ballot_sync(FULL, True)
        else:
            cuda.ballot_sync(FULL, False)

    def product(out):
        if cuda.threadIdx.x & 1:
            ptx.mma_s8(*[0] * 10)

    fails("divergence", left, zeros(), says="31 of 32 lanes: lane 3 is finished")
    fails("divergence", outside, zeros(), says="own mask")
    fails("divergence", beyond, zeros(), says="lane 20")
    fails("divergence", two_places, zeros())
    fails("divergence", product, zeros(), says="16 of 32")


def test_unwritten_memory():
    def shared_read(out):
        shared = cuda.shared.array(64, float32)
        out[cuda.threadIdx.x] = shared[cuda.threadIdx.x]

    def half_written(out):
        base = ptx.shared_base(cuda.shared.array(0, int32))
        if cuda.threadIdx.x == 0:
            ptx.st_shared_u8(base, 1)
            out[0] = ptx.ld_shared_i32(base)

    def local_read(out):
        local = cuda.local.array(4, int32)
        local[0] = 1
        out[0] = local[1]

    fails("unwritten", shared_read, zeros(64, np.float32))
    fails("unwritten", half_written, zeros())
    fails("unwritten", local_read, zeros())


@pytest.mark.parametrize("missing", ["nothing", "wait", "barrier"])
def test_asynchronous_copy(missing):
    def copy(source, out, skip):
        base, t = ptx.shared_base(cuda.shared.array(0, int32)), cuda.threadIdx.x
        if t < 16:
            ptx.cp_async_16(base + 16 * t, ptx.global_base(source) + 16 * t)
        ptx.cp_async_commit()
        if skip != 1:
            ptx.cp_async_wait_0()
        if skip != 2:
            cuda.syncthreads()
        out[t] = ptx.ld_shared_i32(base + 4 * (63 - t))

    source, out = np.arange(64, dtype=np.int32), zeros()
    if missing == "nothing":
        run(copy, source, out, 0)
        assert out.tolist() == list(range(63, -1, -1))
    elif missing == "wait":
        fails("unwritten", copy, source, out, 1, says="copy under way")
    else:
        # The lane read may have landed already, or not.
        with pytest.raises(simulator.SimulationError) as caught:
            run(copy, source, out, 2)
        assert caught.value.kind in ("race", "unwritten")


def test_bounds():
    def shared_beyond(out):
        ptx.st_shared_i32(ptx.shared_base(cuda.shared.array(0, int32)) + 256, 1)

    def static_beyond(out):
        ptx.st_shared_i32(ptx.shared_base(cuda.shared.array(4, int32)) + 16, 1)

    def indexed(out):
        out[cuda.grid(1)] = 1

    def negative(out):
        out[-1] = 1

    def address_beyond(out):
        ptx.st_global_i32(ptx.global_base(out) + 4 * cuda.grid(1), 1)

    def truncated(out):
        ptx.ld_global_i32(int32(ptx.global_base(out)))

    for kernel in (shared_beyond, static_beyond, negative, truncated):
        fails("bounds", kernel, zeros())
    run(indexed, zeros())
    run(address_beyond, zeros())
    fails("bounds", indexed, zeros(63))
    fails("bounds", address_beyond, zeros(63))


def test_misaligned_vectors():
    def shared_vector(out):
        base = ptx.shared_base(cuda.shared.array(0, int32))
        ptx.st_shared_v4_i32(base + 4, 0, 0, 0, 0)

    def global_vector(out):
        ptx.ld_global_v2_i64(ptx.global_base(out) + 8)

    def first_vector(out):
        ptx.ld_global_v4_i32(ptx.global_base(out))

    fails("alignment", shared_vector, zeros())
    fails("alignment", global_vector, zeros())
    run(first_vector, zeros())
    fails("alignment", first_vector, zeros(65)[1:])


def test_race_between_lanes():
    def written_twice(out):
        cuda.shared.array(1, int32)[0] = cuda.threadIdx.x

    def read_after(out, synchronise):
        shared, t = cuda.shared.array(64, int32), cuda.threadIdx.x
        shared[t] = t
        if synchronise == 1:
            cuda.syncthreads()
        elif synchronise == 2:
            cuda.syncwarp()
        elif synchronise == 3:
            cuda.shfl_xor_sync(FULL, t, 1)
        out[t] = shared[t ^ 1]

    def across_warps(out):
        shared, t = cuda.shared.array(64, int32), cuda.threadIdx.x
        shared[t] = t
        cuda.syncwarp()
        out[t] = shared[t ^ 32]

    def overwritten(out):
        shared, t = cuda.shared.array(64, int32), cuda.threadIdx.x
        shared[t] = t
        cuda.syncthreads()
        out[t] = shared[63 - t]
        shared[t] = 0

    out = zeros()
    fails("race", written_twice, out)
    for right in (1, 2):
        run(read_after, out, right)
        assert out.tolist() == [i ^ 1 for i in range(64)]
    # A shuffle exchanges registers and orders no memory.
    for wrong in (0, 3):
        fails("race" if wrong else "unwritten", read_after, out, wrong)
    fails("race", across_warps, out)
    fails("race", overwritten, out)


def test_bytes_of_one_word_are_apart_and_atomics_together():
    def bytes_apart(out):
        base, t = ptx.shared_base(cuda.shared.array(0, int32)), cuda.threadIdx.x
        ptx.st_shared_u8(base + t, t)
        cuda.syncthreads()
        out[t] = ptx.ld_shared_u8(base + 63 - t)

    def same_byte(out):
        ptx.st_shared_u8(ptx.shared_base(cuda.shared.array(0, int32)) + (cuda.threadIdx.x >> 1), 1)

    def counted(out):
        shared, t = cuda.shared.array(1, int32), cuda.threadIdx.x
        if t == 0:
            shared[0] = 0
        cuda.syncthreads()
        cuda.atomic.add(shared, 0, t)
        cuda.syncthreads()
        out[t] = shared[0]

    def looked_at_early(out):
        shared, t = cuda.shared.array(1, int32), cuda.threadIdx.x
        if t == 0:
            shared[0] = 0
        cuda.syncthreads()
        cuda.atomic.add(shared, 0, t)
        out[t] = shared[0]

    out = zeros()
    run(bytes_apart, out)
    assert out.tolist() == list(range(63, -1, -1))
    fails("race", same_byte, out)
    run(counted, out)
    assert set(out.tolist()) == {63 * 32}
    fails("race", looked_at_early, out)


def test_overflow():
    def store(out):
        out[0] = 1 << 31

    def code(out):
        out[0] = 128

    def converted(out):
        out[0] = int32(float32(3e9))

    fails("overflow", store, zeros())
    fails("overflow", code, zeros(64, np.int8))
    fails("overflow", converted, zeros())


def test_blocks_that_wait_for_each_other():
    def meet(count, out):
        address = ptx.global_base(count)
        if cuda.threadIdx.x == 0:
            ptx.atom_global_add_i32(address, 1)
            while ptx.ld_global_acquire_i32(address) < cuda.gridDim.x:
                pass
        cuda.syncthreads()
        out[cuda.blockIdx.x] = ptx.ld_global_i32(address)

    def last_block(count, out):
        last = cuda.shared.array(1, int32)
        if cuda.threadIdx.x == 0:
            last[0] = ptx.atom_global_inc(ptx.global_base(count), cuda.gridDim.x - 1) == cuda.gridDim.x - 1
        cuda.syncthreads()
        if last[0]:
            out[cuda.threadIdx.x] = cuda.blockIdx.x + 1

    out = zeros()
    run(meet, zeros(1), out, grid=5)
    assert out[:5].tolist() == [5] * 5
    # Four of the five blocks fit at once, and the fifth never starts.
    fails("barrier", meet, zeros(1), out, grid=5, resident=4, says="1 not started")
    for order, last in (("forwards", 5), ("backwards", 1)):
        count = zeros(1)
        run(last_block, count, out, grid=5, order=order)
        assert set(out.tolist()) == {last} and count[0] == 0


def test_any_other_exception_names_its_place():
    def divides(out):
        out[0] = 1 // (cuda.threadIdx.x - 7)

    fails("python", divides, zeros(), says="lane 7.*ZeroDivisionError")


def test_many_looks_at_memory_are_no_spinning():
    """A lane may look at many places, each once, before anything else happens."""

    def looks(words, out):
        total = 0
        for i in range(words.shape[0]):
            total += ptx.ld_global_volatile_i32(ptx.global_base(words) + 4 * i)
        out[0] = total

    out = zeros()
    run(looks, np.arange(200, dtype=np.int32), out, block=1)
    assert out[0] == 199 * 100
