"""A kernel in C, called through ctypes: ``c_kernel.c``, compiled by the system's compiler when the port is loaded.

Its storage is one array of float32 in a layout of its own. Ties go to the lower index.
"""

import ctypes
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray

declaration = {"ties": "lowest", "domain": {"unused_rows": True}}


def _loaded() -> ctypes.CDLL:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise ImportError("c_kernel: needs a C compiler: there is none in CC, and no cc")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c_kernel.so"
        source = Path(__file__).with_name("c_kernel.c")
        command = [compiler, "-std=c11", "-O2", "-shared", "-fPIC", "-o", str(path), str(source), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise ImportError(f"c_kernel: {compiler} failed: {done.stderr.strip()}")
        # A loaded library stays loaded when its file is gone.
        return ctypes.CDLL(str(path))


_library = _loaded()


def _call(name: str, *arguments: Any) -> None:
    """Calls a function of the library with arrays as pointers and integers as 64-bit ones."""
    given = [each.ctypes if isinstance(each, np.ndarray) else ctypes.c_int64(each) for each in arguments]
    if getattr(_library, name)(*given):
        raise MemoryError(f"{name}: no memory")


def cache(capacity: int) -> Array:
    return np.zeros((2, 2, capacity, 256), np.float32)


def append(cache: Array, k: Array, v: Array, positions: Array) -> None:
    k, v, positions = (np.ascontiguousarray(x) for x in (k, v, positions))
    _call("qsa_copy", cache, cache.shape[2], len(positions), positions, k, v, 1)


def read(cache: Array, positions: Array) -> tuple[Array, Array]:
    k, v = (np.empty((len(positions), 2, 256), np.float32) for _ in "kv")
    _call("qsa_copy", cache, cache.shape[2], len(positions), np.ascontiguousarray(positions), k, v, 0)
    return k, v


def attend(q: Array, kv: Array, ids: Array, steps: Array) -> Array:
    q, ids, out = np.ascontiguousarray(q), np.ascontiguousarray(ids), np.empty(q.shape, np.float32)
    _call("qsa_attend", q, kv, kv.shape[2], ids, ids.shape[1], np.ascontiguousarray(steps), len(q), out)
    return out


def block_scores(q_idx: Array, index: Any, steps: Array) -> Array:
    q_idx, keys = np.ascontiguousarray(q_idx), np.ascontiguousarray(index.pooled)
    out = np.empty((len(q_idx), len(keys)), np.float32)
    _call("qsa_block_scores", q_idx, keys, len(keys), len(q_idx), out)
    return out


def select(scores: Array, steps: Array, rule: str) -> Array:
    # The width in a step record is that of the rule.
    scores, steps = np.ascontiguousarray(scores), np.ascontiguousarray(steps)
    ids = np.empty((len(scores), 2051), np.int32)
    _call("qsa_select", scores, scores.shape[1], steps, len(scores), ids, ids.shape[1])
    return ids
