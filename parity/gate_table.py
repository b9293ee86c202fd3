"""The gate's verdicts for a reader: the table at the end, and the report as Markdown."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich import box
from rich.table import Table

from .gate import CHECKS, Outcome
from .progress import clock_text
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
