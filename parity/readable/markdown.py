"""A report in Markdown, for a pull request: verdict, tables, what failed."""

from collections.abc import Iterable

from ..report import Report
from .document import Document, Row, Table, of_report

LONGEST = 40
"""Rows of a table that are written out: a pull request is read by people."""


def text(document: Document) -> str:
    """The document as Markdown."""
    lines = [f"# {document.title}: {document.verdict}", "", *(f"{each}  " for each in document.summary)]
    for table in document.tables:
        # Of many cases those that need a reader are written out.
        rows = (
            [row for row in table.rows if row.status in ("failed", "stale")] if table.title == "Cases" else table.rows
        )
        if rows:
            lines += ["", f"## {table.title if table.title != 'Cases' else 'What failed'}", "", *_table(table, rows)]
    lines += ["", "## Environment", ""]
    lines += [f"- {key}: {_cell(value)}" for key, value in document.environment.items()]
    return "\n".join(lines) + "\n"


def of(report: Report, title: str) -> str:
    """The report of a run as Markdown."""
    return text(of_report(report, title))


def _table(table: Table, rows: Iterable[Row]) -> list[str]:
    rows = list(rows)
    lines = [f"| {' | '.join(table.columns)} |"]
    lines.append("|" + "|".join("---:" if name in table.numeric else "---" for name in table.columns) + "|")
    lines += [f"| {' | '.join(map(_cell, row.cells))} |" for row in rows[:LONGEST]]
    if len(rows) > LONGEST:
        lines += ["", f"{len(rows) - LONGEST} more are not shown."]
    for row in rows[:LONGEST]:
        if row.detail:
            lines += ["", "<details><summary>" + _cell(row.copy or row.cells[0]) + "</summary>", ""]
            lines += [f"    {line}" for line in row.detail.splitlines()] + ["", "</details>"]
    return lines


def _cell(value: str) -> str:
    """Text of one cell: no line ends, and nothing that Markdown or HTML would obey."""
    text = value.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("`", "\\`").replace("*", "\\*").replace("_", "\\_")
