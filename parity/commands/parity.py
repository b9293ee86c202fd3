"""``qsa parity``: run cases on a backend, print their results, write the reports."""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from qsa.kernels.switches import ARITHMETICS, switches

from .. import report, shrink, suite, wrong_outputs
from ..backend import Backend
from ..contract.operations import help_text
from ..environment import default_backend, facts, headline
from ..isolation import RemoteKernel
from ..isolation.remote import SECONDS

EPILOG = f"""modules: {", ".join(suite.MODULES)}

exit status: 0 when at least one case passed and none failed; 1 when a case failed, or when none passed because
everything was unsupported; 2 on bad arguments.

your own kernel: --backend takes file.py, a module, module:attribute, or an entry point of the group qsa.backends.
Define any of these functions; every one is optional, and what is missing, refused or not declared is unsupported:

{help_text()}

A module without a declaration is an ordinary float32 kernel of the real geometry. `declaration = {{...}}` in it says
more: docs/contract.md."""

WIDTH = 110
"""Columns of the table where standard output is no terminal."""

PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}
"""A case string is printed as it is: no markup, no colours, not broken over lines."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Add the command ``parity``; its ``run`` default takes the parsed arguments and returns the exit code."""
    parser = subparsers.add_parser(
        "parity",
        help="hold a backend to float64 truth, to the exact arithmetic and to the goldens",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="parity modules to run (default: all of them)")
    parser.add_argument(
        "--backend",
        metavar="NAME",
        help="cpu, exact, cuda, file.py, module, module:attribute (default: cuda where there is a GPU, else cpu)",
    )
    parser.add_argument(
        "--solution",
        metavar="FILE.json",
        help="the code of a solution in the FlashInfer Trace schema as the backend: docs/cases.md",
    )
    parser.add_argument(
        "--arithmetic",
        metavar="|".join(ARITHMETICS),
        help="default: the first that the backend declares; of our own QSA_ARITHMETIC, else exact",
    )
    parser.add_argument("--case", action="append", metavar="STRING", help="run this case alone; may be repeated")
    parser.add_argument("--shrunk", metavar="FILE", help="run the call that qsa shrink wrote to this file alone")
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON; - is standard output")
    parser.add_argument("--junit", metavar="FILE", help="write the report as JUnit XML; - is standard output")
    parser.add_argument(
        "--bench", action="store_true", help="with verify-batch on cuda: then time it, every kernel switch off and on"
    )
    parser.add_argument(
        "--full", action="store_true", help="also the cases that take half an hour and more on two cores"
    )
    parser.add_argument(
        "--quick", action="store_true", help="of each kind of case the smallest: seconds instead of minutes"
    )
    parser.add_argument(
        "--repeats", type=int, default=1, metavar="N", help="make every call N times; the bytes must be the same (1)"
    )
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="then run the cases of operations with seeds that nobody knew before; they are printed, for --case",
    )
    parser.add_argument(
        "--timeout", type=float, default=SECONDS, metavar="S", help=f"seconds that one call may take ({SECONDS:.0f})"
    )
    parser.add_argument(
        "--in-process",
        action="store_true",
        help="call the backend in the judge's own process, for a debugger: a crash then ends the run",
    )
    parser.add_argument("--list", action="store_true", help="print the case strings and run nothing")
    parser.set_defaults(run=run)
    return parser


def _chosen(arguments: argparse.Namespace, backend: Backend) -> list[suite.Case]:
    """The cases that the options choose. Raises ValueError on options that do not go together."""
    if arguments.bench and "verify-batch" not in arguments.modules:
        raise ValueError("--bench: goes with the module verify-batch")
    if arguments.shrunk and (arguments.modules or arguments.case):
        raise ValueError(f"--shrunk = {arguments.shrunk!r}: not together with MODULE or --case")
    if arguments.shrunk:
        return [suite.Case("shrunk", arguments.shrunk, {}, shrink.load(arguments.shrunk))]
    if arguments.case and arguments.modules:
        raise ValueError(f"MODULE = {' '.join(arguments.modules)!r}: not together with --case")
    if arguments.repeats < 1:
        raise ValueError(f"--repeats = {arguments.repeats}: must be at least 1")
    if arguments.case:
        return [suite.parse(text) for text in arguments.case]
    cases = suite.collect(arguments.modules or list(suite.MODULES), backend.arithmetic, arguments.full, backend)
    return wrong_outputs.sample(cases) if arguments.quick else cases


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns its exit code. Raises ValueError on bad arguments."""
    if arguments.arithmetic not in (None, *ARITHMETICS):
        raise ValueError(f"--arithmetic = {arguments.arithmetic!r}: allowed are {', '.join(ARITHMETICS)}")
    # A kernel under development lies in the folder where the command is typed.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    found = facts()
    backend = _backend(arguments, _name(arguments, found))
    cases = _chosen(arguments, backend)
    if arguments.list:
        for case in cases:
            print(case.text)
        return 0
    with report.report_writer(arguments.json, arguments.junit) as write:
        return _parity(arguments, backend, found, cases, write)


def _name(arguments: argparse.Namespace, found: dict[str, Any]) -> str:
    """The name of the backend. Raises ValueError on a solution that is none."""
    solution = arguments.solution
    if solution is None:
        return default_backend(found) if arguments.backend is None else arguments.backend
    if arguments.backend is not None:
        raise ValueError(f"--solution = {solution!r}: not together with --backend")
    if not solution.endswith(".json"):
        raise ValueError(f"--solution = {solution!r}: must be a JSON file, NAME.json")
    return solution


def _backend(arguments: argparse.Namespace, name: str) -> Backend:
    """The backend, in a process of its own unless asked otherwise, in the arithmetic asked for; else in that of
    QSA_ARITHMETIC where the backend declares it, else in the first that it declares."""
    if not arguments.timeout > 0:
        raise ValueError(f"--timeout = {arguments.timeout:g}: must be a number of seconds above 0")
    # The switch table times our own kernels in this process, on its device.
    here = arguments.in_process or arguments.bench
    backend = Backend(name, arguments.arithmetic, None if here else RemoteKernel(name, arguments.timeout))
    if arguments.arithmetic is None and switches().arithmetic in backend.declaration.arithmetics:
        return backend.in_arithmetic(switches().arithmetic)
    return backend


def _parity(
    arguments: argparse.Namespace,
    backend: Backend,
    found: dict[str, Any],
    cases: list[suite.Case],
    write: Callable[[str, str], None],
) -> int:
    """Run ``cases``, print their results and hand the reports to ``write``; returns the exit code."""
    environment = {"backend": backend.name, "arithmetic": backend.arithmetic, **found}
    console = _console()
    text = f"qsa parity: backend {backend.name}, {backend.arithmetic} arithmetic; {headline(environment)}"
    console.print(text, **PLAIN)
    try:
        tally = _run(cases, backend, console, bool(arguments.case or arguments.shrunk), arguments.repeats)
        if arguments.fresh:
            _fresh(tally, cases, backend, console, arguments.repeats)
    except KeyboardInterrupt:
        print("qsa parity: interrupted: no report was written", file=sys.stderr)
        return 130
    console.print(report.table(tally, (*suite.MODULES, "shrunk")))
    if arguments.json:
        write(arguments.json, report.json_text(report.as_json(tally, environment)))
    if arguments.junit:
        write(arguments.junit, report.as_junit(tally, environment, backend))
    _conclude(tally, console)
    if arguments.bench:
        _bench(backend, tally, console)
    return tally.exit_code


def _fresh(tally: suite.Tally, cases: list[suite.Case], backend: Backend, console: Console, repeats: int) -> None:
    """Run the cases of operations again with new seeds and add the results to ``tally``. A failure whose public case
    passed says so."""
    public = {result.case.text: result.status for result in tally.results}
    pairs = [(case, one) for case in cases for one in suite.fresh([case])]
    console.print(f"{len(pairs)} cases with seeds that nobody knew before", **PLAIN)
    for case, one in pairs:
        result = suite.run_case(one, backend, repeats)
        if result.status == "failed" and public[case.text] == "passed":
            result = replace(result, reason="\n".join(filter(None, (suite.MEMORISED, result.reason))))
        tally.results.append(result)
        _print(result, backend, console, verbose=False, every=not console.is_terminal)


def _bench(backend: Backend, tally: suite.Tally, console: Console) -> None:
    """Print the table of ``parity/bench/switches.py``, or why there is none."""
    if backend.name != "cuda":
        console.print(f"bench: unsupported: backend {backend.name} has no timers of a device", **PLAIN)
    elif tally.exit_code:
        console.print("bench: not timed: the results are wrong", **PLAIN)
    else:
        # Imported here: it needs CuPy.
        from ..bench import switch_table
        from ..bench import switches as switches_bench

        for line in switch_table.lines(switches_bench.table()):
            console.print(line, **PLAIN)


def _console() -> Console:
    terminal = sys.stdout.isatty()
    return Console(file=sys.stdout, width=None if terminal else WIDTH, force_terminal=terminal)


def _run(cases: list[suite.Case], backend: Backend, console: Console, verbose: bool, repeats: int = 1) -> suite.Tally:
    """Run ``cases``: with a line for each, or on a terminal with a bar."""
    if not console.is_terminal:
        return suite.run(cases, backend, lambda result: _print(result, backend, console, verbose, every=True), repeats)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("parity", total=len(cases))

        def on_result(result: suite.Result) -> None:
            _print(result, backend, console, verbose, every=verbose)
            progress.update(task, advance=1, description=result.case.module)

        return suite.run(cases, backend, on_result, repeats)


def _print(result: suite.Result, backend: Backend, console: Console, verbose: bool, every: bool) -> None:
    """Print a result: ``every`` one, or only one that did not pass, as on a terminal, where a bar counts them."""
    if every or result.status != "passed":
        console.print(f"{result.status:12}{result.case.text}  {result.seconds:.2f} s", **PLAIN)
        for line in result.lines(backend, verbose):
            console.print(line, **PLAIN)


def _conclude(tally: suite.Tally, console: Console) -> None:
    """Print the counts, and the reasons of what is unsupported."""
    failed, passed, unsupported = (tally.count(status) for status in ("failed", "passed", "unsupported"))
    console.print(f"{passed} passed, {failed} failed, {unsupported} unsupported", **PLAIN)
    reasons = {result.reason for result in tally.results if result.status == "unsupported"}
    for reason in sorted(reasons):
        console.print(f"  unsupported: {reason}", **PLAIN)
    if not passed and not failed:
        console.print("nothing passed: a run that held nothing together is not a success (exit 1)", **PLAIN)
