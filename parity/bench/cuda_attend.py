"""Times the exact ``attend`` on a CUDA device beside the read limit, after checking its bytes.

    python -m qsa.parity.bench.cuda_attend [--json PATH] [--rows 1 4 16 64 256] [--formats int8]
                                           [--schedules batch split] [--window 1] [--common 0.9]

24 query heads on 2 KV heads of 256 dims, 2,051 selected cells of 65,535 a row (512 blocks of 4 and a tail), shuffled
pages of 4 cells, up to 4 slots. With ``--window N`` each N rows are one sequence's and have the share ``--common`` of
their blocks in common; a prompt is one window of all rows. Times are those of ``timing.hot`` in microseconds: hot,
launches included. ``share`` is the limit's time over the kernel's; the limit is ``limits.gather`` of the same cells in
the same run. The bytes of the first and the last row are compared with ``reference.exact`` before anything is timed. A
difference is named at the end, with exit code 1.
"""

import sys
from collections.abc import Iterable, Sequence
from functools import partial

import cupy
import numpy as np

from qsa.kernels.cuda.attend import attend, row_blocks
from qsa.kernels.cuda.device import to_device
from qsa.kernels.cuda.toolchain import compiler
from qsa.kernels.cuda.toolchain.compiler import properties
from qsa.reference import exact
from qsa.reference.geometry import REAL
from qsa.reference.kv import PagedKV

from . import limits, script
from .timing import hot

CELLS, WIDTH, SLOTS = 65535, 2051, 4


def random_slot(rng: np.random.Generator, format: str) -> PagedKV:
    """A PagedKV of random codes and scales, which no vectors were quantised to."""
    kv = PagedKV.new(format, CELLS, table=rng.permutation(-(-CELLS // 4)))
    for side in (kv.pool.k, kv.pool.v):
        side.codes[:] = rng.integers(0, 256, side.codes.shape, np.uint8).view(side.codes.dtype)
        if side.coding == "int8":
            np.maximum(side.codes, -127, out=side.codes)
        side.scale[:] = np.exp(rng.standard_normal(side.scale.shape, np.float32)) / 100
    return kv


def selections(rng: np.random.Generator, rows: int, window: int = 1, common: float = 0.0) -> np.ndarray:
    """Ids int32 [rows, 2051] of 512 blocks and the tail, ascending. Each ``window`` rows have the share ``common`` of
    their blocks in common, and of the others each its own choice."""
    same = round(512 * common) if window > 1 else 0
    chosen = []
    for row in range(rows):
        if row % window == 0:
            order = rng.permutation(CELLS // 4)
        own = rng.choice(order[same:], 512 - same, replace=False)
        chosen.append(np.sort(np.concatenate([order[:same], own])))
    blocks = np.stack(chosen)
    cells = (blocks[:, :, None] * 4 + np.arange(4)).reshape(rows, -1)
    return np.concatenate([cells, np.tile(np.arange(CELLS - 3, CELLS), (rows, 1))], axis=1).astype(np.int32)


def run(
    format: str,
    rows_list: Iterable[int],
    schedules: Iterable[str],
    rng: np.random.Generator,
    figures: script.Figures,
    window: int = 1,
    common: float = 0.0,
) -> None:
    """Check and time one format; ``window`` and ``common`` are those of :func:`selections`."""
    kvs = [random_slot(rng, format)] * SLOTS
    there = [to_device(kv) for kv in kvs]
    for rows in rows_list:
        sequences = -(-rows // window)
        slots = min(sequences, SLOTS)
        held = there[:slots] if slots > 1 else there[0]
        slot_of_row = (np.arange(rows) // window % slots).astype(np.int32)
        slot_of = cupy.asarray(slot_of_row) if slots > 1 else None
        rows_text = f"rows {rows}" + (f" in windows of {window}" if window > 1 else "")
        q = rng.standard_normal((rows, REAL.n_head, REAL.head_dim)).astype(np.float32)
        ids, steps = selections(rng, rows, window, common), np.zeros((rows, 4), np.int32)
        steps[:] = CELLS - 1, CELLS, CELLS // 4, WIDTH
        inputs = [cupy.asarray(x) for x in (q, ids, steps)]
        out = cupy.zeros_like(inputs[0])
        picked = sorted({0, rows - 1})
        wanted = exact.attend(q[picked], kvs[0], ids[picked], steps[picked])
        cell = limits.cell_bytes(there[0])
        limit = limits.gather(ids, slot_of_row, slots, CELLS, REAL.n_head_kv, cell)
        read = hot(limit).median
        figures.add(f"{format} {rows_text} read", read, f"{format:5} {rows:4} rows  read {read:8.2f}")
        for schedule in schedules:
            if schedule == "split" and format != "int8":
                continue

            q_d, ids_d, steps_d = inputs
            arguments = q_d, held, ids_d, steps_d, slot_of, out
            call = partial(attend, *arguments, schedule=schedule, arithmetic="exact")
            out.fill(np.nan)
            call()
            name = f"{format} {rows_text} {schedule}"
            if not np.array_equal(out.get()[picked].view(np.uint32), wanted.view(np.uint32)):
                figures.wrong.append(name)
            timing = hot(call)
            time, low, high = timing.median, timing.p10, timing.p90
            splits = row_blocks(there[:1], rows, WIDTH, schedule)
            figures.add(
                name,
                time,
                f"{format:5} {rows:4} rows  {schedule:6} {time:8.2f} us  ({low:.2f} to {high:.2f})  splits {splits:2}  "
                f"share {read / time:.2f}",
            )


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of the benchmark; returns 1 when a result is wrong."""
    parser = script.parser("cuda_attend", __doc__)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 16, 64, 256])
    parser.add_argument("--formats", nargs="+", default=["int8"], choices=("int8", "k8v4", "q4_0"))
    parser.add_argument("--schedules", nargs="+", default=["batch", "split"], choices=("batch", "split", "step"))
    parser.add_argument("--window", type=int, default=1, help="rows of one sequence (default: 1)")
    parser.add_argument("--common", type=float, default=0.9, help="share of blocks that they have in common")
    arguments = parser.parse_args(argv)
    if arguments.window < 1 or not 0 <= arguments.common <= 1:
        parser.error("--window must be 1 or more, --common 0 to 1")
    compiler.current_device()
    figures, shares = script.Figures(), (arguments.window, arguments.common)
    with cupy.cuda.Stream(non_blocking=True):
        for format in arguments.formats:
            run(format, arguments.rows, arguments.schedules, np.random.default_rng(1), figures, *shares)
    report = {"device": properties().name, "microseconds": figures.values, "bad": figures.wrong}
    return figures.finish(arguments.json, report)


if __name__ == "__main__":
    sys.exit(main())
