"""Cheats: kernels that try to pass without being right, in a process of their own, as every backend runs.

A cheat may look honest for a while: in all its cases but the last it must pass where it says so, or the row would show
no cheat but a broken kernel. The last one must fail, with the words that the row names in its report.
"""

import functools
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from .. import suite
from ..backend import Backend
from ..isolation import RemoteKernel
from ..running.runs import Options, Run
from .patching import CONTROL, FoundError, Row

ATTEND = "accuracy:op=attend,format=own,scores=ordinary,context=60,rows=1,tail=3,seed=1"
OTHER = "accuracy:op=attend,format=own,scores=ordinary,context=64,rows=1,tail=0,seed=1"
SELECT = "selection:op=select,rule=blocks,scores=continuous,context=64,rows=2,tail=3,seed=2"
AGAIN = "pages:op=again,operation=select,argument=scores,seed=61"

BEGIN = """
import ctypes, gc, hashlib, os, pickle, sys, threading, time
import numpy as np
from qsa.parity.prove.plain_kernel import PlainKernel
right = PlainKernel()
cache, append, read, select = right.cache, right.append, right.read, right.select
FOLDER = os.path.dirname(__file__)
"""

FAILED = "FAILED"


class Cheat(NamedTuple):
    """One cheat.

    name        what it tries, in words
    body        the body of ``attend(q, kv, ids, steps)``, or with ``def`` whole functions
    words       of the report of the case that catches it
    cases       case strings; those before the last must pass
    before      a body that runs the cases first, in the same folder
    repeats     how often every call is made
    fresh       whether the public case must pass and the same with a fresh seed be called memorised
    in_process  whether it runs in the judge's process, where an array keeps its address from call to call
    """

    name: str
    body: str
    words: str = FAILED
    cases: tuple[str, ...] = (ATTEND,)
    before: str = ""
    repeats: int = 1
    fresh: bool = False
    in_process: bool = False


JUDGE = "may not use the judge's own arithmetic"

CHEATS = (
    Cheat("imports the reference", "import qsa.reference.attend", JUDGE),
    Cheat("imports the exact arithmetic", "from qsa.reference import exact", JUDGE),
    Cheat("asks the package for its function", "import qsa.reference; qsa.reference.attend", "AttributeError"),
    Cheat("calls another backend", "import qsa.kernels.cpu", JUDGE),
    Cheat(
        "patches the comparison",
        "import qsa.parity.compare.comparison as c; c.equal = c.error = lambda *a, **k: None; return q * 0",
    ),
    Cheat(
        "patches the comparison of inputs",
        "import qsa.parity.compare.input_changes as c; c.Given.check = lambda *a: None; q[...] = 0; return q + 1",
        "changed its input q",
    ),
    Cheat("gives NaN as a wildcard", "return q * np.float32('nan')"),
    Cheat("gives what empty left", "return np.empty(q.shape, np.float32)"),
    Cheat(
        "gives an array that equals everything",
        "return type('Lazy', (np.ndarray,), {'__eq__': lambda a, b: True, '__sub__': lambda a, b: 0})"
        "(q.shape, np.float32, (q * 0).tobytes())",
    ),
    Cheat(
        "searches memory for the expected array",
        "found = [x for x in gc.get_objects() if isinstance(x, np.ndarray) and x.dtype == np.float64 "
        "and x.shape == q.shape]; return found[0].astype(np.float32) if found else q * 0",
    ),
    Cheat(
        "sends a program as its answer",
        "return type('P', (), {'__reduce__': lambda s: (print, ('run',))})()",
        "must be an array",
    ),
    Cheat(
        "writes its answer late, from a thread",
        "out = np.zeros(q.shape, np.float32); "
        "threading.Timer(0.2, lambda: np.copyto(out, right.attend(q.copy(), kv, ids.copy(), steps.copy()))).start(); "
        "return out",
    ),
    Cheat(
        "keeps its answer by pointer",
        """
        kept = {}
        def select(scores, steps, rule):
            key = scores.ctypes.data, scores.shape
            if key not in kept:
                kept[key] = [ids.copy() for ids in right.select(scores, steps, rule)]
            return [ids.copy() for ids in kept[key]]
        """,
        cases=(SELECT, AGAIN),
        in_process=True,
    ),
    Cheat(
        "keeps its answer by shape, in one buffer",
        """
        kept = {}
        def attend(q, kv, ids, steps):
            if q.shape not in kept:
                kept[q.shape] = right.attend(q, kv, ids, steps)
            return kept[q.shape]
        """,
        cases=(ATTEND, OTHER),
    ),
    Cheat(
        "keeps its answer by a fingerprint",
        """
        kept = {}
        def select(scores, steps, rule):
            key = scores[::7, ::1009].tobytes(), steps.tobytes()
            if key not in kept:
                kept[key] = [ids.copy() for ids in right.select(scores, steps, rule)]
            return [ids.copy() for ids in kept[key]]
        """,
        cases=(SELECT, AGAIN),
    ),
    Cheat(
        "replays answers from the disk",
        """
        def attend(q, kv, ids, steps):
            path = os.path.join(FOLDER, hashlib.sha256(q.tobytes()).hexdigest())
            return np.load(path + ".npy") if os.path.exists(path + ".npy") else q * 0
        """,
        words="memorised",
        before="""
        def attend(q, kv, ids, steps):
            out = right.attend(q, kv, ids, steps)
            np.save(os.path.join(FOLDER, hashlib.sha256(q.tobytes()).hexdigest()), out)
            return out
        """,
        fresh=True,
    ),
    Cheat(
        "is right as long as it is warmed up",
        """
        calls = []
        def attend(q, kv, ids, steps):
            calls.append(0)
            return right.attend(q, kv, ids, steps) if len(calls) < 3 else q * 0
        """,
        cases=(ATTEND, OTHER, ATTEND),
    ),
    Cheat(
        "is right one time, and another time nearly",
        """
        calls = []
        def attend(q, kv, ids, steps):
            calls.append(0)
            return right.attend(q, kv, ids, steps) * np.float32(1 if len(calls) < 8 else 1.01)
        """,
        repeats=20,
    ),
)
"""Every cheat, in order."""

SAMPLED = 4
"""Cheats of a sample, the first ones."""


def _file(folder: Path, body: str) -> str:
    """The path of a backend with ``body`` in ``folder``, a new file."""
    text = textwrap.dedent(body).strip()
    if "def " not in text:
        text = f"def attend(q, kv, ids, steps):\n    {text}"
    path = folder / f"kernel{len(list(folder.glob('kernel*.py')))}.py"
    path.write_text(f"{BEGIN}\n{text}\n")
    return str(path)


def _results(
    path: str, cases: list[suite.Case], options: Options, in_process: bool = False
) -> list[tuple[suite.Result, str]]:
    """The results of ``cases`` on the backend ``path``, by default in a process of its own, each with its report."""
    kernel = None if in_process else RemoteKernel(path)
    try:
        backend = Backend(path, None, kernel)
        tally = Run(backend, Console(quiet=True), options)(cases)
        return [(result, "\n".join(result.lines(backend))) for result in tally.results]
    finally:
        if kernel is not None:
            kernel.close()


def check(cheat: Cheat) -> str:
    """What the suite says about ``cheat`` in the case that catches it. Raises FoundError when it is not caught, or
    caught too early, or by other words."""
    cases = [suite.parse(text) for text in cheat.cases]
    options = Options(repeats=cheat.repeats)
    if cheat.fresh:
        again = {one.text: (case.text, one) for case in cases for one in suite.fresh([case])}
        options.public = {text: public for text, (public, _) in again.items()}
        cases += [one for _, one in again.values()]
    with tempfile.TemporaryDirectory() as name:
        if cheat.before:
            _results(_file(Path(name), cheat.before), cases[:1], Options())
        *honest, (last, report) = _results(_file(Path(name), cheat.body), cases, options, cheat.in_process)
    for result, text in honest:
        if result.status != "passed":
            raise FoundError(f"{result.case.text}: must pass before the cheat shows, is {result.status}: {text[:200]}")
    if last.status != "failed" or cheat.words not in report:
        raise FoundError(f"{last.case.text}: must fail with {cheat.words!r}, is {last.status}: {report[:200]}")
    line = next(line for line in report.splitlines() if cheat.words in line)
    return f"{last.case.text}: {line.strip()}"


def honest() -> str:
    """Raises FoundError unless the kernel that the cheats are made of passes their cases."""
    with tempfile.TemporaryDirectory() as name:
        path = _file(Path(name), "return right.attend(q, kv, ids, steps)")
        found = _results(path, [suite.parse(text) for text in (ATTEND, OTHER, SELECT, AGAIN)], Options())
    for result, text in found:
        if result.status != "passed":
            raise FoundError(f"{result.case.text}: must pass, is {result.status}: {text[:200]}")
    return "none, as it must be"


def count(sample: bool = False) -> int:
    """The number of :func:`rows`."""
    return 1 + (SAMPLED if sample else len(CHEATS))


def rows(sample: bool = False, on_result: Callable[[Row], object] = lambda row: None) -> list[Row]:
    """The :class:`~.patching.Row` of every cheat, behind that of the kernel that they are made of; with ``sample`` of
    the first few. ``on_result`` is called with each."""
    named = [("the right kernel", CONTROL, honest)]
    named += [
        (cheat.name, "cheats", functools.partial(check, cheat)) for cheat in CHEATS[: SAMPLED if sample else None]
    ]
    found = []
    for name, kind, run in named:
        started = time.perf_counter()
        try:
            detail = run()
            caught_by = detail if kind == CONTROL else "suite"
        except FoundError as error:
            caught_by, detail = "", str(error)
        found.append(Row(name, kind, caught_by, time.perf_counter() - started, detail))
        on_result(found[-1])
    return found
