"""The console script ``qsa``: one small module per verb, each with ``add_parser(subparsers)``.

Exit status of every verb: 0 nothing failed, 1 something failed, 2 bad arguments (one line of text, no traceback), 130
after Ctrl-C once the verb has begun.
"""

import argparse
import io
import os
import sys
from collections.abc import Sequence

from . import environment
from .commands import evidence, gate, generate, golden, parity, score

VERBS = (parity, golden, gate, evidence, generate, score, environment)


def parser() -> argparse.ArgumentParser:
    """The parser of all verbs. A verb sets the default ``run``: arguments -> exit code, ValueError on bad ones."""
    top = argparse.ArgumentParser(prog="qsa", description="QSA kernels held to the truth.")
    subparsers = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for verb in VERBS:
        verb.add_parser(subparsers)
    return top


def _replace_unknown_characters() -> None:
    """Let standard output write ? for a character that its encoding lacks: a text goes on where it is not UTF-8. An
    error handler that the user has chosen (PYTHONIOENCODING) stays."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="replace")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (without the program's name; ``sys.argv`` unless given); returns the exit code."""
    _replace_unknown_characters()
    arguments = parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except BrokenPipeError:
        # The reader of a pipe has gone (`qsa parity --list | head`): it needs no more text.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - the interpreter flushes it at exit
        return 1
    except KeyboardInterrupt:
        # A verb with more to print about the interruption catches it itself.
        print(f"qsa {arguments.command}: interrupted", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        print(f"qsa {arguments.command}: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
