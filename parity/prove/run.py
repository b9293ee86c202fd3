"""Running the mutants: case by case, the cheap ones first, each until the first case that catches it.

All mutants that are still alive run one case before the next case begins, so its truth is made once
(``compare/remembered.py``).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from .. import suite
from ..backend import Backend
from ..compare.comparison import finite
from ..compare.input_changes import ChangedInputError
from .mutant import Mutant, backend_of
from .mutants import CATALOGUE

OF: dict[str, dict[str, tuple[str, ...]]] = {
    "accuracy": {
        "attend": ("attend",), "corners": ("attend",), "append_kv": ("append_kv",), "append_index": ("append_index",),
        "block_scores": ("block_scores",), "score_corners": ("block_scores",), "score_cover": ("block_scores",),
        "kv_cycle": ("append_kv",), "index_cycle": ("append_index",),
    },
    "selection": {
        "select": ("select",), "unused": ("select",), "cut": ("select",),
        "indexer": ("append_index", "block_scores", "select"),
    },
    "split": {"attend": ("attend",), "cover": ("attend",), "tiles": ("attend",)},
    "pages": {"attend": ("attend",), "append_kv": ("append_kv",), "far": ("attend",)},
}  # fmt: skip
"""Module -> op of a case -> the operations that it calls; of ``again`` and ``relation`` the one that it
names."""


class MutantError(RuntimeError):
    """A case failed without a comparison: a mutant that raises, or a fault of the suite; neither is a catch."""


@dataclass(frozen=True)
class Verdict:
    """What became of one mutant: the case that caught it, its worst comparison by name, and by how much it failed; all
    empty where none did. ``cases``: how many it was put under."""

    mutant: Mutant
    arithmetic: str
    cases: int
    case: str = ""
    check: str = ""
    measure: float = 0.0
    bound: float = 0.0
    reason: str = ""

    @property
    def caught(self) -> bool:
        """Whether a case failed."""
        return bool(self.case)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        found: dict[str, Any] = {
            "mutant": self.mutant.name,
            "operation": self.mutant.operation,
            "kind": self.mutant.kind,
        }
        found |= {"arithmetic": self.arithmetic, "caught": self.caught, "cases": self.cases, "case": self.case}
        return found | {
            "check": self.check,
            "measure": finite(self.measure),
            "bound": finite(self.bound),
            "reason": self.reason,
        }


def operations_of(case: suite.Case) -> tuple[str, ...]:
    """The operations that a case calls."""
    if case.recipe["op"] in ("again", "relation"):
        return (case.recipe["operation"],)
    return OF[case.module].get(case.recipe["op"], ())


def cost(case: suite.Case) -> float:
    """Roughly how much work a case is: rows times cells, for an order alone."""
    recipe = case.recipe
    rows = recipe.get("rows", 2)
    cells = {"small": 60, "boundary": 2100, "random": 1000}.get(str(recipe.get("widths")), 100)
    if "context" in recipe:
        cells = min(recipe["context"], 2100) if case.module != "selection" else recipe["context"] // 4
    if recipe["op"] == "relation":
        rows, cells = (200, 100) if recipe["relation"] == "batch" else (12, 300)
    if recipe["op"] == "tiles":
        rows, cells = 12, 80 * recipe["splits"]
    if recipe["op"] == "indexer":
        cells = 4 * recipe["context"]
    if recipe["op"] == "far":
        cells = 2000 + recipe["cells"] / 1000
    if "blocks" in recipe:
        cells = recipe["blocks"]
    if "cells" in recipe and case.module == "selection":
        cells = recipe["cells"] // 4
    return float((min(rows, 3) if "widths" in recipe and recipe["widths"] != "small" else rows) * cells)


def ordered(cases: Iterable[suite.Case]) -> list[suite.Case]:
    """The cases, the cheap ones first."""
    return sorted(cases, key=cost)


def chosen(arithmetic: str, sample: int = 1) -> list[Mutant]:
    """The mutants of an arithmetic, or every ``sample``-th of each operation."""
    found: list[Mutant] = []
    for operation in dict.fromkeys(mutant.operation for mutant in CATALOGUE):
        mine = [mutant for mutant in CATALOGUE if mutant.operation == operation and arithmetic in mutant.arithmetics]
        found += mine[::sample]
    return found


def prove(
    mutants: Iterable[Mutant],
    arithmetic: str,
    cases: Iterable[suite.Case],
    on_verdict: Callable[[Verdict], object] = lambda verdict: None,
) -> list[Verdict]:
    """A :class:`Verdict` for each of ``mutants``, in the order in which they were caught; the uncaught ones last."""
    alive: dict[Mutant, tuple[Backend, int]] = {one: (one.backend(arithmetic), 0) for one in mutants}
    for backend, _ in alive.values():
        # The verdict counts here, and what was found, not why.
        backend.experiments = False
    found: list[Verdict] = []
    for case in ordered(cases):
        called = operations_of(case)
        format = case.recipe.get("index_format") or "fp32"
        for mutant in [one for one in alive if one.operation in called and format in one.index_formats]:
            backend, count = alive[mutant]
            verdict = _under(mutant, backend, arithmetic, case, count + 1)
            if verdict is None:
                alive[mutant] = backend, count + 1
                continue
            del alive[mutant]
            found.append(verdict)
            on_verdict(verdict)
    for mutant, (_, count) in alive.items():
        found.append(Verdict(mutant, arithmetic, count))
        on_verdict(found[-1])
    return found


def _under(mutant: Mutant, backend: Backend, arithmetic: str, case: suite.Case, count: int) -> Verdict | None:
    """The verdict where ``case`` fails, else None."""
    result = suite.run_case(case, backend, repeats=mutant.repeats if case.recipe["op"] == "again" else 1)
    if result.status != "failed":
        return None
    worst = result.worst
    if worst is None:
        # An input that was changed is a verdict. Any other error may be the suite's own, and proves nothing.
        if result.reason.startswith(ChangedInputError.__name__):
            return Verdict(mutant, arithmetic, count, case.text, "inputs", 1, 0, result.reason.splitlines()[0])
        raise MutantError(f"{mutant.name}: {case.text}: {result.reason}")
    return Verdict(mutant, arithmetic, count, case.text, worst.name, worst.measure, worst.bound)


def right_kernels(arithmetic: str, cases: Iterable[suite.Case]) -> Iterator[suite.Result]:
    """The results of ``cases`` on the kernels that the mutants are made of, failed ones alone: there must be none."""
    backend = backend_of(arithmetic, {})
    for case in cases:
        result = suite.run_case(case, backend)
        if result.status == "failed":
            yield result
