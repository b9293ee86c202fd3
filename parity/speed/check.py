"""The check ``speed`` of the gate: the working tree's kernels against those of the base commit."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from qsa.kernels.sources import root

from ..verdicts import Run, Verdict, verdict
from . import base as bases
from . import compare as comparing
from . import repository
from .compare import FLOORS, Arm, ArmError, Compared
from .measure import CASES
from .repository import Kernel
from .verdict import ALPHA, AMBIGUOUS, SLOWER, Floors

STATUS = {SLOWER: "failed", AMBIGUOUS: "unsupported"}
"""Verdict -> status of the case; the others pass."""


def floors(backend: str, relative: float | None = None) -> Floors:
    """The floors of ``backend``, with another ``relative`` one where it is given."""
    return FLOORS[backend] if relative is None else replace(FLOORS[backend], relative=relative)


def verdicts(run: Run, backend: str, where: Callable[[], Path] = root) -> Iterator[Verdict]:
    """Verdicts on all timed cases of ``backend``, or one that says why nothing was timed.

    Raises ValueError when ``run.base`` is no commit.
    """
    yield from _verdicts(run, backend, backend, lambda: (*arms(where(), run.base), CASES[backend]))


def _verdicts(
    run: Run, backend: str, kind: str, arms: Callable[[], tuple[Arm, Arm, Sequence[str]]]
) -> Iterator[Verdict]:
    """Verdicts on the cases of ``arms()``: the base, the working tree, case strings. ``kind`` is whose floors count."""
    if run.failed:
        reason = f"not timed: a speed says nothing while something is wrong ({', '.join(sorted(run.failed))} failed)"
        yield verdict("speed", backend, "unsupported", reason)
        return

    def on_step(what: str, done: int, total: int, seconds: float) -> None:
        run.work.begin(f"speed, {what}, process {done + 1} of {total}", estimate=(total - done) * seconds or None)

    try:
        base, change, cases = arms()
        found = comparing.compare(base, change, backend, cases, floors(kind, run.floor), on_step)
    except bases.NoBaseError as reason:
        yield verdict("speed", backend, "unsupported", str(reason))
        return
    except ArmError as error:
        yield verdict("speed", backend, "failed", str(error))
        return
    run.notes["speed"] = notes(base, backend, found)
    for case in cases:
        yield judged(case, found)


def kernel_verdicts(run: Run, kernel: Kernel) -> Iterator[Verdict]:
    """Verdicts on all timed cases of somebody's own kernel, or one that says why nothing was timed."""
    yield from _verdicts(run, kernel.name, "cpu", lambda: _kernel_arms(run, kernel))


def _kernel_arms(run: Run, kernel: Kernel) -> tuple[Arm, Arm, Sequence[str]]:
    base, change = repository.arms(kernel, run.base)
    cases = repository.cases(change, kernel.name)
    if not cases:
        raise bases.NoBaseError(f"{kernel.name} has none of the operations that are timed")
    return base, change, cases


def arms(checkout: Path, revision: str | None) -> tuple[Arm, Arm]:
    """(the base, the working tree). Raises NoBaseError, or ValueError when ``revision`` is no commit."""
    commit = bases.commit(checkout, revision)
    tree = bases.worktree(checkout, commit)
    return Arm(f"base {commit[:12]}", tree, bases.interpreter(checkout, tree)), Arm("the working tree", checkout)


def judged(case: str, found: Compared) -> Verdict:
    """The verdict on one timed case."""
    if case in found.missing:
        return verdict("speed", case, "failed" if case in found.wrong else "unsupported", found.missing[case])
    one = found.judgements[case]
    status = STATUS.get(one.verdict, "passed")
    return verdict("speed", case, status, f"{one.verdict}: {one.reason}", share=one.ratio - 1, floor=one.floor)


def notes(base: Arm, backend: str, found: Compared) -> dict[str, Any]:
    """What a report keeps: the base, the rules, every judgement and every time."""
    return {
        "base": base.name.removeprefix("base "),
        "backend": backend,
        "false_alarm_rate": ALPHA,
        "judgements": {case: asdict(one) for case, one in found.judgements.items()},
        "timings_us": asdict(found.timings),
    }
