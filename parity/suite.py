"""Running cases: a case string in, a :class:`Result` out, whatever the backend does.

A parity module is a Python module with these names:

``OPERATIONS``               op -> the allowed values of every parameter
``cases(arithmetic, b)``     its recipes, in order; of own storage and fused calls where the backend ``b`` has such
``first_cases(arithmetic)``  optional: those of a run that names no modules, where all of them take minutes
``more_cases(arithmetic)``   optional: further recipes, which take long
``check(backend, recipe)``   the comparisons of one case

``check`` raises UnsupportedError for what a backend does not carry out. Any other exception is a failed case, and the
run goes on.
"""

import importlib
import secrets
import shlex
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from qsa.golden import case as case_strings
from qsa.golden.families import FAMILIES
from qsa.golden.recipe import check as check_recipe

from .backend import Backend, UnsupportedError
from .compare import hints
from .compare.comparison import Comparison, finite, verdict

ON_OPERATIONS = ("accuracy", "selection", "split", "pages", "goldens", "verify-batch")
"""Modules whose cases call operations; those of the others are whole texts."""


class _Modules(Mapping[str, ModuleType]):
    """Name -> module, imported when it is asked for: a run of one module waits for no other."""

    names = (*ON_OPERATIONS, "seven", "spec", "nll", "needle")

    def __getitem__(self, name: str) -> ModuleType:
        if name not in self.names:
            raise KeyError(name)
        return importlib.import_module(f".checks.{name.replace('-', '_')}", __package__)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


MODULES: Mapping[str, ModuleType] = _Modules()
"""Name -> parity module, in the order in which they run. A case string has _ where a name has -."""

OPERATION_MODULES = ("accuracy", "selection", "split", "pages")
"""Modules of single operations; their truth is made anew from the seed in the case string."""

STATUSES = ("passed", "failed", "unsupported")


@dataclass(frozen=True)
class Case:
    """One case: the module that runs it and its recipe; ``text`` is its case string. ``problem`` is a call that
    ``qsa shrink`` made smaller, which checks itself; the text is then its file and the module ``shrunk``."""

    module: str
    text: str
    recipe: dict[str, Any]
    problem: Any = None

    @classmethod
    def of(cls, module: str, recipe: dict[str, Any]) -> "Case":
        """The case of a parity module's recipe. A golden's case string is that of its family."""
        if module == "goldens":
            parameters = {key: value for key, value in recipe.items() if key != "family"}
            return cls(module, case_strings.format(recipe["family"], parameters), recipe)
        return cls(module, case_strings.format(module.replace("-", "_"), recipe), recipe)


@dataclass(frozen=True)
class Result:
    """The outcome of a case. ``reason`` is the text of an error, or why the case is unsupported."""

    case: Case
    status: str
    seconds: float
    comparisons: tuple[Comparison, ...] = ()
    reason: str = ""

    @property
    def worst(self) -> Comparison | None:
        """The comparison that uses most of its bound, a failed one first; None when nothing was compared."""
        return worst_of(self.comparisons)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON. ``measure``, ``bound`` and ``share`` are those of the worst comparison."""
        worst = self.worst
        return {
            "module": self.case.module,
            "case": self.case.text,
            "status": self.status,
            "measure": None if worst is None else finite(worst.measure),
            "bound": None if worst is None else finite(worst.bound),
            "share": None if worst is None else finite(worst.share),
            "seconds": round(self.seconds, 3),
            "detail": {"reason": self.reason, "comparisons": [item.as_dict() for item in self.comparisons]},
        }

    def lines(self, backend: Backend | None, verbose: bool = False) -> Iterator[str]:
        """The result for a reader: what failed (with ``verbose`` everything), and the command that reproduces it."""
        if self.reason:
            yield from (f"  {line}" for line in self.reason.splitlines())
        for comparison in self.comparisons:
            if verbose or not comparison.passed:
                yield from (f"  {line}" for line in comparison.lines())
        if self.status == "failed" and backend is not None:
            declared = backend.declaration.arithmetics
            hint = hints.arithmetic(backend.name, backend.arithmetic, declared, self.comparisons)
            if hint and self.case.module != "selection":
                yield f"  hint: {hint}"
            yield f"  again: {command(self.case.text, backend, shrunk=self.case.problem is not None)}"


@dataclass
class Tally:
    """Results so far, and their counts; ``interrupted``: what ended the run before its end, empty when nothing did."""

    results: list[Result] = field(default_factory=list)
    interrupted: str = ""

    def count(self, status: str, module: str | None = None) -> int:
        """Number of results with ``status``, of one module if given."""
        return sum(result.status == status and module in (None, result.case.module) for result in self.results)

    @property
    def exit_code(self) -> int:
        """0 when at least one case passed and none failed, else 1: a run in which nothing passed proves nothing."""
        return 0 if self.count("passed") and not self.count("failed") else 1


def worst_of(comparisons: Iterable[Comparison]) -> Comparison | None:
    """The comparison that uses most of its bound, a failed one first; None of none."""
    return max(comparisons, key=lambda comparison: (not comparison.passed, comparison.share), default=None)


def command(text: str, backend: Backend, shrunk: bool = False) -> str:
    """The command that runs the case ``text``, or the file of a ``shrunk`` one, again on ``backend``, ready for a
    shell."""
    default = backend.arithmetic == backend.declaration.arithmetics[0]
    arithmetic = "" if default else f" --arithmetic {backend.arithmetic}"
    what = f"--shrunk {shlex.quote(text)}" if shrunk else f"--case '{text}'"
    return f"qsa parity --backend {shlex.quote(backend.name)}{arithmetic} {what}"


def collect(names: Iterable[str], arithmetic: str, full: bool = False, backend: Backend | None = None) -> list[Case]:
    """The cases of the modules ``names``, with ``full`` also those that take long; those of ``backend``'s own storage
    and fused calls in place of others where it has such.

    Without names the cases are those of a first look: all of the modules on operations, and of each module on texts
    its ``first_cases``; with ``full`` they are all there are.

    Raises ValueError on an unknown name.
    """
    names = list(names)
    first = not names and not full
    for name in names:
        if name not in MODULES:
            raise ValueError(f"module = {name!r}: allowed are {', '.join(MODULES)}")
    found = []
    for name in MODULES:
        if name in names or not names:
            module = MODULES[name]
            if first and name not in ON_OPERATIONS:
                recipes = list(module.first_cases(arithmetic)) if hasattr(module, "first_cases") else []
            else:
                recipes = list(module.cases(arithmetic, backend))
            if full and hasattr(module, "more_cases"):
                recipes += module.more_cases(arithmetic)
            found += [Case.of(name, recipe) for recipe in recipes]
    return found


def parse(text: str) -> Case:
    """The :class:`Case` of a case string. A golden's own case string belongs to the module ``goldens``.

    Raises ValueError naming the parameter, its value and what is allowed.
    """
    name, recipe = case_strings.parse(text)
    # The family verify_batch has a module of the same name, whose cases name an operation.
    if name in FAMILIES and "op" not in recipe:
        check_recipe(name, recipe, FAMILIES[name].ALLOWED)
        return Case("goldens", text, {"family": name, **recipe})
    name = name.replace("_", "-")
    if name not in MODULES or name == "goldens":
        known = ", ".join(key for key in MODULES if key != "goldens")
        raise ValueError(f"case {text!r}: module {name!r}: allowed are {known}, and of goldens {', '.join(FAMILIES)}")
    operations = MODULES[name].OPERATIONS
    op = recipe.get("op")
    if op not in operations:
        raise ValueError(f"case {text!r}: op = {op!r}: allowed are {', '.join(operations)}")
    check_recipe(f"case {text!r}", {key: value for key, value in recipe.items() if key != "op"}, operations[op])
    if "context" in recipe:
        rows, cells = int(recipe.get("rows", 1)), int(recipe["context"]) + int(recipe.get("tail", 0))
        if cells < rows:
            raise ValueError(f"case {text!r}: rows = {rows}: a context of {cells} cells has fewer")
    return Case(name, text, recipe)


def run_case(case: Case, backend: Backend, repeats: int = 1) -> Result:
    """The :class:`Result` of ``case`` on ``backend``. With ``repeats`` above 1 all its calls are made that often; every
    time is judged, and where the arithmetic is exact or the backend declares the invariance ``repeat``, every time
    gives the bytes of the first."""
    started = time.perf_counter()
    try:
        # NumPy's own policy, whatever a backend has set: the judge's arithmetic must not depend on it.
        with np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"):
            comparisons = _checked(case, backend, repeats)
    except UnsupportedError as unsupported:
        return Result(case, "unsupported", time.perf_counter() - started, reason=str(unsupported))
    except Exception as error:
        return Result(case, "failed", time.perf_counter() - started, reason=_describe(error))
    passed = bool(comparisons) and all(comparison.passed for comparison in comparisons)
    reason = "" if comparisons else "nothing was compared"
    return Result(case, "passed" if passed else "failed", time.perf_counter() - started, comparisons, reason)


def _checked(case: Case, backend: Backend, repeats: int) -> tuple[Comparison, ...]:
    """The comparisons of a case made ``repeats`` times; of the later times those that failed."""

    def check() -> Iterable[Comparison]:
        if case.problem is not None:
            return case.problem.check(backend)
        return MODULES[case.module].check(backend, case.recipe)

    if repeats == 1:
        return tuple(check())
    same = backend.arithmetic == "exact" or "repeat" in backend.declaration.invariance
    first: list[str] = []
    found: list[Comparison] = []
    try:
        for number in range(1, repeats + 1):
            backend.results = []
            for comparison in check():
                if number == 1:
                    found.append(comparison)
                elif not comparison.passed:
                    found.append(replace(comparison, name=f"{comparison.name}, time {number}"))
            first = first or backend.results
            differ = sum(a != b for a, b in zip_longest(first, backend.results)) if same else 0
            if differ:
                text = f"time {number} gives other bytes than the first"
                found.append(verdict(text, differ, 0, REPEAT, size=len(first), bad=differ))
            if not all(comparison.passed for comparison in found):
                break
    finally:
        backend.results = None
    return tuple(found)


REPEAT = "the same calls have the same bytes: the arithmetic is exact, or the invariance repeat is declared"


def _describe(error: Exception) -> str:
    """Type and text of an error, and the line that raised it."""
    if getattr(error, "located", False):
        return printable(f"{type(error).__name__}: {error}")
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{type(error).__name__}: {error}\nat {Path(frame.filename).name}, line {frame.lineno}, in {frame.name}"
    return printable(text)


def printable(text: str) -> str:
    """``text`` with ? for characters that a terminal obeys or XML has not: a backend's error text may hold anything."""
    return "".join(c if _is_printable(c) else "?" for c in text)


def _is_printable(c: str) -> bool:
    """Whether ``c`` is no control character but a tab or a newline, no surrogate, and neither U+FFFE nor U+FFFF."""
    control = (c < " " and c not in "\t\n") or "\x7f" <= c <= "\x9f"
    return not control and not "\ud800" <= c <= "\udfff" and c not in "\ufffe\uffff"


MEMORISED = "memorised: the case with its public seed passed, and with a seed that nobody knew before it fails"


def fresh(cases: Iterable[Case]) -> list[Case]:
    """``cases`` of operations whose recipes have a seed, with seeds that nobody knew before. Goldens and texts have no
    other seed than their own."""
    found = []
    for each in cases:
        if "seed" in each.recipe and each.module in OPERATION_MODULES:
            found.append(Case.of(each.module, {**each.recipe, "seed": secrets.randbelow(2**62)}))
    return found


def run(
    cases: Iterable[Case],
    backend: Backend,
    on_result: Callable[[Result], object] = lambda result: None,
    repeats: int = 1,
) -> Tally:
    """Run ``cases`` in order, each ``repeats`` times; ``on_result`` is called with every result. Returns the
    :class:`Tally`."""
    tally = Tally()
    for each in cases:
        result = run_case(each, backend, repeats)
        tally.results.append(result)
        on_result(result)
    return tally
