"""``qsa bench``: times of a backend's operations beside what the machine can do, and beside other backends."""

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from qsa.golden import files
from qsa.kernels.switches import ARITHMETICS, switches

from .. import progress, report
from ..backend import Backend
from ..environment import default_backend, facts, headline
from ..readable import html, markdown
from ..running import compiling, runs
from ..running.interruption import CODES, name_of, sigterm_raises
from ..screen import cases as benchmarks
from ..screen import document, run
from ..screen.results import Bench

EPILOG = """Without --rows, --context, --format, --schedule and --case the screen is timed: contexts from 1K to 1M at
one row, rows at 64K, formats, schedules. With one of them every combination of their values is timed; what is not
given has one value.

A result that is wrong has no time, nor has a time that the machine cannot reach. What a number means: docs/bench.md.

exit status: 0 when something was timed and nothing was wrong or impossible, 1 when not, 2 on bad arguments, 130 after
Ctrl-C and 143 after SIGTERM, with a report of what was finished."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Add the command ``bench``; its ``run`` default takes the parsed arguments and returns the exit code."""
    parser = subparsers.add_parser(
        "bench",
        help="time a backend's operations beside the limits of the machine, and beside other backends",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    name = "cpu, exact, cuda, file.py, module, module:attribute"
    parser.add_argument("--backend", metavar="NAME", help=f"{name} (default: cuda where there is a GPU, else cpu)")
    parser.add_argument(
        "--against", action="append", default=[], metavar="NAME", help="another backend, timed by turns with it"
    )
    parser.add_argument("--arithmetic", metavar="|".join(ARITHMETICS), help="default: the first that it declares")
    parser.add_argument("--against-arithmetic", metavar="|".join(ARITHMETICS), help="of the backends of --against")
    choice = parser.add_argument_group("cases")
    for option, metavar, text in (
        ("--op", "NAME", f"operations: {', '.join(benchmarks.AXES)}"),
        ("--format", "NAME", f"K/V formats: {', '.join(benchmarks.FORMATS)}"),
        ("--rows", "N", "rows of a call"),
        ("--context", "N", "cells of the context, such as 64K or 1M"),
        ("--schedule", "NAME", "schedules; standing is that of a call which names none"),
        ("--cache", "NAME", "hot (the default): the data lies in the caches; cold: it does not"),
    ):
        choice.add_argument(option, nargs="+", action="extend", default=[], metavar=metavar, help=text)
    choice.add_argument(
        "--case", action="append", default=[], metavar="STRING", help="this case alone; may be repeated"
    )
    choice.add_argument("--list", action="store_true", help="print the case strings and time nothing")
    parser.add_argument(
        "--seconds", type=float, default=run.SECONDS, metavar="S", help="of sampling a case (default: %(default)g)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON; - is standard output")
    parser.add_argument("--markdown", metavar="FILE", help="write tables in Markdown; - is standard output")
    parser.add_argument("--html", metavar="FILE", help="write one HTML file with plots (extra `report`)")
    parser.add_argument("--tables", action="store_true", help="print the table of the CPU kernels beside NumPy instead")
    parser.set_defaults(run=bench)
    return parser


def bench(arguments: argparse.Namespace) -> int:
    """Run the command; returns its exit code. Raises ValueError on bad arguments."""
    if arguments.tables:
        return _tables(arguments)
    _check(arguments)
    # A kernel under development lies in the folder where the command is typed.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    found = facts()
    name = arguments.backend or default_backend(found)
    backends = [_backend(name, arguments.arithmetic)]
    backends += [_backend(other, arguments.against_arithmetic) for other in arguments.against]
    cases = _cases(arguments, backends[0])
    if arguments.list:
        print("\n".join(case.text for case in cases))
        return 0
    with report.report_writer(arguments.json, None, arguments.markdown, arguments.html) as write:
        return _bench(arguments, backends, found, cases, write)


def _tables(arguments: argparse.Namespace) -> int:
    # Imported here: it brings numba.
    from ..bench import cpu

    if arguments.json or arguments.html or arguments.markdown or arguments.against or arguments.case:
        raise ValueError("--tables: goes with no other option: the table is printed alone")
    return cpu.main([])


def _check(arguments: argparse.Namespace) -> None:
    """Raises ValueError on a value that is not allowed."""
    for option in ("arithmetic", "against_arithmetic"):
        value = getattr(arguments, option)
        if value not in (None, *ARITHMETICS):
            raise ValueError(f"--{option.replace('_', '-')} = {value!r}: allowed are {', '.join(ARITHMETICS)}")
    if arguments.against_arithmetic and not arguments.against:
        raise ValueError("--against-arithmetic: goes with --against")
    if not 0 < arguments.seconds <= run.MOST_SECONDS:
        raise ValueError(f"--seconds = {arguments.seconds:g}: must be above 0 and at most {run.MOST_SECONDS:g}")
    if arguments.html is not None:
        html.check_installed()


def _backend(name: str, arithmetic: str | None) -> Backend:
    """The backend in this process: in the arithmetic asked for, else that of QSA_ARITHMETIC where it declares it."""
    backend = Backend(name, arithmetic)
    if arithmetic is None and switches().arithmetic in backend.declaration.arithmetics and not backend.own_storage:
        return backend.in_arithmetic(switches().arithmetic)
    return backend


def _cases(arguments: argparse.Namespace, backend: Backend) -> list[benchmarks.BenchCase]:
    """The cases that the options choose. Raises ValueError on options that do not go together."""
    wanted = benchmarks.Wanted(
        operations=tuple(arguments.op),
        formats=tuple(arguments.format),
        rows=tuple(benchmarks.number("--rows", text) for text in arguments.rows),
        contexts=tuple(benchmarks.number("--context", text) for text in arguments.context),
        schedules=tuple(arguments.schedule),
        caches=tuple(arguments.cache),
    )
    if arguments.case:
        if wanted != benchmarks.Wanted():
            raise ValueError("--case: not together with --op, --format, --rows, --context, --schedule or --cache")
        return [benchmarks.parse(text) for text in arguments.case]
    return benchmarks.chosen(wanted, backend.name, backend.own_storage)


def _bench(
    arguments: argparse.Namespace,
    backends: list[Backend],
    found: dict[str, Any],
    cases: list[benchmarks.BenchCase],
    write: Callable[[str, str], None],
) -> int:
    """Time ``cases``, print them and hand the reports to ``write``; returns the exit code."""
    console = runs.console()

    def tell(text: Any) -> None:
        console.print(text, **(runs.PLAIN if isinstance(text, str) else {}))

    names = " against ".join(f"{backend.name} ({backend.arithmetic})" for backend in backends)
    tell(f"qsa bench: {names}; {len(cases)} cases; {headline(found)}")
    for backend in backends:
        if backend.name == "cpu":
            compiling.compile_missing("qsa bench", [f"attend {backend.arithmetic}", "cells"])
    work = progress.Work("qsa bench", len(cases))
    running = run.Run(backends, found, arguments.seconds)
    saved = arguments.json not in (None, files.STDOUT) and files.is_replaced(arguments.json)
    try:
        with sigterm_raises(), progress.shown("qsa bench", work=work):
            work.begin("limits of the machine", len(cases))
            running.begin()
            for limits in running.limits.values():
                for line in document.limits_lines(limits):
                    tell(line)
            for case in cases:
                work.note = case.text
                for timing in running.time(case):
                    tell(document.line(timing))
                work.advance()
                if saved:
                    write(arguments.json, text(running.report(interrupted=runs.RUNNING)))
    except KeyboardInterrupt as error:
        running.interrupted = name_of(error)
    made = running.report(running.interrupted)
    if made.exponents:
        tell(document.exponents_table(made))
    for line in document.summary(made):
        tell(line)
    _write(arguments, made, write)
    if made.interrupted in CODES:
        print(f"qsa bench: interrupted by {made.interrupted}", file=sys.stderr)
        return CODES[made.interrupted]
    return exit_code(made)


def exit_code(made: Bench) -> int:
    """0 when something was timed and nothing was wrong or impossible."""
    statuses = {timing.status for timing in made.timings}
    return 0 if "timed" in statuses and not statuses & {"wrong", "impossible"} else 1


def text(made: Bench) -> str:
    """The report as JSON text."""
    return msgspec.json.format(msgspec.json.encode(made), indent=1).decode() + "\n"


def _write(arguments: argparse.Namespace, made: Bench, write: Callable[[str, str], None]) -> None:
    """Write the reports that the options ask for."""
    command = f"qsa bench --backend {made.contestants[0].backend}"
    command += "".join(f" --against {each.backend}" for each in made.contestants[1:])
    if arguments.json:
        write(arguments.json, text(made))
    if arguments.markdown:
        write(arguments.markdown, markdown.text(document.of(made, pictures=False)))
    if arguments.html:
        write(arguments.html, html.text(document.of(made, lambda case: f"{command} --case '{case}'")))
