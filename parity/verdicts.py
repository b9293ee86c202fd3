"""Verdicts of the gate, and what its checks are given."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from . import suite
from .backend import Backend
from .progress import Work
from .speed.repository import Kernel

STATUSES = (*suite.STATUSES, "stale")


@dataclass(frozen=True)
class Verdict(suite.Result):
    """The outcome of one case of one check.

    share  of a timed case: the change's time over the base's, less 1; None of any other
    floor  of a timed case: the smallest share that counts
    again  the command that repeats it; empty: the gate's, with its check alone
    """

    share: float | None = None
    floor: float | None = None
    again: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; ``measure`` and ``bound`` of a timed case are ``share`` and ``floor``."""
        if self.share is None or not self.floor:
            return super().as_dict()
        figures = {"measure": self.share, "bound": self.floor, "share": self.share / self.floor}
        return {**super().as_dict(), **{key: round(value, 6) for key, value in figures.items()}}

    def lines(self, backend: Backend | None = None, verbose: bool = False) -> Iterator[str]:
        """The verdict for a reader, and the command that repeats its check."""
        yield from (f"  {line}" for line in self.reason.splitlines())
        if self.status == "failed":
            yield f"  again: {self.again or f'qsa gate --only {self.case.module}'}"


def verdict(
    check: str,
    name: str,
    status: str,
    reason: str = "",
    seconds: float = 0.0,
    share: float | None = None,
    floor: float | None = None,
    again: str = "",
) -> Verdict:
    """The :class:`Verdict` on the case ``name`` of ``check``."""
    return Verdict(suite.Case(check, name, {}), status, seconds, reason=reason, share=share, floor=floor, again=again)


@dataclass
class Run:
    """One run of the gate: its options, and what its checks say to one another.

    base     the commit that speed is compared with, None: the merge base with the default branch
    fresh    whether goldens are computed that were computed before
    floor    smallest relative difference of a time that counts; None: the backend's own
    backend  what is timed, ``cpu`` or ``cuda``; None: the device where there is one
    kernel   somebody's own kernel, which is then what the gate is about; None: this project's
    work     its progress
    failed   the checks so far of which something failed
    notes    what a report keeps beside the verdicts
    """

    base: str | None = None
    fresh: bool = False
    floor: float | None = None
    backend: str | None = None
    kernel: Kernel | None = None
    work: Work = field(default_factory=lambda: Work("qsa gate"))
    failed: set[str] = field(default_factory=set)
    notes: dict[str, Any] = field(default_factory=dict)
