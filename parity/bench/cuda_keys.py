"""Times ``block_scores`` of both index formats on a CUDA device beside the read limit, after checking their bytes.

    python -m qsa.parity.bench.cuda_keys [--json PATH] [--contexts 16K 64K ...] [--rows 1 4 16 ...]

Every figure is the median over replays of a captured graph that holds one launch many times, divided by their number,
in microseconds: hot, one stream, launches included (``timing.py``). ``read`` is a kernel that only loads the bytes of
the keys, 512 a block of fp32 and 258 of int16, in the same run (``limits.py``). The rows are the last of the context;
of many rows the first and last four are compared with ``reference.exact``, byte for byte, before anything is timed. A
difference is named at the end, with exit code 1.
"""

import sys
from collections.abc import Sequence
from functools import partial

import numpy as np

from qsa.kernels.cuda.backend import block_scores, to_device
from qsa.kernels.cuda.toolchain import compiler
from qsa.kernels.cuda.toolchain.compiler import array_module, as_numpy, properties
from qsa.reference import exact
from qsa.reference.geometry import REAL, step_records
from qsa.reference.index import INDEX_FORMATS, Index

from . import limits, script, timing

CONTEXTS = {"16K": 1 << 14, "64K": 1 << 16, "256K": 1 << 18, "1M": 1 << 20}
"""Name -> cells, all of them in use but one."""

KEY_BYTES = {"fp32": 4 * REAL.idx_dim, "int16": 2 * REAL.idx_dim + 2}
MOST_SCORES = 1 << 29
"""Scores of a call at most: 2 GiB."""


def _same(got: np.ndarray, expected: np.ndarray, steps: np.ndarray) -> bool:
    seen = np.arange(expected.shape[1]) <= steps[:, 2:3]
    return np.array_equal(np.where(seen, got, 0).view(np.uint32), np.where(seen, expected, 0).view(np.uint32))


def run(figures: script.Figures, context: str, rows_list: list[int]) -> None:
    """Time both formats of one context."""
    cells = CONTEXTS[context]
    rng = np.random.default_rng(cells)
    keys = rng.standard_normal((cells // REAL.ratio + 1, REAL.idx_dim), dtype=np.float32)
    for format in INDEX_FORMATS:
        index = Index(len(keys), np.ones(REAL.idx_dim, np.float32), format=format)
        index.set_pooled(slice(None), keys)
        index.set_dead(keys[0])
        there = to_device(index)
        name = f"{context} {format}"
        read = timing.hot(limits.sequential(len(keys) * KEY_BYTES[format])).median
        figures.add(f"{name} read", read, f"{name + ' read':<28} {read:9.2f}")
        for rows in rows_list:
            if rows * len(keys) > MOST_SCORES:
                continue
            q = rng.standard_normal((rows, REAL.idx_heads, REAL.idx_dim), dtype=np.float32)
            steps = step_records(np.maximum(cells - 1 - rows + np.arange(rows), 0))
            given = to_device(q), there, to_device(steps)
            out = array_module().zeros((rows, len(keys)), "float32")
            label = f"{name} rows {rows}"
            some = sorted({*range(min(rows, 4)), *range(max(rows - 4, 0), rows)})
            done = block_scores(*given, out)
            if done is False or not _same(
                as_numpy(out[some]), exact.block_scores(q[some], index, steps[some]), steps[some]
            ):
                figures.wrong.append(label)
            found = timing.hot(partial(block_scores, *given, out)).median
            note = "  BYTES DIFFER" * (label in figures.wrong)
            figures.add(label, found, f"{label:<28} {found:9.2f}{note}")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of the benchmark; returns 1 when a result is wrong."""
    parser = script.parser("cuda_keys", __doc__)
    parser.add_argument("--contexts", nargs="+", default=[*CONTEXTS], choices=CONTEXTS)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 8, 16, 64, 512, 2048])
    arguments = parser.parse_args(argv)
    figures = script.Figures()
    for context in arguments.contexts:
        run(figures, context, arguments.rows)
    facts = {"device": properties().name, "compiler": compiler.NAME}
    return figures.finish(arguments.json, {**facts, "us": figures.values, "bad": figures.wrong})


if __name__ == "__main__":
    sys.exit(main())
