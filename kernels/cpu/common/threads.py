"""Work items shared among threads: Python's own, because a kernel holds no interpreter lock while it runs.

Nothing spins: a thread without work sleeps. numba's parallel loops would start threads of OpenMP, whose idle threads
spin unless OMP_WAIT_POLICY was set before anything in the process loaded OpenMP; and each loop takes numba seconds to
compile.
"""

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numba

PIECES = 4
"""Pieces of the work for each thread: one that is late leaves the rest to the others."""


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, numba.config.NUMBA_NUM_THREADS - 1), "qsa-cpu")


if hasattr(os, "register_at_fork"):
    # Threads do not survive a fork: the child makes its own.
    os.register_at_fork(after_in_child=_pool.cache_clear)


def count() -> int:
    """The threads that numba is told to have. Where nobody has used its threading layer yet that is asked without
    starting one: ours need none, and one that is not installed would raise."""
    try:
        numba.threading_layer()
    except ValueError:
        return int(numba.config.NUMBA_NUM_THREADS)
    return int(numba.get_num_threads())


def share(alone: bool, items: int, work: Callable[..., Any], *arguments: Any) -> None:
    """Carry out ``work(first, stop, *arguments)`` for all work items from 0 to ``items``, cut into pieces.

    alone  whether the calling thread carries out everything: where waking the others costs as much as the work

    The threads are as many as :func:`count` says. Raises what any piece raised.
    """
    threads = 1 if alone else min(count(), items)
    if threads <= 1:
        work(0, items, *arguments)
        return
    cuts = min(items, PIECES * threads)
    pieces = deque((items * i // cuts, items * (i + 1) // cuts) for i in range(cuts))

    def run() -> None:
        while True:
            try:
                first, stop = pieces.popleft()
            except IndexError:
                return
            work(first, stop, *arguments)

    others = [_pool().submit(run) for _ in range(threads - 1)]
    try:
        run()
    finally:
        # One that has not begun has nothing left to do. The others still use the arrays.
        running = [other for other in others if not other.cancel()]
        failures = [failure for failure in (other.exception() for other in running) if failure is not None]
    if failures:
        raise failures[0]
