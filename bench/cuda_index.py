"""Times ``block_scores`` and ``select`` on a CUDA device beside the read limit, after checking their bytes.

    python bench/cuda_index.py [--json PATH] [--contexts 16K 64K ...] [--rows 1 4]

Every figure is the median over replays of a captured graph that holds one launch many times, divided by their number,
in microseconds: hot, one stream, launches included. ``read`` is a kernel that only loads the keys (or scores) that the
operation reads, in the same run. The outputs of all schedules are compared with ``reference.exact``, byte for byte,
before they are timed; a difference is named at the end, with exit code 1.
"""

import argparse
import json
import sys
from types import SimpleNamespace

import cupy
import numpy as np

from qsa.kernels.cuda import compiler
from qsa.kernels.cuda.block_scores import block_scores
from qsa.kernels.cuda.compiler import cuda, int32, int64, kernel, launch, properties
from qsa.kernels.cuda.ptx import global_base, ld_global_v4_i32, st_global_i32
from qsa.kernels.cuda.select import scratch_shape, select
from qsa.reference import exact
from qsa.reference.geometry import REAL, step_records

_SIZES = {"1K": 1 << 10, "16K": 1 << 14, "64K": 1 << 16, "256K": 1 << 18, "1M": 1 << 20}
CONTEXTS = {**{name: (size - 1, size) for name, size in _SIZES.items()}, "1K-in-1M": (1023, 1 << 20)}
"""Name -> (cells, capacity in cells): a tail of 3; the last shows what unused capacity costs."""

LAUNCHES, REPLAYS = 10, 32


@kernel()
def read_only(words, count, out):
    """Loads ``count`` int32 words, four at a time, eight loads in flight; stores only what never happens."""
    base = global_base(words)
    place = int32((cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x) * 4)
    stride = int32(cuda.gridDim.x * cuda.blockDim.x * 4)
    found = int32(0)
    while place < count:
        for i in range(8):
            at = int64(place) + int64(i) * stride
            if at < count:
                a, b, c, d = ld_global_v4_i32(base + at * 4)
                found = int32(found | (a & b & c & d))
        place = int32(place + 8 * stride)
    if found == 0x7FABCDEF:
        st_global_i32(global_base(out), found)


def median_time(call):
    """Median microseconds of ``call``, which launches on the current stream."""
    stream = cupy.cuda.get_current_stream()
    call()
    stream.begin_capture()
    for _ in range(LAUNCHES):
        call()
    graph = stream.end_capture()
    for _ in range(3):
        graph.launch(stream=stream)
    times = []
    for _ in range(REPLAYS):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(stream)
        graph.launch(stream=stream)
        end.record(stream)
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, end) * 1e3 / LAUNCHES)
    return float(np.median(times))


def read_time(array):
    """Microseconds of :func:`read_only` over ``array``."""
    out = cupy.zeros(1, "int32")
    words = array.reshape(-1).view("int32")
    grid = min(4 * properties().multiprocessors, -(-words.size // 1024))
    return median_time(lambda: launch(read_only, grid, 256, (words, words.size // 4 * 4, out)))


class Bench:
    """Inputs of one context, and the figures so far."""

    def __init__(self):
        self.figures, self.bad = {}, []

    def note(self, name, call, expected, equal):
        """Check ``call``'s result, then time it."""
        got = call()
        if got is False or not equal(got.get(), expected):
            self.bad.append(name)
        self.figures[name] = median_time(call)
        # Said at once: a run cut short must not hide it.
        print(f"{name:<44} {self.figures[name]:9.2f}{'  BYTES DIFFER' * (name in self.bad)}", flush=True)

    def read(self, name, array):
        self.figures[name] = read_time(array)
        print(f"{name:<44} {self.figures[name]:9.2f}", flush=True)


def same_bits(got, expected):
    return np.array_equal(got.view(np.uint32), expected.view(np.uint32))


def run(bench, context, rows_list):
    cells, capacity = CONTEXTS[context]
    rng = np.random.default_rng(cells)
    max_blocks = capacity // REAL.ratio + 2
    host = SimpleNamespace(geometry=REAL, max_blocks=max_blocks)
    host.pooled = rng.standard_normal((max_blocks, REAL.idx_dim), dtype=np.float32)
    host.dead = rng.standard_normal(REAL.idx_dim, dtype=np.float32)
    index = SimpleNamespace(**{**vars(host), "pooled": cupy.asarray(host.pooled), "dead": cupy.asarray(host.dead)})
    q = rng.standard_normal((max(rows_list), REAL.idx_heads, REAL.idx_dim), dtype=np.float32)
    positions = [cells - 1 - i for i in range(max(rows_list))]
    steps = step_records(positions)
    expected = exact.block_scores(q, host, steps, np.zeros((len(q), max_blocks), np.float32))
    bench.read(f"scores {context} read", index.pooled[: cells // REAL.ratio])
    for rows in rows_list:
        qd, sd = cupy.asarray(q[:rows]), cupy.asarray(steps[:rows])
        out = cupy.zeros((rows, max_blocks), "float32")
        for schedule in ("warp", "multi_query", "transposed", "prompt"):
            bench.note(
                f"scores {context} rows {rows} {schedule}",
                lambda s=schedule, q=qd, t=sd, out=out: block_scores(q, index, t, out, schedule=s),
                expected[:rows],
                same_bits,
            )
    for rule in ("blocks", "cells"):
        records = step_records(positions, rule)
        wanted = exact.select(expected, records, rule=rule)
        for rows in rows_list:
            scores, rd = cupy.asarray(expected[:rows]), cupy.asarray(records[:rows])
            ids = cupy.zeros((rows, REAL.max_width), "int32")
            scratch = cupy.zeros(scratch_shape(rows, max_blocks), "int32")
            if rule == "blocks":
                bench.read(
                    f"select {context} rows {rows} read", cupy.ascontiguousarray(scores[:, : cells // REAL.ratio])
                )
            for schedule in ("registers", "wide", "scan", "spread"):
                if schedule == "registers" and max_blocks > 33 * 1024:
                    continue
                bench.note(
                    f"select {context} {rule} rows {rows} {schedule}",
                    lambda s=schedule, x=scores, t=rd, ids=ids, w=scratch, rule=rule: select(
                        x, t, ids, rule=rule, schedule=s, scratch=w
                    ),
                    wanted[:rows],
                    np.array_equal,
                )


TABLE = (
    ("block_scores, read limit", "scores {} read"),
    ("1 row, SCORES_TRANSPOSED off", "scores {} rows 1 warp"),
    ("1 row, SCORES_TRANSPOSED on", "scores {} rows 1 transposed"),
    ("4 rows, SCORES_TRANSPOSED off", "scores {} rows 4 multi_query"),
    ("4 rows, SCORES_TRANSPOSED on", "scores {} rows 4 transposed"),
    ("select, read limit of 1 row", "select {} rows 1 read"),
    ("1 row, TOPK_SCAN off", "select {} blocks rows 1 wide"),
    ("1 row, TOPK_SCAN on", "select {} blocks rows 1 scan"),
    ("1 row, registers", "select {} blocks rows 1 registers"),
    ("1 row, spread", "select {} blocks rows 1 spread"),
    ("4 rows, TOPK_SCAN off", "select {} blocks rows 4 wide"),
    ("4 rows, TOPK_SCAN on", "select {} blocks rows 4 scan"),
    ("4 rows, registers", "select {} blocks rows 4 registers"),
    ("4 rows, spread", "select {} blocks rows 4 spread"),
)
"""Label of a line of the table -> figure's name, the context left open."""


def table(figures, contexts):
    """The switches off against on, the other forms and the read limits, as a Markdown table."""
    lines = ["| us, hot, graph replay | " + " | ".join(contexts) + " |", "|---" * (1 + len(contexts)) + "|"]
    for label, name in TABLE:
        cells = [figures.get(name.format(context)) for context in contexts]
        if any(cell is not None for cell in cells):
            lines.append(f"| {label} | " + " | ".join("" if cell is None else f"{cell:.1f}" for cell in cells) + " |")
    return "\n".join(lines)


def main():
    """Command line of the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--contexts", nargs="+", default=[*CONTEXTS], choices=CONTEXTS)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4])
    args = parser.parse_args()
    bench = Bench()
    with cupy.cuda.Stream(non_blocking=True):
        for context in args.contexts:
            run(bench, context, args.rows)
    if args.json:
        record = {"device": properties().name, "compiler": compiler.NAME, "us": bench.figures, "bad": bench.bad}
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
    print(table(bench.figures, args.contexts))
    for name in bench.bad:
        print(f"BYTES DIFFER: {name}")
    return 1 if bench.bad else 0


if __name__ == "__main__":
    sys.exit(main())
