"""A backend whose functions all lead to one place, which records a call or answers it from a file.

Its functions have the signatures of the contract, so :class:`~..backend.Backend` and every check use it as they use any
backend.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ..backend import INDEX_STORAGE, STORAGE
from ..contract import Declaration
from ..contract.operations import FUNCTIONS, Function

FUSED = ("indexer", "attend_gated", "sparse_attention")

OFFERED: dict[str, tuple[str, ...]] = {
    "ours": ("append_kv", "append_index", "block_scores", "select", "attend", *FUSED),
    "own": (*STORAGE, *INDEX_STORAGE, "block_scores", "select", "attend", *FUSED),
}
"""Storage -> the functions that an engine behind files may have."""

SCHEDULED = ("schedule", "splits")

Called = Callable[[str, dict[str, Any]], Any]
"""(function, its arguments by name; without those that are None) -> its result."""


class FileFunctions:
    """The functions ``names``; every call goes to ``called``. Calls name a schedule only with ``schedules``."""

    def __init__(self, names: Sequence[str], declaration: Declaration, schedules: bool, called: Called) -> None:
        self.declaration = declaration
        for name in names:
            setattr(self, name, _function(FUNCTIONS[name], schedules, called))


def _function(function: Function, schedules: bool, called: Called) -> Callable[..., Any]:
    """A function with the signature of ``function``. Options that stay out: ``out`` and ``arithmetic``, which no file
    needs, and ``geometry``, since the cases have the real one."""
    kinds = inspect.Parameter
    parameters = [
        kinds(name, kinds.POSITIONAL_OR_KEYWORD, default=None if optional else kinds.empty)
        for name, optional in function.parameters.items()
    ]
    options = [name for name in function.options if name == "rule" or (schedules and name in SCHEDULED)]
    parameters += [kinds(name, kinds.KEYWORD_ONLY, default=None) for name in options]
    signature = inspect.Signature(parameters)

    def run(*given: Any, **named: Any) -> Any:
        arguments = signature.bind(*given, **named).arguments
        return called(function.name, {name: value for name, value in arguments.items() if value is not None})

    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__name__ = function.name
    return run
