"""The processes of ``qsa ab`` in their order, and the report made of what they gave.

First come the checks, those of A beside those of B: a speed says nothing while an output is wrong, and they fill the
caches of compiled kernels. Then the arms A B B A, one process after the other.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from .. import progress
from ..evidence import process
from ..report import Report as ParityReport
from ..running.interruption import name_of, sigterm_raises
from ..speed.verdict import Floors
from . import judge, verify
from .arms import process_environment
from .screens import SIZES
from .structs import Arm, ArmRun, Check, Checks, Output, Parity, Report

PARITY = {
    "tiny": ("accuracy", "selection", "--quick", "--op", "attend", "--op", "select"),
    "small": ("accuracy", "selection", "split", "--quick"),
    "medium": ("accuracy", "selection", "split", "--quick"),
    "full": ("accuracy", "selection", "split", "pages", "verify-batch"),
}
"""Size of the checks -> modules of ``qsa parity`` that each side runs, and its options."""

NAMED = 5
"""Failed cases of parity that a report names."""

Scores = dict[str, np.ndarray]
T = TypeVar("T")


class ArmError(ValueError):
    """A process that gave nothing; the message says which, and why."""


@dataclass
class Processes:
    """Starts the processes of the arms.

    size, checks  keys of ``SIZES``: of the screens, and of the checks
    limit         seconds that one process may take
    """

    size: str
    checks: str
    limit: float

    def speed(self, arm: Arm, number: int) -> ArmRun:
        """The screens of one arm. Raises ArmError."""
        with tempfile.TemporaryDirectory() as folder:
            return self._own(f"arm {number}", arm, "speed", self.size, Path(folder), ArmRun)

    def parity(self, arm: Arm) -> Parity:
        """The cases of ``qsa parity`` under the arm's setting. Raises ArmError."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "report.json"
            command = ["-m", "qsa.parity.cli", "parity", *PARITY[self.checks], "--backend", arm.backend]
            chosen = ["--arithmetic", arm.arithmetic] if arm.arithmetic else []
            self._run("parity", arm, [*command, *chosen, "--json", str(path)], path, codes=(0, 1))
            found = msgspec.json.decode(path.read_bytes(), type=ParityReport)
        failed = [case.case for case in found.cases if case.status == "failed"]
        return Parity(found.passed, found.failed, found.unsupported, failed[:NAMED])

    def check(self, arm: Arm) -> tuple[Checks, Scores]:
        """The outputs that checks look at, and the logits of the held-out texts. Raises ArmError."""
        with tempfile.TemporaryDirectory() as folder:
            logits = Path(folder) / "logits.npz"
            found = self._own("checks", arm, "checks", self.checks, Path(folder), Checks, "--logits", str(logits))
            with np.load(logits, allow_pickle=False) as arrays:
                return found, dict(arrays)

    def _own(self, what: str, arm: Arm, kind: str, size: str, folder: Path, struct: type[T], *more: str) -> T:
        given, out = folder / "arm.json", folder / "out.json"
        given.write_bytes(msgspec.json.encode(arm))
        command = ["-m", "qsa.parity.ab.process", kind, size, "--arm", str(given), "--out", str(out), *more]
        self._run(what, arm, command, out)
        return msgspec.json.decode(out.read_bytes(), type=struct)

    def _run(self, what: str, arm: Arm, command: Sequence[str], out: Path, codes: Sequence[int] = (0,)) -> None:
        environment = process_environment(arm, os.environ)
        finished = process.run([sys.executable, *command], self.limit, environment=environment)
        if finished.code not in codes or not out.is_file():
            raise ArmError(f"{what} ({arm.side}) gave nothing: {finished.reason}")


@dataclass
class Found:
    """What was measured until now. By side: parity, checks and logits; ``runs`` of the arms in their order."""

    parity: dict[str, Parity] = field(default_factory=dict)
    checks: dict[str, Checks] = field(default_factory=dict)
    scores: dict[str, Scores] = field(default_factory=dict)
    runs: list[ArmRun] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    interrupted: str = ""

    def judged(self, arms: Sequence[Arm]) -> list[Check]:
        """The checks of what is there."""
        made: list[Check] = []
        if len(self.parity) == len(arms):
            made.append(verify.parity(*(self.parity[arm.side] for arm in arms)))
        if len(self.checks) == len(arms):
            a, b = (self.checks[arm.side] for arm in arms)
            equal = verify.comparable(arms, (a.arithmetic, b.arithmetic))
            made += verify.seven(a, b, equal)
            made += verify.scores(self.scores["A"], self.scores["B"], equal)
            made += [verify.needles(a, b)] if a.needles else []
        if len(self.runs) == len(judge.ORDER):
            made += [verify.repeated(self.runs), verify.screens(arms, self.runs)]
        return made

    def wrong(self, arms: Sequence[Arm]) -> list[str]:
        """Sides that broke a rule."""
        return sorted({side for one in self.judged(arms) for side in one.wrong})


def measure(arms: Sequence[Arm], processes: Processes, work: progress.Work | None = None) -> Found:
    """All processes of ``arms``, A and B. A process that gives nothing, an interruption, or a side whose outputs are
    wrong ends it; what was found until then stays."""
    found, work = Found(), progress.Work("qsa ab") if work is None else work
    try:
        with sigterm_raises():
            _measure(arms, processes, found, work)
    except ArmError as error:
        found.missing.append(str(error))
    except KeyboardInterrupt as error:
        process.stop()
        found.interrupted = name_of(error)
    return found


def _measure(arms: Sequence[Arm], processes: Processes, found: Found, work: progress.Work) -> None:
    work.begin("parity of both sides")
    for arm, parity in zip(arms, _both(processes.parity, arms), strict=True):
        found.parity[arm.side] = parity
    work.begin("seven computations, NLL and needles of both sides")
    for arm, (checks, scores) in zip(arms, _both(processes.check, arms), strict=True):
        found.checks[arm.side], found.scores[arm.side] = checks, scores
    if found.wrong(arms):
        return
    by_side, taken = {arm.side: arm for arm in arms}, 0.0
    for number, side in enumerate(judge.ORDER, 1):
        left = len(judge.ORDER) - len(found.runs)
        work.begin(f"arm {number} of {len(judge.ORDER)} ({side})", estimate=left * taken or None)
        started = time.monotonic()
        found.runs.append(processes.speed(by_side[side], number))
        taken = time.monotonic() - started


def _both(make: Callable[[Arm], T], arms: Sequence[Arm]) -> list[T]:
    """``make`` of each arm, at the same time: nothing of it is timed."""
    with ThreadPoolExecutor(len(arms)) as pool:
        futures = [pool.submit(make, arm) for arm in arms]
        try:
            return [future.result() for future in futures]
        except BaseException:
            # Again and again: one of them may be about to start its process.
            while wait(futures, timeout=0.1).not_done:
                process.stop()
            raise


def report(
    arms: Sequence[Arm], found: Found, size: str, floors: Floors, environment: dict[str, Any], seconds: float
) -> Report:
    """The report on what was found."""
    checks, wrong = found.judged(arms), found.wrong(arms)
    complete = len(found.runs) == len(judge.ORDER)
    disturbed = judge.disturbances(arms, found.runs)
    # A speed says nothing while an output is wrong.
    rows = judge.rows(found.runs, floors, disturbed) if complete and not wrong else []
    outputs = judge.outputs(found.runs[0], found.runs[1]) if complete else []
    seven: list[Output] = []
    if len(found.checks) == len(arms):
        seven = judge.seven_outputs(found.checks["A"].seven, found.checks["B"].seven)
    reasons = [*found.missing, *(f"no time has a verdict: {why}" for why in disturbed if rows)]
    for side in wrong:
        broken = ", ".join(one.name for one in checks if side in one.wrong)
        reasons.append(f"the outputs of {side} are wrong ({broken}): no speed is given")
    if found.interrupted:
        reasons.append(f"interrupted by {found.interrupted}: only what was finished is here")
    verdict = "wrong" if wrong else "right" if complete else "incomplete"
    return Report(
        verdict=verdict,
        reasons=reasons,
        size=size,
        a=arms[0],
        b=arms[1],
        rows=rows,
        checks=checks,
        outputs=outputs,
        seven=seven,
        runs=found.runs,
        seconds=round(seconds, 1),
        environment=environment,
        interrupted=found.interrupted,
    )


def default_limit(size: str, checks: str) -> float:
    """Seconds that one process may take."""
    return max(SIZES[size].limit, SIZES[checks].limit)
