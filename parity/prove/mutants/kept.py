"""Kernels that keep an argument of an earlier call and know it again by its address, or by some of its elements; of
the pools of many slots, as a launch may keep their descriptors, by the number of slots and the shapes of the call."""

from collections.abc import Callable
from typing import Any

from ...checks.designs.changed_contents import ARGUMENTS
from ...checks.designs.changed_index import ENCODED
from ..mutant import Right, mutant
from .changes import cached
from .encodings import coded

KIND = "D: the same arrays again with changed contents"

STRIDE = 97
"""One element of so many is looked at."""


def _kept(operation: str, name: str, enter: Callable[..., Any] = mutant) -> None:
    @enter(operation, f"{operation}: {name} kept of the first call with this array", KIND)
    def kept(right: Right, a: Any) -> Any:
        return right(cached(a, name))


def _known_again(operation: str, name: str, enter: Callable[..., Any] = mutant) -> None:
    @enter(operation, f"{operation}: {name} known again by a fingerprint", KIND)
    def known_again(right: Right, a: Any) -> Any:
        return right(cached(a, name, stride=STRIDE))


WHOLE = ("slots", "pools", "steps", "dead_exponent")
"""Of two slots there is no one element that changes alone, pools are whole K/V, and step records and one exponent are
small: all these are compared whole."""

for _enter, _arguments in ((mutant, ARGUMENTS), (coded, ENCODED)):
    for _operation, _names in _arguments.items():
        for _name in _names:
            _kept(_operation, _name, _enter)
            if _name not in WHOLE:
                _known_again(_operation, _name, _enter)
