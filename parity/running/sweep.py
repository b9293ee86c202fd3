"""``--ray ADDRESS``: cases as tasks of a Ray cluster (extra ``ray``).

A task is one case; a task of a backend on CUDA devices asks for a GPU, so on one machine with several GPUs
(``--ray local``) there is a worker for each. In every worker the backend has a process of its own, as in any run: what
a kernel does by crashing or hanging is a failed case and no lost worker. A case whose worker is lost all the same (a
machine that goes away, memory that runs out) is run again with the others; the second time it waits until nothing else
runs, so that no other case can be what it is blamed for; the third time it has failed.
"""

import contextlib
import importlib.util
import os
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from .. import report, suite
from ..backend import Backend
from ..environment import facts
from ..isolation import RemoteKernel
from .runs import sources_hash

Results = Callable[[Sequence[suite.Case]], Iterator[suite.Result]]
"""Gives the results of cases as they are finished."""

TRIES = 3
"""How often the worker of one case may be lost until the case has failed; the last try is made alone."""

POLL_SECONDS, CONNECT_SECONDS = 0.5, 5.0

LEAST_SECONDS = 1800.0
"""What a case may take at least, whatever ``--timeout`` says of one call: it has many, and its truth is made too."""


@dataclass(frozen=True)
class Job:
    """What a worker needs to run a case: the backend's name and arithmetic, seconds of a call, repeats, the hash of the
    sources, and the folder from which the backend may import."""

    backend: str
    arithmetic: str
    seconds: float
    repeats: int
    sources: str
    folder: str

    @classmethod
    def of(cls, backend: Backend, seconds: float, repeats: int) -> "Job":
        """The job of ``backend``; a file is named by its whole path, which it must have on every machine."""
        place, colon, attribute = backend.name.partition(":")
        name = f"{Path(place).resolve()}{colon}{attribute}" if place.endswith((".py", ".json")) else backend.name
        return cls(name, backend.arithmetic, seconds, repeats, sources_hash(name), os.getcwd())


@dataclass
class Sweep:
    """The tasks of one run on the cluster that ``start`` has joined.

    work    function of a case string that a worker calls; what it returns is a case's outcome
    gpus    GPUs that a task asks for
    limit   seconds that a task may take
    told    is called with a line about what was lost
    """

    work: Callable[[str], Any]
    gpus: int = 0
    limit: float = LEAST_SECONDS
    told: Callable[[str], object] = lambda line: None
    lost: Counter[str] = field(default_factory=Counter)

    def __call__(self, texts: Sequence[str]) -> Iterator[tuple[str, Any, str]]:
        """(case string, outcome, "") of each of ``texts`` as it is finished, or (case string, None, reason) of one
        whose worker was lost :data:`TRIES` times. Raises ValueError when a worker cannot work at all."""
        import ray

        if self.gpus and not ray.cluster_resources().get("GPU", 0):
            raise ValueError("--ray: the backend needs a GPU, and no machine of the cluster has one")
        task = ray.remote(num_cpus=1, num_gpus=self.gpus, max_retries=0)(self.work)
        waiting, suspects = deque(texts), deque[str]()
        running: dict[Any, tuple[str, float]] = {}
        try:
            while waiting or suspects or running:
                # No more than run at once: a task that waits for a worker would be booked with that time.
                while waiting and len(running) < self._workers(ray):
                    text = waiting.popleft()
                    running[task.remote(text)] = text, time.monotonic()
                if suspects and not running and not waiting:
                    text = suspects.popleft()
                    running[task.remote(text)] = text, time.monotonic()
                done, _ = ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS)
                for reference in done:
                    text, _ = running.pop(reference)
                    try:
                        yield text, ray.get(reference), ""
                    except ray.exceptions.RayTaskError as error:
                        raise ValueError(f"--ray: a worker cannot run {text}: {error.cause}") from error
                    except ray.exceptions.RayError as error:
                        yield from self._again(text, _why(error), waiting, suspects)
                for reference, (text, started) in list(running.items()):
                    if time.monotonic() - started > self.limit:
                        del running[reference]
                        ray.cancel(reference, force=True)
                        yield from self._again(text, f"no end within {self.limit:.0f} s", waiting, suspects)
        finally:
            for reference in running:
                ray.cancel(reference, force=True)

    def _workers(self, ray: Any) -> int:
        """How many tasks can run at once now; one at least, which then waits for a machine."""
        found = ray.cluster_resources()
        count = found.get("GPU", 0) // self.gpus if self.gpus else found.get("CPU", 0)
        return max(1, int(count))

    def _again(self, text: str, why: str, waiting: deque[str], suspects: deque[str]) -> Iterator[tuple[str, None, str]]:
        """Runs a case whose worker is lost once more, or gives it up."""
        self.lost[text] += 1
        count = self.lost[text]
        if count >= TRIES:
            yield text, None, f"poisonous: its worker was lost {count} times, at last alone: {why}"
            return
        self.told(f"worker lost, {why}; again{', alone' if count == TRIES - 1 else ''}: {text}")
        (suspects if count == TRIES - 1 else waiting).append(text)


def _why(error: Exception) -> str:
    """The first line of what Ray says about a lost worker."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"


def check_installed() -> None:
    """Raises ValueError where Ray is missing."""
    if importlib.util.find_spec("ray") is None:
        raise ValueError("--ray: ray is missing: pip install 'qsa-parity[ray]'")


def start(address: str) -> None:
    """Joins the cluster at ``address``; ``local`` starts one of this machine. Raises ValueError where there is none."""
    check_installed()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    # The switches of this run; and one thread for each case: BLAS threads would fight with the other workers.
    environment = {name: value for name, value in os.environ.items() if name.startswith(("STRATA_", "QSA_"))}
    environment["OPENBLAS_NUM_THREADS"] = os.environ.get("OPENBLAS_NUM_THREADS", "1")
    options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    print(f"qsa parity: Ray, {address}", file=sys.stderr, flush=True)
    try:
        _check_reachable(address)
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"env_vars": environment},
            **options,
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(f"--ray = {address!r}: no cluster could be joined: {str(error).splitlines()[0]}") from error


def _check_reachable(address: str) -> None:
    """Raises OSError when nobody listens at ``address``, HOST:PORT: Ray itself tries for minutes. Other forms of
    addresses are left to Ray."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()


def stop() -> None:
    """Leaves the cluster; one that ``start`` has started ends."""
    import ray

    ray.shutdown()


@cache
def _backend(job: Job) -> Backend:
    """The backend in this worker's process, which later cases use again. Raises ValueError on other sources."""
    if job.folder not in sys.path:
        sys.path.append(job.folder)
    found = sources_hash(job.backend)
    if found != job.sources:
        raise ValueError(f"{os.uname().nodename}: the sources are others ({found}) than the driver's ({job.sources})")
    return Backend(job.backend, job.arithmetic, RemoteKernel(job.backend, job.seconds))


@cache
def _machine() -> str:
    """The machine of this process, for the report."""
    found = facts()
    return f"{found['cpu']}, GPU {found['gpu']}"


def run_case(job: Job, text: str) -> tuple[bytes, str]:
    """In a worker: (result of the case as a report has it, in JSON; the machine)."""
    result = suite.run_case(suite.parse(text), _backend(job), job.repeats)
    return msgspec.json.encode(msgspec.convert(result.as_dict(), report.CaseResult)), _machine()


def results(
    job: Job,
    cases: Sequence[suite.Case],
    gpus: int,
    told: Callable[[str], object],
    machines: Counter[str],
) -> Iterator[suite.Result]:
    """The results of ``cases`` as they are finished; ``machines`` counts the cases of each machine."""
    known = {case.text: case for case in cases}
    sweep = Sweep(_work(job), gpus, max(LEAST_SECONDS, 4 * job.seconds), told)
    for text, outcome, reason in sweep(list(known)):
        if outcome is None:
            yield suite.Result(known[text], "failed", 0.0, reason=reason)
            continue
        machines[outcome[1]] += 1
        yield report.restored(msgspec.json.decode(outcome[0], type=report.CaseResult))


@contextlib.contextmanager
def cluster(address: str, job: Job, gpus: int, told: Callable[[str], object]) -> Iterator[tuple[Results, Counter[str]]]:
    """(function that runs cases on the cluster at ``address``, the cases that each machine has run so far) while the
    body runs. Raises ValueError where there is no cluster."""
    machines: Counter[str] = Counter()
    start(address)
    try:
        yield (lambda cases: results(job, cases, gpus, told, machines)), machines
    finally:
        stop()


def _work(job: Job) -> Callable[[str], tuple[bytes, str]]:
    def work(text: str) -> tuple[bytes, str]:
        return run_case(job, text)

    return work
