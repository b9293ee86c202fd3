"""What ``qsa bench`` times: cases by operation, format, rows, context, schedule and cache, and their case strings."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from qsa.golden import case as case_strings
from qsa.kernels.ops import OPERATIONS
from qsa.reference.formats import EXACT_FORMATS

STANDING = "standing"
"""The schedule that a call takes which names none."""

OWN = "own"
"""As a format: the backend's own storage."""

FORMATS = (*EXACT_FORMATS, "fp16", OWN)
CACHES = ("hot", "cold")

AXES: dict[str, tuple[str, ...]] = {
    "attend": ("format", "rows", "context", "schedule"),
    "block_scores": ("rows", "context", "schedule"),
    "select": ("rows", "context", "schedule"),
    "append_kv": ("format", "rows"),
    "append_index": ("rows",),
}
"""Operation -> the parameters that its cases have, beside ``cache``."""

DEFAULTS: dict[str, Any] = {"format": "int8", "rows": 4, "context": 65536, "schedule": STANDING}
"""Value of a parameter that is not asked for."""

ROWS = (1, 4, 8, 64)
CONTEXTS = (1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20)
"""Of the screen: rows at the default context, contexts at one row."""

MOST_ROWS, MOST_CONTEXT = 4096, 1 << 22
"""Limits of what may be asked for: beyond them the inputs alone fill a machine."""

SCREEN_SCHEDULES = {"cpu": {"attend": ("split",)}, "cuda": {"attend": ("split",)}}
"""Backend of ours -> operation -> the schedules of the screen beside the standing one; any other backend has none."""


@dataclass(frozen=True)
class BenchCase:
    """One case: ``operation``, and its parameters in the order of :data:`AXES`, then ``cache``."""

    operation: str
    parameters: dict[str, Any] = field(hash=False)

    @property
    def text(self) -> str:
        """The case string."""
        return case_strings.format(self.operation, self.parameters)

    def get(self, name: str) -> Any:
        """A parameter, None where the operation has none of that name."""
        return self.parameters.get(name)


@dataclass(frozen=True)
class Wanted:
    """What was asked for; an empty tuple is what was not."""

    operations: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    rows: tuple[int, ...] = ()
    contexts: tuple[int, ...] = ()
    schedules: tuple[str, ...] = ()
    caches: tuple[str, ...] = ()

    @property
    def of_axes(self) -> dict[str, tuple[Any, ...]]:
        """Axis -> the values that were asked for."""
        found = {"format": self.formats, "rows": self.rows, "context": self.contexts, "schedule": self.schedules}
        return {axis: values for axis, values in found.items() if values}


def make(operation: str, cache: str = "hot", **given: Any) -> BenchCase:
    """The case of ``operation`` with defaults for what is not given."""
    return BenchCase(operation, {axis: given.get(axis, DEFAULTS[axis]) for axis in AXES[operation]} | {"cache": cache})


def number(option: str, text: str) -> int:
    """``64K`` or ``1M`` or ``1000`` as an integer: K is 1,024. Raises ValueError that names the option."""
    match = re.fullmatch(r"([1-9][0-9]*)([KkMm]?)", text)
    if match is None:
        raise ValueError(f"{option} = {text!r}: must be an integer above 0, with K for 1,024 or M for 1,048,576")
    return int(match[1]) * {"": 1, "K": 1 << 10, "M": 1 << 20}[match[2].upper()]


def check(wanted: Wanted) -> None:
    """Raises ValueError that names the option, its value and what is allowed."""
    schedules = tuple(dict.fromkeys([STANDING, *(name for each in OPERATIONS.values() for name in each.schedules)]))
    for option, values, allowed in (
        ("--op", wanted.operations, tuple(AXES)),
        ("--format", wanted.formats, FORMATS),
        ("--schedule", wanted.schedules, schedules),
        ("--cache", wanted.caches, CACHES),
    ):
        for value in values:
            if value not in allowed:
                raise ValueError(f"{option} = {value!r}: allowed are {', '.join(allowed)}")
    for option, numbers, most in (("--rows", wanted.rows, MOST_ROWS), ("--context", wanted.contexts, MOST_CONTEXT)):
        for each in numbers:
            if not 1 <= each <= most:
                raise ValueError(f"{option} = {each}: must be from 1 to {most}")
    operations = wanted.operations or tuple(AXES)
    for axis, option in (("format", "--format"), ("context", "--context"), ("schedule", "--schedule")):
        if axis in wanted.of_axes and not any(axis in AXES[name] for name in operations):
            raise ValueError(f"{option}: {', '.join(operations)} has no {axis}")
    for schedule in wanted.schedules:
        if schedule != STANDING and not any(schedule in OPERATIONS[name].schedules for name in operations):
            raise ValueError(f"--schedule = {schedule!r}: {', '.join(operations)} has none of that name")
    if wanted.rows and wanted.contexts and max(wanted.rows) > min(wanted.contexts):
        raise ValueError(f"--rows = {max(wanted.rows)}: more than the {min(wanted.contexts)} cells of --context")


def chosen(wanted: Wanted, backend: str, own_storage: bool = False) -> list[BenchCase]:
    """The cases: the product of what was asked for, where rows, contexts, formats or schedules were; else the screen.

    backend      name of the backend, whose schedules the screen has
    own_storage  whether it keeps K and V itself: that is its one format then

    Raises ValueError on values that are not allowed.
    """
    check(wanted)
    operations = wanted.operations or tuple(AXES)
    caches = wanted.caches or ("hot",)
    defaults = DEFAULTS | ({"format": OWN} if own_storage else {})
    found: list[BenchCase] = []
    for operation in operations:
        if wanted.of_axes:
            found += _product(operation, wanted.of_axes, defaults)
        else:
            found += _screen(operation, backend, defaults)
    cached = [
        replace(case, parameters={**case.parameters, "cache": cache})
        for case in found
        for cache in caches
        if (case.get("context") or case.get("rows")) >= case.get("rows")
    ]
    return list({case.text: case for case in cached}.values())


def _product(operation: str, axes: dict[str, tuple[Any, ...]], defaults: dict[str, Any]) -> Iterator[BenchCase]:
    """Every combination of the values of ``axes`` that the operation has."""
    values: list[dict[str, Any]] = [{}]
    for axis in AXES[operation]:
        taken: Sequence[Any] = axes.get(axis, (defaults[axis],))
        if axis == "schedule":
            taken = [name for name in taken if name == STANDING or name in OPERATIONS[operation].schedules]
        values = [{**each, axis: value} for each in values for value in taken]
    yield from (make(operation, **each) for each in values)


def _screen(operation: str, backend: str, defaults: dict[str, Any]) -> Iterator[BenchCase]:
    """Contexts at one row, rows at one context, formats and schedules at one point: curves, and not their product."""
    axes = AXES[operation]
    base = {axis: defaults[axis] for axis in axes}
    if "context" in axes:
        yield from (make(operation, **{**base, "rows": 1, "context": context}) for context in CONTEXTS)
    yield from (make(operation, **{**base, "rows": rows}) for rows in ROWS)
    if "format" in axes and base["format"] != OWN:
        yield from (make(operation, **{**base, "format": format}) for format in EXACT_FORMATS)
    for schedule in SCREEN_SCHEDULES.get(backend, {}).get(operation, ()):
        yield make(operation, **{**base, "schedule": schedule})


def parse(text: str) -> BenchCase:
    """The case of a case string. Raises ValueError that names what is wrong in it."""
    operation, given = case_strings.parse(text)
    if operation not in AXES:
        raise ValueError(f"case {text!r}: operation {operation!r}: allowed are {', '.join(AXES)}")
    names = (*AXES[operation], "cache")
    if set(given) != set(names):
        raise ValueError(f"case {text!r}: must have {', '.join(names)}")
    for name in ("rows", "context"):
        if name in given and type(given[name]) is not int:
            raise ValueError(f"case {text!r}: {name} = {given[name]}: must be an integer")

    def one(name: str) -> tuple[Any, ...]:
        return (given[name],) if name in given else ()

    wanted = Wanted((operation,), one("format"), one("rows"), one("context"), one("schedule"), one("cache"))
    try:
        check(wanted)
    except ValueError as error:
        raise ValueError(f"case {text!r}: {str(error).removeprefix('--')}") from None
    return BenchCase(operation, {name: given[name] for name in names})


def series(cases: Iterable[BenchCase], axis: str) -> dict[str, list[BenchCase]]:
    """Case string without ``axis`` -> the cases that differ in it alone, ascending, where there are three and more."""
    found: dict[str, dict[int, BenchCase]] = {}
    for case in cases:
        if axis in case.parameters:
            rest = {name: value for name, value in case.parameters.items() if name != axis}
            found.setdefault(case_strings.format(case.operation, rest), {})[case.get(axis)] = case
    return {text: [group[key] for key in sorted(group)] for text, group in found.items() if len(group) >= 3}
