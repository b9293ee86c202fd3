"""What a foreign backend may not import: the judge's own arithmetic, which would give every right answer.

The child itself needs the containers of arguments (``PagedKV``, ``Index``) and the contract. The barrier is no prison:
a program that wants to can read the files of this project. It makes the short way fail, and names it.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

FORBIDDEN = (
    "qsa.reference.attend",
    "qsa.reference.append_index",
    "qsa.reference.append_kv",
    "qsa.reference.block_scores",
    "qsa.reference.exact",
    "qsa.reference.select",
    "qsa.kernels.cpu",
    "qsa.kernels.cuda",
    "qsa.golden",
    "qsa.engine",
    "qsa.model",
    "qsa.parity.cases.reference",
    "qsa.parity.checks",
    "qsa.parity.suite",
    "qsa.parity.trace.references",
)
"""Modules that hold right results, or a way to them."""


class _Barrier(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if any(fullname == name or fullname.startswith(f"{name}.") for name in FORBIDDEN):
            raise ImportError(f"{fullname}: a backend under test may not use the judge's own arithmetic")
        return None


def install() -> None:
    """Forbids the imports from now on, and forgets what is loaded of them."""
    for name in list(sys.modules):
        if any(name == each or name.startswith(f"{each}.") for each in FORBIDDEN):
            del sys.modules[name]
            parent, _, child = name.rpartition(".")
            if parent in sys.modules and hasattr(sys.modules[parent], child):
                delattr(sys.modules[parent], child)
    sys.meta_path.insert(0, _Barrier())
