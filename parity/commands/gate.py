"""``qsa gate``: whether a change may land. A verdict for every case of every check, and one exit code for CI."""

import argparse
import sys
from collections.abc import Callable

from rich.console import Console

from .. import gate, report
from ..environment import facts

EXIT = "exit status: 0 when something passed and nothing failed, 1 when not, 2 on bad arguments"


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
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


def run(arguments: argparse.Namespace) -> int:
    """Run the checks; returns 0 when something passed and nothing failed, else 1."""
    names = gate.chosen(arguments.only)
    if arguments.list:
        print("\n".join(names))
        return 0
    with report.report_writer(arguments.json, arguments.junit) as write:
        return _gate(arguments, names, write)


def _gate(arguments: argparse.Namespace, names: list[str], write: Callable[[str, str], None]) -> int:
    """Run the checks ``names``, print their verdicts and hand the reports to ``write``; returns the exit code."""
    tally = gate.run(names, lambda verdict: _print(verdict, arguments.verbose))
    environment = facts()
    table = report.table(tally, gate.CHECKS, heading="check", statuses=gate.STATUSES, worst=False, seconds=".0f")
    Console(file=sys.stdout, width=110, highlight=False).print(table)
    if arguments.json:
        write(arguments.json, report.json_text(report.as_json(tally, environment, gate.STATUSES)))
    if arguments.junit:
        write(arguments.junit, report.as_junit(tally, environment, None, "qsa gate"))
    if not tally.count("passed") and not tally.count("failed"):
        print("nothing passed: a run that held nothing together is not a success (exit 1)")
    return tally.exit_code


def _print(verdict: gate.Verdict, verbose: bool) -> None:
    """Print a verdict; one that passed only with ``verbose``."""
    if verbose or verdict.status != "passed":
        print(f"{verdict.status:12}{verdict.case.module}: {verdict.case.text}", flush=True)
        for line in verdict.lines():
            print(line, flush=True)
