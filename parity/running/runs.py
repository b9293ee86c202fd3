"""One run of ``qsa parity``: its cases in order, what it prints meanwhile, and reports that survive its end.

Standard output gets the results, standard error the progress: a bar on a terminal, a line every few seconds elsewhere.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console

from qsa.kernels.sources import content_hash, root

from .. import progress, report, report_changes, suite
from ..backend import Backend
from .interruption import name_of, sigterm_raises

WIDTH = 80
"""Columns of the table where standard output is no terminal."""

SAVED_EVERY = 5.0
"""Seconds between two reports that are written while the run goes on: a crash costs no more."""

RUNNING = "a crash"
"""What ends the run of a report that is written while it goes on, unless it is written again."""

PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}
"""A case string is printed as it is: no markup, no colours, not broken over lines."""


@dataclass
class Options:
    """How cases are run and printed.

    verbose     whether every comparison is printed, as of a single case
    exit_first  whether the first failure ends the run
    slowest     number of the slowest cases that are listed at the end
    save        is called with the report of what is finished, every few seconds; None: nowhere
    save_every  seconds between two of these
    repeats     how often the calls of a case are made
    public      fresh case -> the case with the public seed that it repeats
    """

    verbose: bool = False
    exit_first: bool = False
    slowest: int = 0
    save: Callable[[suite.Tally], object] | None = None
    save_every: float = SAVED_EVERY
    repeats: int = 1
    public: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Run:
    """A run on ``backend``.

    earlier  the results that an interrupted run has left
    results  gives the results of cases as they are finished, in any order; None: they run here, one after the other
    """

    backend: Backend
    console: Console
    options: Options = field(default_factory=Options)
    earlier: Mapping[str, suite.Result] = field(default_factory=dict)
    results: Callable[[Sequence[suite.Case]], Iterator[suite.Result]] | None = None

    def __call__(self, cases: Sequence[suite.Case]) -> suite.Tally:
        """Run ``cases`` that have no earlier result, in order. Ctrl-C and SIGTERM end the run: the tally says so."""
        tally = suite.Tally([self.earlier[case.text] for case in cases if case.text in self.earlier])
        due = [case for case in cases if case.text not in self.earlier]
        work = progress.Work("qsa parity", len(due))
        work.begin("", len(due))
        try:
            with sigterm_raises(), progress.shown("qsa parity", work=work):
                self._run(due, tally, work)
        except KeyboardInterrupt as error:
            tally.interrupted = name_of(error)
        order = {case.text: number for number, case in enumerate(cases)}
        tally.results.sort(key=lambda result: order[result.case.text])
        return tally

    def _run(self, due: Sequence[suite.Case], tally: suite.Tally, work: progress.Work) -> None:
        saved = time.monotonic()
        for number, made in enumerate(self._results(due, work), 1):
            result = self._told(made, tally)
            tally.results.append(result)
            work.advance()
            self._print(result)
            if self.options.exit_first and result.status == "failed" and number < len(due):
                tally.interrupted = "the first failure"
                return
            if self.options.save is not None and time.monotonic() - saved >= self.options.save_every:
                tally.interrupted = RUNNING
                self.options.save(tally)
                tally.interrupted, saved = "", time.monotonic()

    def _results(self, due: Sequence[suite.Case], work: progress.Work) -> Iterator[suite.Result]:
        if self.results is None:
            for case in due:
                work.note = case.text
                yield suite.run_case(case, self.backend, self.options.repeats)
            return
        # A fresh case is judged by what became of the one with the public seed, so that comes first.
        fresh = [case for case in due if case.text in self.options.public]
        for cases in ([case for case in due if case.text not in self.options.public], fresh):
            if cases:
                yield from self.results(cases)

    def _told(self, result: suite.Result, tally: suite.Tally) -> suite.Result:
        """A fresh failure says so where the case with its public seed passed."""
        public = self.options.public.get(result.case.text)
        passed = any(one.case.text == public and one.status == "passed" for one in tally.results)
        if result.status != "failed" or not passed:
            return result
        return replace(result, reason="\n".join(filter(None, (suite.MEMORISED, result.reason))))

    def _print(self, result: suite.Result) -> None:
        """Print a result; on a terminal, where a bar counts them, only a failure. The reasons of what is unsupported
        come at the end, each once."""
        every = self.options.verbose or not self.console.is_terminal
        if not every and result.status != "failed":
            return
        self.console.print(f"{result.status:12}{result.case.text}  {result.seconds:.2f} s", **PLAIN)
        if result.status != "unsupported" or self.options.verbose:
            for line in result.lines(self.backend, self.options.verbose):
                self.console.print(line, **PLAIN)


def console() -> Console:
    """Of standard output: as wide as the terminal, else :data:`WIDTH`."""
    terminal = sys.stdout.isatty()
    return Console(file=sys.stdout, width=None if terminal else WIDTH, force_terminal=terminal)


def conclusion(tally: suite.Tally, slowest: int = 0) -> Iterator[str]:
    """The counts, each reason of what is unsupported with the number of its cases, the slowest cases."""
    failed, passed, unsupported = (tally.count(status) for status in ("failed", "passed", "unsupported"))
    yield f"{passed} passed, {failed} failed, {unsupported} unsupported"
    reasons = Counter(result.reason or "no reason given" for result in tally.results if result.status == "unsupported")
    for reason, count in reasons.most_common():
        yield f"  unsupported, {count} case{'s' if count > 1 else ''}: {reason}"
    ranked = sorted(tally.results, key=lambda result: -result.seconds)[:slowest]
    for result in ranked:
        yield f"  slowest: {result.seconds:6.2f} s  {result.case.text}"
    if tally.interrupted:
        yield f"interrupted by {tally.interrupted}: the report holds the {len(tally.results)} cases that were finished"
    elif not passed and not failed:
        yield "nothing passed: a run that held nothing together is not a success (exit 1)"


def sources_hash(backend: str) -> str:
    """Hash of the sources that a report speaks of: those of this project, and the file of a backend that is one."""
    files = {path.relative_to(root()).as_posix(): path for name in FOLDERS for path in (root() / name).rglob("*.py")}
    found = {name: files[name].read_bytes() for name in sorted(files)}
    place = backend.partition(":")[0]
    if place.endswith(".py"):
        with open(place, "rb") as file:
            found["backend"] = file.read()
    return content_hash(found)


FOLDERS = ("reference", "kernels", "model", "engine", "golden", "parity")
"""Folders of this project."""


def earlier(path: str, environment: Mapping[str, Any]) -> dict[str, suite.Result]:
    """Case string -> result of the report ``path``, which was made in ``environment``.

    Raises ValueError, naming what differs, when it was made in another one, and OSError.
    """
    found = report_changes.load(path)
    for name, (then, now) in report_changes.environment_changes(found.environment, environment).items():
        raise ValueError(f"--resume = {path!r}: {name} was {then!r} and is {now!r}: run all cases anew")
    return {one.case: report.restored(one) for one in found.cases}
