"""Goldens held to what the reference gives: taken from the cache, or computed in as many processes as processors."""

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple

from qsa.reference.exact import CONTRACT

from . import case
from .cache import Cache
from .families import produce
from .record import GoldenError, Record, differences, make
from .store import Store

THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""Environment variables that set a BLAS's threads. A process that computes goldens has one: there is a process for
each processor, and the number is no part of a cache's key."""

UNKNOWN_SECONDS = {"text": 60.0, "needle": 60.0, "captured": 30.0, "score": 20.0, "verify_batch": 2.0}
"""Family -> seconds that a golden of it takes, about, while nothing better is known; 0.5 for the others."""


class Checked(NamedTuple):
    """One golden's outcome: ``status`` equal, differs, missing or damaged (its record cannot be used), and ``lines``
    that say why. ``seconds`` is what computing took, 0 when the result was ``stored``."""

    name: str
    status: str
    lines: list[str]
    seconds: float = 0.0
    stored: bool = False


class Computed(NamedTuple):
    """What the reference gave for the golden ``name``: a record, or the text of an error."""

    name: str
    found: Record | str
    seconds: float


Compute = Callable[[Mapping[str, str]], Iterable[Computed]]
"""Function of name -> case string that gives a :class:`Computed` of each as it is finished."""


def compute_one(name: str, recipe: str) -> Computed:
    """What the reference gives for the case string ``recipe``. No exception leaves it: an error ends its own golden."""
    started = time.perf_counter()
    try:
        found: Record | str = make(name, recipe, CONTRACT, produce(*case.parse(recipe)))
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    return Computed(name, found, time.perf_counter() - started)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Processes that are started in the body have one BLAS thread."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def workers(count: int) -> int:
    """Processes that compute ``count`` goldens: as many as processors, 1 at least."""
    return max(1, min(count, os.cpu_count() or 1))


def compute(cases: Mapping[str, str]) -> Iterator[Computed]:
    """Yields a :class:`Computed` for each of ``cases``, name -> case string, as it is finished. They begin in order."""
    if not cases:
        return
    with _one_thread():
        pool = ProcessPoolExecutor(workers(len(cases)), multiprocessing.get_context("spawn"))
        try:
            futures: dict[Future[Computed], str] = {
                pool.submit(compute_one, name, recipe): name for name, recipe in cases.items()
            }
            for future in as_completed(futures):
                try:
                    yield future.result()
                except BrokenProcessPool as error:
                    yield Computed(futures[future], f"a process that computes goldens died: {error}", 0.0)
        finally:
            pool.shutdown(cancel_futures=True)


def expected_seconds(name: str, recipe: str, cache: Cache | None) -> float:
    """Seconds that computing a golden takes, about: as long as the last time, or as its family does."""
    known = cache.seconds(name) if cache else None
    return UNKNOWN_SECONDS.get(case.parse(recipe)[0], 0.5) if known is None else max(known, 0.01)


def check(
    folder: str | Path,
    names: Sequence[str],
    cache: Cache | None = None,
    fresh: bool = False,
    compute: Compute = compute,
    on_plan: Callable[[dict[str, float]], object] = lambda plan: None,
) -> Iterator[Checked]:
    """Hold the goldens ``names`` of ``folder`` to the reference. Yields a :class:`Checked` for each: first those that
    need no computing, then the others as they are finished, begun with the longest.

    cache    where results are looked for and kept; None: neither
    fresh    look for none, but keep what is computed
    compute  the reference, in processes of its own
    on_plan  called before the computing with name -> seconds that it will take, about

    Raises nothing for a single golden: one that is missing or damaged says so, and the others are checked.
    """
    store, records, plan = Store(folder), {}, {}
    stored = set(store.names())
    for name in names:
        if name not in stored:
            yield Checked(name, "missing", ["there is no record: regen and accept it"])
            continue
        try:
            record = store.load(name)
        except (GoldenError, OSError) as error:
            yield Checked(name, "damaged", [str(error)])
            continue
        found = cache.load(name, record.case) if cache and not fresh else None
        if found is not None:
            yield _judged(record, found, 0.0, stored=True)
        else:
            records[name] = record
            plan[name] = expected_seconds(name, record.case, cache)
    on_plan(plan)
    longest_first = sorted(plan, key=lambda name: -plan[name])
    for name, given, seconds in compute({name: records[name].case for name in longest_first}):
        if isinstance(given, str):
            yield Checked(name, "differs", [given], seconds)
            continue
        if cache:
            cache.store(given, seconds)
        yield _judged(records[name], given, seconds, stored=False)


def _judged(record: Record, given: Record, seconds: float, stored: bool) -> Checked:
    lines = differences(record, given)
    return Checked(record.name, "differs" if lines else "equal", lines, seconds, stored)
