"""Running cases: a case string in, a :class:`Result` out, whatever the backend does.

A parity module is a Python module with ``OPERATIONS`` (op -> allowed values of every parameter), ``cases(arithmetic)``
(recipes in order) and ``check(backend, recipe)`` (a list of comparisons); it may have ``more_cases(arithmetic)``, which
take long. It raises UnsupportedError for what a backend does not carry out; any other exception is a failed case, and
the run goes on.
"""

import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from qsa.golden import case
from qsa.golden.families import FAMILIES
from qsa.golden.recipe import check as check_recipe

from .backend import UnsupportedError
from .checks import accuracy, goldens, needle, nll, pages, selection, seven, spec, split, verify_batch
from .compare.comparison import Comparison, finite

MODULES = {
    "accuracy": accuracy,
    "selection": selection,
    "split": split,
    "pages": pages,
    "goldens": goldens,
    "verify-batch": verify_batch,
    "seven": seven,
    "spec": spec,
    "nll": nll,
    "needle": needle,
}
"""Name -> parity module, in the order in which they run. A case string has _ where a name has -."""

STATUSES = ("passed", "failed", "unsupported")


@dataclass(frozen=True)
class Case:
    """One case: the module that runs it and its recipe; ``text`` is its case string."""

    module: str
    text: str
    recipe: dict


@dataclass(frozen=True)
class Result:
    """What became of a case. ``reason`` is the text of an error, or why it is unsupported."""

    case: Case
    status: str
    seconds: float
    comparisons: tuple[Comparison, ...] = ()
    reason: str = ""

    @property
    def worst(self):
        """The comparison that uses most of its bound, a failed one first; None when nothing was compared."""
        return max(self.comparisons, key=lambda one: (not one.passed, one.share), default=None)

    def as_dict(self):
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
            "detail": {"reason": self.reason, "comparisons": [one.as_dict() for one in self.comparisons]},
        }

    def lines(self, backend, verbose=False):
        """The result for a reader: what failed (with ``verbose`` everything), and the command that reproduces it."""
        if self.reason:
            yield from (f"  {line}" for line in self.reason.splitlines())
        for one in self.comparisons:
            if verbose or not one.passed:
                yield from (f"  {line}" for line in one.lines())
        if self.status == "failed":
            yield f"  again: {command(self.case.text, backend)}"


@dataclass
class Tally:
    """Results so far, and their counts."""

    results: list[Result] = field(default_factory=list)

    def count(self, status, module=None):
        """Results with ``status``, of one module if given."""
        return sum(one.status == status and module in (None, one.case.module) for one in self.results)

    @property
    def exit_code(self):
        """0 when at least one case passed and none failed, else 1: a run that held nothing together proves nothing."""
        return 0 if self.count("passed") and not self.count("failed") else 1


def command(text, backend):
    """The command that runs the case ``text`` again on ``backend``, ready for a shell."""
    arithmetic = "" if backend.arithmetic == "exact" else f" --arithmetic {backend.arithmetic}"
    return f"qsa parity --backend {backend.name}{arithmetic} --case '{text}'"


def collect(names, arithmetic, full=False):
    """The cases of the modules ``names``, with ``full`` those that take long too. Raises ValueError on an unknown
    name."""
    for name in names:
        if name not in MODULES:
            raise ValueError(f"module = {name!r}: allowed are {', '.join(MODULES)}")
    found = []
    for name in MODULES:
        if name in names:
            module = MODULES[name]
            recipes = list(module.cases(arithmetic))
            if full and hasattr(module, "more_cases"):
                recipes += module.more_cases(arithmetic)
            found += [Case(name, text, recipe) for text, recipe in recipes]
    return found


def parse(text):
    """The :class:`Case` of a case string. A golden's own case string belongs to the module ``goldens``.

    Raises ValueError naming the parameter, its value and what is allowed.
    """
    name, recipe = case.parse(text)
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
    rows, cells = recipe.get("rows", 1), recipe.get("context")
    if cells is not None and cells + recipe.get("tail", 0) < rows:
        raise ValueError(f"case {text!r}: rows = {rows}: a context of {cells + recipe.get('tail', 0)} cells has fewer")
    return Case(name, text, recipe)


def run_case(one, backend):
    """The :class:`Result` of one case on ``backend``."""
    started = time.perf_counter()
    try:
        comparisons = tuple(MODULES[one.module].check(backend, one.recipe))
    except UnsupportedError as unsupported:
        return Result(one, "unsupported", time.perf_counter() - started, reason=str(unsupported))
    except Exception as error:
        return Result(one, "failed", time.perf_counter() - started, reason=_describe(error))
    passed = bool(comparisons) and all(comparison.passed for comparison in comparisons)
    reason = "" if comparisons else "nothing was compared"
    return Result(one, "passed" if passed else "failed", time.perf_counter() - started, comparisons, reason)


def _describe(error):
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{type(error).__name__}: {error}\nat {Path(frame.filename).name}, line {frame.lineno}, in {frame.name}"
    return printable(text)


def printable(text):
    """``text`` with ? for what neither a terminal nor XML should see: a backend's error text may hold anything."""
    return "".join(c if c in "\t\n" or (c >= " " and not "\x7f" <= c <= "\x9f" and _whole(c)) else "?" for c in text)


def _whole(c):
    return not "\ud800" <= c <= "\udfff" and c not in "\ufffe\uffff"


def run(cases, backend, heard=lambda result: None):
    """Run ``cases`` in order; ``heard`` is called with every result. Returns the :class:`Tally`."""
    tally = Tally()
    for one in cases:
        result = run_case(one, backend)
        tally.results.append(result)
        heard(result)
    return tally
