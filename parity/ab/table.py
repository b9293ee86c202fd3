"""The report of ``qsa ab`` for a reader: the tables of the change proposals."""

from ..readable.document import Document, Row, Table
from ..speed.verdict import FASTER, SLOWER
from .judge import ORDER
from .structs import Arm, Output, Report
from .structs import Row as Figure
from .verify import parts

HASH = 12
"""Digits of a hash that the tables show; JSON has all 32."""

STATUS = {FASTER: "passed", SLOWER: "failed"}
"""Verdict -> colour of its row; the others have none."""


def document(report: Report) -> Document:
    """The report as a document, of which Markdown and HTML are made."""
    summary = [f"{arm.side}: {setting(arm)}" for arm in (report.a, report.b)]
    summary.append(f"order {' '.join(ORDER)}, a fresh process for each arm; screens of size {report.size}")
    summary += report.reasons
    same = sum(one.first < 0 for one in report.outputs)
    if report.outputs:
        summary.append(f"{same} of {len(report.outputs)} texts of the screens have equal hashes in A and B")
    tables = [speed(report), checks(report), *outputs(report)]
    environment = {key: _text(value) for key, value in report.environment.items()}
    good = report.verdict == "right"
    return Document(
        "qsa ab", report.verdict, good, tuple(summary), tuple(one for one in tables if one.rows), environment
    )


def setting(arm: Arm) -> str:
    """What makes a side: its words and flags, with the backend."""
    return f"{arm.text.strip() or 'no switch is set'} (backend {arm.backend})"


def speed(report: Report) -> Table:
    """Arm 1 / arm 4 and their mean, arm 2 / arm 3 and theirs, change, verdict."""
    columns = ("figure", "A: arm 1 / arm 4 → mean", "B: arm 2 / arm 3 → mean", "change", "noise", "verdict")
    rows = tuple(
        Row((one.name, pair(one.a), pair(one.b), change(one), f"{100 * one.noise:.1f} %", verdict(one)), status(one))
        for one in report.rows
    )
    return Table("Speed", columns, rows, frozenset(columns[1:5]))


def verdict(row: Figure) -> str:
    """The verdict, or why there is none."""
    return row.verdict or row.reason


def status(row: Figure) -> str:
    """Status of the table's row."""
    return STATUS.get(row.verdict, "")


def pair(values: tuple[float, float]) -> str:
    """Two values and their mean."""
    mean = sum(values) / 2
    return f"{number(values[0], mean)} / {number(values[1], mean)} → {number(mean, mean)}"


def number(value: float, like: float) -> str:
    """``value`` with as many decimals as four digits of ``like`` have."""
    decimals = 3 if abs(like) < 10 else 2 if abs(like) < 100 else 1
    return f"{value:.{decimals}f}"


def change(row: Figure) -> str:
    """The change in percent; a dash where none is given."""
    if row.change is None:
        return "-"
    return "equal" if row.change == 0 and not row.noise else f"{100 * row.change:+.1f} %"


def checks(report: Report) -> Table:
    """Every check of the outputs."""
    rows = tuple(
        Row((one.name, one.rule, one.a, one.b, one.status or "told"), one.status, "\n".join(one.detail))
        for one in report.checks
    )
    return Table("Outputs", ("check", "rule", "A", "B", "verdict"), rows)


def outputs(report: Report) -> list[Table]:
    """The seven computations and the screens' texts by their hashes."""
    return [
        Table(title, ("text", "A", "B", "A and B"), tuple(map(_output, found)))
        for title, found in (("Seven computations", report.seven), ("Texts of the screens", report.outputs))
    ]


def _output(one: Output) -> Row:
    return Row((one.name, one.a[:HASH], one.b[:HASH], parts(one)))


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(each)}" for key, each in value.items())
    return str(value)
