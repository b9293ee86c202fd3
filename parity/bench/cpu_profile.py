"""Where a model's time goes on the CPU: ``python -m qsa.parity.bench.cpu_profile``.

The golden model reads a prompt in chunks, continues it in windows of 1, 4 and 8 rows, and scores a text in windows of 8
rows from the first position on. The tables show tokens per CPU-second (all threads' time added) and per second, and
each operation's share of the CPU time. ``between`` is what no operation took: Python, and NumPy between the operations.
"""

import argparse
import os
import platform
import shlex
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numba
import numpy as np
from rich.console import Console
from rich.table import Table

from qsa.engine import load_model, teacher_forced
from qsa.golden.families import text
from qsa.kernels.ops import WINDOW_ROWS
from qsa.kernels.switches import ARITHMETICS
from qsa.model import TextModel

from ..environment import cpu_name

CHUNK = 1024
WINDOWS = 1, 4, 8
WINDOW_TOKENS = 256
"""Tokens read in windows of each size."""

SHOWN = 0.005
"""Smallest share of a line of the table."""


class Timed:
    """A namespace whose functions' CPU seconds are added to ``seconds`` under their names."""

    def __init__(self, namespace: Any, seconds: defaultdict[str, float]) -> None:
        self._namespace, self._seconds = namespace, seconds

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._namespace, name)
        if name == "layers":
            return Timed(found, self._seconds)
        if not callable(found) or name.startswith("load_"):
            return found

        def timed(*arguments: Any, **keywords: Any) -> Any:
            start = time.process_time()
            result = found(*arguments, **keywords)
            self._seconds[name] += time.process_time() - start
            return result

        return timed


def profiled(arithmetic: str) -> tuple[TextModel, defaultdict[str, float]]:
    """(the golden model over the CPU backend, its operations' CPU seconds so far: name -> seconds)."""
    loaded, seconds = load_model(text.MODEL, "cpu", arithmetic), defaultdict[str, float](float)
    # Past the subclass's own constructor, which would choose the backend's layers again and leave them untimed.
    model = object.__new__(type(loaded))
    TextModel.__init__(model, loaded.config, loaded.stored, backend=Timed(loaded.backend, seconds))
    return model, seconds


def works(model: TextModel, prompt: int, positions: int) -> dict[str, tuple[int, Callable[[], object]]]:
    """Name of each piece of work -> (its tokens, the function that does it). They run in this order: windows continue
    the prompt."""
    ids = np.resize(text.prompts()["16k"], prompt + len(WINDOWS) * WINDOW_TOKENS)
    state = model.init_state(len(ids))

    def read(rows: int, count: int) -> None:
        for _ in range(0, count, rows):
            model.forward(ids[state.n : state.n + rows], state)

    scored = text.held_out("text")[: positions + 1]
    return {
        f"prompt of {prompt}": (prompt, lambda: read(CHUNK, prompt)),
        **{f"window of {rows}": (WINDOW_TOKENS, partial(read, rows, WINDOW_TOKENS)) for rows in WINDOWS},
        f"NLL, {positions}": (positions, lambda: deque(teacher_forced(model, scored, WINDOW_ROWS), maxlen=0)),
    }


def table(arithmetic: str, threads: int, prompt: int, positions: int) -> Table:
    """The table of one number of threads."""
    numba.set_num_threads(threads)
    model, seconds = profiled(arithmetic)
    for _, work in works(model, CHUNK, WINDOW_ROWS).values():
        work()  # compiles
    columns: dict[str, tuple[float, float, dict[str, float]]] = {}
    for name, (tokens, work) in works(model, prompt, positions).items():
        seconds.clear()
        wall, used = time.perf_counter(), time.process_time()
        work()
        wall, used = time.perf_counter() - wall, time.process_time() - used
        shares = {operation: taken / used for operation, taken in seconds.items()}
        shares["between"] = 1 - sum(shares.values())
        columns[name] = tokens / used, tokens / wall, shares
    found = Table(title=f"{arithmetic}, {threads} thread{'s' * (threads > 1)}")
    found.add_column("")
    for name in columns:
        found.add_column(name, justify="right")
    found.add_row("tokens per CPU-second", *(f"{rate:.0f}" for rate, _, _ in columns.values()))
    found.add_row("tokens per second", *(f"{rate:.0f}" for _, rate, _ in columns.values()), end_section=True)
    operations = {operation for _, _, shares in columns.values() for operation in shares}
    rows = {operation: [shares.get(operation, 0.0) for _, _, shares in columns.values()] for operation in operations}
    for operation, cells in sorted(rows.items(), key=lambda row: -sum(row[1])):
        if max(cells) >= SHOWN:
            found.add_row(f"{operation}, %", *(f"{100 * share:.1f}" for share in cells))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table for every number of threads; returns 0."""
    parser = argparse.ArgumentParser(prog="qsa.parity.bench.cpu_profile", description=__doc__.splitlines()[0])
    parser.add_argument("--arithmetic", choices=ARITHMETICS, default="exact", help="default: exact")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of threads (default 1 2)")
    parser.add_argument("--prompt", type=int, default=8192, help="tokens of the prompt, a multiple of 1024 (8192)")
    parser.add_argument("--positions", type=int, default=2048, help="positions scored (default 2048)")
    arguments = parser.parse_args(argv)
    if arguments.prompt < CHUNK or arguments.prompt % CHUNK:
        parser.error(f"--prompt {arguments.prompt}: must be a multiple of {CHUNK}")
    available = numba.config.NUMBA_NUM_THREADS
    if not all(1 <= threads <= available for threads in arguments.threads):
        parser.error(f"--threads {arguments.threads}: must be 1 to {available}")
    console = Console(width=130)
    for threads in arguments.threads:
        console.print(table(arguments.arithmetic, threads, arguments.prompt, arguments.positions))
    console.print(f"CPU {cpu_name()}, {os.cpu_count()} cores")
    console.print(f"Python {platform.python_version()}, NumPy {np.__version__}, numba {numba.__version__}")
    console.print(f"command: {shlex.join(['python', *sys.argv])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
