"""A fault names the kernel's file and line, whichever file of the simulator found it."""

import re
from pathlib import Path

import pytest

from qsa.kernels.cuda import simulator
from qsa.kernels.cuda.simulator import state
from support.simulator_runs import run, zeros

compiler, ptx = simulator.load("toolchain.compiler"), simulator.load("toolchain.ptx")
cuda, int32, float32 = compiler.cuda, compiler.int32, compiler.float32


def test_the_simulator_knows_its_own_files():
    """They are found by a search; the count is that of today, so that a search that finds nothing cannot pass."""
    folder = Path(simulator.__file__).parent
    assert {str(path) for path in folder.iterdir() if path.suffix == ".py"} == state._OWN
    assert len(state._OWN) >= 14


@pytest.mark.parametrize(
    ("kind", "kernel"),
    [
        ("unwritten", lambda out: ptx.ld_shared_i32(ptx.shared_base(cuda.shared.array(0, int32)))),
        ("bounds", lambda out: ptx.st_global_i32(ptx.global_base(out) - 4, 1)),
        ("bounds", lambda out: out[-1]),
        ("overflow", lambda out: int32(float32(1e30))),
        ("divergence", lambda out: cuda.shfl_xor_sync(1, 0, 1)),
        ("python", lambda out: ptx.prmt("no number", 0, 0)),
        ("python", lambda out: ptx.mma_s8(*["no number"] * 10)),
        ("bounds", lambda out: ptx.map_shared(0, 0)),
        ("python", lambda out: ptx.shared_base(out)),
    ],
    ids=["memory", "global", "arrays", "numbers", "warp", "arithmetic", "matrix", "cluster", "ptx"],
)
def test_a_fault_names_the_file_of_the_kernel(kind, kernel):
    with pytest.raises(simulator.SimulationError) as caught:
        run(kernel, zeros())
    assert caught.value.kind == kind
    (file,) = re.findall(r"lane \d+, ([\w.]+):\d+: ", str(caught.value))
    assert file == Path(__file__).name
