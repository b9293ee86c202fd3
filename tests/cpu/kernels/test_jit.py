"""Compilation in spite of the environment: without numba's compiler, with a missing threading layer, with damaged files
of its cache (known-faults J9, J10)."""

import os
import subprocess
import sys

import pytest

CASE = "accuracy:op=attend,format=int8,scores=ordinary,context=60,rows=1,tail=3,seed=1"

SELECT = "selection:op=select,rule=blocks,scores=continuous,context=2056,rows=1,tail=0,seed=1"

OWN_KERNEL = """
import numba
import numpy as np


@numba.njit
def same(x):
    return x


assert not hasattr(same, "py_func"), "it was asked for a Python function"


def select(scores, steps):
    blocks = [np.argsort(-row[:n_bid], kind="stable")[:512] for row, n_bid in zip(scores, steps[:, 2])]
    cells = [(np.sort(some)[:, None] * 4 + np.arange(4)).ravel() for some in blocks]
    return [np.append(some, np.arange(4 * step[2], step[1])) for some, step in zip(map(same, cells), steps)]
"""


def outcome(*words, **variables):
    """Exit status and all that a command prints, under environment ``variables``."""
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=os.environ | variables, timeout=240
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("own", [False, True])
def test_who_debugs_a_kernel_without_compilation_is_judged(tmp_path, own):
    """Their kernel is a Python function then; ours, which Python cannot run, are compiled all the same, into an empty
    cache too."""
    path = tmp_path / "mine.py"
    path.write_text(OWN_KERNEL)
    backend, case = (str(path), SELECT) if own else ("cpu", CASE)
    words = ("-m", "qsa.parity.cli", "parity", "--backend", backend, "--case", case)
    empty = {} if own else {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    status, said = outcome(*words, NUMBA_DISABLE_JIT="1", **empty)
    assert status == 0 and "1 passed, 0 failed" in said, said


@pytest.mark.parametrize("layer", ["tbb", "no such layer"])
def test_no_threading_layer_is_needed(layer):
    """The threads are Python's own."""
    program = (
        "import numpy as np; from qsa.kernels import cpu; from qsa.kernels.cpu.select import ALONE; "
        "from qsa.reference.geometry import step_records; rows = -(-ALONE // 9); "
        "print(cpu.select(np.zeros((rows, 9), np.float32), step_records([35] * rows)).shape == (rows, 2051))"
    )
    status, said = outcome("-c", program, NUMBA_THREADING_LAYER=layer, NUMBA_NUM_THREADS="2")
    assert status == 0 and said == "True\n", said


PROGRAM = """
import sys
from pathlib import Path
from qsa.kernels.cpu.common.jit import kernel


def twice(x):
    return 2 * x


def called(hits):
    made = kernel(twice)
    assert made(21) == 42 and made(0.5) == 1.0
    assert sum(made.stats.cache_hits.values()) == hits, (made.stats, hits)


def flipped(data, place):
    return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


called(0)
called(2)
files = [path for path in Path(sys.argv[1]).rglob("*") if path.suffix in (".nbi", ".nbc")]
assert len(files) == 3, files
for file in files:
    good = file.read_bytes()
    bad = [b"", good[:7], good[: len(good) // 2], good + b"x", b"x" * len(good)]
    bad += [flipped(good, place) for place in range(0, len(good), 1 + len(good) // 20)]
    for data in bad:
        file.write_bytes(data)
        called(0 if file.suffix == ".nbi" else 1)
        called(2)
    file.write_bytes(good)
    called(2)
data = [file for file in files if file.suffix == ".nbc"]
data[0].unlink()
called(1)
data[0].unlink()
data[0].mkdir()
called(1)
print("right")
"""


def test_a_damaged_file_of_the_cache_is_compiled_anew(tmp_path):
    """Cut, lengthened, overwritten, each with one bit changed, missing, and a folder in its place."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    status, said = outcome(str(path), str(tmp_path / "cache"), NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    assert status == 0 and said == "right\n", said
