"""Kernels that keep an argument of an earlier call and know it again by its address, or by some of its elements."""

from typing import Any

from ...checks.designs.changed_contents import ARGUMENTS
from ..mutant import Right, mutant
from .changes import cached

KIND = "D: the same arrays again with changed contents"

STRIDE = 97
"""One element of so many is looked at."""


def _kept(operation: str, name: str) -> None:
    @mutant(operation, f"{operation}: {name} kept of the first call with this array", KIND)
    def kept(right: Right, a: Any) -> Any:
        return right(cached(a, name))


def _known_again(operation: str, name: str) -> None:
    @mutant(operation, f"{operation}: {name} known again by a fingerprint", KIND)
    def known_again(right: Right, a: Any) -> Any:
        return right(cached(a, name, stride=STRIDE))


for _operation, _names in ARGUMENTS.items():
    for _name in _names:
        _kept(_operation, _name)
        # Of two slots there is no one element that changes alone, and step records are small: they are compared whole.
        if _name not in ("slots", "steps"):
            _known_again(_operation, _name)
