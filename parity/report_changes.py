"""Two reports of ``qsa parity`` or ``qsa gate`` compared, and several made one. Needs no kernel and runs nothing."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import UNSET

from qsa.golden.record import GoldenError
from qsa.golden.store import read_json
from qsa.reference.validation import convert

from .report import CaseResult, Report
from .running import shards

FACTOR, LEAST_SECONDS = 1.5, 0.5
"""A case got slower when it took so many times as long, and so many seconds more: one run each says no more."""

OF_ONE_RUN = ("seconds", "speed", "goldens", "shard", "workers")
"""Parts of a report's environment that say how one run went, and not where it ran."""

WORST_FIRST = ("failed", "stale", "unsupported", "passed")

Key = tuple[str, str]
"""Module and case string."""


@dataclass
class Changes:
    """What differs between two reports; each list in the order of the second report, or of the first for ``gone``.

    failed       fails now, and did not before
    lost         passed before, and is not checked now: unsupported, or stale
    mended       failed before, and passes now
    slower       took longer, as :data:`FACTOR` and :data:`LEAST_SECONDS` say: (before, now)
    added, gone  in one of the reports alone; what was added and fails is among the failed, too
    environment  part -> (before, now) of what differs
    unchanged    number of cases with the same status
    """

    failed: list[CaseResult] = field(default_factory=list)
    lost: list[CaseResult] = field(default_factory=list)
    mended: list[CaseResult] = field(default_factory=list)
    slower: list[tuple[CaseResult, CaseResult]] = field(default_factory=list)
    added: list[CaseResult] = field(default_factory=list)
    gone: list[CaseResult] = field(default_factory=list)
    environment: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    unchanged: int = 0


def load(path: str | Path) -> Report:
    """The report in the file ``path``. Raises ValueError naming the file and the field when it is none, and OSError."""
    try:
        return convert(read_json(path), Report)
    except GoldenError:
        raise
    except ValueError as error:
        raise ValueError(f"{path}: is no report of qsa parity or qsa gate: {error}") from error


def cases(report: Report) -> dict[Key, CaseResult]:
    """Key -> case; of one that a report holds several times the worst outcome."""
    found: dict[Key, CaseResult] = {}
    for case in report.cases:
        key = case.module, case.case
        found[key] = worse(found[key], case) if key in found else case
    return found


def worse(a: CaseResult, b: CaseResult) -> CaseResult:
    """The worse of two outcomes of one case, ``b`` when they are alike: trying again mends nothing."""
    return a if WORST_FIRST.index(a.status) < WORST_FIRST.index(b.status) else b


def is_slower(before: CaseResult, now: CaseResult, factor: float = FACTOR) -> bool:
    """Whether a case that ran both times took ``factor`` times as long, and :data:`LEAST_SECONDS` more."""
    ran = all(case.status in ("passed", "failed") for case in (before, now))
    return ran and now.seconds - before.seconds > LEAST_SECONDS and now.seconds > factor * before.seconds


def diff(before: Report, now: Report, factor: float = FACTOR) -> Changes:
    """The :class:`Changes` from one report to the next. Raises ValueError unless the factor is above 1 and finite."""
    if not 1 < factor < math.inf:
        raise ValueError(f"factor = {factor}: must be above 1 and finite")
    old, new, found = cases(before), cases(now), Changes()
    found.environment = environment_changes(before.environment, now.environment)
    found.gone = [case for key, case in old.items() if key not in new]
    for key, case in new.items():
        earlier = old.get(key)
        if earlier is None:
            found.added.append(case)
        status = "none" if earlier is None else earlier.status
        if case.status == status:
            found.unchanged += 1
        elif case.status == "failed":
            found.failed.append(case)
        elif status == "passed":
            found.lost.append(case)
        elif status == "failed" and case.status == "passed":
            found.mended.append(case)
        if earlier is not None and is_slower(earlier, case, factor):
            found.slower.append((earlier, case))
    return found


def environment_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Part -> (before, now) of what differs in where two reports were made; None where a report lacks it."""
    names = [name for name in {**before, **now} if name not in OF_ONE_RUN]
    return {name: (before.get(name), now.get(name)) for name in names if before.get(name) != now.get(name)}


def merge(reports: Sequence[Report]) -> Report:
    """One report with the cases of all. A case of several keeps its worst outcome: a failure is not tried away.

    Raises ValueError on no report, or when two were made in different environments: together they would say nothing of
    any one.
    """
    if not reports:
        raise ValueError("reports: there is none: 1 or more are needed")
    merged: dict[Key, CaseResult] = {}
    environment = dict(reports[0].environment)
    for number, report in enumerate(reports):
        differing = environment_changes(reports[0].environment, report.environment)
        for name, (first, other) in differing.items():
            raise ValueError(f"reports[{number}]: {name} is {other!r}: must be {first!r}, as in the first")
        environment |= {name: report.environment[name] for name in OF_ONE_RUN if name in report.environment}
        for key, case in cases(report).items():
            merged[key] = worse(merged[key], case) if key in merged else case
    environment |= _seconds(reports)
    parts = shards_of(reports)
    environment.pop("shard", None)
    if missing_shards(reports):
        environment["shard"] = ", ".join(parts)
    counts = {status: sum(case.status == status for case in merged.values()) for status in WORST_FIRST}
    stale = UNSET if all(report.stale is UNSET for report in reports) else counts["stale"]
    interrupted = next((report.interrupted for report in reports if report.interrupted), UNSET)
    return Report(
        interrupted=interrupted,
        passed=counts["passed"],
        failed=counts["failed"],
        unsupported=counts["unsupported"],
        stale=stale,
        environment=environment,
        cases=list(merged.values()),
    )


def shards_of(reports: Sequence[Report]) -> list[str]:
    """The shards (``K/N``) that the reports say they are of, each once."""
    found = [part for one in reports for part in str(one.environment.get("shard") or "").split(", ") if part]
    return list(dict.fromkeys(found))


def missing_shards(reports: Sequence[Report]) -> list[str]:
    """The shards that are lacking. A report that is of no shard has all cases: then none is."""
    whole = any(not one.environment.get("shard") for one in reports)
    return [] if whole else shards.missing(shards_of(reports))


def _seconds(reports: Sequence[Report]) -> dict[str, dict[str, float]]:
    """``seconds`` of the gate's checks, added up over the reports; nothing where none has them."""
    total: dict[str, float] = {}
    for report in reports:
        for name, seconds in report.environment.get("seconds", {}).items():
            total[name] = round(total.get(name, 0.0) + seconds, 1)
    return {"seconds": total} if total else {}


def lines(found: Changes) -> Iterator[str]:
    """The changes as text, the worst first."""
    for name, (before, now) in found.environment.items():
        yield f"environment   {name}: {before} became {now}"
    for word, chosen in (("newly fails", found.failed), ("not checked", found.lost), ("mended", found.mended)):
        for case in chosen:
            yield f"{word:14}{case.module}: {case.case}"
            if word != "mended":
                yield from (f"  {line}" for line in reason(case))
    for before_case, case in found.slower:
        times = f"{before_case.seconds:.1f} s became {case.seconds:.1f} s"
        yield f"{'slower':14}{case.module}: {case.case}: {times}"
    for word, chosen in (("added", found.added), ("gone", found.gone)):
        if chosen:
            modules = dict.fromkeys(case.module for case in chosen)
            yield f"{word:14}{len(chosen)} cases of {', '.join(modules)}"
    yield (
        f"{len(found.failed)} newly fail, {len(found.lost)} are checked no longer, {len(found.mended)} are mended, "
        f"{len(found.slower)} slower, {found.unchanged} unchanged"
    )
    if found.slower:
        yield "slower: seconds of one run each, set-up and compilation included; `qsa gate --only speed` judges kernels"


def reason(case: CaseResult) -> list[str]:
    """Why a case did not pass, a line each: its reason, or the comparisons that failed."""
    bad = [one for one in case.detail.comparisons if not one.passed]
    return [*case.detail.reason.splitlines(), *(f"{one.name}: {one.measure} of {one.bound} allowed" for one in bad)]


def as_json(found: Changes) -> dict[str, Any]:
    """The changes as plain values."""

    def named(chosen: Sequence[CaseResult]) -> list[dict[str, Any]]:
        return [{"module": one.module, "case": one.case, "status": one.status, "reason": reason(one)} for one in chosen]

    return {
        "failed": named(found.failed),
        "lost": named(found.lost),
        "mended": named(found.mended),
        "slower": [
            {"module": now.module, "case": now.case, "seconds": [before.seconds, now.seconds]}
            for before, now in found.slower
        ],
        "added": named(found.added),
        "gone": named(found.gone),
        "environment": {name: list(pair) for name, pair in found.environment.items()},
        "unchanged": found.unchanged,
    }
