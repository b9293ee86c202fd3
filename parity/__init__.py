"""The suite: parity modules, one comparison helper, one report, the command line ``qsa``.

The cases and their results are in ``qsa.parity.suite``: it imports the engine and its kernels, which this file leaves
alone. What it exports is imported when it is asked for, so that the command line can answer Ctrl-C from its first
moment. ``Unsupported`` is short for ``UnsupportedError`` in a backend's own code: ``raise Unsupported("why")``.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backend import Backend
    from .contract import Declaration, UnsupportedError
    from .contract import UnsupportedError as Unsupported

__all__ = ["Backend", "Declaration", "Unsupported", "UnsupportedError"]

_MODULES = {"Backend": "backend", "Declaration": "contract", "UnsupportedError": "contract"}


def __getattr__(name: str) -> Any:
    name = "UnsupportedError" if name == "Unsupported" else name
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
