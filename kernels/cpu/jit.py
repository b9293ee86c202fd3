"""How the CPU kernels are compiled: one set of options, and an on-disk cache that knows every source."""

import os
import sys
from pathlib import Path

import numba
import xxhash

from qsa.reference import formats, geometry
from qsa.reference.exact import sampler, scalar
from qsa.reference.exact.layers import recurrent

# Read by the OpenMP runtime when the first parallel kernel loads it. Left to itself an idle thread spins, which saves
# 8 us a launch on an idle machine and costs milliseconds wherever another process wants the core.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

OPTIONS = {"cache": True, "nogil": True, "error_model": "numpy"}
"""No ``fastmath`` anywhere: it lets LLVM fuse and reorder float operations, and the bits are the contract."""


def _stamp():
    """Hash of this folder's sources and of the reference files whose constants they freeze."""
    digest = xxhash.xxh3_64()
    # A module that its package hides behind a function of the same name.
    linear = sys.modules["qsa.reference.exact.layers.linear"]
    frozen = (formats, geometry, linear, recurrent, sampler, scalar)
    for path in (*sorted(Path(__file__).parent.rglob("*.py")), *(Path(module.__file__) for module in frozen)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


STAMP = _stamp()


def kernel(function=None, **options):
    """``numba.njit`` with :data:`OPTIONS`, as a decorator with or without options of its own.

    numba ties a cached kernel to the time stamp of the one file it stands in, so a change in a helper's file would run
    the old code. Here every cached kernel is tied to :data:`STAMP` instead.
    """
    if function is None:
        return lambda decorated: kernel(decorated, **options)
    compiled = numba.njit(**OPTIONS, **options)(function)
    compiled._cache._cache_file._source_stamp = STAMP
    return compiled
