"""The contract of a backend under test: what it declares, how it is loaded and called, in which form it takes ids.

Only arrays and plain values pass between the judge and a backend. See ``docs/contract.md``.
"""

from .declaration import Declaration, Domain, Shapes, Types, declared
from .kernel import Kernel, UnsupportedError
from .loading import load
from .number_types import NUMBER_TYPES, rounded, unit
from .storage import OwnIndex, OwnKV

__all__ = [
    "NUMBER_TYPES",
    "Declaration",
    "Domain",
    "Kernel",
    "OwnIndex",
    "OwnKV",
    "Shapes",
    "Types",
    "UnsupportedError",
    "declared",
    "load",
    "rounded",
    "unit",
]
