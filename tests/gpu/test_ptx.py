"""The instructions of ``ptx.py`` on a device give what the simulator says they give."""

import numpy as np
import pytest

from qsa.kernels.cuda import simulator
from support.ptx_probe import ROWS, SHARED, build, inputs

pytestmark = pytest.mark.gpu


def test_the_device_agrees_with_the_simulator():
    cupy = pytest.importorskip("cupy", reason="CuPy is missing (extra cuda12 or cuda13)")
    from qsa.kernels.cuda.toolchain import compiler, ptx

    integers, floats = inputs()
    out, wide = np.full((ROWS, 32), -1, np.int32), np.zeros(4, np.int64)
    on_device = [cupy.array(x) for x in (integers, floats, out, wide)]
    compiler.launch(build(compiler, ptx), 1, 32, on_device, shared=SHARED)
    simulated = build(simulator.load("toolchain.compiler"), simulator.load("toolchain.ptx"))
    simulator.launch(simulated, 1, 32, (integers, floats, out, wide), shared=SHARED)
    np.testing.assert_array_equal(cupy.asnumpy(on_device[2]), out)
    np.testing.assert_array_equal(cupy.asnumpy(on_device[3]), wide)


def test_large_dynamic_shared_memory_and_properties():
    """Beyond 48 KiB the launch needs its attribute, which ``launch`` sets."""
    cupy = pytest.importorskip("cupy", reason="CuPy is missing (extra cuda12 or cuda13)")
    from qsa.kernels.cuda.toolchain import compiler, ptx

    cuda, int32 = compiler.cuda, compiler.int32

    @compiler.kernel(shared_memory_carveout=100)
    def last_word(out, size):
        base = ptx.shared_base(cuda.shared.array(0, int32))
        ptx.st_shared_i32(int32(base + size - 4), int32(size))
        out[0] = ptx.ld_shared_i32(int32(base + size - 4))

    size = compiler.properties().shared_per_block
    assert size > compiler.STATIC_SHARED
    out = cupy.zeros(1, np.int32)
    compiler.launch(last_word, 1, 1, (out, size), shared=size)
    assert int(out[0]) == size
