"""A bad call: a row of the tables ``bad_inputs_*``, and what is looked at around it.

A row names a base, which makes good arguments anew, and what is changed of them. The base alone must succeed, so a row
fails for its own reason. To add a row, add a line to a table.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Base(NamedTuple):
    """A good call: ``function(**make())``."""

    function: Callable[..., Any]
    make: Callable[[], dict[str, Any]]


class Bad(NamedTuple):
    """A bad call.

    base    of the good call
    change  argument -> its bad value, or a function of the good arguments that gives it (or changes them in place and
            gives None)
    kind    type of the exception
    words   what the message must have: the argument, the value, what is allowed
    """

    base: Base
    change: dict[str, Any]
    kind: type[Exception]
    words: tuple[str, ...]

    def arguments(self) -> dict[str, Any]:
        """The arguments of the bad call."""
        made = self.base.make()
        for name, value in self.change.items():
            found = value(made) if callable(value) and not isinstance(value, type) else value
            if not (found is None and callable(value)):
                made[name] = found
        return made


def refused(base: Base, rows: dict[str, tuple[dict[str, Any], type[Exception], tuple[str, ...]]]) -> dict[str, Bad]:
    """Rows of one base by their names."""
    return {name: Bad(base, *row) for name, row in rows.items()}


def contents(value: Any, seen: set[int] | None = None) -> list[bytes]:
    """The bytes of every array that ``value`` holds, directly or in its fields, in one order."""
    seen = set() if seen is None else seen
    if value is None or isinstance(value, (str, bytes, int, float, complex, type)) or id(value) in seen:
        return []
    if isinstance(value, np.ndarray):
        return [value.tobytes()]
    seen.add(id(value))
    if isinstance(value, dict):
        items = list(value.values())
    elif isinstance(value, (list, tuple, set, frozenset)):
        items = list(value)
    elif type(value).__module__.startswith("qsa.") and hasattr(value, "__dict__"):
        # Slot tables are the kernels' own copies of addresses, made when they are first asked for.
        items = [item for name, item in vars(value).items() if name != "_slot_tables"]
    else:
        return []
    return [found for item in items for found in contents(item, seen)]
