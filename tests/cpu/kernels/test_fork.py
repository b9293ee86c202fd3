"""Kernels in processes that are forked, spawned, or given another threading layer (known-faults E11)."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")

PROGRAM = """
import multiprocessing, sys
import numpy as np
from qsa.kernels import cpu
from qsa.kernels.cpu.jit import _kernels
from qsa.reference.geometry import Geometry, step_records
from qsa.reference.exact.layers.linear import quantise

GEOMETRY = Geometry(n_head=2, n_head_kv=1, head_dim=64, n_rot=16, budget=16)


def chosen(rows):
    return cpu.select(np.zeros((rows, 9), np.float32), step_records([35] * rows, geometry=GEOMETRY), geometry=GEOMETRY)


def parallel(queue):
    try:
        queue.put(int(chosen(2).sum()))
    except RuntimeError as error:
        queue.put(str(error))


def calling(queue):
    # A matrix so large that the kernel which multiplies by it calls a parallel one.
    try:
        weight = cpu.layers.load_linear(quantise(np.ones((32768, 64), np.float32)))
        queue.put(float(cpu.layers.linear(np.ones((1, 64), np.float32), weight)[0, 0]))
    except RuntimeError as error:
        queue.put(str(error))


def alone(queue):
    index = cpu.append_index
    from qsa.reference.index import Index
    made = Index(4, np.ones(128), GEOMETRY)
    queue.put(bool(index(np.ones((1, 128), np.float32), step_records([0]), made)))


if __name__ == "__main__":
    method, first, what = sys.argv[1:]
    if first == "run":
        chosen(2)
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=globals()[what], args=(queue,))
    child.start()
    child.join(240)
    print(child.exitcode, "nothing" if child.exitcode else queue.get(timeout=10))
    if first == "run":
        chosen(2)  # the parent goes on
"""


def outcome(tmp_path, method, first, what, layer="omp"):
    """What the program prints: the child's exit code and answer."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    environment = os.environ | {"NUMBA_THREADING_LAYER": layer}
    command = [sys.executable, str(path), method, first, what]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("what", ["parallel", "calling"])
def test_a_forked_child_is_told_that_its_kernels_cannot_run(tmp_path, what):
    answer = outcome(tmp_path, "fork", "run", what)
    assert answer.startswith("0 _") and ": this process was forked from one whose kernels run in OpenMP" in answer
    assert "spawn or forkserver" in answer and "NUMBA_THREADING_LAYER=workqueue" in answer and "\n" not in answer


def test_a_kernel_without_threads_runs_in_a_forked_child(tmp_path):
    assert outcome(tmp_path, "fork", "run", "alone") == "0 True"


@pytest.mark.parametrize(
    ("method", "first", "layer"), [("spawn", "run", "omp"), ("fork", "wait", "omp"), ("fork", "run", "workqueue")]
)
def test_other_children_run_every_kernel(tmp_path, method, first, layer):
    assert outcome(tmp_path, method, first, "parallel", layer) == "0 234"
