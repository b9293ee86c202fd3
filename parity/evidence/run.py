"""The run behind ``qsa evidence run``: sections, each of steps, each a child process with a time limit of its own.

After every step the record is written anew, so a machine that goes away leaves all that was finished.
"""

import contextlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from qsa.golden import device_records as evidence
from qsa.golden import sources
from qsa.reference.exact import CONTRACT

from .. import suite
from . import process

REPEATS = 250
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
SHOWN = 20
"""Failures of a step that are recorded by name; their number is recorded always."""


@dataclass(frozen=True)
class Step:
    """One child: ``command`` behind the interpreter (``{out}`` stands for a file that it writes), ``read``: (path of
    that file, Finished) -> (status, reason, results), ``seconds`` at most, ``tool`` in front of the interpreter."""

    name: str
    command: tuple[str, ...]
    read: object
    seconds: float = 420.0
    tool: tuple[str, ...] = ()

    @property
    def text(self):
        """The command for a reader, ready for a shell."""
        return " ".join([*self.tool, "python", *self.command])


def _counts(entries):
    """(status, reason, results) of (name, status, reason) triples."""
    tally = Counter(status for _, status, _ in entries)
    failures = [{"case": name, "reason": reason} for name, status, reason in entries if status == "failed"]
    unsupported = Counter(reason for _, status, reason in entries if status == "unsupported")
    results = {status: tally[status] for status in evidence.STATUSES}
    results |= {"failures": failures[:SHOWN], "reasons": dict(sorted(unsupported.items()))}
    return evidence.overall(tally), "", results


def read_parity(path, finished):
    """A report of ``qsa parity --json``."""
    cases = json.loads(path.read_text())["cases"]
    entries = []
    for case in cases:
        detail = case["detail"]
        bad = [f"{one['name']}: {one['measure']}" for one in detail["comparisons"] if not one["passed"]]
        entries.append((case["case"], case["status"], process.impersonal(detail["reason"] or "; ".join(bad))))
    status, reason, results = _counts(entries)
    measured = [case["share"] for case in cases if case["share"] is not None]
    return status, reason, {**results, "worst_share": max(measured, default=None)}


def read_tests(path, finished):
    """pytest's JUnit file; an exit status other than its 0 and 1 (all passed, some failed) is a failure of its own."""
    status, reason, results = _counts([(one.name, one.status, one.reason) for one in process.read_junit(path)])
    return ("failed", finished.reason, results) if finished.code not in (0, 1) else (status, reason, results)


def read_repeats(path, finished):
    """A report of ``parity.repeats``: rows with ``case``, ``status``, ``reason``, ``repeats`` and ``digests``."""
    rows = json.loads(path.read_text())["rows"]
    status, reason, results = _counts([(row["case"], row["status"], row["reason"]) for row in rows])
    return status, reason, {**results, "rows": rows}


def read_benchmark(path, finished):
    """A report of ``parity.benchmark``: ``rows``, ``limits``, ``clocks`` and ``unsupported``."""
    results = json.loads(path.read_text())
    wrong = [row["case"] for row in results["rows"] if not row["correct"]]
    if wrong:
        return "failed", f"wrong results: {', '.join(wrong)}", results
    if finished.code != 0:
        # Rows are written one by one; those measured before a crash stand.
        return "failed", finished.reason, results
    return ("passed" if results["rows"] else "unsupported"), "", results


def read_switches(path, finished):
    """A report of ``parity.verify_bench``: ``switches``, rows of :class:`qsa.golden.device_records.Switch`. It stops
    at the first switch whose two sides give different bytes."""
    results = json.loads(path.read_text())
    return ("passed", "", results) if finished.code == 0 else ("failed", finished.reason, results)


def read_sanitizer(path, finished):
    """What compute-sanitizer printed; passed only on its own verdict of 0 errors and a program that ended well."""
    lines = [line.lstrip("= ").rstrip() for line in finished.output.splitlines() if line.startswith("=========")]
    verdicts = [line for line in lines if "SUMMARY" in line]
    results = {
        "verdict": verdicts,
        "findings": [process.impersonal(line) for line in lines if line not in verdicts][:SHOWN],
    }
    if any("Device not supported" in line for line in lines):
        return "unsupported", "compute-sanitizer: Device not supported", results
    clean = bool(verdicts) and all(_clean(line) for line in verdicts)
    return ("passed", "", results) if clean and finished.code == 0 else ("failed", finished.reason, results)


def _clean(line):
    """Whether a line such as ``RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)`` counts nothing."""
    counts = re.findall(r"(\d+) (?:error|hazard|warning)", line)
    return bool(counts) and not any(map(int, counts))


def _parity_steps():
    for name, module in suite.MODULES.items():
        for arithmetic in ("exact", "float"):
            if any(True for _ in module.cases(arithmetic)):
                command = ("-m", "qsa.parity.cli", "parity", name, "--backend", "cuda", "--arithmetic", arithmetic)
                command += ("--full",) if hasattr(module, "more_cases") else ()
                yield Step(f"{name}-{arithmetic}", (*command, "--json", "{out}"), read_parity)


def _test_steps():
    options = ("-q", "-p", "no:cacheprovider", "--junitxml", "{out}")
    for path in sorted(process.ROOT.glob("tests/gpu/test_*.py")):
        # A file at a time: a kernel that leaves the device unusable takes no other file's tests with it.
        name = path.stem.removeprefix("test_")
        yield Step(name, ("-m", "pytest", os.path.relpath(path), *options), read_tests)


def _repeat_steps():
    command = ("-m", "qsa.parity.evidence.repeats", "--backend", "cuda", "--json", "{out}")
    for arithmetic in ("exact", "float"):
        yield Step(arithmetic, (*command, "--arithmetic", arithmetic, "--repeats", str(REPEATS)), read_repeats)


def _sanitizer_steps():
    command = ("-m", "qsa.parity.evidence.repeats", "--backend", "cuda", "--repeats", "1", "--reduced", "--no-pool")
    for tool in TOOLS:
        for arithmetic in ("exact", "float"):
            # The bindings ask a driver for entry points it may not have: an answer, not a fault of memory.
            options = ("--report-api-errors", "no") if tool == "memcheck" else ()
            prefix, asked = ("compute-sanitizer", "--tool", tool, *options), ("--arithmetic", arithmetic)
            yield Step(f"{tool}-{arithmetic}", (*command, *asked), read_sanitizer, seconds=500, tool=prefix)


def _benchmark_steps():
    yield Step("timings", ("-m", "qsa.parity.bench.operations", "--json", "{out}"), read_benchmark)
    yield Step("switches", ("-m", "qsa.parity.bench.switches", "--json", "{out}"), read_switches)


SECTIONS = {
    "benchmark": _benchmark_steps,
    "repeats": _repeat_steps,
    "tests": _test_steps,
    "sanitizer": _sanitizer_steps,
    "parity": _parity_steps,
}
"""Name -> function that gives the section's steps, in the order in which they run: the shortest first, so that a device
that goes away early leaves most."""


ALONE = ("benchmark",)
"""Sections whose steps share the device with nothing: a neighbour would be in their times."""


def chosen(names):
    """section -> steps for a list of ``SECTION`` or ``SECTION/STEP``. Raises ValueError on one that is not known."""
    plan = {}
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


def not_recorded(record):
    """``SECTION/STEP`` of every step of a whole run that ``record`` does not hold: it says nothing of them."""
    held = {f"{name}/{step.name}" for name, found in record.sections.items() for step in found.steps}
    return [
        name
        for section, steps in SECTIONS.items()
        for step in steps()
        if (name := f"{section}/{step.name}") not in held
    ]


def run_step(step, driver, seconds=None):
    """Run one step for at most ``seconds`` (its own limit unless given); returns it as the record holds it."""

    def result(status, reason, results, spent):
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
            # Here and not only where the record is written: a step that reports nonsense costs no other one.
            evidence.check_results(results, step.name, "results")
        except (ValueError, KeyError, TypeError) as error:
            status, reason, results = "failed", f"{type(error).__name__} in its report: {error}; {finished.reason}", {}
    if finished.code is None or finished.code < 0:
        status, reason = "failed", finished.reason
    return result(status, reason, results, finished.seconds)


def device_facts(seconds=120):
    """Dict of ``device``, ``driver`` and ``versions`` of the CUDA device, found in a child. Raises ValueError saying
    why there is none."""
    finished = process.run([sys.executable, "-m", "qsa.parity.bench.device"], seconds)
    lines = finished.output.splitlines()
    if finished.code != 0 or not lines:
        raise ValueError(f"no CUDA device: {finished.reason}")
    return json.loads(lines[-1])


def run(plan, path, facts, base=None, seconds=None, jobs=1, heard=lambda section, step: None):
    """Run the steps of ``plan`` and write the record to ``path`` after each of them; returns the record.

    facts    as :func:`device_facts` gives them
    base     a record to add to, or None
    seconds  for the whole run, or None: every step has its own limit alone
    jobs     steps that run at a time; those of :data:`ALONE` have the device for themselves
    heard    called with the section's name and every finished step
    """
    deadline = None if seconds is None else time.perf_counter() + seconds
    fingerprint, record = sources.fingerprint(), base

    def start(section, step):
        left = None if deadline is None else deadline - time.perf_counter()
        return section, run_step(step, facts["driver"], left)

    def finished():
        alone = [(section, step) for section in plan if section in ALONE for step in plan[section]]
        yield from (start(*one) for one in alone)
        with ThreadPoolExecutor(jobs) as pool:
            others = [(section, step) for section in plan if section not in ALONE for step in plan[section]]
            started = [pool.submit(start, *one) for one in others]
            try:
                yield from (one.result() for one in as_completed(started))
            except BaseException:
                # An interrupted run does not wait for what it started.
                pool.shutdown(wait=False, cancel_futures=True)
                while not all(one.done() for one in started):
                    # Again and again: a child may be about to start.
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
            heard(section, done)
    return record
