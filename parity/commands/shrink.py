"""``qsa shrink``: a failing case down to the smallest call that still fails, in one file."""

import argparse
import os
import re
import shlex
import sys
from pathlib import Path

from qsa.kernels.switches import ARITHMETICS

from .. import shrink, suite
from ..backend import Backend
from ..isolation import RemoteKernel
from ..isolation.remote import SECONDS

LIMIT = 100_000
"""Bytes below which a file stays."""

EPILOG = """calls of attend over one slot and calls of select are made smaller: rows, heads, length, selected set, then
values. A case that fails otherwise is said to be so.

exit status: 0 when a file was written, 1 when the case could not be made smaller, 2 on bad arguments."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Add the command ``shrink``; its ``run`` default takes the parsed arguments and returns the exit code."""
    parser = subparsers.add_parser(
        "shrink",
        help="make a failing case as small as it can be and still fail",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("case", metavar="CASE", help="the case string of a failing case")
    parser.add_argument("--backend", required=True, metavar="NAME", help="as for qsa parity")
    parser.add_argument("--arithmetic", metavar="|".join(ARITHMETICS), help="default: the first that is declared")
    parser.add_argument("--out", metavar="FILE", help="the file (default: shrunk-CASE.safetensors)")
    parser.add_argument(
        "--seconds", type=float, default=120.0, metavar="S", help="time to search (default %(default)s)"
    )
    parser.add_argument("--timeout", type=float, default=SECONDS, metavar="S", help="seconds that one call may take")
    parser.add_argument("--in-process", action="store_true", help="call the backend in this process")
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns its exit code. Raises ValueError on bad arguments, OSError."""
    for name in ("seconds", "timeout"):
        if not getattr(arguments, name) > 0:
            raise ValueError(f"--{name} = {getattr(arguments, name):g}: must be a number of seconds above 0")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    case = suite.parse(arguments.case)
    kernel = None if arguments.in_process else RemoteKernel(arguments.backend, arguments.timeout)
    backend = Backend(arguments.backend, arguments.arithmetic, kernel)
    try:
        problem, first = shrink.failing_call(case, backend)
    except shrink.ShrinkError as error:
        print(f"qsa shrink: {error}")
        return 1
    print(f"{case.text}: fails: {first.how}: {problem.size()}")
    small = shrink.shrink(problem, backend, first, arguments.seconds, lambda line: print(f"  {line}", flush=True))
    path = Path(arguments.out or f"shrunk-{re.sub('[^a-z0-9]+', '-', case.text.lower())[:60]}.safetensors")
    about = {"case": case.text, "backend": backend.name, "arithmetic": backend.arithmetic, "fails": first.how}
    size = shrink.save(path, small, about)
    words = "" if size < LIMIT else f": more than {LIMIT} bytes: what fails needs that much"
    print(f"{path}: {size} bytes{words}")
    default = backend.arithmetic == backend.declaration.arithmetics[0]
    arithmetic = "" if default else f" --arithmetic {backend.arithmetic}"
    print(f"again: qsa parity --shrunk {shlex.quote(str(path))} --backend {shlex.quote(backend.name)}{arithmetic}")
    return 0
