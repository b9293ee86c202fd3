"""The gate's verdicts for a reader: the table at the end, the report as Markdown and as a document for HTML."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from rich import box
from rich.table import Table

from . import report
from .gate import CHECKS, Outcome
from .progress import clock_text
from .readable.document import Document, Row, of_report
from .readable.document import Table as Part
from .speed.verdict import AMBIGUOUS, FASTER, SAME, SLOWER
from .suite import printable
from .verdicts import STATUSES

WIDTH = 80
"""Columns that the table fits."""


def rows(outcome: Outcome) -> Iterator[list[str]]:
    """Check, count of each status, time by the clock on the wall; the last row is of all checks together."""
    for name in outcome.seconds:
        counts = [str(outcome.count(status, name)) for status in STATUSES]
        yield [name, *counts, clock_text(outcome.seconds[name])]
    counts = [str(outcome.count(status)) for status in STATUSES]
    yield ["all", *counts, clock_text(sum(outcome.seconds.values()))]


def table(outcome: Outcome) -> Table:
    """The table at the end."""
    *body, last = rows(outcome)
    out = Table(box=box.SIMPLE_HEAD, show_footer=True, pad_edge=False)
    for header, footer in zip(("check", *STATUSES, "minutes"), last, strict=True):
        out.add_column(header, footer, justify="left" if header == "check" else "right", no_wrap=True)
    for row in body:
        out.add_row(*row)
    return out


def _cell(text: str) -> str:
    return printable(text).replace("|", "\\|").replace("\n", "<br>")


def markdown(outcome: Outcome, environment: Mapping[str, Any]) -> str:
    """The report as Markdown: the table, every verdict that did not pass, every timed case."""
    word = "passed" if outcome.exit_code == 0 else "failed"
    lines = [f"# Gate: {word}", "", f"{environment['cpu']}, GPU {environment['gpu']}", ""]
    headers = ["check", *STATUSES, "minutes"]
    lines += [f"| {' | '.join(headers)} |", f"|---{'|---:' * (len(headers) - 1)}|"]
    lines += [f"| {' | '.join(row)} |" for row in rows(outcome)]
    for check in CHECKS:
        shown = [one for one in outcome.results if one.case.module == check]
        shown = [one for one in shown if one.status != "passed" or check == "speed"]
        if shown:
            lines += ["", f"## {check}", "", "| status | case | why |", "|---|---|---|"]
            lines += [f"| {one.status} | `{_cell(one.case.text)}` | {_cell(one.reason)} |" for one in shown]
    return "\n".join(lines) + "\n"


def document(outcome: Outcome, environment: Mapping[str, Any]) -> Document:
    """The report for HTML: a table of the checks, one of what was timed, one of all cases."""
    commands = {one.case.text: one.again or f"qsa gate --only {one.case.module}" for one in outcome.verdicts}
    found = of_report(report.make(outcome, environment, STATUSES), "qsa gate", lambda text: commands[text])
    *body, _ = rows(outcome)
    counted = ("check", *STATUSES, "minutes")
    status = {row[0]: "failed" if row[2] != "0" else "passed" if row[1] != "0" else "unsupported" for row in body}
    checks = Part("Checks", counted, tuple(Row(tuple(row), status[row[0]]) for row in body), frozenset(counted[1:]))
    tables = [each for each in found.tables if each.title != "Modules"]
    speed = _speed(outcome, environment.get("speed") or {})
    shown = {**found.environment}
    if "speed" in environment:
        parts = ("base", "backend", "false_alarm_rate")
        shown["speed"] = ", ".join(f"{name.replace('_', ' ')} {environment['speed'][name]}" for name in parts)
    return replace(found, tables=tuple(each for each in (checks, speed, *tables) if each.rows), environment=shown)


WORST_FIRST = (SLOWER, AMBIGUOUS, FASTER, SAME)
TIMED = ("verdict", "case", "base us", "now us", "change", "noise", "floor", "p")


def _speed(outcome: Outcome, notes: Mapping[str, Any]) -> Part:
    """The table of what was timed: the judgements that the check ``speed`` has noted."""
    lines = []
    statuses = {one.case.text: one.status for one in outcome.verdicts if one.case.module == "speed"}
    judgements = notes.get("judgements", {})
    for case, one in sorted(judgements.items(), key=lambda pair: WORST_FIRST.index(pair[1]["verdict"])):
        times = (f"{one['base']:.1f}", f"{one['change']:.1f}", f"{100 * (one['ratio'] - 1):+.1f} %")
        rest = (f"{100 * one['noise']:.1f} %", f"{100 * one['floor']:.1f} %", f"{one['p']:.2g}")
        lines.append(Row((one["verdict"], case, *times, *rest), statuses.get(case, ""), one["reason"]))
    return Part("Speed", TIMED, tuple(lines), frozenset(TIMED[2:]))
