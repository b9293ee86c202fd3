"""Reading the reports of the steps' children: each reader gives a status, a reason and the results for the record."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from qsa.golden import device_records as evidence

from . import process

SHOWN = 20
"""Failures of a step that are recorded by name; their number is recorded always."""

Reading = tuple[str, str, dict[str, Any]]
"""Status, reason and results of a step."""


def _counts(entries: Iterable[tuple[str, str, str]]) -> Reading:
    """(status, reason, results) of (name, status, reason) triples."""
    entries = list(entries)
    tally = Counter(status for _, status, _ in entries)
    failures = [{"case": name, "reason": reason} for name, status, reason in entries if status == "failed"]
    unsupported = Counter(reason for _, status, reason in entries if status == "unsupported")
    results: dict[str, Any] = {status: tally[status] for status in evidence.STATUSES}
    results |= {"failures": failures[:SHOWN], "reasons": dict(sorted(unsupported.items()))}
    return evidence.overall(tally), "", results


def read_parity(path: Path, finished: process.Finished) -> Reading:
    """A report of ``qsa parity --json``; one of an interrupted run is a failure of its own."""
    found = json.loads(path.read_text())
    cases = found["cases"]
    entries = []
    for case in cases:
        detail = case["detail"]
        bad = [f"{found['name']}: {found['measure']}" for found in detail["comparisons"] if not found["passed"]]
        entries.append((case["case"], case["status"], process.impersonal(detail["reason"] or "; ".join(bad))))
    status, reason, results = _counts(entries)
    if "interrupted" in found:
        status, reason = "failed", f"interrupted by {found['interrupted']}: {finished.reason}"
    measured = [case["share"] for case in cases if case["share"] is not None]
    return status, reason, {**results, "worst_share": max(measured, default=None)}


def read_tests(path: Path, finished: process.Finished) -> Reading:
    """pytest's JUnit file; an exit status other than its 0 and 1 (all passed, some failed) is a failure of its own."""
    status, reason, results = _counts((entry.name, entry.status, entry.reason) for entry in process.read_junit(path))
    return ("failed", finished.reason, results) if finished.code not in (0, 1) else (status, reason, results)


def read_repeats(path: Path, finished: process.Finished) -> Reading:
    """A report of ``evidence/repeats.py``: rows with ``case``, ``status``, ``reason``, ``repeats`` and ``digests``."""
    rows = json.loads(path.read_text())["rows"]
    status, reason, results = _counts((row["case"], row["status"], row["reason"]) for row in rows)
    return status, reason, {**results, "rows": rows}


def read_benchmark(path: Path, finished: process.Finished) -> Reading:
    """A report of ``bench/operations.py``: ``rows``, ``limits``, ``clocks`` and ``unsupported``."""
    results = json.loads(path.read_text())
    wrong = [row["case"] for row in results["rows"] if not row["correct"]]
    if wrong:
        return "failed", f"wrong results: {', '.join(wrong)}", results
    if finished.code != 0:
        # Rows are written one by one; those measured before a crash are kept.
        return "failed", finished.reason, results
    return ("passed" if results["rows"] else "unsupported"), "", results


def read_switches(path: Path, finished: process.Finished) -> Reading:
    """A report of ``bench/switches.py``: ``switches``, rows of :data:`qsa.golden.device_records.SWITCH`. It stops at
    the first switch whose two sides give different bytes."""
    results = json.loads(path.read_text())
    return ("passed", "", results) if finished.code == 0 else ("failed", finished.reason, results)


def read_figures(path: Path, finished: process.Finished) -> Reading:
    """A report of figures, case -> name -> number, such as that of ``bench/engine.py``. It ends with another exit code
    where texts differ."""
    results = {"figures": json.loads(path.read_text())}
    return ("passed", "", results) if finished.code == 0 else ("failed", finished.reason, results)


def read_sanitizer(path: Path, finished: process.Finished) -> Reading:
    """The output of compute-sanitizer; passed only on its own verdict of 0 errors and a program that ended with 0."""
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


def _clean(line: str) -> bool:
    """Whether a line such as ``RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)`` counts nothing."""
    counts = re.findall(r"(\d+) (?:error|hazard|warning)", line)
    return bool(counts) and not any(map(int, counts))
