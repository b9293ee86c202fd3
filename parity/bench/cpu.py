"""Speed of the CPU kernels beside NumPy's way to the same result, in one process: ``python -m qsa.parity.bench.cpu``.

Exact attention of 4 rows x 2,051 cells at 64K context against float32 gather and matrix products on the same rows;
selection over 262,144 blocks against ``numpy.argpartition``; float attention and block scores; one million cells
through scores, selection and attention. A ratio is the kernel's time over NumPy's, each the shortest of its runs, which
alternate.
"""

import argparse
import os
import platform
import resource
import shlex
import sys
import time
from collections.abc import Callable, Sequence

import numba
import numpy as np
from rich.console import Console
from rich.table import Table

from qsa.kernels import cpu
from qsa.kernels.cpu.common import threads
from qsa.reference.geometry import REAL, step_records
from qsa.reference.index import Index
from qsa.reference.kv import PagedKV

from ..environment import cpu_name

ROWS, CONTEXT, MILLION = 4, 65536, 1 << 20
ATTENTION_LIMIT, SELECTION_LIMIT = 2.0, 3.0
"""The ratios promised."""

Row = tuple[str, float, float | None, float | None]
"""A row of the table: operation, seconds of the kernel, seconds of NumPy, the largest ratio allowed."""


def shortest(repeats: int, *functions: Callable[[], object]) -> list[float]:
    """Shortest seconds of each function, called in turn after two calls that are not timed. The shortest, because other
    work on the machine only adds time."""
    times: list[list[float]] = [[] for _ in functions]
    for number in range(repeats + 2):
        for taken, function in zip(times, functions, strict=True):
            start = time.perf_counter()
            function()
            if number >= 2:
                taken.append(time.perf_counter() - start)
    return [min(taken) for taken in times]


def int8_kv(rng: np.random.Generator, cells: int) -> PagedKV:
    """A PagedKV of random int8 codes behind a shuffled page table."""
    kv = PagedKV.new("int8", cells, table=rng.permutation(cells // 4))
    for side in (kv.pool.k, kv.pool.v):
        side.codes.view(np.uint8)[:] = rng.integers(1, 256, side.codes.shape, np.uint8)
        side.scale[:] = rng.uniform(0.005, 0.03, side.scale.shape)
    return kv


def numpy_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Float32 attention of every row: gather, matrix product per KV head, softmax, matrix product."""
    out = np.empty_like(q)
    for row, cells in enumerate(ids):
        keys, values = k[cells], v[cells]
        for g in range(REAL.n_head_kv):
            heads = slice(g * REAL.group, (g + 1) * REAL.group)
            scores = q[row, heads] @ keys[:, g].T * np.float32(REAL.head_dim**-0.5)
            scores -= scores.max(axis=1, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(axis=1, keepdims=True)
            out[row, heads] = scores @ values[:, g]
    return out


def attention(rng: np.random.Generator, repeats: int) -> list[Row]:
    """Rows of the table: exact and float attention against NumPy."""
    kv = int8_kv(rng, CONTEXT)
    k, v = (rng.standard_normal((CONTEXT, REAL.n_head_kv, REAL.head_dim), np.float32) for _ in range(2))
    q = rng.standard_normal((ROWS, REAL.n_head, REAL.head_dim), np.float32)
    steps = step_records([CONTEXT - 2] * ROWS)
    ids = np.stack([np.sort(rng.permutation(CONTEXT)[: REAL.max_width]) for _ in range(ROWS)]).astype(np.int32)
    exact, split, floats, plain = shortest(
        repeats,
        lambda: cpu.attend(q, kv, ids, steps, arithmetic="exact"),
        lambda: cpu.attend(q, kv, ids, steps, arithmetic="exact", schedule="split"),
        lambda: cpu.attend(q, kv, ids, steps, arithmetic="float"),
        lambda: numpy_attention(q, k, v, ids),
    )
    what = f"attention, {ROWS} rows x {REAL.max_width:,} of {CONTEXT:,} cells, int8"
    return [
        (f"exact {what}", exact, plain, ATTENTION_LIMIT),
        (f"exact {what}, split", split, plain, None),
        (f"float {what}", floats, plain, None),
    ]


def selection(rng: np.random.Generator, repeats: int) -> list[Row]:
    """Row of the table: selection against argpartition."""
    blocks = MILLION // REAL.ratio
    scores = rng.standard_normal((1, blocks), np.float32)
    steps = step_records([MILLION - 1])
    ours, plain = shortest(
        repeats, lambda: cpu.select(scores, steps), lambda: np.argpartition(scores[0], REAL.top_blocks)
    )
    return [(f"selection, {blocks:,} blocks", ours, plain, SELECTION_LIMIT)]


def million(rng: np.random.Generator, repeats: int) -> list[Row]:
    """Rows of the table: one million cells, each operation of a step."""
    kv = int8_kv(rng, MILLION)
    index = Index(MILLION // REAL.ratio + 1, np.ones(REAL.idx_dim, np.float32))
    rng.standard_normal(out=index.pooled, dtype=np.float32)
    q_idx = rng.standard_normal((ROWS, REAL.idx_heads, REAL.idx_dim), np.float32)
    q = rng.standard_normal((ROWS, REAL.n_head, REAL.head_dim), np.float32)
    steps = step_records(range(MILLION - ROWS, MILLION))
    scores = cpu.block_scores(q_idx, index, steps)
    assert scores is not False
    ids = cpu.select(scores, steps)
    assert ids is not False
    scored, selected, attended, plain = shortest(
        repeats,
        lambda: cpu.block_scores(q_idx, index, steps, scores),
        lambda: cpu.select(scores, steps, ids),
        lambda: cpu.attend(q, kv, ids, steps, arithmetic="exact"),
        lambda: index.pooled @ q_idx.reshape(-1, REAL.idx_dim).T,
    )
    what = f"{ROWS} rows over {MILLION:,} cells"
    return [
        (f"block scores, {what} (NumPy: the products alone)", scored, plain, None),
        (f"selection, {what}", selected, None, None),
        (f"exact attention, {what}", attended, None, None),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; returns 1 when a promised ratio is not kept."""
    parser = argparse.ArgumentParser(prog="qsa.parity.bench.cpu", description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15, help="timed runs of each function (default 15)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the inputs (default 1)")
    arguments = parser.parse_args(argv)
    rng = np.random.Generator(np.random.Philox(arguments.seed))
    rows = [row for part in (attention, selection, million) for row in part(rng, arguments.repeats)]
    table = Table(title="CPU kernels beside NumPy")
    table.add_column("operation")
    for heading in ("ms", "NumPy ms", "ratio", "limit"):
        table.add_column(heading, justify="right")
    missed = 0
    for what, ours, plain, limit in rows:
        ratio = None if plain is None else ours / plain
        missed += ratio is not None and limit is not None and ratio > limit
        cells = (ours * 1e3, plain and plain * 1e3, ratio, limit)
        table.add_row(what, *("" if cell is None else f"{cell:.2f}" for cell in cells))
    console = Console(width=110)
    console.print(table)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    console.print(f"CPU {cpu_name()}, {os.cpu_count()} cores, {threads.count()} threads; peak {peak:.2f} GiB")
    console.print(f"Python {platform.python_version()}, NumPy {np.__version__}, numba {numba.__version__}")
    console.print(f"command: {shlex.join(['python', *sys.argv])}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
