"""The console script ``qsa``: one small module per verb, each with ``add_parser(subparsers)``.

Exit status of every verb: 0 nothing failed, 1 something failed, 2 bad arguments (one line of text, no traceback), 130
after Ctrl-C.
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import io
import os
import sys
from collections.abc import Sequence

VERBS = {
    "parity": "commands.parity",
    "prove": "commands.prove",
    "shrink": "commands.shrink",
    "backend": "commands.backend",
    "cases": "commands.cases",
    "golden": "commands.golden",
    "bench": "commands.bench",
    "gate": "commands.gate",
    "ab": "commands.ab",
    "evidence": "commands.evidence",
    "report": "commands.report",
    "generate": "commands.generate",
    "score": "commands.score",
    "warm": "commands.warm",
    "env": "environment",
}
"""Verb -> its module, in the order of the help."""


def parser(verb: str | None = None) -> argparse.ArgumentParser:
    """The parser of ``verb``, or of all verbs where it is none of them: a command waits for no other one's imports.

    A verb sets the default ``run``: arguments -> exit code, ValueError on bad ones.
    """
    top = argparse.ArgumentParser(prog="qsa", description="QSA kernels held to the truth.")
    top.add_argument("--version", action="version", version=f"qsa-parity {_version()}")
    subparsers = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in [verb] if verb in VERBS else VERBS:
        # Imported here: it takes most of a second, in which Ctrl-C shall be one line too.
        importlib.import_module(f".{VERBS[name]}", __package__).add_parser(subparsers)
    return top


def _complete() -> None:
    """Answer a shell that asks for completions (argcomplete, extra `shell`), which then ends the process."""
    if "_ARGCOMPLETE" in os.environ and importlib.util.find_spec("argcomplete"):
        import argcomplete

        argcomplete.autocomplete(parser())


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
        _complete()
        argv = sys.argv[1:] if argv is None else argv
        arguments = parser(argv[0] if argv else None).parse_args(argv)
        arguments.argv = list(argv)
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
