"""Two trees measured by turns in fresh processes: base against base, then A B B A, and once more what is slower."""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..evidence import process
from . import measure, verdict
from .verdict import NOISE_ROUNDS, ROUNDS, SLOWER, Floors, Judgement, Round

PROCESS_SECONDS, COMPILE_SECONDS = 600.0, 1800.0
"""Limits of one process; the first of a tree compiles its kernels."""

FLOORS = {"cpu": Floors(relative=0.05, absolute=3.0), "cuda": Floors(relative=0.02, absolute=0.2)}
"""Backend -> the smallest difference that counts. A CPU's kernels run on threads that the system moves about, so their
times vary more than those of graph replays on a device. A launch itself varies by 3 us, or 0.2 us."""


COMPILING = "compiling"
"""What is told while the first process of each tree runs."""


class ArmError(ValueError):
    """An arm that could not be measured; the message says which, and why."""


@dataclass(frozen=True)
class Arm:
    """One side of the comparison: ``tree`` is the folder that holds its kernels, ``python`` its interpreter, ``script``
    what the interpreter runs to measure them."""

    name: str
    tree: Path
    python: str = sys.executable
    script: tuple[str, ...] = (measure.__file__,)

    def measure(self, backend: str, cases: Sequence[str], seconds: float = PROCESS_SECONDS) -> dict[str, Any]:
        """The report of ``measure.py`` by a fresh process. Raises ArmError when it gives none in ``seconds``."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "report.json"
            options = ["--tree", str(self.tree), "--backend", backend, "--json", str(path), "--cases", *cases]
            finished = process.run([self.python, "-P", *self.script, *options], seconds)
            if finished.code != 0 or not path.is_file():
                raise ArmError(f"{self.name}: a process that measures gave no times: {finished.reason}")
            return json.loads(path.read_text(encoding="utf-8"))


@dataclass
class Timings:
    """All that was measured, as a report keeps it.

    contract   case -> how each time was measured
    noise      case -> rounds of the base against itself
    rounds     case -> rounds of the base against the change
    again      case -> rounds of the second measurement
    throttled  why a clock was lowered, of any process
    """

    contract: dict[str, str] = field(default_factory=dict)
    noise: dict[str, list[Round]] = field(default_factory=dict)
    rounds: dict[str, list[Round]] = field(default_factory=dict)
    again: dict[str, list[Round]] = field(default_factory=dict)
    throttled: list[str] = field(default_factory=list)


@dataclass
class Compared:
    """The outcome: case -> :class:`Judgement`, or case -> why it has none, and which the change got ``wrong``; the
    times behind it."""

    judgements: dict[str, Judgement] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    wrong: set[str] = field(default_factory=set)
    timings: Timings = field(default_factory=Timings)


OnStep = Callable[[str, int, int, float], object]
"""Function of what is measured, the processes that are done, all of them, and seconds that a process takes."""


def comparable(base: dict[str, Any], change: dict[str, Any], cases: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(case, why not) of the ``cases`` whose times in the two reports cannot be compared."""
    for case in cases:
        for name, report in (("the base", base), ("the change", change)):
            if case not in report["times"]:
                yield case, f"not measured in {name}: {report['missing'].get(case, 'it gave no time')}"
                break
        else:
            for key, word in (("contract", "were measured otherwise"), ("outputs", "are of other results")):
                a, b = base[key].get(case), change[key].get(case)
                if a != b:
                    yield case, f"not comparable: the base's times {word}: {a}, now {b}"
                    break


def compare(
    base: Arm,
    change: Arm,
    backend: str,
    cases: Sequence[str],
    floors: Floors,
    on_step: OnStep = lambda what, done, total, seconds: None,
) -> Compared:
    """The :class:`Compared` of the ``cases`` on ``backend``.

    Raises ArmError when a process gives no report, or a tree changes meanwhile.
    """
    found, steps = Compared(), _Steps(on_step, 2 + 4 * (NOISE_ROUNDS + ROUNDS))
    timings = found.timings
    # Not timed: these processes compile, and fill the caches of files.
    first = {arm.name: steps.measure(COMPILING, arm, backend, cases) for arm in (base, change)}
    found.missing = dict(comparable(first[base.name], first[change.name], cases))
    missing = first[change.name]["missing"]
    found.wrong = {case for case in cases if missing.get(case, "").startswith(measure.WRONG)}
    left = [case for case in cases if case not in found.missing]
    if not left:
        return found
    timings.contract = {case: first[base.name]["contract"][case] for case in left}

    def rounds(what: str, other: Arm, count: int, chosen: Sequence[str]) -> dict[str, list[Round]]:
        made: dict[str, list[Round]] = {case: [] for case in chosen}
        for _ in range(count):
            reports = [steps.measure(what, arm, backend, chosen) for arm in (base, other, other, base)]
            for report in reports:
                timings.throttled = sorted({*timings.throttled, *report["throttled"]})
            for case in chosen:
                times = [report["times"].get(case) for report in reports]
                if None in times:
                    reasons = [report["missing"].get(case, "") for report in reports if case not in report["times"]]
                    found.missing.setdefault(case, f"measured by some processes alone: {reasons[0]}")
                else:
                    made[case].append(Round((times[0], times[3]), (times[1], times[2])))
        return made

    timings.noise = rounds("noise", base, NOISE_ROUNDS, left)
    timings.rounds = rounds("comparing", change, ROUNDS, left)
    for case in [case for case in left if case not in found.missing]:
        found.judgements[case] = verdict.judge(timings.noise[case], timings.rounds[case], floors, timings.throttled)
    slower = [case for case, judgement in found.judgements.items() if judgement.verdict == SLOWER]
    if slower:
        steps.total += 4 * ROUNDS
        timings.again = rounds("once more", change, ROUNDS, slower)
        for case in slower:
            if case in found.missing:
                del found.judgements[case]
                continue
            second = verdict.judge(timings.noise[case], timings.again[case], floors, timings.throttled)
            found.judgements[case] = verdict.confirm(found.judgements[case], second)
    return found


class _Steps:
    """Counts the processes."""

    def __init__(self, on_step: OnStep, total: int) -> None:
        self.on_step, self.total, self.done, self.seconds = on_step, total, 0, 0.0
        self.sources: dict[str, str] = {}

    def measure(self, what: str, arm: Arm, backend: str, cases: Sequence[str]) -> dict[str, Any]:
        """The report of one process of ``arm``."""
        self.on_step(what, self.done, self.total, self.seconds)
        compiling, started = what == COMPILING, time.perf_counter()
        report = arm.measure(backend, cases, COMPILE_SECONDS if compiling else PROCESS_SECONDS)
        if self.sources.setdefault(arm.name, report["sources"]) != report["sources"]:
            raise ArmError(f"{arm.name}: its sources changed while it was measured")
        # What compiling took says nothing about the processes to come.
        self.seconds = 0.0 if compiling else time.perf_counter() - started
        self.done += 1
        return report
