"""``qsa gate``: whether a change may land. A verdict for every case of every check, and one exit code for CI."""

import argparse
import sys

from rich import box
from rich.console import Console
from rich.table import Table

from . import gate, report
from .command import reports_alone
from .environment import facts

EXIT = "exit status: 0 when something passed and nothing failed, 1 when not, 2 on bad arguments"


def add_parser(subparsers):
    """Add the command ``gate``; its ``run`` default takes the parsed arguments and returns the exit code."""
    parser = subparsers.add_parser(
        "gate",
        help="say whether a change may land: goldens, hashes, simulator, PTX, evidence, speed",
        epilog=f"checks: {', '.join(gate.CHECKS)}\n\n{EXIT}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", metavar="CHECK", help="these checks alone")
    parser.add_argument("--json", metavar="FILE", help="write the verdicts as JSON; - is standard output")
    parser.add_argument("--junit", metavar="FILE", help="write the verdicts as JUnit XML; - is standard output")
    parser.add_argument("--list", action="store_true", help="print the checks and run nothing")
    parser.add_argument("--verbose", action="store_true", help="print what passed, too")
    parser.set_defaults(run=run)
    return parser


def run(arguments):
    """Run the checks; returns 0 when something passed and nothing failed, else 1."""
    names = gate.chosen(arguments.only)
    if arguments.list:
        print("\n".join(names))
        return 0
    with reports_alone(arguments.json, arguments.junit) as write:
        return _gate(arguments, names, write)


def _gate(arguments, names, write):
    tally = gate.run(names, lambda one: _say(one, arguments.verbose))
    environment = facts()
    Console(file=sys.stdout, width=110, highlight=False).print(_table(tally))
    if arguments.json:
        write(arguments.json, report.json_text(report.as_json(tally, environment, gate.STATUSES)))
    if arguments.junit:
        write(arguments.junit, report.as_junit(tally, environment, None, "qsa gate"))
    if not tally.count("passed") and not tally.count("failed"):
        print("nothing passed: a run that held nothing together is not a success (exit 1)")
    return tally.exit_code


def _say(one, verbose):
    if verbose or one.status != "passed":
        print(f"{one.status:12}{one.case.module}: {one.case.text}", flush=True)
        for line in one.lines():
            print(line, flush=True)


def _table(tally):
    """A line per check, and the sums."""
    table = Table(box=box.SIMPLE_HEAD, show_footer=True, pad_edge=False)
    seconds = sum(one.seconds for one in tally.results)
    footers = ["all", *(str(tally.count(status)) for status in gate.STATUSES), f"{seconds:.0f}"]
    for header, footer in zip(("check", *gate.STATUSES, "seconds"), footers, strict=True):
        table.add_column(header, footer, justify="left" if header == "check" else "right")
    for name in dict.fromkeys(one.case.module for one in tally.results):
        spent = sum(one.seconds for one in tally.results if one.case.module == name)
        table.add_row(name, *(str(tally.count(status, name)) for status in gate.STATUSES), f"{spent:.0f}")
    return table
