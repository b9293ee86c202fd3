"""What a report says, as parts that every form of it has: HTML (``html``) and Markdown (``markdown``) are made of it.

A command that reports makes a :class:`Document`; of the reports of ``qsa parity`` and ``qsa gate`` :func:`of_report`
does.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..report import CaseResult, ComparisonResult, Report
from ..report_changes import WORST_FIRST


@dataclass(frozen=True)
class Map:
    """Figures over two axes, such as the error of each (row, head).

    title    what the figures are
    axes     names of the axes, of ``values`` first the outer one
    values   a list for each index of the first axis; None where there is no figure
    bound    what a figure may be; a larger one is bad. None: figures are shares of 1, the larger the more they tell
    """

    title: str
    axes: tuple[str, str]
    values: tuple[tuple[float | None, ...], ...]
    bound: float | None


@dataclass(frozen=True)
class Row:
    """A line of a table: its cells as text; ``status`` as reports have it, or empty; ``detail``, ``maps``: more to read
    about it; ``copy``: what its button copies, empty where there is no button."""

    cells: tuple[str, ...]
    status: str = ""
    detail: str = ""
    copy: str = ""
    maps: tuple[Map, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table: ``columns`` are the names over the cells; ``numeric`` those of them that are numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    numeric: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Document:
    """A report for a reader.

    title        the command
    verdict      one word
    good         whether the verdict is a good one
    summary      lines under the verdict
    tables       in order
    environment  where it was made: part -> text
    pictures     title -> SVG, made by the command itself: it is put into the page as it is
    """

    title: str
    verdict: str
    good: bool
    summary: tuple[str, ...]
    tables: tuple[Table, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    pictures: Mapping[str, str] = field(default_factory=dict)


def of_report(report: Report, title: str, command: Callable[[str], str] = str) -> Document:
    """The document of a report.

    title    the command that wrote it
    command  case string -> what the button beside it copies
    """
    counts = {status: sum(case.status == status for case in report.cases) for status in WORST_FIRST}
    interrupted = report.interrupted or ""
    good = not counts["failed"] and counts["passed"] > 0 and not interrupted
    verdict = "failed" if counts["failed"] else "interrupted" if interrupted else "passed" if good else "nothing passed"
    summary = [", ".join(f"{counts[status]} {status}" for status in ("passed", "failed", "unsupported"))]
    if counts["stale"]:
        summary.append(f"{counts['stale']} stale")
    if interrupted:
        summary.append(f"interrupted by {interrupted}: only what was finished is here")
    cases = sorted(report.cases, key=lambda case: WORST_FIRST.index(case.status))
    tables = [_modules(report), _cases(cases, command), _reasons(cases)]
    environment = {key: written(value) for key, value in report.environment.items()}
    return Document(title, verdict, good, tuple(summary), tuple(each for each in tables if each.rows), environment)


def _modules(report: Report) -> Table:
    rows = []
    for name in dict.fromkeys(case.module for case in report.cases):
        cases = [case for case in report.cases if case.module == name]
        counts = [sum(case.status == status for case in cases) for status in ("passed", "failed", "unsupported")]
        status = "failed" if counts[1] else "passed" if counts[0] else "unsupported"
        worst = max((case.share for case in cases if case.share is not None), default=None)
        seconds = f"{sum(case.seconds for case in cases):.1f}"
        rows.append(Row((name, *map(str, counts), _share(worst), seconds), status))
    columns = ("module", "passed", "failed", "unsupported", "of bound", "seconds")
    return Table("Modules", columns, tuple(rows), frozenset(columns[1:]))


def _cases(cases: list[CaseResult], command: Callable[[str], str]) -> Table:
    rows = [
        Row(
            (case.status, case.module, case.case, _share(case.share), f"{case.seconds:.2f}"),
            case.status,
            _detail(case),
            command(case.case),
            tuple(_maps(case)),
        )
        for case in cases
    ]
    return Table(
        "Cases", ("status", "module", "case", "of bound", "seconds"), tuple(rows), frozenset({"of bound", "seconds"})
    )


def _reasons(cases: list[CaseResult]) -> Table:
    found = Counter(case.detail.reason or "no reason given" for case in cases if case.status == "unsupported")
    rows = tuple(Row((str(count), reason), "unsupported") for reason, count in found.most_common())
    return Table("Unsupported", ("cases", "reason"), rows, frozenset({"cases"}))


def _detail(case: CaseResult) -> str:
    """Why a case did not pass, or what its comparisons measured, a line each."""
    lines = case.detail.reason.splitlines()
    for one in case.detail.comparisons:
        if not one.passed or case.status == "passed":
            lines += _comparison(one)
    return "\n".join(lines)


def _comparison(one: ComparisonResult) -> list[str]:
    measure, bound = ("not a number" if x is None else f"{x:.4g}" for x in (one.measure, one.bound))
    lines = [f"{one.name}: {'passed' if one.passed else 'FAILED'}: {measure} of {bound} allowed", f"  {one.reason}"]
    if one.bad:
        lines.append(f"  bad: {one.bad} of {one.size} elements")
    if one.first is not None:
        lines.append(f"  first: {one.first.coordinate}: expected {one.first.expected}, got {one.first.got}")
    return [*lines, *(f"  {note}" for note in one.notes)]


MAPS = {"row, head": ("share of the bound that each head's error uses", 1.0)}
"""Axes of a comparison's map -> (title, bound); other maps hold shares that explain an error."""


def _maps(case: CaseResult) -> Iterator[Map]:
    """The maps of a failed case; those of a passed one show that nothing is wrong, and would make the page large."""
    for one in case.detail.comparisons if case.status == "failed" else ():
        for axes, values in one.maps.items():
            outer, _, inner = axes.partition(", ")
            title, bound = MAPS.get(axes, ("share of the error that each part explains", None))
            if values and values[0]:
                yield Map(f"{one.name}: {title}", (outer, inner), tuple(map(tuple, values)), bound)


def _share(share: float | None) -> str:
    """The share of a bound that was used, in percent; as a factor where it is large."""
    if share is None:
        return ""
    return f"{100 * share:.0f} %" if share < 100 else f"x {share:.0e}"


def written(value: Any) -> str:
    """A part of the environment on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {written(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(written, value))
    return str(value)
