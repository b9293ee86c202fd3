"""The tables of ``qsa prove``: what is wrong on purpose, and what found it.

``kernels``  wrong kernels under the operation modules, in the exact and in the float arithmetic
``outputs``  every case with zeros, with everything times 1.02, with permuted heads, and with a changed input
``cheats``   kernels that try to pass without being right
``engine``   wrong engines
``suite``    wrong judges
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from .. import suite, wrong_outputs
from ..compare.comparison import finite
from . import run
from .mutant import backend_of

SAMPLE = 8
"""Of each operation every eighth mutant in a sample."""

COST = 400
"""Wrong outputs of a sample are put under the cases of a :func:`~.run.cost` up to this."""


class Row(Struct, frozen=True, forbid_unknown_fields=True):
    """One wrong thing.

    caught   whether everything that must find it did
    by       the comparison or the checks that found it
    case     where; ``measure``, ``bound``: of the comparison
    detail   what was said, or what did not find it
    """

    name: str
    kind: str
    caught: bool
    by: str
    case: str = ""
    measure: float | None = None
    bound: float | None = None
    detail: str = ""


class Table(Struct, frozen=True, forbid_unknown_fields=True):
    """One table of one arithmetic (empty: of none). ``counts``: of wrong outputs, how many cases failed or were left
    as they were, by kind."""

    table: str
    arithmetic: str
    seconds: float
    rows: list[Row]
    counts: dict[str, int] = {}

    @property
    def lost(self) -> list[Row]:
        """What was not caught."""
        return [row for row in self.rows if not row.caught]

    @property
    def title(self) -> str:
        """Name and arithmetic."""
        return f"{self.table}, {self.arithmetic} arithmetic" if self.arithmetic else self.table


class Proof(Struct, frozen=True, forbid_unknown_fields=True):
    """What ``qsa prove --json`` writes. ``failed``: how many wrong things were not caught."""

    failed: int
    seconds: float
    environment: dict[str, Any]
    tables: list[Table]


class Job(Struct, frozen=True):
    """A table to make; ``operation``: its mutants alone."""

    table: str
    arithmetic: str = ""
    sample: bool = False
    operation: str | None = None


OnStep = Callable[[str], object]
"""Is called with the name of each wrong thing that was judged."""

OnTotal = Callable[[int], object]
"""Is called with the number of wrong things of a table, before the first is judged."""


def jobs(sample: bool, tables: list[str], arithmetics: list[str], operation: str | None) -> list[Job]:
    """The jobs, those that take longest first. An ``operation`` has no cheats, engines and judges."""
    found = []
    for table in tables:
        if table in OF_OPERATIONS:
            found += [Job(table, arithmetic, sample, operation) for arithmetic in arithmetics]
        elif operation is None:
            found.append(Job(table, "", sample))
    return found


def make(job: Job, on_step: OnStep = lambda name: None, on_total: OnTotal = lambda total: None) -> Table:
    """The table of ``job``."""
    started = time.perf_counter()
    rows, counts = TABLES[job.table](job, on_step, on_total)
    return Table(job.table, job.arithmetic, round(time.perf_counter() - started, 1), rows, counts)


def _kernels(job: Job, on_step: OnStep, on_total: OnTotal) -> tuple[list[Row], dict[str, int]]:
    """Every mutant of the arithmetic, and first the right kernels, which must pass the cheap cases."""
    cases = suite.collect(suite.OPERATION_MODULES, job.arithmetic, backend=backend_of(job.arithmetic, {}))
    wanted = run.chosen(job.arithmetic, SAMPLE if job.sample else 1)
    wanted = [one for one in wanted if job.operation in (None, one.operation)]
    on_total(len(wanted))
    some = [case for case in wrong_outputs.sample(cases) if run.cost(case) <= COST] if job.sample else cases
    rows = [
        Row("the right kernels fail", "control", False, "", result.case.text, detail="\n".join(result.lines(None)))
        for result in run.right_kernels(job.arithmetic, some)
    ]
    for verdict in run.prove(wanted, job.arithmetic, cases, lambda verdict: on_step(verdict.mutant.name)):
        rows.append(
            Row(
                f"{verdict.mutant.operation}: {verdict.mutant.name.removeprefix(f'{verdict.mutant.operation}: ')}",
                verdict.mutant.kind,
                verdict.caught,
                verdict.check,
                verdict.case,
                finite(verdict.measure),
                finite(verdict.bound),
                verdict.reason or ("" if verdict.caught else f"passed {verdict.cases} cases"),
            )
        )
    return rows, {}


def _outputs(job: Job, on_step: OnStep, on_total: OnTotal) -> tuple[list[Row], dict[str, int]]:
    """What passes with wrong outputs; the counts say how many did not."""
    right = backend_of(job.arithmetic, {})
    cases = suite.collect(suite.OPERATION_MODULES, job.arithmetic, backend=right)
    if job.sample:
        cases = [case for case in wrong_outputs.sample(cases) if run.cost(case) <= COST]
    cases = [case for case in cases if job.operation is None or job.operation in run.operations_of(case)]
    counts: Counter[str] = Counter()
    on_total(len(cases) * len(wrong_outputs.KINDS))

    def on_result(case: suite.Case, kind: str, status: str) -> None:
        counts.update([f"{kind} {status}"])
        on_step(f"{kind}: {case.text}")

    passed = wrong_outputs.passing(cases, right, on_result)
    return [Row(kind, "outputs", False, "", text, detail="passed") for text, kind in passed], dict(counts)


def _code(job: Job, on_step: OnStep, on_total: OnTotal) -> tuple[list[Row], dict[str, int]]:
    """Cheats, engines and judges have tables of their own."""
    # Imported here: the suite's mutants import every module that they change.
    from . import cheats, engine_mutants, suite_mutants

    source: Any = {"cheats": cheats, "engine": engine_mutants, "suite": suite_mutants}[job.table]
    on_total(source.count(job.sample))
    found = source.rows(job.sample, lambda row: on_step(row.name))
    return [Row(row.name, row.kind, bool(row.caught_by), row.caught_by, detail=row.detail) for row in found], {}


TABLES: dict[str, Callable[[Job, OnStep, OnTotal], tuple[list[Row], dict[str, int]]]] = {
    "kernels": _kernels,
    "outputs": _outputs,
    **dict.fromkeys(("suite", "engine", "cheats"), _code),
}
"""Table -> what makes it, those that take longest first."""

OF_OPERATIONS = ("kernels", "outputs")
"""Tables of one arithmetic each."""
