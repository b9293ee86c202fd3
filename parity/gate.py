"""The checks behind ``qsa gate``: what must hold before a change lands, a verdict for every case.

=============  =====================================================================================================
check          cases
=============  =====================================================================================================
``goldens``    every golden, recomputed by the reference
``hashes``     the outputs of the verify-batch windows, on the CPU kernels and on a device where there is one
``sim``        tests/sim: the CUDA kernels lane by lane without a GPU
``ptx``        the tests of the generated PTX
``evidence``   the newest record of every device: fresh, stale, or with something failed
``benchmark``  on a device: every timing's share of its limit against the newest record of that device
=============  =====================================================================================================

A verdict is ``passed``, ``failed``, ``unsupported`` (could not be looked at here, with the reason) or ``stale``
(evidence of other sources). ``stale`` and ``unsupported`` fail nothing: they are printed.
"""

import importlib.util
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from qsa.golden import checking, evidence, sources
from qsa.golden.families import grid
from qsa.golden.store import Store

from . import evidence_run, process, regression, suite
from .backend import Backend

STATUSES = (*suite.STATUSES, "stale")

TESTS_SECONDS = 900
BENCHMARK_SECONDS = 420


@dataclass(frozen=True)
class Verdict(suite.Result):
    """What became of one case of one check."""

    def lines(self, backend=None, verbose=False):
        """The verdict for a reader, and the command that repeats its check."""
        yield from (f"  {line}" for line in self.reason.splitlines())
        if self.status == "failed":
            yield f"  again: qsa gate --only {self.case.module}"


def verdict(check, name, status, reason="", seconds=0.0):
    """A :class:`Verdict`."""
    return Verdict(suite.Case(check, name, {}), status, seconds, reason=reason)


def _goldens():
    store = Store()
    for name, lines, spent in checking.check(store.folder, sorted({*store.names(), *grid()})):
        yield verdict("goldens", name, "failed" if lines else "passed", "\n".join(lines), spent)


def _hashes():
    backends = ["cpu"] if _facts()[0] is None else ["cpu", "cuda"]
    for name in backends:
        backend = Backend(name, "exact")
        for case in suite.collect(["verify-batch"], "exact"):
            if case.recipe["op"] != "window":
                continue
            result = suite.run_case(case, backend)
            reason = "\n".join(line.strip() for line in result.lines(backend)) if result.status != "passed" else ""
            yield verdict("hashes", f"{name} {case.text}", result.status, reason, result.seconds)


def _tests(check, pattern):
    """Verdicts of the test files that match ``pattern``, run by pytest in a child."""
    files = sorted(process.ROOT.glob(pattern))
    if not files:
        if (process.ROOT / "tests").is_dir():
            yield verdict(check, pattern, "failed", "this checkout has tests, but none of this check's")
        else:
            yield verdict(check, pattern, "unsupported", "there are no tests: run from a checkout of the repository")
        return
    if importlib.util.find_spec("pytest") is None:
        yield verdict(check, pattern, "unsupported", "pytest is missing (extra test)")
        return
    workers = ["-n", "auto"] if importlib.util.find_spec("xdist") else []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "junit.xml"
        shown = [os.path.relpath(file) for file in files]
        command = [sys.executable, "-m", "pytest", "-q", *workers, "--junitxml", str(path), *shown]
        finished = process.run(command, TESTS_SECONDS)
        entries = process.read_junit(path) if path.is_file() else []
    for entry in entries:
        yield verdict(check, entry.name, entry.status, entry.reason, entry.seconds)
    silent = _silent(files, entries)
    # pytest ends with 5 when it ran no test: right where every file says why it is skipped.
    skipped = finished.code == 5 and not silent and all(entry.status == "unsupported" for entry in entries)
    if finished.code not in (0, 1) and not skipped:
        yield verdict(check, pattern, "failed", finished.reason, finished.seconds)
    else:
        for name in silent:
            yield verdict(check, name, "failed", "no test of this file was run and none was skipped with a reason")


def _silent(files, entries):
    """Names of the test files of which no entry speaks."""
    spoken = {part for entry in entries for part in entry.name.partition("::")[0].split(".")}
    return [file.name for file in files if file.stem not in spoken]


def _sim():
    return _tests("sim", "tests/sim/test_*.py")


def _ptx():
    return _tests("ptx", "tests/cpu/test_*ptx*.py")


def judge_evidence(record, fingerprint):
    """The :class:`Verdict` on one record, given today's ``sources.fingerprint()``."""
    changed = evidence.stale(record, fingerprint)
    failed = [f"{name}: {reason or 'failed'}" for name, reason in evidence.failed(record)]
    if changed:
        return verdict("evidence", record["name"], "stale", "\n".join(changed))
    return verdict("evidence", record["name"], "failed" if failed else "passed", "\n".join(failed))


def _evidence():
    try:
        found = evidence.newest(evidence.records())
    except evidence.EvidenceError as error:
        yield verdict("evidence", "records", "failed", str(error))
        return
    if not found:
        yield verdict("evidence", "records", "unsupported", "missing: there is no evidence of a run on a device")
    fingerprint = sources.fingerprint()
    for record in found.values():
        yield judge_evidence(record, fingerprint)
        missing = evidence_run.not_recorded(record)
        if missing:
            lines = ["not recorded: it says nothing of", *missing]
            yield verdict("evidence", f"{record['name']}, the rest", "unsupported", "\n".join(lines))


@cache
def _facts():
    """(facts of this machine's CUDA device or None, why there is none)."""
    try:
        return evidence_run.device_facts(), ""
    except ValueError as error:
        return None, str(error).splitlines()[-1]


def measure(names=()):
    """The report of :mod:`benchmark` of the cases ``names``, or of all. Raises ValueError when there is none."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        command = [sys.executable, "-m", "qsa.parity.benchmark", "--json", str(path)]
        finished = process.run([*command, *(["--cases", *names] if names else [])], BENCHMARK_SECONDS)
        if not path.is_file():
            raise ValueError(f"the benchmark gave no report: {finished.reason}")
        return json.loads(path.read_text())


def clocks(record):
    """Clocks at the end of the benchmark of a record, or None."""
    steps = record["sections"].get("benchmark", {"steps": []})["steps"]
    return next((step["results"]["clocks"].get("end") for step in steps if "clocks" in step["results"]), None)


def judge_benchmark(record, report, again):
    """Verdicts of the rows of ``report`` against those of ``record``. ``again``: case names -> report, of those that
    were slower. What is said about the clocks stands with every failed case."""

    def measured_again(names):
        return {row["case"]: row for row in again(names)["rows"]}

    measured = {row["case"]: row for row in report["rows"]}
    notes = regression.clock_notes(clocks(record), report["clocks"].get("end"))
    for one in regression.compare(evidence.rows(record), measured, measured_again):
        reason = one.reason
        if one.case not in measured and one.case in report["unsupported"]:
            reason = f"{reason}: {report['unsupported'][one.case]}"
        lines = [reason, *notes] if one.status == "failed" else [reason]
        yield verdict("benchmark", one.case, one.status, "\n".join(lines))


def _benchmark():
    facts, why = _facts()
    if facts is None:
        yield verdict("benchmark", "device", "unsupported", why)
        return
    try:
        known = [record for record in evidence.records() if evidence.rows(record)]
        record = evidence.newest(known).get(facts["device"]["name"])
        report = measure()
    except ValueError as error:
        yield verdict("benchmark", "report", "failed", str(error))
        return
    if record is None:
        for row in report["rows"]:
            status = "unsupported" if row["correct"] else "failed"
            reason = "no evidence of this device to compare with" if row["correct"] else "wrong result: it has no speed"
            yield verdict("benchmark", row["case"], status, reason)
        return
    yield from judge_benchmark(record, report, measure)


CHECKS = {
    "goldens": _goldens,
    "hashes": _hashes,
    "ptx": _ptx,
    "sim": _sim,
    "evidence": _evidence,
    "benchmark": _benchmark,
}
"""Name -> function that gives the check's verdicts, in the order in which they run."""


def chosen(names):
    """The checks ``names`` in order, all of them when none is named. Raises ValueError on an unknown one."""
    for name in names or ():
        if name not in CHECKS:
            raise ValueError(f"check {name!r}: allowed are {', '.join(CHECKS)}")
    return [name for name in CHECKS if not names or name in names]


def run(names, heard=lambda verdict: None):
    """The :class:`suite.Tally` of the checks ``names``; ``heard`` is called with every verdict. A check that breaks is
    a failed verdict of its own, and the others run."""
    tally = suite.Tally()

    def note(one):
        tally.results.append(one)
        heard(one)

    for name in names:
        try:
            for one in CHECKS[name]():
                note(one)
        except Exception as error:
            note(verdict(name, name, "failed", process.impersonal(f"{type(error).__name__}: {error}")))
    return tally
