"""The checks behind ``qsa gate``: what must hold before a change is merged, with a verdict for every case.

============  ======================================================================================================
check         cases
============  ======================================================================================================
``parity``    the modules on operations, on the device where there is one, else on the CPU kernels
``goldens``   every golden, as the reference gives it today; what was computed from the same sources is not again
``hashes``    the outputs of the verify-batch windows, on the CPU kernels and on a device where there is one
``prove``     a sample of ``qsa prove``: what is wrong on purpose must be found
``sim``       tests/sim: the CUDA kernels lane by lane without a GPU
``ptx``       the tests of the generated PTX
``evidence``  the newest record of every device: fresh, stale, or with something failed
``speed``     the kernels against those of the base commit
============  ======================================================================================================

Of a kernel in somebody's own repository (``Run.kernel``) the checks are :data:`OF_KERNELS`.

A verdict is ``passed``, ``failed``, ``unsupported`` (cannot be checked here, with the reason) or ``stale``
(evidence of other sources). ``stale`` and ``unsupported`` fail nothing: they are printed.
"""

import importlib.util
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from qsa.golden import device_records as evidence
from qsa.golden import recompute as checking
from qsa.golden import sources
from qsa.golden.cache import Cache
from qsa.golden.families import grid
from qsa.golden.store import Store

from . import suite
from .evidence import process
from .evidence import run as evidence_run
from .prove.tables import Proof
from .speed import check as speed
from .speed.repository import Kernel
from .verdicts import STATUSES, Run, Verdict, verdict

__all__ = ["CHECKS", "STATUSES", "Outcome", "Run", "Verdict", "chosen", "run", "verdict"]

TESTS_SECONDS = 900
PARITY_SECONDS = 900
PROVE_SECONDS = 600
KERNEL_SECONDS = 3600

QUICK = ("accuracy", "selection", "split", "pages")
"""Parity modules of the check ``parity``: those on single operations."""


def _parity_cases(
    check: str, modules: Iterable[str], backend: str, kernel: Kernel | None = None
) -> Iterator[tuple[dict[str, Any], Verdict]]:
    """(case of the report, verdict) of ``qsa parity`` on ``modules``, run as a child; the end alone when it gave no
    report. Our own backends in the exact arithmetic, a ``kernel`` of somebody's in that which it declares."""
    exact = [] if kernel else ["--arithmetic", "exact"]
    where, seconds = (kernel.repository, KERNEL_SECONDS) if kernel else (None, PARITY_SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        command = [sys.executable, "-m", "qsa.parity.cli", "parity", *modules, "--backend", backend]
        finished = process.run([*command, *exact, "--json", str(path)], seconds, where)
        # A run that breaks may leave a report of the part before it.
        whole = finished.code in (0, 1) and path.is_file()
        found = json.loads(path.read_text(encoding="utf-8"))["cases"] if whole else []
    if not found:
        name = f"{backend} {' '.join(modules)}"
        yield {}, verdict(check, name, "failed", f"gave no report: {finished.reason}", finished.seconds)
    for case in found:
        detail = case["detail"]
        bad = [
            f"{one['name']}: {one['measure']} of {one['bound']}" for one in detail["comparisons"] if not one["passed"]
        ]
        reason = "\n".join(filter(None, [detail["reason"], *bad]))
        again = f"qsa parity --backend {shlex.quote(backend)} --case '{case['case']}'" if kernel else ""
        name = f"{backend} {case['case']}"
        yield case, verdict(check, name, case["status"], reason, case["seconds"], again=again)


def _parity(run: Run) -> Iterator[Verdict]:
    if run.kernel is not None:
        for _, found in _parity_cases("parity", QUICK, run.kernel.name, run.kernel):
            yield found
        return
    for _, found in _parity_cases("parity", QUICK, "cpu" if _facts()[0] is None else "cuda"):
        yield found


def _goldens(run: Run) -> Iterator[Verdict]:
    store = Store()
    names, kept = sorted({*store.names(), *grid()}), Cache()
    plan: dict[str, float] = {}

    def on_plan(seconds: dict[str, float]) -> None:
        plan.update(seconds)
        total = sum(seconds.values())
        run.work.begin(f"goldens, {len(plan)} to compute", total, total / checking.workers(len(plan)))

    for one in checking.check(store.folder, names, kept, run.fresh, on_plan=on_plan):
        run.work.advance(plan.get(one.name, 0.0))
        yield verdict(
            "goldens", one.name, "passed" if one.status == "equal" else "failed", "\n".join(one.lines), one.seconds
        )
    run.notes["goldens"] = {"computed": len(plan), "computed_earlier": len(names) - len(plan)}


def _hashes(run: Run) -> Iterator[Verdict]:
    for backend in ["cpu"] if _facts()[0] is None else ["cpu", "cuda"]:
        for case, found in _parity_cases("hashes", ["verify-batch"], backend):
            if not case or "op=window," in case["case"]:
                yield found


def _prove(run: Run) -> Iterator[Verdict]:
    """A verdict for each table of ``qsa prove --sample``, run as a child; the end alone when it gave no report."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "proof.json"
        command = [sys.executable, "-m", "qsa.parity.cli", "prove", "--sample", "--json", str(path)]
        finished = process.run(command, PROVE_SECONDS)
        whole = finished.code in (0, 1) and path.is_file()
        tables = msgspec.json.decode(path.read_bytes(), type=Proof).tables if whole else []
    if not tables:
        yield verdict("prove", "sample", "failed", f"gave no report: {finished.reason}", finished.seconds)
    for table in tables:
        lost = [f"not caught: {row.name}: {row.case} {row.detail}".rstrip() for row in table.lost]
        yield verdict("prove", table.title, "failed" if lost else "passed", "\n".join(lost), table.seconds)


def _tests(check: str, pattern: str) -> Iterator[Verdict]:
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
    silent = _without_entry(files, entries)
    # pytest ends with 5 when it ran no test: right where every file says why it is skipped.
    skipped = finished.code == 5 and not silent and all(entry.status == "unsupported" for entry in entries)
    if finished.code not in (0, 1) and not skipped:
        yield verdict(check, pattern, "failed", finished.reason, finished.seconds)
    else:
        for name in silent:
            yield verdict(check, name, "failed", "no test of this file was run and none was skipped with a reason")


def _without_entry(files: list[Path], entries: list[process.Entry]) -> list[str]:
    """Names of the test files without an entry: pytest ran none of their tests and skipped none."""
    named = {part for entry in entries for part in entry.name.partition("::")[0].split(".")}
    return [file.name for file in files if file.stem not in named]


def _sim(run: Run) -> Iterator[Verdict]:
    return _tests("sim", "tests/sim/test_*.py")


def _ptx(run: Run) -> Iterator[Verdict]:
    return _tests("ptx", "tests/ptx/test_*.py")


def judge_evidence(record: Any, fingerprint: Any) -> Verdict:
    """The :class:`Verdict` on one record, given today's ``sources.fingerprint()``."""
    changed = evidence.stale(record, fingerprint)
    failed = [f"{name}: {reason or 'failed'}" for name, reason in evidence.failed(record)]
    if changed:
        return verdict("evidence", record.name, "stale", "\n".join(changed))
    return verdict("evidence", record.name, "failed" if failed else "passed", "\n".join(failed))


def _evidence(run: Run) -> Iterator[Verdict]:
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
            yield verdict("evidence", f"{record.name}, the rest", "unsupported", "\n".join(lines))


@cache
def _facts() -> tuple[dict[str, Any] | None, str]:
    """(facts of this machine's CUDA device or None, why there is none)."""
    try:
        return evidence_run.device_facts(), ""
    except ValueError as error:
        return None, str(error).splitlines()[-1]


def _speed(run: Run) -> Iterator[Verdict]:
    if run.kernel is not None:
        yield from speed.kernel_verdicts(run, run.kernel)
        return
    facts, why = _facts() if run.backend != "cpu" else (None, "")
    if run.backend == "cuda" and facts is None:
        yield verdict("speed", "cuda", "unsupported", why)
    else:
        yield from speed.verdicts(run, "cpu" if facts is None else "cuda")


CHECKS: dict[str, Callable[[Run], Iterable[Verdict]]] = {
    "parity": _parity,
    "goldens": _goldens,
    "hashes": _hashes,
    "prove": _prove,
    "sim": _sim,
    "ptx": _ptx,
    "evidence": _evidence,
    "speed": _speed,
}
"""Name -> function that gives the check's verdicts, in the order in which they run."""


OF_KERNELS = ("parity", "speed")
"""Checks of a kernel in somebody's own repository: what the others look at is in this one."""


@dataclass
class Outcome(suite.Tally):
    """The verdicts, and check -> seconds by the clock on the wall."""

    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def verdicts(self) -> list[Verdict]:
        """The results, all of which are verdicts."""
        return [one for one in self.results if isinstance(one, Verdict)]


def chosen(names: Iterable[str] | None, without: Iterable[str] | None = None) -> list[str]:
    """The checks ``names`` in order, all of them when none is named, less those ``without``. Raises ValueError on an
    unknown one."""
    names, without = list(names or ()), list(without or ())
    for name in (*names, *without):
        if name not in CHECKS:
            raise ValueError(f"check {name!r}: allowed are {', '.join(CHECKS)}")
    return [name for name in CHECKS if (not names or name in names) and name not in without]


def _of_others(name: str, run: Run) -> list[Verdict]:
    """The verdict on a check that says nothing of somebody's own kernel; none of any other."""
    if run.kernel is None or name in OF_KERNELS:
        return []
    reason = "looks at this project's own files, and says nothing of a kernel in another repository"
    return [verdict(name, run.kernel.name, "unsupported", reason)]


def run(
    names: Iterable[str], on_verdict: Callable[[Verdict], object] = lambda verdict: None, run: Run | None = None
) -> Outcome:
    """The :class:`Outcome` of the checks ``names``; ``on_verdict`` is called with every verdict. A check that raises is
    a failed verdict of its own, and the others run. Ctrl-C ends the run; what is finished counts."""
    outcome, state = Outcome(), run or Run()

    def add(result: Verdict) -> None:
        outcome.results.append(result)
        if result.status == "failed":
            state.failed.add(result.case.module)
        on_verdict(result)

    for name in names:
        started = time.perf_counter()
        state.work.begin(name)
        try:
            for result in _of_others(name, state) or CHECKS[name](state):
                add(result)
        except KeyboardInterrupt:
            outcome.interrupted = "Ctrl-C"
            add(verdict(name, name, "failed", "interrupted before its end"))
        except Exception as error:
            add(verdict(name, name, "failed", process.impersonal(f"{type(error).__name__}: {error}")))
        outcome.seconds[name] = time.perf_counter() - started
        if outcome.interrupted:
            break
    return outcome
