"""The report of a run: JSON, JUnit XML, the table at the end. All of it comes from the same results.

``report_writer`` is how the commands write their reports: to files that are checked before the run, or to standard
output.
"""

import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType
from rich import box
from rich.table import Table

from qsa.golden import files
from qsa.reference.validation import convert

from .backend import Backend
from .compare.comparison import Comparison
from .compare.element import Element
from .readable import junit
from .suite import STATUSES, Result, Tally, parse, worst_of


class BadElement(Struct, frozen=True, forbid_unknown_fields=True):
    """The first bad element of a comparison: values as text, bit patterns in hexadecimal, distance in ULPs."""

    coordinate: list[int]
    expected: str
    got: str
    expected_bits: str
    got_bits: str
    ulp: int | None


class ComparisonResult(Struct, frozen=True, forbid_unknown_fields=True):
    """One comparison, :class:`compare.comparison.Comparison`; a number that is not finite is None.

    ``budget``: stage -> [what it moves the worst head's output by, share of all stages]. ``maps``: ``row, head`` -> the
    share of its bound that every head's error uses; ``split, block`` -> the share of the worst head's error that one
    factor on the weights of that block explains.
    """

    name: str
    kind: str
    passed: bool
    measure: float | None
    bound: float | None
    share: float | None
    reason: str
    size: int
    bad: int
    first: BadElement | None
    worst: dict[str, tuple[int, float | None]]
    figures: dict[str, float | None]
    notes: list[str]
    budget: dict[str, tuple[float | None, float | None]] = {}
    maps: dict[str, list[list[float | None]]] = {}


class Detail(Struct, frozen=True, forbid_unknown_fields=True):
    """Why a case did not pass, and its comparisons."""

    reason: str
    comparisons: list[ComparisonResult]


class CaseResult(Struct, frozen=True, forbid_unknown_fields=True):
    """What became of one case; ``measure``, ``bound`` and ``share`` are those of its worst comparison."""

    module: str
    case: str
    status: Literal["passed", "failed", "unsupported", "stale"]
    measure: float | None
    bound: float | None
    share: float | None
    seconds: float
    detail: Detail


class Report(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The report of a run: cases per status (``stale`` in a gate's alone), where it ran, and every case that was
    finished; ``interrupted``: what ended the run before its end."""

    passed: int
    failed: int
    unsupported: int
    stale: int | UnsetType = UNSET
    interrupted: str | UnsetType = UNSET
    environment: dict[str, Any]
    cases: list[CaseResult]


def make(tally: Tally, environment: Mapping[str, Any], statuses: Sequence[str] = STATUSES) -> Report:
    """The report of a run, with a count for each of ``statuses``."""
    counts = {status: tally.count(status) for status in statuses}
    cases = [result.as_dict() for result in tally.results]
    ended = {"interrupted": tally.interrupted} if tally.interrupted else {}
    return convert({**counts, **ended, "environment": dict(environment), "cases": cases}, Report)


def restored(case: CaseResult) -> Result:
    """The result that a report holds, as the run had it. Raises ValueError when it is none of ``qsa parity``."""
    parsed = parse(case.case)
    if parsed.module != case.module:
        raise ValueError(f"{case.case}: module = {case.module!r}: must be {parsed.module!r}")
    comparisons = tuple(_comparison(case, one) for one in case.detail.comparisons)
    return Result(parsed, case.status, case.seconds, comparisons, case.detail.reason)


def _comparison(case: CaseResult, one: ComparisonResult) -> Comparison:
    if one.bound is None:
        raise ValueError(f"{case.case}: {one.name}: has no bound")
    bad, first = one.first, None
    if bad is not None:
        first = Element(tuple(bad.coordinate), bad.expected, bad.got, bad.expected_bits, bad.got_bits, bad.ulp)
    return Comparison(
        one.name,
        one.kind,
        _number(one.measure),
        one.bound,
        one.reason,
        one.size,
        one.bad,
        first,
        worst={axis: (index, _number(figure)) for axis, (index, figure) in one.worst.items()},
        figures={key: _number(value) for key, value in one.figures.items()},
        notes=tuple(one.notes),
        budget={stage: (_number(part), _number(share)) for stage, (part, share) in one.budget.items()},
        maps={axes: [[_number(x) for x in row] for row in rows] for axes, rows in one.maps.items()},
    )


def _number(value: float | None) -> float:
    """A number of a report: one that JSON does not have is NaN again, which no bound admits."""
    return math.nan if value is None else value


def as_json(tally: Tally, environment: Mapping[str, Any], statuses: Sequence[str] = STATUSES) -> dict[str, Any]:
    """The report of :func:`make` as plain values."""
    return msgspec.to_builtins(make(tally, environment, statuses))


def as_junit(tally: Tally, environment: dict[str, Any], backend: Backend | None, program: str = "qsa parity") -> str:
    """The report as JUnit XML text: a suite per module, ``failure`` with the text that a terminal shows, ``skipped``
    with the reason where a case neither passed nor failed."""
    suites = []
    for name in dict.fromkeys(result.case.module for result in tally.results):
        results = [result for result in tally.results if result.case.module == name]
        entries = [_entry(result, backend) for result in results]
        suites.append(junit.Suite(name, sum(result.seconds for result in results), entries))
    return junit.text(program, suites, environment)


def _entry(result: Result, backend: Backend | None) -> junit.Entry:
    failed, skipped = result.status == "failed", result.status not in ("failed", "passed")
    lines = list(result.lines(backend)) if failed else []
    return junit.Entry(result.case.text, result.seconds, lines, result.reason if skipped else None)


def write(path: str, text: str) -> None:
    """Write a report's ``text`` to ``path``, ``-`` being standard output. Raises OSError."""
    files.write_report(path, text)


def json_text(report: dict[str, Any]) -> str:
    """A report of :func:`as_json` as JSON text."""
    return json.dumps(report, indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def write_json(path: str, report: dict[str, Any]) -> None:
    """Write a report of :func:`as_json` to ``path``, ``-`` being standard output. Raises OSError."""
    write(path, json_text(report))


def check_target(option: str, path: str | None) -> None:
    """Raises ValueError when ``path`` cannot be written: better before the run than after it. Makes its folder."""
    if path is None or path == files.STDOUT:
        return
    try:
        files.probe(path)
    except OSError as error:
        raise ValueError(f"{option} = {path!r}: must be a file that can be written: {error}") from error


@contextlib.contextmanager
def report_writer(
    json: str | None, junit: str | None, markdown: str | None = None, html: str | None = None
) -> Iterator[Callable[[str, str], None]]:
    """Check the targets of the options ``--json``, ``--junit``, ``--markdown`` and ``--html`` (file, ``-`` or None),
    then run the body.

    Where one is standard output, what the body prints goes to standard error; the yielded ``write(path, text)`` writes
    a report.

    Raises ValueError when a target cannot be written or two are standard output.
    """
    targets = {"--json": json, "--junit": junit, "--markdown": markdown, "--html": html}
    to_stdout = [f"{option} = '-'" for option, path in targets.items() if path == files.STDOUT]
    if len(to_stdout) > 1:
        raise ValueError(f"{', '.join(to_stdout)}: only one of them can be standard output")
    for option, path in targets.items():
        check_target(option, path)
    out = sys.stdout

    def write_to_target(path: str, text: str) -> None:
        with contextlib.redirect_stdout(out):
            write(path, text)

    with contextlib.redirect_stdout(sys.stderr if to_stdout else out):
        yield write_to_target


def table(
    tally: Tally,
    modules: Iterable[str],
    *,
    heading: str = "module",
    statuses: tuple[str, ...] = STATUSES,
    worst: bool = True,
    seconds: str = ".1f",
) -> Table:
    """The table at the end: a line for each of ``modules`` that ran, and the sums.

    heading   title of the first column
    statuses  the statuses that are counted, a column each
    worst     whether columns show the comparison that uses most of its bound
    seconds   format of the time
    """
    # Without padding the widest numbers fit 80 columns.
    out = Table(box=box.SIMPLE_HEAD, show_footer=True, pad_edge=False, padding=0)
    compared = ["worst", "bound", "share"] if worst else []
    spent = sum(result.seconds for result in tally.results)
    footers = ["all", *(str(tally.count(status)) for status in statuses), *("" for _ in compared), f"{spent:{seconds}}"]
    headers = [heading, *statuses, *compared, "seconds"]
    for header, footer in zip(headers, footers, strict=True):
        out.add_column(header, footer, justify="left" if header == heading else "right", no_wrap=True)
    for name in modules:
        results = [result for result in tally.results if result.case.module == name]
        if results:
            counts = [str(tally.count(status, name)) for status in statuses]
            spent = sum(result.seconds for result in results)
            out.add_row(name, *counts, *(_worst(results) if worst else ()), f"{spent:{seconds}}")
    return out


def _worst(results: list[Result]) -> tuple[str, str, str]:
    """Measure, bound and share of the worst comparison of ``results``, as text."""
    worst = worst_of(comparison for result in results for comparison in result.comparisons)
    if worst is None:
        return "-", "-", "-"
    if worst.kind == "error":
        share = f"{100 * worst.share:.0f} %" if worst.share < 100 else f"x {worst.share:.0e}"
        return f"{worst.measure:.2e}", f"{worst.bound:.2e}", share
    unit = "bad" if worst.kind == "equal" else "wrong"
    return f"{worst.measure:g} {unit}", f"{worst.bound:g}", "-"
