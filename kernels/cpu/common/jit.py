"""How the CPU kernels are compiled: one set of options, and a cache on disk that knows every source and any damage."""

import contextlib
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import xxhash
from numba.core.caching import IndexDataCacheFile

from ...sources import content_hash, reachable

OPTIONS = {"cache": True, "nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
"""No ``fastmath`` anywhere: it lets LLVM fuse and reorder float operations, and the bits are the contract. No wrapper
for C either: nobody calls it, and it takes time to compile."""


def stamp(where: Path | None = None) -> str:
    """Hash of all source files whose constants a compiled CPU kernel can hold: 32 hex digits.

    where  folder of the project, the one that runs unless given
    """
    return content_hash(reachable(["kernels/cpu"], where))


STAMP = stamp()


class _CacheFile(IndexDataCacheFile):
    """numba's files of one kernel, each entry behind its hash. What is damaged or cannot be read counts as missing and
    is compiled anew; what cannot be written is compiled again by the next process."""

    def save(self, key: Any, data: Any) -> None:
        with contextlib.suppress(OSError):
            super().save(key, data)

    def _save_index(self, overloads: dict[Any, str]) -> None:
        self._write(self._index_path, (self._version, self._source_stamp, overloads))

    def _load_index(self) -> dict[Any, str]:
        version, stamp, overloads = self._read(self._index_path) or (None, None, {})
        return overloads if (version, stamp) == (self._version, self._source_stamp) else {}

    def _save_data(self, name: str, data: Any) -> None:
        self._write(self._data_path(name), data)

    def _load_data(self, name: str) -> Any:
        return self._read(self._data_path(name))

    def _write(self, path: str, value: Any) -> None:
        data = self._dump(value)
        with self._open_for_write(path) as file:
            file.write(xxhash.xxh3_128_digest(data) + data)

    def _read(self, path: str) -> Any:
        """What :meth:`_write` wrote to ``path``; None where that is not what the file holds."""
        try:
            written = Path(path).read_bytes()
        except OSError:
            return None
        data = written[16:]
        return pickle.loads(data) if written[:16] == xxhash.xxh3_128_digest(data) else None


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """numba compiles in the body, whatever NUMBA_DISABLE_JIT says: who debugs a kernel of their own that way still
    calls these, which Python cannot run (their integers wrap around, and some are machine instructions)."""
    before = numba.config.DISABLE_JIT
    numba.config.DISABLE_JIT = 0
    try:
        yield
    finally:
        numba.config.DISABLE_JIT = before


def _as_compiling(compile: Callable[..., Any]) -> Callable[..., Any]:
    """``compile`` of a kernel, which numba calls when the kernel meets new types: what the kernel uses of NumPy is made
    only then."""

    def compile_anyway(*arguments: Any) -> Any:
        with _compiling():
            return compile(*arguments)

    return compile_anyway


def writable(x: np.ndarray) -> np.ndarray:
    """``x``, or a copy where it cannot be written: to numba that is another type, and every kernel that takes both
    would be compiled twice."""
    return x if x.flags.writeable else x.copy()


def kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """``numba.njit`` with :data:`OPTIONS`, as a decorator with or without options of its own.

    numba ties a cached kernel to the time stamp of the one file it stands in, so a change in a helper's file would run
    the old code. Here every cached kernel is tied to :data:`STAMP` instead, and its files are checked.
    """
    if function is None:
        return lambda decorated: kernel(decorated, **options)
    with _compiling():
        compiled = numba.njit(**OPTIONS, **options)(function)
    compiled.compile = _as_compiling(compiled.compile)
    cache = compiled._cache
    cache._cache_file = _CacheFile(cache.cache_path, cache._impl.filename_base, STAMP)
    return compiled
