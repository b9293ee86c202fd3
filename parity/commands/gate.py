"""``qsa gate``: whether a change may land. A verdict for every case of every check, and one exit code for CI."""

import argparse
import contextlib
import math
import sys
from collections.abc import Callable

from rich.console import Console

from qsa.kernels.sources import root

from .. import gate, gate_table, progress, report
from ..environment import facts
from ..readable import html
from ..speed import base, compare, repository
from ..verdicts import STATUSES, Run, Verdict

EXIT = """exit status: 0 when something passed and nothing failed; 1 when something failed, or when nothing passed
because everything was unsupported or stale; 2 on bad arguments; 130 after Ctrl-C, with reports of what was finished. A
SLOWER kernel is a failure, an AMBIGUOUS time is none."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Add the command ``gate``; its ``run`` default takes the parsed arguments and returns the exit code."""
    parser = subparsers.add_parser(
        "gate",
        help="say whether a change may land: parity, goldens, simulator, PTX, evidence, speed against a base commit",
        epilog=f"checks: {', '.join(gate.CHECKS)}\n\n{EXIT}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", metavar="CHECK", help="these checks alone")
    parser.add_argument("--without", nargs="+", metavar="CHECK", help="all checks but these")
    parser.add_argument(
        "--base", metavar="REV", help="commit that speed is compared with (default: merge base with the default branch)"
    )
    parser.add_argument(
        "--floor",
        type=float,
        metavar="PERCENT",
        help="smallest difference in speed that counts (default: "
        + ", ".join(f"{100 * floors.relative:g} %% on {name}" for name, floors in compare.FLOORS.items())
        + ")",
    )
    parser.add_argument(
        "--backend",
        metavar="NAME",
        help="what is timed: cpu or cuda (default: cuda where it is). file.py or file.py:attribute is a kernel of your "
        f"own: the checks are then {' and '.join(gate.OF_KERNELS)}",
    )
    parser.add_argument(
        "--repo",
        metavar="DIR",
        help="with a kernel of your own: the folder that holds it, in a git checkout; --base is one of its commits "
        "(default: the current folder)",
    )
    parser.add_argument("--fresh", action="store_true", help="compute every golden, whatever was computed before")
    parser.add_argument("--json", metavar="FILE", help="write the verdicts and times as JSON; - is standard output")
    parser.add_argument("--junit", metavar="FILE", help="write the verdicts as JUnit XML; - is standard output")
    parser.add_argument("--markdown", metavar="FILE", help="write the verdicts as Markdown; - is standard output")
    parser.add_argument("--html", metavar="FILE", help="write one HTML file for a browser (extra `report`)")
    parser.add_argument("--list", action="store_true", help="print the checks and run nothing")
    parser.add_argument("--verbose", action="store_true", help="print what passed, too")
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Run the checks; returns the exit code. Raises ValueError on bad arguments."""
    kernel = _kernel(arguments)
    names = gate.chosen(arguments.only or (gate.OF_KERNELS if kernel else None), arguments.without)
    if arguments.list:
        print("\n".join(names))
        return 0
    floor = arguments.floor
    if floor is not None and not 0 < floor < math.inf:
        raise ValueError(f"--floor = {floor}: must be a percentage above 0")
    if arguments.base is not None:
        # A commit that does not exist is a mistake to be told before the work; that there can be no base is a verdict.
        with contextlib.suppress(base.NoBaseError):
            if kernel is None:
                base.commit(root(), arguments.base)
            else:
                repository.base_of(kernel, arguments.base)
    if arguments.html is not None:
        html.check_installed()
    with report.report_writer(arguments.json, arguments.junit, arguments.markdown, arguments.html) as write:
        return _gate(arguments, names, kernel, write)


def _kernel(arguments: argparse.Namespace) -> repository.Kernel | None:
    """The kernel of somebody's own that the options name; None: they name none. Raises ValueError on bad options."""
    backend = arguments.backend
    if backend in (None, *compare.FLOORS):
        if arguments.repo is not None:
            raise ValueError(f"--repo = {arguments.repo!r}: goes with --backend file.py, a kernel in that folder")
        return None
    if not backend.partition(":")[0].endswith(".py"):
        raise ValueError(
            f"--backend = {backend!r}: allowed are {', '.join(compare.FLOORS)}, file.py, file.py:attribute"
        )
    return repository.kernel(backend, arguments.repo)


def _gate(
    arguments: argparse.Namespace,
    names: list[str],
    kernel: repository.Kernel | None,
    write: Callable[[str, str], None],
) -> int:
    """Run the checks ``names``, print their verdicts and hand the reports to ``write``; returns the exit code."""
    floor = None if arguments.floor is None else arguments.floor / 100
    state = Run(arguments.base, arguments.fresh, floor, arguments.backend, kernel)
    with progress.shown("qsa gate", work=state.work):
        outcome = gate.run(names, lambda verdict: _print(verdict, arguments.verbose), state)
        if not arguments.verbose:
            _print_unsupported(outcome)
    environment = {**facts(), **state.notes, "seconds": {key: round(x, 1) for key, x in outcome.seconds.items()}}
    Console(file=sys.stdout, width=gate_table.WIDTH, highlight=False).print(gate_table.table(outcome))
    if arguments.json:
        write(arguments.json, report.json_text(report.as_json(outcome, environment, STATUSES)))
    if arguments.junit:
        write(arguments.junit, report.as_junit(outcome, environment, None, "qsa gate"))
    if arguments.markdown:
        write(arguments.markdown, gate_table.markdown(outcome, environment))
    if arguments.html:
        write(arguments.html, html.text(gate_table.document(outcome, environment)))
    if outcome.interrupted:
        print("qsa gate: interrupted: the reports hold what was finished", file=sys.stderr)
        return 130
    if not outcome.count("passed") and not outcome.count("failed"):
        print("nothing passed: a run that held nothing together is not a success (exit 1)")
    return outcome.exit_code


def _print(verdict: Verdict, verbose: bool) -> None:
    """Print a verdict that failed, is stale or is of a time, with ``verbose`` any other too."""
    if verbose or verdict.status in ("failed", "stale") or verdict.share is not None:
        print(f"{verdict.status:12}{verdict.case.module}: {verdict.case.text}", flush=True)
        for line in verdict.lines():
            print(line, flush=True)


def _print_unsupported(outcome: gate.Outcome) -> None:
    """Print what is unsupported: a line for each reason, with the number of its cases where it has several."""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in outcome.verdicts:
        if one.status == "unsupported" and one.share is None:
            groups.setdefault((one.case.module, one.reason), []).append(one.case.text)
    for (check, reason), names in groups.items():
        print(f"{'unsupported':12}{check}: {names[0] if len(names) == 1 else f'{len(names)} cases'}")
        for line in reason.splitlines():
            print(f"  {line}")
