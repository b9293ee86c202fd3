"""The switches: environment variables, read once. Each of those about kernels has three states.

None (unset)  what is fastest by measurement and changes no bit: in the exact arithmetic the table of
              ``cuda/common/defaults.py``, elsewhere the standing path
False (``0``) the standing path
True (``1``)  the switch's path

Source: design section 8. Names of the STRATA family keep the names under which their users know them.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Self

ARITHMETICS = ("exact", "float")


@dataclass(frozen=True)
class Switches:
    """State of every switch. ``from_environment`` reads them; :func:`switches` does so once per process.

    Raises ValueError, naming the field, on a state that it does not have.
    """

    split_attn: bool | None = None
    batch_qsa_attn: bool | None = None
    topk_scan: bool | None = None
    scores_transposed: bool | None = None
    merge_active: bool | None = None
    arithmetic: str = "exact"

    def __post_init__(self) -> None:
        for field in fields(self):
            value, allowed = getattr(self, field.name), _allowed(field.name)
            # 0 and 1 equal False and True, but are not them: a reader asks ``is False``.
            if type(value) not in map(type, allowed) or value not in allowed:
                raise ValueError(f"{field.name} = {value!r}: allowed are {' and '.join(map(repr, allowed))}")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Switches of an environment; a variable that is empty is unset. Raises ValueError naming the variable when a
        value is not one of those allowed."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            text = environment.get(VARIABLES[field.name], "")
            allowed = ARITHMETICS if field.name == "arithmetic" else ("0", "1")
            if text == "":
                continue
            if text not in allowed:
                raise ValueError(f"{VARIABLES[field.name]} = {text!r}: allowed are {' and '.join(allowed)}")
            values[field.name] = text if field.name == "arithmetic" else text == "1"
        return cls(**values)


def _allowed(name: str) -> tuple[Any, ...]:
    """The states of the field ``name``."""
    return ARITHMETICS if name == "arithmetic" else (None, False, True)


VARIABLES = {
    "split_attn": "STRATA_QSA_SPLIT_ATTN",
    "batch_qsa_attn": "STRATA_BATCH_QSA_ATTN",
    "topk_scan": "STRATA_QSA_TOPK_SCAN",
    "scores_transposed": "STRATA_QSA_SCORES_TRANSPOSED",
    "merge_active": "STRATA_ATTN_MERGE_ACTIVE",
    "arithmetic": "QSA_ARITHMETIC",
}
"""Field of :class:`Switches` -> environment variable."""


_from_environment = cache(Switches.from_environment)

_override: ContextVar[Switches | None] = ContextVar("switches", default=None)


def switches() -> Switches:
    """The process's switches, read from the environment at the first call; within :func:`override` those it makes."""
    return _override.get() or _from_environment()


@contextmanager
def override(**values: Any) -> Iterator[Switches]:
    """Within the block :func:`switches` has these ``values`` in place of the ones outside it; the environment is not
    touched. It holds for the calling thread, may be nested, and yields the :class:`Switches`.

    Raises TypeError on a name that is no switch, ValueError on a value that the switch does not have.
    """
    overridden = replace(switches(), **values)
    token = _override.set(overridden)
    try:
        yield overridden
    finally:
        _override.reset(token)
