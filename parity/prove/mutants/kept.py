"""Kernels that keep an argument and know it again by some of its elements."""

from typing import Any

from ...checks.changed_contents import ARGUMENTS
from ..mutant import Right, mutant
from .changes import cached

STRIDE = 97
"""One element of so many is looked at."""


def _kept(operation: str, name: str) -> None:
    @mutant(operation, f"{operation}: {name} known again by a fingerprint", "D: the same arrays again")
    def kept(right: Right, a: Any) -> Any:
        return right(cached(a, name, stride=STRIDE))


for _operation, _names in ARGUMENTS.items():
    for _name in _names:
        # Of two slots there is no one element that changes alone, and step records are small: they are compared whole.
        if _name not in ("slots", "steps"):
            _kept(_operation, _name)
