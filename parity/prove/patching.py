"""The common shape of the tables of ``qsa prove`` that change the project's own code while a check runs.

A :class:`CodeMutant` is one small named change of a Python function, and the checks that must find it. Functions are
changed by their source: :func:`edit` names the words that are replaced, so a mutant whose words are gone from the
source is an error and not a silent success. Nothing is compiled but the changed function's own Python code.
"""

import contextlib
import functools
import inspect
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

Change = Callable[[], AbstractContextManager[Any]]
"""Makes the context in which the code is changed."""

Check = Callable[[], None]
"""A check that returns nothing when all is right, and raises :class:`FoundError`, or anything else, when it is not."""

CONTROL = "control"
"""Kind of the row that holds the unchanged code: every check must pass there, or finding a mutant would say nothing."""


class FoundError(Exception):
    """A check has found something wrong; the message says what."""


class StaleError(Exception):
    """The function that a mutant changes is gone, or has other words by now."""


@dataclass(frozen=True)
class CodeMutant:
    """One change of the code.

    name    what is wrong, in words; kind: the part that it belongs to
    change  makes the context in which it is wrong
    checks  names of the checks that must find it, one or more: each of them by itself
    """

    name: str
    kind: str
    change: Change
    checks: tuple[str, ...]


class Row(NamedTuple):
    """The outcome for one mutant. ``caught_by``: the checks that found it, joined by commas; empty where one of those
    that must find it did not, which fails the command. ``detail``: what the first check said."""

    name: str
    kind: str
    caught_by: str
    seconds: float
    detail: str


def edit(owner: Any, name: str, *changes: tuple[str, str]) -> Change:
    """A :data:`Change` of the function or method ``name`` of a module or class: in its source every ``(old, new)`` is
    replaced. Entering the context raises :class:`StaleError` unless every ``old`` occurs exactly once."""
    return functools.partial(_edited, owner, name, changes)


def patch(owner: Any, **attributes: Any) -> Change:
    """A :data:`Change` that puts other ``attributes`` into a module or class; a function also where other modules have
    imported it."""
    return functools.partial(_patched, owner, attributes)


def together(*changes: Change) -> Change:
    """A :data:`Change` of several."""

    @contextlib.contextmanager
    def change() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for each in changes:
                stack.enter_context(each())
            yield

    return change


def forgetful(change: Change, forget: Callable[[], object]) -> Change:
    """``change``, before and after which ``forget`` is called: what the code keeps was made by other code."""

    @contextlib.contextmanager
    def changed() -> Iterator[None]:
        with change():
            forget()
            yield
        forget()

    return changed


def edits(kind: str, owner: Any, function: str, *found: tuple[Any, ...]) -> list[CodeMutant]:
    """Mutants of one function of a module or class, each as (name, words of the source, the words in their place, names
    of the checks)."""
    return [
        CodeMutant(name, kind, edit(owner, function, (old, new)), tuple(checks)) for name, old, new, *checks in found
    ]


@contextlib.contextmanager
def _patched(owner: Any, attributes: Mapping[str, Any]) -> Iterator[None]:
    gone = [name for name in attributes if name not in vars(owner)]
    if gone:
        raise StaleError(f"{gone[0]}: {owner.__name__} has no such name")
    before = {name: vars(owner)[name] for name in attributes}
    with contextlib.ExitStack() as stack:
        for name, value in attributes.items():
            if isinstance(owner, ModuleType) and callable(value):
                stack.enter_context(_replaced_everywhere(before[name], value))
            else:
                setattr(owner, name, value)
                stack.callback(setattr, owner, name, before[name])
        yield


@contextlib.contextmanager
def _edited(owner: Any, name: str, changes: Sequence[tuple[str, str]]) -> Iterator[None]:
    if name not in vars(owner):
        raise StaleError(f"{name}: {owner.__name__} has no such name")
    original = vars(owner)[name]
    function = inspect.unwrap(getattr(original, "fget", None) or getattr(original, "__func__", original))
    if function.__code__.co_freevars:
        raise StaleError(f"{name}: has variables of an outer function ({', '.join(function.__code__.co_freevars)})")
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in changes:
        if source.count(old) != 1:
            raise StaleError(f"{name}: {old!r} occurs {source.count(old)} times in its source: must be once")
        source = source.replace(old, new)
    code = compile(source, f"<changed {name}>", "exec", dont_inherit=True)
    found: dict[str, Any] = {}
    # The names that the function reads are those of its own module.
    exec(code, function.__globals__, found)
    with _patched(owner, {name: found[function.__name__]}):
        yield


@contextlib.contextmanager
def _replaced_everywhere(before: Any, after: Any) -> Iterator[None]:
    """``after`` in place of ``before`` in every module of the project, and in their dicts: an imported function has a
    name of its own in every module that uses it."""
    places: list[tuple[dict[str, Any], str]] = []
    for module in [module for name, module in sys.modules.items() if name.startswith("qsa.")]:
        for name, value in list(vars(module).items()):
            if value is before:
                places.append((vars(module), name))
            elif isinstance(value, dict) and name != "__builtins__":
                places += [(value, key) for key, item in value.items() if item is before]
    for target, key in places:
        target[key] = after
    try:
        yield
    finally:
        for target, key in places:
            target[key] = before


def run(
    mutants: Sequence[CodeMutant],
    checks: Mapping[str, Check],
    sample: bool = False,
    on_result: Callable[[Row], object] = lambda row: None,
) -> list[Row]:
    """The :class:`Row` of the unchanged code, then of every mutant; ``on_result`` is called with each.

    checks  name -> check. All run first on the unchanged code, which also lets them keep the right results that they
            compare with. A check that fails there is the detail of the control's row.
    sample  the first mutant of every kind, and the checks that it names, instead of all
    """
    if sample:
        first: dict[str, CodeMutant] = {}
        for mutant in mutants:
            first.setdefault(mutant.kind, mutant)
        mutants = list(first.values())
        checks = {name: checks[name] for name in checks if any(name in mutant.checks for mutant in mutants)}
    control = CodeMutant("unchanged code", CONTROL, contextlib.nullcontext, tuple(checks))
    rows = []
    for mutant in (control, *mutants):
        started = time.perf_counter()
        try:
            with mutant.change():
                found = {name: _outcome(checks[name]) for name in mutant.checks}
        except StaleError as error:
            found = dict.fromkeys(mutant.checks, "")
            stale = f"the mutant must be written anew: {error}"
        else:
            stale = ""
        seconds = time.perf_counter() - started
        if mutant is control:
            wrong = [f"{name}: {text}" for name, text in found.items() if text]
            row = Row(mutant.name, mutant.kind, "" if wrong else "none, as it must be", seconds, "; ".join(wrong))
        else:
            missed = [name for name, text in found.items() if not text]
            detail = f"not found by: {', '.join(missed)}" if missed else next(iter(found.values()))
            detail = stale or detail
            row = Row(mutant.name, mutant.kind, "" if missed else ", ".join(found), seconds, detail)
        rows.append(row)
        on_result(row)
    return rows


def _outcome(check: Check) -> str:
    """What a check found, empty when nothing. Raises NameError and SyntaxError: a mutant that is no program is found by
    anything."""
    try:
        check()
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, (NameError, SyntaxError)):
                raise
            cause = cause.__cause__
        return str(error) if isinstance(error, FoundError) else f"{type(error).__name__}: {error}"
    return ""
