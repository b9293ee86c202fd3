"""The options of ``qsa parity``: what they are, and which values go together."""

import argparse

from qsa.kernels.switches import ARITHMETICS

from .. import suite
from ..contract.operations import help_text
from ..isolation.remote import SECONDS
from ..readable import html
from ..running import shards, sweep

EPILOG = f"""modules: {", ".join(suite.MODULES)}

exit status: 0 when at least one case passed and none failed; 1 when a case failed, or when none passed because
everything was unsupported; 2 on bad arguments; 130 after Ctrl-C and 143 after SIGTERM, with a report of what was
finished.

your own kernel: --backend takes file.py, a module, module:attribute, or an entry point of the group qsa.backends.
Define any of these functions; every one is optional, and what is missing, refused or not declared is unsupported:

{help_text()}

A module without a declaration is an ordinary float32 kernel of the real geometry. `declaration = {{...}}` in it says
more: docs/contract.md."""

MODULE_HELP = (
    "parity modules to run whole (default: those on operations whole, and of the modules on texts the first cases)"
)


def add_to(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Add the command ``parity`` with its options; ``run`` is its caller's to set."""
    parser = subparsers.add_parser(
        "parity",
        help="hold a backend to float64 truth, to the exact arithmetic and to the goldens",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=MODULE_HELP)
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
    choice = parser.add_argument_group("cases: values of one option are alternatives, all options must fit")
    choice.add_argument(
        "--op", action="append", default=[], metavar="NAME", help="of this operation: attend, select, …"
    )
    choice.add_argument("--format", action="append", default=[], metavar="NAME", help="of this K/V format: int8, …")
    choice.add_argument(
        "--where", action="append", default=[], metavar="KEY=VALUE", help="with this parameter of the case string"
    )
    choice.add_argument("--case", action="append", metavar="STRING", help="run this case alone; may be repeated")
    choice.add_argument("--shrunk", metavar="FILE", help="run the call that qsa shrink wrote to this file alone")
    choice.add_argument("--list", action="store_true", help="print the case strings and run nothing")
    choice.add_argument(
        "--resume", metavar="FILE.json", help="take the results of this report, and run only the cases that it lacks"
    )
    choice.add_argument(
        "--shard", metavar="K/N", help="the Kth of N parts of the cases; `qsa report merge` makes the reports one again"
    )
    choice.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="run the cases as tasks of the Ray cluster at ADDRESS; `local` starts one on this machine, a worker for "
        "each processor or GPU (extra `ray`)",
    )
    parser.add_argument("-x", "--exitfirst", action="store_true", help="stop at the first failure")
    parser.add_argument("--slowest", type=int, default=0, metavar="N", help="list the N slowest cases at the end")
    parser.add_argument(
        "--watch", action="store_true", help="run again whenever a source file changes (extra `watch`); Ctrl-C ends it"
    )
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON; - is standard output")
    parser.add_argument("--junit", metavar="FILE", help="write the report as JUnit XML; - is standard output")
    parser.add_argument("--markdown", metavar="FILE", help="write a table in Markdown; - is standard output")
    parser.add_argument("--html", metavar="FILE", help="write one HTML file for a browser (extra `report`)")
    parser.add_argument(
        "--bench", action="store_true", help="with verify-batch on cuda: then time it, every kernel switch off and on"
    )
    choice.add_argument(
        "--full",
        action="store_true",
        help="all cases, of the modules named or of all: on two cores half an hour and more",
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
    return parser


def check(arguments: argparse.Namespace) -> None:
    """Raises ValueError on a value that is not allowed."""
    if arguments.arithmetic not in (None, *ARITHMETICS):
        raise ValueError(f"--arithmetic = {arguments.arithmetic!r}: allowed are {', '.join(ARITHMETICS)}")
    if not arguments.timeout > 0:
        raise ValueError(f"--timeout = {arguments.timeout:g}: must be a number of seconds above 0")
    if arguments.slowest < 0:
        raise ValueError(f"--slowest = {arguments.slowest}: must be at least 0")
    if arguments.shard is not None:
        shards.parse(arguments.shard)
    for module in arguments.modules:
        if module not in suite.MODULES:
            raise ValueError(f"module = {module!r}: allowed are {', '.join(suite.MODULES)}")
    if arguments.html is not None:
        html.check_installed()
    if arguments.ray is not None:
        for option, used in {
            "--bench": arguments.bench,
            "--in-process": arguments.in_process,
            "--shrunk": arguments.shrunk,
        }.items():
            if used:
                raise ValueError(f"--ray = {arguments.ray!r}: not together with {option}")
        sweep.check_installed()
