"""How the CPU kernels are compiled: one set of options, and an on-disk cache that knows every source."""

import os

import numba

from ..sources import content_hash, reachable

# Read by the OpenMP runtime when the first parallel kernel loads it. Left to itself an idle thread spins, which saves
# 8 us a launch on an idle machine and costs milliseconds wherever another process wants the core.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

OPTIONS = {"cache": True, "nogil": True, "error_model": "numpy"}
"""No ``fastmath`` anywhere: it lets LLVM fuse and reorder float operations, and the bits are the contract."""


def stamp(where=None):
    """Hash of all sources that a CPU kernel can read: whatever value it freezes, its file is among them.

    where  folder of the project, the one that runs unless given
    """
    return content_hash(reachable(["kernels/cpu"], where))


STAMP = stamp()


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
