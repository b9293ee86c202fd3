"""The CPU kernels give the same bytes at every thread count and on every processor; their cache is safe."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from llvmlite import binding

from qsa.kernels.cpu.common import jit
from qsa.kernels.cpu.products.form import form_of
from qsa.kernels.sources import root
from support.kernel_hashes import hashes

TESTS = Path(__file__).parents[2]


def in_a_process(**environment):
    """What the script prints in a process of its own."""
    run = subprocess.run(
        [sys.executable, "-m", "support.kernel_hashes"],
        cwd=TESTS,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.fixture(scope="module")
def here():
    """The hashes of this process: the host's instructions."""
    return hashes()


@pytest.mark.parametrize("threads", [1, 2])
def test_bytes_do_not_depend_on_threads(here, threads):
    got = in_a_process(NUMBA_NUM_THREADS=str(threads))
    assert got["threads"] == threads
    assert got["hashes"] == here


PROCESSORS = {
    "generic": ("", ""),
    "haswell": ("avx2", "+avx2"),
    "skylake-avx512": ("avx512bw", "+avx2,+avx512f,+avx512bw,+avx512vl,+avx512dq"),
    "alderlake": ("avxvnni", "+avx2,+avxvnni"),
}
"""Name -> (what this machine must have to run its code, its features): a processor for each form of the products.

``generic`` has no fused multiply-add and the narrowest vectors; a host that fused or reordered would differ.
"""


@pytest.mark.parametrize("name", PROCESSORS)
def test_bytes_do_not_depend_on_the_processor(here, name):
    needed, features = PROCESSORS[name]
    if needed and not binding.get_host_cpu_features().get(needed):
        pytest.skip(f"this processor has no {needed}")
    got = in_a_process(NUMBA_CPU_NAME=name, NUMBA_CPU_FEATURES=features)
    assert got["processor"] == name
    assert got["hashes"] == here


def test_the_processors_have_every_form_of_products():
    forms = {form_of(features) for _, features in PROCESSORS.values()}
    assert len(forms) == 3
    assert form_of("+avx512vnni,+avx512bw") not in forms  # the host's, where it has it


def test_no_kernel_allows_fast_math():
    from qsa.kernels.cpu import append_index, append_kv, attend, block_scores, select  # noqa: F401

    modules = [module for name, module in sys.modules.items() if name.startswith("qsa.kernels.cpu.")]
    kernels = [value for module in modules for value in vars(module).values() if hasattr(value, "targetoptions")]
    assert len(kernels) > 20
    assert not any(kernel.targetoptions.get("fastmath") for kernel in kernels)
    # numba's parallel loops would start threads that spin.
    assert not any(kernel.targetoptions.get("parallel") for kernel in kernels)


def test_a_change_in_any_source_makes_cached_kernels_stale(tmp_path):
    """numba alone looks at the kernel's own file; here the stamp covers the helpers and the reference's constants."""
    for folder in ("kernels", "reference"):
        shutil.copytree(root() / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    assert jit.stamp(tmp_path) == jit.STAMP
    with (tmp_path / "kernels" / "cpu" / "scalar.py").open("a") as helper:
        helper.write("# changed\n")
    assert jit.stamp(tmp_path) != jit.STAMP

    @jit.kernel
    def two():
        return 2

    assert two._cache._cache_file._source_stamp == jit.STAMP
