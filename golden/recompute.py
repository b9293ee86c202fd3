"""Many goldens recomputed by the reference, in as many processes as there are processors."""

import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from .families import produce
from .record import GoldenError
from .store import Store

ALONE = 8
"""Goldens below which starting processes would take longer than the work."""


def _check(folder: str | Path, name: str) -> tuple[str, list[str], float]:
    started, store = time.perf_counter(), Store(folder)
    if name not in store.names():
        lines = ["there is no record: regen and accept it"]
    else:
        try:
            lines = store.check(name, produce)
        except GoldenError as error:
            lines = [str(error)]
    return name, lines, time.perf_counter() - started


def check(folder: str | Path, names: Sequence[str]) -> Iterator[tuple[str, list[str], float]]:
    """Yields (name, what differs, seconds) for each of ``names``, as ``Store.check`` says it; a golden that is missing
    or damaged has a line that says so. In the order of ``names``."""
    check_name = partial(_check, folder)
    if len(names) < ALONE or os.cpu_count() == 1:
        yield from map(check_name, names)
        return
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(check_name, names)
