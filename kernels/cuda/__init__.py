"""The CUDA backend: the operations in numba-CUDA, one file each under the reference's own names.

Importing this package needs nothing: an operation is imported when it is asked for, and an ImportError then says what
is missing (numba-cuda, CuPy). ``simulate`` and ``ptxcheck`` work without a GPU.
"""

import importlib
import importlib.util

from ..ops import OPERATIONS

_HOME = {
    **{name: name for name in OPERATIONS},
    "to_device": "device",
    "to_host": "device",
    "read_kv": "device",
}
"""Name exported by the backend -> module of this package that defines it."""

__all__ = ["OPERATIONS"]


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = f"{__name__}.{_HOME[name]}"
    if importlib.util.find_spec(home) is None:
        raise AttributeError(f"{name}: not carried out on CUDA")
    try:
        return getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as error:
        raise ImportError(f"the CUDA backend needs the extra cuda12 or cuda13: {error}") from error
