"""``qsa parity``: run cases on a backend, say what came of them, write the reports."""

import argparse
import contextlib
import os
import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from qsa.golden import files
from qsa.kernels.switches import ARITHMETICS, switches

from . import report, suite
from .backend import Backend
from .environment import facts, headline

EPILOG = f"""modules: {", ".join(suite.MODULES)}

exit status: 0 when at least one case passed and none failed; 1 when a case failed, or when none passed because
everything was unsupported; 2 on bad arguments.

your own kernel: --backend takes the name of any importable module, also of a file in the current folder. Define any
of append_kv, append_index, block_scores, select, attend with the arguments of qsa.reference; what is missing, or
returns False, is unsupported. attend may take schedule=, splits=, arithmetic= and out=; to_device(x) and to_host(x)
are used where defined."""

WIDTH = 110
"""Columns of the table where no terminal says how many there are."""


def add_parser(subparsers):
    """Add the command ``parity``; its ``run`` default takes the parsed arguments and returns the exit code."""
    parser = subparsers.add_parser(
        "parity",
        help="hold a backend to float64 truth, to the exact arithmetic and to the goldens",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="parity modules to run (default: all of them)")
    parser.add_argument(
        "--backend", metavar="NAME", help="cpu, exact, cuda, or a module (default: cuda where there is a GPU, else cpu)"
    )
    parser.add_argument(
        "--arithmetic", metavar="|".join(ARITHMETICS), help="default: QSA_ARITHMETIC of the environment, else exact"
    )
    parser.add_argument("--case", action="append", metavar="STRING", help="run this case alone; may be repeated")
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON; - is standard output")
    parser.add_argument("--junit", metavar="FILE", help="write the report as JUnit XML; - is standard output")
    parser.add_argument(
        "--bench", action="store_true", help="with verify-batch on cuda: then time it, every kernel switch off and on"
    )
    parser.add_argument("--full", action="store_true", help="also the cases that take long, an hour on two cores")
    parser.add_argument("--list", action="store_true", help="print the case strings and run nothing")
    parser.set_defaults(run=run)
    return parser


def _chosen(arguments, arithmetic):
    if arguments.bench and "verify-batch" not in arguments.modules:
        raise ValueError("--bench: goes with the module verify-batch")
    if arguments.case and arguments.modules:
        raise ValueError(f"MODULE = {' '.join(arguments.modules)!r}: not together with --case")
    if arguments.case:
        return [suite.parse(text) for text in arguments.case]
    return suite.collect(arguments.modules or list(suite.MODULES), arithmetic, arguments.full)


def check_target(option, path):
    """Raises ValueError when ``path`` cannot be written: better before the run than after it. Makes its folder."""
    if path is None or path == files.STDOUT:
        return
    try:
        files.probe(path)
    except OSError as error:
        raise ValueError(f"{option} = {path!r}: must be a file that can be written: {error}") from error


@contextlib.contextmanager
def reports_alone(json, junit):
    """Check the targets of the options ``--json`` and ``--junit`` (file, ``-`` or None), then run the body.

    Where one is standard output, what the body prints goes to standard error; the yielded ``write(path, text)`` writes
    a report.

    Raises ValueError when a target cannot be written or both are standard output.
    """
    if json == junit == files.STDOUT:
        raise ValueError("--json = '-', --junit = '-': only one of them can be standard output")
    check_target("--json", json)
    check_target("--junit", junit)
    out = sys.stdout

    def write(path, text):
        with contextlib.redirect_stdout(out):
            report.write(path, text)

    with contextlib.redirect_stdout(sys.stderr if files.STDOUT in (json, junit) else out):
        yield write


def run(arguments):
    """Run the command; returns its exit code. Raises ValueError on bad arguments."""
    arithmetic = switches().arithmetic if arguments.arithmetic is None else arguments.arithmetic
    if arithmetic not in ARITHMETICS:
        raise ValueError(f"--arithmetic = {arithmetic!r}: allowed are {', '.join(ARITHMETICS)}")
    cases = _chosen(arguments, arithmetic)
    if arguments.list:
        for one in cases:
            print(one.text)
        return 0
    with reports_alone(arguments.json, arguments.junit) as write:
        return _parity(arguments, arithmetic, cases, write)


def _parity(arguments, arithmetic, cases, write):
    """Run ``cases``, say what came of them and hand the reports to ``write``; returns the exit code."""
    # A kernel under development lies in the folder where the command is typed.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    found = facts()
    name = arguments.backend
    if name is None:
        name = "cpu" if found["gpu"].startswith("none") else "cuda"
    backend = Backend(name, arithmetic)
    environment = {"backend": backend.name, "arithmetic": arithmetic, **found}
    console = _console()
    console.print(f"qsa parity: backend {backend.name}, {arithmetic} arithmetic; {headline(environment)}", **PLAIN)
    try:
        tally = _run(cases, backend, console, verbose=bool(arguments.case))
    except KeyboardInterrupt:
        print("qsa parity: interrupted: no report was written", file=sys.stderr)
        return 130
    console.print(report.table(tally))
    if arguments.json:
        write(arguments.json, report.json_text(report.as_json(tally, environment)))
    if arguments.junit:
        write(arguments.junit, report.as_junit(tally, environment, backend))
    _conclude(tally, console)
    if arguments.bench:
        _bench(backend, tally, console)
    return tally.exit_code


def _bench(backend, tally, console):
    """Print the table of ``verify_bench``, or why there is none."""
    if backend.name != "cuda":
        console.print(f"bench: unsupported: backend {backend.name} has no timers of a device", **PLAIN)
    elif tally.exit_code:
        console.print("bench: not timed: the results are wrong", **PLAIN)
    else:
        # Imported here: it needs CuPy.
        from . import switch_table, verify_bench

        for line in switch_table.lines(verify_bench.table()):
            console.print(line, **PLAIN)


PLAIN = {"markup": False, "highlight": False, "soft_wrap": True}
"""A case string is printed as it is: no markup, no colours, not broken over lines."""


def _console():
    terminal = sys.stdout.isatty()
    return Console(file=sys.stdout, width=None if terminal else WIDTH, force_terminal=terminal)


def _run(cases, backend, console, verbose):
    if not console.is_terminal:
        return suite.run(cases, backend, lambda result: _say(result, backend, console, verbose, every=True))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("parity", total=len(cases))

        def heard(result):
            _say(result, backend, console, verbose, every=verbose)
            progress.update(task, advance=1, description=result.case.module)

        return suite.run(cases, backend, heard)


def _say(result, backend, console, verbose, every):
    """Print one result; on a terminal only what did not pass, the bar tells the rest."""
    if every or result.status != "passed":
        console.print(f"{result.status:12}{result.case.text}  {result.seconds:.2f} s", **PLAIN)
        for line in result.lines(backend, verbose):
            console.print(line, **PLAIN)


def _conclude(tally, console):
    failed, passed, unsupported = (tally.count(status) for status in ("failed", "passed", "unsupported"))
    console.print(f"{passed} passed, {failed} failed, {unsupported} unsupported", **PLAIN)
    reasons = {result.reason for result in tally.results if result.status == "unsupported"}
    for reason in sorted(reasons):
        console.print(f"  unsupported: {reason}", **PLAIN)
    if not passed and not failed:
        console.print("nothing passed: a run that held nothing together is not a success (exit 1)", **PLAIN)
