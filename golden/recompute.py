"""Many goldens recomputed by the reference, in as many processes as there are processors."""

import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from .families import produce
from .record import GoldenError
from .store import Store

ALONE = 8
"""Goldens below which starting processes would take longer than the work."""


def _one(folder, name):
    started, store = time.perf_counter(), Store(folder)
    if name not in store.names():
        lines = ["there is no record: regen and accept it"]
    else:
        try:
            lines = store.check(name, produce)
        except GoldenError as error:
            lines = [str(error)]
    return name, lines, time.perf_counter() - started


def check(folder, names):
    """Yields (name, what differs, seconds) for each of ``names``, as ``Store.check`` says it; a golden that is missing
    or damaged has a line that says so. In the order of ``names``."""
    one = partial(_one, folder)
    if len(names) < ALONE or os.cpu_count() == 1:
        yield from map(one, names)
        return
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(one, names)
