"""Results kept by the content of their arguments, so that truth is made once for all kernels under one case.

The key is a hash of every byte of the arguments. A kernel that changes an array cannot reach a kept result: it is read
only, and other bytes have another key.
"""

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import xxhash

from qsa.reference.geometry import Geometry
from qsa.reference.index import Index
from qsa.reference.kv import PagedKV, Pool

F = TypeVar("F", bound=Callable[..., Any])

KEPT = 48
"""Results that each function keeps. Kernels are run one after the other on one case, which asks for a few."""

_all: list[OrderedDict[str, Any]] = []


def forget() -> None:
    """Drop every result: whoever changes one of the functions, or what it calls, must."""
    for kept in _all:
        kept.clear()


def digest(*values: Any) -> str:
    """Hash of plain values, arrays, and of lists, tuples, dicts, PagedKV, Index and other objects of these."""
    state = xxhash.xxh3_128()
    _feed(state, values)
    return state.hexdigest()


def _feed(state: Any, value: Any) -> None:
    if isinstance(value, np.ndarray):
        state.update(f"{value.dtype}{value.shape}".encode())
        state.update(np.ascontiguousarray(value).view(np.uint8).reshape(-1))
    elif isinstance(value, (list, tuple)):
        state.update(f"[{len(value)}".encode())
        for item in value:
            _feed(state, item)
    elif isinstance(value, dict):
        _feed(state, list(value.items()))
    elif isinstance(value, PagedKV):
        state.update(b"paged")
        for part in (value.table, value.pool, value.host):
            _feed(state, part)
    elif isinstance(value, Pool):
        state.update(f"{value.format} {value.page_size} {_text(value.geometry)}".encode())
        for side in (value.k, value.v):
            _feed(state, side.codes)
            _feed(state, side.scale)
    elif isinstance(value, Index):
        state.update(_text(value.geometry).encode())
        _feed(state, [part for part in vars(value).values() if isinstance(part, np.ndarray)])
    elif hasattr(value, "paged"):
        _feed(state, value.paged)
    else:
        state.update(f"{type(value).__name__} {value!r};".encode())


@functools.lru_cache(maxsize=16)
def _text(geometry: Geometry) -> str:
    return repr(geometry)


def remembered(function: F) -> F:
    """``function``, whose result is an array or a tuple of arrays and plain values, with its last :data:`KEPT` results
    kept by the content of the arguments. Arrays that it gives are read only."""
    kept: OrderedDict[str, Any] = OrderedDict()
    _all.append(kept)

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        key = digest(arguments, keywords)
        if key not in kept:
            result = function(*arguments, **keywords)
            for part in result if isinstance(result, tuple) else (result,):
                if isinstance(part, np.ndarray):
                    part.flags.writeable = False
            kept[key] = result
            while len(kept) > KEPT:
                kept.popitem(last=False)
        kept.move_to_end(key)
        return kept[key]

    return call  # type: ignore[return-value]
