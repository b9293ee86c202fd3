"""What the simulator computes: integers, matrix products, and which instructions a device has."""

import inspect
from dataclasses import replace

import numpy as np
import pytest

from qsa.kernels.cuda import simulator
from support.ptx_probe import ROWS, SHARED, build, inputs
from support.simulator_runs import fails, run, zeros

compiler, ptx = simulator.load("toolchain.compiler"), simulator.load("toolchain.ptx")
cuda, int32, float32 = compiler.cuda, compiler.int32, compiler.float32


def test_integers_wrap_at_their_constructors_alone():
    assert int32(1 << 31) == -(1 << 31) and compiler.uint32(-1) == 0xFFFFFFFF
    assert compiler.int8(200) == -56 and int32(float32(-2.9)) == -2
    # 2^54 + 2 lies halfway between float64 values above a float32 tie: two roundings would give 2^54.
    assert float32((1 << 60) + (1 << 36) + 1) == np.float32(2**60 + 2**37)


def test_matrix_product_and_its_fragments():
    """``mma`` on fragments that ``ldmatrix`` gives is A·B + C."""
    rng = np.random.default_rng(3)
    a = rng.integers(-128, 128, (16, 32), np.int8)
    b = rng.integers(-128, 128, (8, 32), np.int8)

    def multiply(a, b, out, unsigned):
        base, t = ptx.shared_base(cuda.shared.array(0, int32)), cuda.threadIdx.x
        ptx.st_shared_v4_i32(base + 16 * t, *ptx.ld_global_v4_i32(ptx.global_base(a) + 16 * t))
        if t < 16:
            ptx.st_shared_v4_i32(base + 512 + 16 * t, *ptx.ld_global_v4_i32_nc(ptx.global_base(b) + 16 * t))
        cuda.syncwarp()
        a0, a1, a2, a3 = ptx.ldmatrix_x4(base + (t & 15) * 32 + (t >> 4) * 16)
        b0, b1 = ptx.ldmatrix_x2(base + 512 + (t & 7) * 32 + (t >> 3 & 1) * 16)
        product = ptx.mma_u8 if unsigned else ptx.mma_s8
        d = product(a0, a1, a2, a3, b0, b1, 1, 2, 3, 4)
        for i in range(4):
            out[(t >> 2) + 8 * (i >> 1), 2 * (t & 3) + (i & 1)] = d[i]

    for unsigned in (0, 1):
        out = np.zeros((16, 8), np.int32)
        run(multiply, a, b, out, unsigned, block=32, shared=768)
        left = a.view(np.uint8) if unsigned else a
        # The constants went to the four registers: rows g and g + 8, even and odd columns.
        c = np.array([[1, 2], [3, 4]]).repeat(8, 0)[:, [0, 1] * 4]
        assert (out == left.astype(np.int64) @ b.T.astype(np.int64) + c).all()


def test_product_of_halves_cuts_off():
    """A product of halves is A·B + C: exact where float32 holds the sum, else the float32 next to it towards zero."""
    rng = np.random.default_rng(4)
    a = rng.standard_normal((16, 16)).astype(np.float16)
    b = rng.standard_normal((8, 16)).astype(np.float16)

    def multiply(a, b, out, c):
        t, at, bt = cuda.threadIdx.x, ptx.global_base(a), ptx.global_base(b)
        row, pair = (t >> 2) * 32, (t & 3) * 4
        fragments = [ptx.ld_global_i32(at + row + pair + step) for step in (0, 256, 16, 272)]
        fragments += [ptx.ld_global_i32(bt + row + pair + step) for step in (0, 16)]
        d = ptx.mma_f16(*fragments, float32(c), float32(c), float32(c), float32(c))
        for i in range(4):
            out[(t >> 2) + 8 * (i >> 1), 2 * (t & 3) + (i & 1)] = d[i]

    for c in (0, 1 << 20):
        out = np.zeros((16, 8), np.float32)
        run(multiply, a, b, out, c, block=32)
        exact = a.astype(np.float64) @ b.T.astype(np.float64) + c
        assert (np.abs(out) <= np.abs(exact)).all()
        assert (np.abs(np.nextafter(out, np.float32(np.inf) * np.sign(out))) > np.abs(exact)).all()
    assert ptx.sub_halves(ptx.floats_to_halves(1.5, -2), ptx.floats_to_halves(0.5, 65504)) == int32(0xFBFF3C00)


@pytest.mark.parametrize(
    ("call", "newest_without"),
    [
        (lambda base, out: ptx.mma_s8(*[0] * 10), (7, 5)),
        (lambda base, out: ptx.mma_u8(*[0] * 10), (7, 5)),
        (lambda base, out: ptx.mma_f16(*[0] * 6, *[float32(0)] * 4), (7, 5)),
        (lambda base, out: ptx.floats_to_halves(float32(0), float32(0)), (7, 5)),
        (lambda base, out: ptx.cp_async_16(base, ptx.global_base(out)), (7, 5)),
        (lambda base, out: ptx.cp_async_commit(), (7, 5)),
        (lambda base, out: ptx.cp_async_wait_0(), (7, 5)),
        (lambda base, out: ptx.redux_add(1), (7, 5)),
        (lambda base, out: ptx.redux_min(1), (7, 5)),
        (lambda base, out: ptx.redux_max(1), (7, 5)),
        (lambda base, out: ptx.ldmatrix_x2(base), (7, 2)),
        (lambda base, out: ptx.ldmatrix_x4(base), (7, 2)),
        (lambda base, out: ptx.ldmatrix_x4_trans(base), (7, 2)),
    ],
    ids=[
        "mma_s8",
        "mma_u8",
        "mma_f16",
        "halves",
        "cp_async",
        "cp_async_commit",
        "cp_async_wait",
        *["redux"] * 3,
        *["ldmatrix"] * 3,
    ],
)
def test_instructions_that_a_device_does_not_have(call, newest_without):
    def kernel(out):
        base, t = ptx.shared_base(cuda.shared.array(0, int32)), cuda.threadIdx.x
        ptx.st_shared_v4_i32(base + 16 * t, 0, 0, 0, 0)
        cuda.syncwarp()
        call(base + 16 * t, out)

    def device(capability):
        return replace(simulator.settings.properties, compute_capability=capability)

    older, newer = device(newest_without), device({(7, 5): (8, 0), (7, 2): (7, 5)}[newest_without])
    run(kernel, zeros(), block=32, shared=512, properties=newer)
    fails("device", kernel, zeros(), block=32, shared=512, properties=older, says="needs sm_.* this device is sm_7")


def arguments_of(function):
    """Number of arguments of an instruction; None where it takes any number."""
    parameters = list(inspect.signature(function).parameters.values())
    return None if any(p.kind is p.VAR_POSITIONAL for p in parameters) else len(parameters)


def test_the_same_instructions_as_on_the_device():
    """The simulator has exactly the instructions of ``toolchain/ptx.py``, with as many arguments. The count is that of
    today, so that a search that finds nothing cannot pass."""
    pytest.importorskip("numba.cuda.core", reason="numba-cuda is missing (extra cuda12 or cuda13)")
    from qsa.kernels.cuda.toolchain import ptx as real

    # The first parameter of an intrinsic is the compiler's typing context.
    kind = type(real.shared_base)
    there = {name: arguments_of(f) - 1 for name, f in vars(real).items() if isinstance(f, kind)}
    here = {name: arguments_of(f) for name, f in vars(ptx).items() if inspect.isfunction(f) and name[0] != "_"}
    assert here == there
    assert len(there) >= 105
    # An error message of the compiler names the instruction as kernels do.
    assert all(getattr(real, name).__name__ == name for name in there)


def test_a_store_of_too_many_values_is_a_fault():
    def kernel(out):
        ptx.st_global_v2_i32(ptx.global_base(out), 1, 2, 3)

    fails("python", kernel, zeros(), block=32, says="store of 3 values: the instruction takes 2")


def test_the_probe_of_all_instructions_runs():
    """What ``tests/gpu`` compares with a device; here against a few answers known by hand."""
    integers, floats = inputs()
    out, wide = np.full((ROWS, 32), -1, np.int32), np.zeros(4, np.int64)
    simulator.launch(build(compiler, ptx), 1, 32, (integers, floats, out, wide), shared=SHARED)
    a, b, c = (x.astype(np.int64) for x in integers[:3])
    assert (out[4] == a).all()
    assert wide[0] == (7 * a).sum() and wide[1] == max(0, b.max()) and wide[2] == 32 % 10
    assert wide[3] == int(c.sum()) % 2**32
    assert (out[29] == (a.sum() + 2**31) % 2**32 - 2**31).all() and (out[30] == b.min()).all()
    assert (out[31] == c.max()).all() and (out[32] == np.bitwise_or.reduce(integers[1]) | integers[0].max()).all()
    # Half to even, saturation, and what a half rounds to.
    assert out[6, 2:7].tolist() == [0, 2, 2, 0, -2] and out[7, 5:7].tolist() == [-1, -2]
    assert out[6, 9] == -(2**31) and out[5, 9] == 0 and out[9, 8] == 0x7C00
