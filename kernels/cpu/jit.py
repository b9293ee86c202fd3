"""How the CPU kernels are compiled: one set of options, and an on-disk cache that knows every source."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

from ..sources import content_hash, reachable

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
    return compiled
