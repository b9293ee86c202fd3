"""``qsa warm``: compile the CPU kernels ahead, in parallel processes."""

import argparse

from ..running import compiling


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Add the command ``warm``; its ``run`` default takes the parsed arguments and returns the exit code."""
    parser = subparsers.add_parser("warm", help="compile the CPU kernels ahead, in parallel processes, into the cache")
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns its exit code. Raises ValueError when a kernel cannot be compiled."""
    try:
        seconds = compiling.compile_missing("qsa warm")
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    if not seconds:
        print("every kernel is compiled: nothing to do")
    return 0
