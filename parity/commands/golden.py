"""``qsa golden check | regen | accept | list``.

Exit codes: 0 equal, 1 different or pending, 2 bad arguments or files.
"""

import argparse
import sys
import time
from collections.abc import Callable, Collection

from qsa.golden import recompute as checking
from qsa.golden.case import CaseError
from qsa.golden.families import grid, produce
from qsa.golden.record import GoldenError
from qsa.golden.store import RECORDS, Store


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Add the command ``golden`` to the subparsers of an ``argparse`` parser; its ``run`` default takes the parsed
    arguments and returns the exit code."""
    golden = subparsers.add_parser("golden", help="check, regenerate and accept goldens")
    golden.add_argument("--folder", default=str(RECORDS), help="folder of the records (default: the installed ones)")
    verbs = golden.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb, run, text in (
        ("check", check, "hold the reference to the goldens"),
        ("regen", regen, "make goldens anew from the reference; what differs becomes pending"),
        ("list", show, "list the goldens"),
    ):
        parser = verbs.add_parser(verb, help=text)
        parser.add_argument("names", nargs="*", metavar="NAME", help="a golden; all of them when none is named")
        parser.set_defaults(run=_guarded(run))
    parser = verbs.add_parser("accept", help="make a pending golden the golden")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--because", required=True, metavar="TEXT", help="the reason, kept in the record")
    parser.set_defaults(run=_guarded(accept))
    return golden


Command = Callable[[argparse.Namespace], int]


def _guarded(run: Command) -> Command:
    """``run``, with an error of a golden or a file on one line and exit code 2."""

    def guarded(arguments: argparse.Namespace) -> int:
        try:
            return run(arguments)
        except BrokenPipeError:
            raise
        except (CaseError, GoldenError, OSError) as error:
            print(f"qsa golden: {error}", file=sys.stderr)
            return 2

    return guarded


def _chosen(names: list[str], known: Collection[str]) -> list[str]:
    """``names``, or all that are known when there is none. Raises GoldenError on an unknown one."""
    for name in names:
        if name not in known:
            raise GoldenError(f"name {name!r}: there is no such golden; `qsa golden list` names them")
    return names or sorted(known)


def _cases(store: Store) -> dict[str, str]:
    """Name -> case string of every golden of the grid and of the folder; the grid's case holds for both."""
    return {name: store.load(name).case for name in store.names() if name not in grid()} | grid()


def check(arguments: argparse.Namespace) -> int:
    """Hold the reference to the goldens; returns 1 when one differs, or one of the grid is missing."""
    store, failed = Store(arguments.folder), 0
    started = time.perf_counter()
    chosen = _chosen(arguments.names, {*store.names(), *grid()})
    for name in sorted({*chosen} & {*store.names()}):
        store.load(name)  # a damaged record is a bad file, before anything is computed
    for name, lines, _ in checking.check(arguments.folder, chosen):
        failed += bool(lines)
        print(f"{'differs' if lines else 'equal':8}{name}")
        for line in lines:
            print(f"        {line}")
    print(f"{len(chosen) - failed} of {len(chosen)} goldens equal, {time.perf_counter() - started:.1f} s")
    return 1 if failed else 0


def regen(arguments: argparse.Namespace) -> int:
    """Make goldens anew from the reference; returns 1 when something is pending."""
    store = Store(arguments.folder)
    cases = _cases(store)
    chosen = _chosen(arguments.names, cases)
    found = store.regenerate({name: cases[name] for name in chosen}, produce)
    for name, lines in found.items():
        print(f"pending {name}")
        for line in lines:
            print(f"        {line}")
    print(f"{len(chosen) - len(found)} of {len(chosen)} goldens equal, {len(found)} pending")
    if found:
        print("accept each with: qsa golden accept NAME --because TEXT")
    return 1 if found else 0


def accept(arguments: argparse.Namespace) -> int:
    """Make a pending golden the golden; returns 0."""
    Store(arguments.folder).accept(arguments.name, arguments.because)
    print(f"accepted {arguments.name}")
    return 0


def show(arguments: argparse.Namespace) -> int:
    """List the goldens with their case strings; returns 1 when something is pending."""
    store = Store(arguments.folder)
    stored, pending = set(store.names()), set(store.pending())
    known = {*stored, *pending, *grid()}
    for name in _chosen(arguments.names, known):
        text = store.load(name).case if name in stored else grid().get(name, "")
        state = "pending" if name in pending else "stored" if name in stored else "missing"
        print(f"{state:8}{name:52} {text}")
    return 1 if pending else 0
