"""How the CPU kernels are compiled: one set of options, and an on-disk cache that knows every source."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core.registry import CPUDispatcher

from ..sources import content_hash, reachable

# Read by the OpenMP runtime when the first parallel kernel loads it. Left to itself an idle thread spins, which saves
# 8 us a launch on an idle machine and costs milliseconds wherever another process wants the core.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

OPTIONS = {"cache": True, "nogil": True, "error_model": "numpy"}
"""No ``fastmath`` anywhere: it lets LLVM fuse and reorder float operations, and the bits are the contract."""


def stamp(where: Path | None = None) -> str:
    """Hash of all source files whose constants a compiled CPU kernel can hold: 32 hex digits.

    where  folder of the project, the one that runs unless given
    """
    return content_hash(reachable(["kernels/cpu"], where))


STAMP = stamp()


def kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """``numba.njit`` with :data:`OPTIONS`, as a decorator with or without options of its own.

    numba ties a cached kernel to the time stamp of the one file it stands in, so a change in a helper's file would run
    the old code. Here every cached kernel is tied to :data:`STAMP` instead.
    """
    if function is None:
        return lambda decorated: kernel(decorated, **options)
    compiled = numba.njit(**OPTIONS, **options)(function)
    compiled._cache._cache_file._source_stamp = STAMP
    _kernels.append(compiled)
    return compiled


_kernels: list[Any] = []


class _ForkedKernel(CPUDispatcher):
    """A kernel that its process cannot run. See :func:`after_fork`."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Raises RuntimeError."""
        raise RuntimeError(
            f"{self.py_func.__name__}: this process was forked from one whose kernels run in OpenMP threads, which a "
            "fork does not survive: start it with multiprocessing's method spawn or forkserver, or set "
            "NUMBA_THREADING_LAYER=workqueue"
        )


def after_fork() -> None:
    """Make parallel kernels, and kernels that call one, raise RuntimeError in a process that was forked from one where
    GNU OpenMP has started its threads.

    Its threads do not exist in the child: the runtime would end the process by a signal. Another threading layer, and
    OpenMP on another system, survive a fork.
    """
    try:
        unsafe = sys.platform.startswith("linux") and numba.threading_layer() == "omp"
    except ValueError:
        # No parallel kernel has run.
        return
    if not unsafe:
        return
    parallel = {kernel for kernel in _kernels if kernel.targetoptions.get("parallel")}
    found = set(parallel)
    while found:
        found = {kernel for kernel in _kernels if kernel not in parallel and _called(kernel) & parallel}
        parallel |= found
    for kernel in parallel:
        kernel.__class__ = _ForkedKernel


def _called(kernel: Any) -> set[Any]:
    """The kernels among the global names of a kernel's body."""
    body = kernel.py_func
    values = (body.__globals__.get(name) for name in body.__code__.co_names)
    return {value for value in values if isinstance(value, CPUDispatcher)}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=after_fork)
