"""``qsa backend new NAME``: a file with every function of the contract, to be filled in."""

import argparse
import keyword
from pathlib import Path

from ..contract.skeleton import text

ARITHMETICS = ("exact", "float")


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Add the command ``backend``; its ``run`` default takes the parsed arguments and returns the exit code."""
    backend = subparsers.add_parser("backend", help="begin a backend of your own")
    verbs = backend.add_subparsers(dest="verb", required=True, metavar="VERB")
    parser = verbs.add_parser("new", help="write NAME.py with the typed functions of the contract")
    parser.add_argument("name", metavar="NAME", help="a name of Python; NAME.py must not exist")
    parser.add_argument("--from", dest="arithmetic", default="float", metavar="exact|float", help="default: float")
    parser.set_defaults(run=new)
    return backend


def new(arguments: argparse.Namespace) -> int:
    """Write the file; returns 0. Raises ValueError on a bad name or a file that exists, and OSError."""
    name, arithmetic = arguments.name, arguments.arithmetic
    if arithmetic not in ARITHMETICS:
        raise ValueError(f"--from = {arithmetic!r}: allowed are {', '.join(ARITHMETICS)}")
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"NAME = {name!r}: must be a name of Python: letters, digits and _, no digit first")
    path = Path(f"{name}.py")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text(name, arithmetic))
    except FileExistsError:
        raise ValueError(f"NAME = {name!r}: {path} exists already") from None
    print(f"{path}: fill in a function, then: qsa parity accuracy --backend {path}")
    return 0
