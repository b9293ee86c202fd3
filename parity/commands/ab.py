"""``qsa ab``: two settings side by side, as the change proposals measured theirs: speed, and whether outputs hold."""

import argparse
import dataclasses
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from qsa.kernels.ops import BACKENDS

from .. import progress, report
from ..environment import default_backend, facts, headline
from ..readable import html, markdown
from ..running.compiling import compile_missing
from ..running.interruption import CODES
from ..speed.compare import FLOORS

if TYPE_CHECKING:
    from ..ab.structs import Arm

EPILOG = """an arm is a text of words NAME=VALUE (switches; settings of numba, threads, BLAS, CUDA) and of flags:

{flags}

exit status: 0 when the outputs of both sides are right, whatever their speed; 1 when an output is wrong or an arm gave
nothing; 2 on bad arguments; 130 after Ctrl-C and 143 after SIGTERM, with a report of what was finished"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Add the command ``ab``; its ``run`` default takes the parsed arguments and returns the exit code."""
    # Imported here: the other commands need none of it.
    from ..ab import arms, screens

    listed = arms.flags().format_help().partition("options:")[2].strip("\n")
    parser = subparsers.add_parser(
        "ab",
        help="measure two settings side by side, A B B A in fresh processes: the tables of a change proposal",
        epilog=EPILOG.format(flags=listed),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--a", required=True, metavar="ARM", help="the setting that stands: 'NAME=VALUE ... flags'")
    parser.add_argument("--b", required=True, metavar="ARM", help="the setting that is compared with it")
    parser.add_argument("--size", default="small", metavar="|".join(screens.SIZES), help="of the screens (small)")
    parser.add_argument("--checks", metavar="|".join(screens.SIZES), help="size of the checks (default: as --size)")
    parser.add_argument(
        "--backend",
        metavar="NAME",
        help="cpu, exact, cuda, file.py, … (default: cuda where there is a GPU)",
    )
    parser.add_argument("--floor", type=float, metavar="PERCENT", help="smallest change that counts (as qsa gate)")
    parser.add_argument("--timeout", type=float, metavar="S", help="seconds that one process may take (by the size)")
    parser.add_argument("--json", metavar="FILE", help="write tables, texts and times as JSON; - is standard output")
    parser.add_argument("--markdown", metavar="FILE", help="write the tables in Markdown; - is standard output")
    parser.add_argument("--html", metavar="FILE", help="write one HTML file for a browser (extra `report`)")
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns its exit code. Raises ValueError on bad arguments."""
    from ..ab import arms, screens

    sizes = {"--size": arguments.size, "--checks": arguments.checks or arguments.size}
    for option, value in sizes.items():
        if value not in screens.SIZES:
            raise ValueError(f"{option} = {value!r}: allowed are {', '.join(screens.SIZES)}")
    for option, number in (("--floor", arguments.floor), ("--timeout", arguments.timeout)):
        if number is not None and not 0 < number < math.inf:
            raise ValueError(f"{option} = {number:g}: must be above 0 and finite")
    if arguments.html is not None:
        html.check_installed()
    found = facts()
    backend = arguments.backend or default_backend(found)
    sides = [arms.parse(side, given, backend) for side, given in (("A", arguments.a), ("B", arguments.b))]
    for arm in sides:
        if arm.backend == "cuda" and default_backend(found) == "cpu":
            raise ValueError(f"--backend = 'cuda': no device: {found['gpu'].removeprefix('none: ')}")
    with report.report_writer(arguments.json, None, arguments.markdown, arguments.html) as write:
        return _ab(arguments, sides, found, sizes["--checks"], write)


def _ab(
    arguments: argparse.Namespace,
    sides: "list[Arm]",
    found: dict[str, Any],
    checks: str,
    write: Callable[[str, str], None],
) -> int:
    """Measure both sides, print the tables and hand the reports to ``write``; returns the exit code."""
    from ..ab import run as running
    from ..ab import table

    started = time.monotonic()
    print(f"qsa ab: {headline(found)}", flush=True)
    if any(arm.backend == "cpu" or arm.backend not in BACKENDS for arm in sides):
        try:
            compile_missing("qsa ab")
        except RuntimeError as error:
            raise ValueError(str(error)) from error
    limit = arguments.timeout or running.default_limit(arguments.size, checks)
    processes = running.Processes(arguments.size, checks, limit)
    with progress.shown("qsa ab") as work:
        measured = running.measure(sides, processes, work)
    floors = FLOORS["cuda" if all(arm.backend == "cuda" for arm in sides) else "cpu"]
    if arguments.floor is not None:
        floors = dataclasses.replace(floors, relative=arguments.floor / 100)
    found.pop("switches")
    seconds = time.monotonic() - started
    made = running.report(sides, measured, arguments.size, floors, found, seconds)
    document = table.document(made)
    print(markdown.text(document), flush=True)
    if arguments.json:
        write(arguments.json, msgspec.json.format(msgspec.json.encode(made), indent=1).decode() + "\n")
    if arguments.markdown:
        write(arguments.markdown, markdown.text(document))
    if arguments.html:
        write(arguments.html, html.text(document))
    if made.interrupted:
        return CODES[made.interrupted]
    return 0 if made.verdict == "right" else 1
