"""Whether a speed fell: rows of a benchmark against recorded ones, each as its share of the limit of its own run.

The share and not the time is compared, so a device that clocks lower today is compared with its own limit of today.
A row is a dict with the fields of :class:`qsa.golden.device_records.Row`. This file measures nothing and reads no file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]

MARGIN = 0.05
"""Share of its speed that a case may lose beyond its recorded spread: drift between sessions on one device is 3 to
4 %."""


@dataclass(frozen=True)
class Judgement:
    """``status`` passed, failed or unsupported (no verdict is possible), and why. ``slower``: the case was measured
    and lost more than it may, so a second measurement can overturn it."""

    case: str
    status: str
    reason: str
    slower: bool = False


def spread(row: Row) -> float:
    """Width of a row's middle 80 % of times relative to their median."""
    return (row["p90_us"] - row["p10_us"]) / row["median_us"]


def judge(case: str, recorded: Row | None, measured: Row | None) -> Judgement:
    """The :class:`Judgement` of one case; ``recorded`` or ``measured`` is None where there is no such row."""
    if measured is None:
        return Judgement(case, "failed", "is in the record, but was not measured in this run")
    if not measured["correct"]:
        return Judgement(case, "failed", "wrong result: it has no speed")
    if recorded is None:
        return Judgement(case, "unsupported", "is not in the record: nothing to compare with")
    if not recorded["correct"]:
        return Judgement(case, "unsupported", "was wrong in the record: nothing to compare with")
    for key in ("contract", "limit"):
        if recorded[key] != measured[key]:
            reason = f"not comparable: {key} was {recorded[key]!r} in the record and is {measured[key]!r} now"
            return Judgement(case, "unsupported", reason)
    noise = spread(recorded)
    lost = recorded["share"] / measured["share"] - 1
    allowed = noise + MARGIN
    text = f"{percent(measured['share'])} of the limit, {percent(recorded['share'])} in the record"
    if lost > allowed:
        why = f"{text}: {percent(lost)} slower, allowed {percent(allowed)} (spread {percent(noise)})"
        return Judgement(case, "failed", why, slower=True)
    if lost < -allowed:
        return Judgement(case, "passed", f"{text}: faster; record it anew")
    return Judgement(case, "passed", text)


def percent(x: float) -> str:
    """A share as text."""
    return f"{100 * x:.1f} %"


def compare(
    recorded: dict[str, Row], measured: dict[str, Row], again: Callable[[list[str]], dict[str, Row]]
) -> list[Judgement]:
    """The judgements of all cases, recorded or measured, in the order of ``measured`` and then of ``recorded``.

    recorded, measured  case -> row
    again               function(list of cases) -> case -> row: measures those that are slower once more. Only a case
                        that is slower both times fails.
    """
    names = [*measured, *(case for case in recorded if case not in measured)]
    found = [judge(case, recorded.get(case), measured.get(case)) for case in names]
    slower = [judgement.case for judgement in found if judgement.slower]
    if not slower:
        return found
    second = again(slower)
    return [
        _settle(first, judge(first.case, recorded[first.case], second.get(first.case))) if first.slower else first
        for first in found
    ]


def _settle(first: Judgement, second: Judgement) -> Judgement:
    """The second judgement, with the reason of the first."""
    if second.status == "failed":
        return Judgement(first.case, "failed", f"{second.reason}; at first: {first.reason}", second.slower)
    return Judgement(first.case, second.status, f"{second.reason}; slower at first only: {first.reason}")


def clock_notes(recorded: dict[str, Any] | None, measured: dict[str, Any] | None) -> list[str]:
    """Lines on the clocks of the two runs, for a reader of the judgements; empty when there is nothing to say.

    recorded, measured  ``sm_mhz``, ``max_sm_mhz`` (int or None) and ``throttled`` (list of reasons), or None
    """
    lines = []
    for name, clocks in (("the record", recorded), ("this run", measured)):
        if clocks and clocks["throttled"]:
            lines.append(f"clocks were throttled in {name}: {', '.join(clocks['throttled'])}, {clocks['sm_mhz']} MHz")
    if recorded and measured and recorded["sm_mhz"] and measured["sm_mhz"]:
        ratio = measured["sm_mhz"] / recorded["sm_mhz"]
        if abs(ratio - 1) > MARGIN:
            lines.append(f"clocks differ: {recorded['sm_mhz']} MHz in the record, {measured['sm_mhz']} MHz in this run")
    return lines
