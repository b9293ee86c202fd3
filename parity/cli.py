"""The console script ``qsa``: one small module per verb, each with ``add_parser(subparsers)``.

Exit status of every verb: 0 as it should be, 1 it is not, 2 bad arguments, said on one line without a traceback, 130
on Ctrl-C once the verb has begun.
"""

import argparse
import os
import sys

from . import environment
from .commands import (
    evidence as evidence_command,
)
from .commands import (
    gate as gate_command,
)
from .commands import (
    generate as generate_command,
)
from .commands import golden
from .commands import (
    parity as command,
)
from .commands import (
    score as score_command,
)

VERBS = (command, golden, gate_command, evidence_command, generate_command, score_command, environment)


def parser():
    """The parser of all verbs. A verb sets the default ``run``: arguments -> exit code, ValueError on bad ones."""
    top = argparse.ArgumentParser(prog="qsa", description="QSA kernels held to the truth.")
    subparsers = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for verb in VERBS:
        verb.add_parser(subparsers)
    return top


def main(argv=None):
    """Run the command line ``argv`` (without the program's name; ``sys.argv`` unless given); returns the exit code."""
    arguments = parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except BrokenPipeError:
        # The reader of a pipe went away (`qsa parity --list | head`); what it did not read is of no interest.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - the interpreter flushes it at exit
        return 1
    except KeyboardInterrupt:
        # A verb that has something to say of what it was doing catches this itself; the rest is told here.
        print(f"qsa {arguments.command}: interrupted", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        print(f"qsa {arguments.command}: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
