"""Two reports of ``qsa bench`` compared: what is newly wrong, and what takes another time."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import asdict

from ..report_changes import environment_changes
from .document import time_text
from .results import Bench, Timing

FAILED = ("wrong", "impossible")


@dataclass
class Changes:
    """What differs between two reports; timings in the order of the second.

    failed          wrong or impossible now, and not before
    lost            timed before, and unsupported now
    slower, faster  (before, now): the time is more than ``factor`` times the other
    added, gone     in one of the reports alone
    """

    failed: list[Timing] = field(default_factory=list)
    lost: list[Timing] = field(default_factory=list)
    slower: list[tuple[Timing, Timing]] = field(default_factory=list)
    faster: list[tuple[Timing, Timing]] = field(default_factory=list)
    added: list[Timing] = field(default_factory=list)
    gone: list[Timing] = field(default_factory=list)
    environment: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    unchanged: int = 0


def diff(before: Bench, now: Bench, factor: float) -> Changes:
    """The :class:`Changes` from one report to the next. Raises ValueError unless the factor is above 1 and finite."""
    if not 1 < factor < math.inf:
        raise ValueError(f"factor = {factor}: must be above 1 and finite")
    found = Changes(environment=environment_changes(before.environment, now.environment))
    old, new = ({(one.contestant, one.case): one for one in bench.timings} for bench in (before, now))
    found.gone = [one for key, one in old.items() if key not in new]
    for key, one in new.items():
        earlier = old.get(key)
        if earlier is None:
            found.added.append(one)
        if one.status in FAILED and (earlier is None or earlier.status not in FAILED):
            found.failed.append(one)
        elif earlier is not None and earlier.status == "timed" and one.status == "unsupported":
            found.lost.append(one)
        elif earlier is not None and earlier.us is not None and one.us is not None:
            if one.us > factor * earlier.us:
                found.slower.append((earlier, one))
            elif earlier.us > factor * one.us:
                found.faster.append((earlier, one))
            else:
                found.unchanged += 1
    return found


def lines(found: Changes) -> Iterator[str]:
    """The changes as text, the worst first."""
    for name, (before, now) in found.environment.items():
        yield f"environment   {name}: {before} became {now}"
    for word, chosen in (("newly wrong", found.failed), ("not timed", found.lost)):
        for one in chosen:
            yield f"{word:14}{one.contestant}: {one.case}: {one.reason}"
    for word, pairs in (("slower", found.slower), ("faster", found.faster)):
        for earlier, one in pairs:
            assert earlier.us is not None and one.us is not None
            yield f"{word:14}{one.contestant}: {one.case}: {time_text(earlier.us)} became {time_text(one.us)}"
    for word, chosen in (("added", found.added), ("gone", found.gone)):
        if chosen:
            yield f"{word:14}{len(chosen)} cases"
    yield (
        f"{len(found.failed)} newly wrong, {len(found.lost)} timed no longer, {len(found.slower)} slower, "
        f"{len(found.faster)} faster, {found.unchanged} unchanged"
    )
    if found.slower or found.faster:
        yield "two runs at two times: `qsa bench --against` and `qsa gate --only speed` let kernels take turns"


def as_json(found: Changes) -> dict[str, Any]:
    """The changes as plain values."""

    def named(chosen: Sequence[Timing]) -> list[dict[str, Any]]:
        return [{name: asdict(one)[name] for name in ("contestant", "case", "status", "reason")} for one in chosen]

    def times(pairs: Sequence[tuple[Timing, Timing]]) -> list[dict[str, Any]]:
        return [{"contestant": now.contestant, "case": now.case, "us": [before.us, now.us]} for before, now in pairs]

    return {
        "failed": named(found.failed),
        "lost": named(found.lost),
        "slower": times(found.slower),
        "faster": times(found.faster),
        "added": named(found.added),
        "gone": named(found.gone),
        "environment": {name: list(pair) for name, pair in found.environment.items()},
        "unchanged": found.unchanged,
    }
