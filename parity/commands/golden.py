"""``qsa golden check | regen | accept | list``.

Exit codes: 0 equal, 1 different or pending, 2 bad arguments or files.
"""

import argparse
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

from qsa.golden import recompute as checking
from qsa.golden.cache import Cache
from qsa.golden.case import CaseError
from qsa.golden.families import grid, produce
from qsa.golden.record import GoldenError
from qsa.golden.store import RECORDS, Store
from qsa.kernels.sources import root

from .. import progress


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Add the command ``golden`` to the subparsers of an ``argparse`` parser; its ``run`` default takes the parsed
    arguments and returns the exit code."""
    golden = subparsers.add_parser("golden", help="check, regenerate and accept goldens")
    golden.add_argument("--folder", metavar="FOLDER", help="folder of the records (default: the installed ones)")
    verbs = golden.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb, run, text in (
        ("check", check, "hold the reference to the goldens"),
        ("regen", regen, "make goldens anew from the reference; what differs becomes pending"),
        ("list", show, "list the goldens"),
    ):
        parser = verbs.add_parser(verb, help=text)
        parser.add_argument("names", nargs="*", metavar="NAME", help="a golden; all of them when none is named")
        if verb == "check":
            parser.add_argument(
                "--fresh", action="store_true", help="compute every golden, whatever was computed before"
            )
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


def _read(arguments: argparse.Namespace) -> Store:
    """The store of ``--folder``. Raises GoldenError when there is no such folder."""
    folder = Path(arguments.folder or RECORDS)
    if not folder.is_dir():
        raise GoldenError(f"--folder = {str(folder)!r}: there is no such folder")
    return Store(folder)


def _written(arguments: argparse.Namespace) -> Store:
    """The store that ``regen`` and ``accept`` write to. Raises GoldenError when that would be an installed package."""
    if arguments.folder is None and not (root() / "pyproject.toml").is_file():
        raise GoldenError(
            f"{arguments.verb}: --folder is missing: the records of an installed package are not to be written to; "
            "give a folder of your own"
        )
    return Store(arguments.folder or RECORDS)


def check(arguments: argparse.Namespace) -> int:
    """Hold the reference to the goldens; returns 2 when a record is damaged, else 1 when one differs or is missing."""
    store, started = _read(arguments), time.perf_counter()
    chosen = _chosen(arguments.names, {*store.names(), *grid()})
    cache = Cache()
    found = []
    with progress.shown("qsa golden check") as work:

        def plan(seconds: dict[str, float]) -> None:
            expected.update(seconds)
            total = sum(seconds.values())
            note = f"{len(seconds)} of {len(chosen)} goldens to compute"
            work.begin(note, total, estimate=total / checking.workers(len(seconds)))

        expected: dict[str, float] = {}
        for one in checking.check(store.folder, chosen, cache, arguments.fresh, on_plan=plan):
            found.append(one)
            work.advance(expected.get(one.name, 0.0))
            print(f"{one.status:8}{one.name}", flush=True)
            for line in one.lines:
                print(f"        {line}", flush=True)
    for one in found:
        if one.status == "damaged":
            print(f"qsa golden: {one.lines[0]}", file=sys.stderr)
    if cache.trouble:
        print(f"qsa golden: {cache.trouble}", file=sys.stderr)
    equal, stored = sum(one.status == "equal" for one in found), sum(one.stored for one in found)
    spent = progress.clock_text(time.perf_counter() - started)
    print(f"{equal} of {len(chosen)} goldens equal, {spent} minutes")
    if stored:
        print(
            f"{stored} of the results were computed earlier, from these sources, on this machine; --fresh computes all"
        )
    if any(one.status == "damaged" for one in found):
        return 2
    return 0 if equal == len(chosen) else 1


def regen(arguments: argparse.Namespace) -> int:
    """Make goldens anew from the reference; returns 1 when something is pending."""
    store = _written(arguments)
    cases = _cases(store)
    chosen = _chosen(arguments.names, cases)
    found = {}
    with progress.shown("qsa golden regen") as work:
        work.begin(f"{len(chosen)} goldens", len(chosen))
        for name in chosen:
            found.update(store.regenerate({name: cases[name]}, produce))
            work.advance()
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
    _written(arguments).accept(arguments.name, arguments.because)
    print(f"accepted {arguments.name}")
    return 0


def show(arguments: argparse.Namespace) -> int:
    """List the goldens with their case strings; returns 1 when something is pending."""
    store = _read(arguments)
    stored, pending = set(store.names()), set(store.pending())
    known = {*stored, *pending, *grid()}
    for name in _chosen(arguments.names, known):
        text = store.load(name).case if name in stored else grid().get(name, "")
        state = "pending" if name in pending else "stored" if name in stored else "missing"
        print(f"{state:8}{name:52} {text}")
    return 1 if pending else 0
