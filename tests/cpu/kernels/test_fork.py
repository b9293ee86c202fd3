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
from qsa.kernels.cpu.select import ALONE
from qsa.reference.geometry import Geometry, step_records
from qsa.reference.index import Index

GEOMETRY = Geometry(n_head=2, n_head_kv=1, head_dim=64, n_rot=16, budget=16)


def shared(queue=None):
    # So many rows that threads share them.
    rows = -(-ALONE // 9)
    steps = step_records([35] * rows, geometry=GEOMETRY)
    found = cpu.select(np.zeros((rows, 9), np.float32), steps, geometry=GEOMETRY)
    if queue is not None:
        queue.put(int(found.sum()) // rows)


def alone(queue):
    made = Index(4, np.ones(128), GEOMETRY)
    queue.put(int(cpu.append_index(np.ones((1, 128), np.float32), step_records([0]), made)))


if __name__ == "__main__":
    method, first, what = sys.argv[1:]
    if first == "run":
        shared()
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=globals()[what], args=(queue,))
    child.start()
    child.join(240)
    print(child.exitcode, "nothing" if child.exitcode else queue.get(timeout=10))
    if first == "run":
        shared()  # the parent goes on
"""


def outcome(tmp_path, method, first, what, layer="omp"):
    """What the program prints: the child's exit code and answer."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    environment = os.environ | {"NUMBA_THREADING_LAYER": layer, "NUMBA_NUM_THREADS": "2"}
    command = [sys.executable, str(path), method, first, what]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("method", "first", "layer"),
    [("fork", "run", "omp"), ("fork", "wait", "omp"), ("fork", "run", "workqueue"), ("spawn", "run", "omp")],
)
def test_every_child_runs_kernels_that_threads_share(tmp_path, method, first, layer):
    assert outcome(tmp_path, method, first, "shared", layer) == "0 117"


def test_a_kernel_without_threads_runs_in_a_forked_child(tmp_path):
    assert outcome(tmp_path, "fork", "run", "alone") == "0 1"
