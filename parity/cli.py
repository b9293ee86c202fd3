"""The console script ``qsa``: one small module per verb, each with ``add_parser(subparsers)``.

Exit status of every verb: 0 nothing failed, 1 something failed, 2 bad arguments (one line of text, no traceback), 130
after Ctrl-C.
"""

import argparse
import importlib.metadata
import io
import os
import sys
from collections.abc import Sequence


def parser() -> argparse.ArgumentParser:
    """The parser of all verbs. A verb sets the default ``run``: arguments -> exit code, ValueError on bad ones."""
    # Imported here: it takes a second, in which Ctrl-C shall be one line too.
    from . import environment
    from .commands import backend, cases, evidence, gate, generate, golden, parity, prove, report, score, shrink

    top = argparse.ArgumentParser(prog="qsa", description="QSA kernels held to the truth.")
    top.add_argument("--version", action="version", version=f"qsa-parity {_version()}")
    subparsers = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    verbs = (parity, prove, shrink, backend, cases, golden, gate, evidence, report, generate, score, environment)
    for verb in verbs:
        verb.add_parser(subparsers)
    return top


def _version() -> str:
    try:
        return importlib.metadata.version("qsa-parity")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _replace_unknown_characters() -> None:
    """Let standard output write ? for a character that its encoding lacks: a text goes on where it is not UTF-8. An
    error handler that the user has chosen (PYTHONIOENCODING) stays."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="replace")


def _fault(error: Exception) -> str:
    """What an error says, on one line; of a file its name and the reason, without the system's number."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (without the program's name; ``sys.argv`` unless given); returns the exit code."""
    command = "qsa"
    try:
        _replace_unknown_characters()
        arguments = parser().parse_args(argv)
        command = f"qsa {arguments.command}"
        code = arguments.run(arguments)
        # A pipe whose reader has gone fails here, where it can be told, and not when the interpreter ends.
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of a pipe has gone (`qsa parity --list | head`): it needs no more text.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - the interpreter flushes it at exit
        return 1
    except KeyboardInterrupt:
        # A verb with more to print about the interruption catches it itself.
        print(f"{command}: interrupted", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        print(f"{command}: error: {_fault(error)}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
