"""The run behind ``qsa evidence run``: sections, each of steps, each a child process with a time limit of its own.

After every step the record is written anew, so that a machine which goes away leaves every finished step.
"""

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qsa.golden import device_records as evidence
from qsa.golden import sources
from qsa.reference.exact import CONTRACT

from .. import suite
from . import process, readers

REPEATS = 250
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")


@dataclass(frozen=True)
class Step:
    """One child process.

    command  arguments of the interpreter; ``{out}`` is the file that the child writes
    read     function of that file's path and the :class:`~.process.Finished`: status, reason and results
    seconds  time limit
    tool     command in front of the interpreter
    """

    name: str
    command: tuple[str, ...]
    read: Callable[[Path, process.Finished], readers.Reading]
    seconds: float = 420.0
    tool: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The command for a reader, ready for a shell."""
        return " ".join([*self.tool, "python", *self.command])


def _parity_steps() -> Iterator[Step]:
    for name, module in suite.MODULES.items():
        for arithmetic in ("exact", "float"):
            if any(True for _ in module.cases(arithmetic)):
                command: tuple[str, ...] = (
                    "-m",
                    "qsa.parity.cli",
                    "parity",
                    name,
                    "--backend",
                    "cuda",
                    "--arithmetic",
                    arithmetic,
                )
                command += ("--full",) if hasattr(module, "more_cases") else ()
                yield Step(f"{name}-{arithmetic}", (*command, "--json", "{out}"), readers.read_parity)


def _test_steps() -> Iterator[Step]:
    options = ("-q", "-p", "no:cacheprovider", "--junitxml", "{out}")
    for path in sorted(process.ROOT.glob("tests/gpu/test_*.py")):
        # A file at a time: a kernel that leaves the device unusable fails no other file's tests.
        name = path.stem.removeprefix("test_")
        yield Step(name, ("-m", "pytest", os.path.relpath(path), *options), readers.read_tests)


def _repeat_steps() -> Iterator[Step]:
    command = ("-m", "qsa.parity.evidence.repeats", "--backend", "cuda", "--json", "{out}")
    for arithmetic in ("exact", "float"):
        yield Step(arithmetic, (*command, "--arithmetic", arithmetic, "--repeats", str(REPEATS)), readers.read_repeats)


def _sanitizer_steps() -> Iterator[Step]:
    command = ("-m", "qsa.parity.evidence.repeats", "--backend", "cuda", "--repeats", "1", "--reduced", "--no-pool")
    for tool in TOOLS:
        for arithmetic in ("exact", "float"):
            # The bindings look for driver functions that may be missing: that is no fault of memory.
            options = ("--report-api-errors", "no") if tool == "memcheck" else ()
            prefix, child = ("compute-sanitizer", "--tool", tool, *options), (*command, "--arithmetic", arithmetic)
            yield Step(f"{tool}-{arithmetic}", child, readers.read_sanitizer, seconds=500, tool=prefix)


def _benchmark_steps() -> Iterator[Step]:
    yield Step("timings", ("-m", "qsa.parity.bench.operations", "--json", "{out}"), readers.read_benchmark)
    yield Step("switches", ("-m", "qsa.parity.bench.switches", "--json", "{out}"), readers.read_switches)
    engine = "-m", "qsa.parity.bench.engine", "--backends", "cuda", "--drafts", "0", "4", "--tokens", "96"
    yield Step("engine", (*engine, "--json", "{out}"), readers.read_figures)


SECTIONS: dict[str, Callable[[], Iterable[Step]]] = {
    "benchmark": _benchmark_steps,
    "repeats": _repeat_steps,
    "tests": _test_steps,
    "sanitizer": _sanitizer_steps,
    "parity": _parity_steps,
}
"""Name -> function that gives the section's steps, in the order in which they run: the shortest first, so that a
device which goes away early leaves most of them."""


ALONE = ("benchmark",)
"""Sections whose steps run with no other on the device: another step would change their times."""


def chosen(names: Iterable[str] | None) -> dict[str, list[Step]]:
    """section -> steps for a list of ``SECTION`` or ``SECTION/STEP``. Raises ValueError on one that is not known."""
    plan: dict[str, list[Step]] = {}
    for text in names or SECTIONS:
        section, _, name = text.partition("/")
        if section not in SECTIONS:
            raise ValueError(f"section {text!r}: allowed are {', '.join(SECTIONS)}")
        steps = list(SECTIONS[section]())
        if name and name not in [step.name for step in steps]:
            raise ValueError(f"section {text!r}: steps of {section} are {', '.join(step.name for step in steps)}")
        kept = plan.setdefault(section, [])
        kept += [step for step in steps if name in ("", step.name) and step not in kept]
    return plan


def not_recorded(record: evidence.Evidence) -> list[str]:
    """``SECTION/STEP`` of every step of a whole run that ``record`` does not hold."""
    held = {f"{name}/{step.name}" for name, found in record.sections.items() for step in found.steps}
    return [
        name
        for section, steps in SECTIONS.items()
        for step in steps()
        if (name := f"{section}/{step.name}") not in held
    ]


def run_step(step: Step, driver: str, seconds: float | None = None) -> evidence.Step:
    """Run one step for at most ``seconds`` (its own limit unless given); returns it as the record holds it."""

    def result(status: Any, reason: str, results: dict[str, Any], spent: float) -> evidence.Step:
        return evidence.Step(
            name=step.name,
            date=evidence.today(),
            driver=driver,
            status=status,
            reason=process.impersonal(reason),
            seconds=round(spent, 2),
            command=step.text.replace("{out}", "FILE"),
            results=results,
        )

    limit = step.seconds if seconds is None else min(step.seconds, seconds)
    if limit <= 0:
        return result("failed", evidence.NOT_STARTED, {}, 0.0)
    if step.tool and shutil.which(step.tool[0]) is None:
        return result("unsupported", f"{step.tool[0]} is not installed", {}, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report"
        command = [*step.tool, sys.executable, *(str(path) if part == "{out}" else part for part in step.command)]
        finished = process.run(command, limit)
        if "{out}" in step.command and not path.is_file():
            return result("failed", finished.reason, {}, finished.seconds)
        try:
            status, reason, results = step.read(path, finished)
            # Checked here and not only when the record is written, so that a wrong report fails its own step alone.
            evidence.check_results(results, step.name, "results")
        except (ValueError, KeyError, TypeError) as error:
            status, reason, results = "failed", f"{type(error).__name__} in its report: {error}; {finished.reason}", {}
    if finished.code is None or finished.code < 0:
        status, reason = "failed", finished.reason
    return result(status, reason, results, finished.seconds)


def device_facts(seconds: float = 120) -> dict[str, Any]:
    """Dict of ``device``, ``driver`` and ``versions`` of the CUDA device, found in a child. Raises ValueError saying
    why there is none."""
    finished = process.run([sys.executable, "-m", "qsa.parity.bench.device"], seconds)
    lines = finished.output.splitlines()
    if finished.code != 0 or not lines:
        raise ValueError(f"no CUDA device: {finished.reason}")
    return json.loads(lines[-1])


def run(
    plan: dict[str, list[Step]],
    path: Path | str,
    facts: dict[str, Any],
    base: Any = None,
    seconds: float | None = None,
    jobs: int = 1,
    on_step: Callable[[str, evidence.Step], object] = lambda section, step: None,
) -> Any:
    """Run the steps of ``plan`` and write the record to ``path`` after each of them; returns the record.

    facts    as :func:`device_facts` gives them
    base     a record to add to, or None
    seconds  for the whole run, or None: every step has its own limit alone
    jobs     steps that run at a time; those of :data:`ALONE` have the device for themselves
    on_step  called with the section's name and every finished step
    """
    deadline = None if seconds is None else time.perf_counter() + seconds
    fingerprint, record = sources.fingerprint(), base

    def start(section: str, step: Step) -> tuple[str, evidence.Step]:
        left = None if deadline is None else deadline - time.perf_counter()
        return section, run_step(step, facts["driver"], left)

    def finished() -> Generator[tuple[str, evidence.Step], None, None]:
        alone = [(section, step) for section in plan if section in ALONE for step in plan[section]]
        yield from (start(*step) for step in alone)
        with ThreadPoolExecutor(jobs) as pool:
            others = [(section, step) for section in plan if section not in ALONE for step in plan[section]]
            started = [pool.submit(start, *step) for step in others]
            try:
                yield from (future.result() for future in as_completed(started))
            except BaseException:
                # An interrupted run does not wait for what it started.
                pool.shutdown(wait=False, cancel_futures=True)
                while not all(future.done() for future in started):
                    # Repeated: a child may be about to start.
                    process.stop()
                    time.sleep(0.05)
                raise

    with contextlib.closing(finished()) as found:
        for section, done in found:
            sections = {section: evidence.section([done])}
            name, device, versions = Path(path).stem, evidence.Device(**facts["device"]), facts["versions"]
            new = evidence.make(name, CONTRACT, device, versions, fingerprint, sections)
            record = new if record is None else evidence.merged(record, new)
            evidence.write(path, record)
            on_step(section, done)
    return record
