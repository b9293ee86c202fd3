"""The report of a run: JSON, JUnit XML, the table at the end. All of it comes from the same results."""

import json
from xml.etree import ElementTree

from rich import box
from rich.table import Table

from qsa.golden import files

from .suite import MODULES, STATUSES, printable


def as_json(tally, environment, statuses=STATUSES):
    """The report as a dict with a count for each of ``statuses``, ``environment`` and ``cases``."""
    counts = {status: tally.count(status) for status in statuses}
    return {**counts, "environment": environment, "cases": [result.as_dict() for result in tally.results]}


def as_junit(tally, environment, backend, program="qsa parity"):
    """The report as JUnit XML text: a suite per module, ``failure`` with the text a terminal shows, ``skipped`` with
    the reason of what neither passed nor failed."""
    root = ElementTree.Element("testsuites", name=program)
    for name in dict.fromkeys(result.case.module for result in tally.results):
        results = [result for result in tally.results if result.case.module == name]
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=name,
            tests=str(len(results)),
            failures=str(tally.count("failed", name)),
            errors="0",
            skipped=str(len(results) - tally.count("failed", name) - tally.count("passed", name)),
            time=f"{sum(result.seconds for result in results):.3f}",
        )
        properties = ElementTree.SubElement(suite, "properties")
        for key, value in environment.items():
            text = value if isinstance(value, str) else json.dumps(value)
            ElementTree.SubElement(properties, "property", name=key, value=printable(text))
        for result in results:
            _junit_case(suite, name, result, backend)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _junit_case(suite, name, result, backend):
    entry = ElementTree.SubElement(
        suite, "testcase", classname=name, name=printable(result.case.text), time=f"{result.seconds:.3f}"
    )
    lines = [printable(line) for line in result.lines(backend)]
    if result.status == "failed":
        ElementTree.SubElement(entry, "failure", message=lines[0].strip()).text = "\n".join(lines)
    elif result.status != "passed":
        ElementTree.SubElement(entry, "skipped", message=printable(result.reason))


def write(path, text):
    """Write a report's ``text`` to ``path``, ``-`` being standard output. Raises OSError."""
    files.write_report(path, text)


def json_text(report):
    """A report of :func:`as_json` as JSON text."""
    return json.dumps(report, indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def write_json(path, report):
    """Write a report of :func:`as_json` to ``path``, ``-`` being standard output. Raises OSError."""
    write(path, json_text(report))


def table(tally):
    """The table at the end: a line per module that ran, and the sums."""
    out = Table(box=box.SIMPLE_HEAD, show_footer=True, pad_edge=False)
    totals = [str(tally.count(status)) for status in STATUSES]
    seconds = sum(result.seconds for result in tally.results)
    footers = ["all", *totals, "", "", "", f"{seconds:.1f}"]
    headers = ["module", *STATUSES, "worst", "bound", "share", "seconds"]
    for header, footer in zip(headers, footers, strict=True):
        out.add_column(header, footer, justify="left" if header == "module" else "right", no_wrap=True)
    for name in MODULES:
        results = [result for result in tally.results if result.case.module == name]
        if results:
            spent = f"{sum(result.seconds for result in results):.1f}"
            out.add_row(name, *(str(tally.count(status, name)) for status in STATUSES), *_worst(results), spent)
    return out


def _worst(results):
    compared = [result.worst for result in results if result.worst is not None]
    if not compared:
        return "-", "-", "-"
    worst = max(compared, key=lambda one: (not one.passed, one.share))
    if worst.kind == "error":
        share = f"{100 * worst.share:.0f} %" if worst.share < 100 else f"x {worst.share:.0e}"
        return f"{worst.measure:.2e}", f"{worst.bound:.2e}", share
    unit = "bad" if worst.kind == "equal" else "wrong"
    return f"{worst.measure:g} {unit}", f"{worst.bound:g}", "-"
