"""The CUDA backend: the operations in numba-CUDA, one file each under the reference's own names.

Importing this package needs nothing: an operation is imported when it is asked for, and an ImportError then says what
is missing (numba-cuda, CuPy). ``simulate`` and ``ptxcheck`` work without a GPU.
"""

import importlib
import importlib.util
import sys
from types import ModuleType

from ..ops import OPERATIONS

_HOME = {
    **{name: name for name in OPERATIONS},
    "to_device": "device",
    "to_host": "device",
    "read_kv": "device",
    "Program": "program",
    "Staging": "program",
    "program_stream": "program",
    "layers": "layers",
    "row_sampler": "sample",
}
"""Name exported by the backend -> module of this package that defines it; those of :data:`_MODULES` are that module
itself."""

_MODULES = "layers", "row_sampler"

__all__ = ["OPERATIONS"]


def _find(name):
    home = f"{__name__}.{_HOME[name]}"
    if importlib.util.find_spec(home) is None:
        raise AttributeError(f"{name}: not carried out on CUDA")
    try:
        module = importlib.import_module(home)
        return module if name in _MODULES else getattr(module, name)
    except ModuleNotFoundError as error:
        raise ImportError(f"the CUDA backend needs the extra cuda12 or cuda13: {error}") from error


class _Backend(ModuleType):
    """This package's own class: its properties stand before the submodules of the same names, which importing one
    would otherwise put in the operations' places."""


def _operation(name):
    return property(lambda _: _find(name), lambda _self, _submodule: None)


for _name in _HOME:
    setattr(_Backend, _name, _operation(_name))
sys.modules[__name__].__class__ = _Backend
