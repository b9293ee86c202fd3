"""Times the exact ``attend`` on a CUDA device beside the read limit, after checking its bytes.

    python -m qsa.parity.bench.cuda_attend [--json PATH] [--rows 1 4 16 64 256] [--formats int8]
                                           [--schedules batch split]

24 query heads on 2 KV heads of 256 dims, 2,051 selected cells of 65,535 a row (512 blocks of 4 and a tail), shuffled
pages of 4 cells, up to 4 slots. Times are :func:`qsa.parity.timing.hot`'s, in microseconds: hot, launches included;
``share`` is the part of them that the limit takes, :func:`qsa.parity.limits.gather` of the same cells in the same run.
The first and the last row's bytes are compared with ``reference.exact`` before anything is timed; a difference is named
at the end, with exit code 1.
"""

import argparse
import json
import sys

import cupy
import numpy as np

from qsa.kernels.cuda.attend import attend, plan
from qsa.kernels.cuda.device import to_device
from qsa.kernels.cuda.toolchain import compiler
from qsa.kernels.cuda.toolchain.compiler import properties
from qsa.reference import exact
from qsa.reference.geometry import REAL
from qsa.reference.kv import PagedKV

from . import limits
from .timing import hot

CELLS, WIDTH, SLOTS = 65535, 2051, 4


def random_slot(rng, fmt):
    """A PagedKV of random codes and scales; what is in it need not come from vectors."""
    kv = PagedKV.new(fmt, CELLS, table=rng.permutation(-(-CELLS // 4)))
    for side in (kv.pool.k, kv.pool.v):
        side.codes[:] = rng.integers(0, 256, side.codes.shape, np.uint8).view(side.codes.dtype)
        if side.coding == "int8":
            np.maximum(side.codes, -127, out=side.codes)
        side.scale[:] = np.exp(rng.standard_normal(side.scale.shape, np.float32)) / 100
    return kv


def selections(rng, rows):
    """Ids [rows, 2051] of 512 blocks and the tail, ascending."""
    blocks = np.stack([np.sort(rng.permutation(CELLS // 4)[:512]) for _ in range(rows)])
    cells = (blocks[:, :, None] * 4 + np.arange(4)).reshape(rows, -1)
    return np.concatenate([cells, np.tile(np.arange(CELLS - 3, CELLS), (rows, 1))], axis=1).astype(np.int32)


def run(fmt, rows_list, schedules, rng, figures, bad):
    """Check and time one format."""
    kvs = [random_slot(rng, fmt)] * SLOTS
    there = [to_device(kv) for kv in kvs]
    for rows in rows_list:
        slots = min(rows, SLOTS)
        held = there[:slots] if slots > 1 else there[0]
        slot_of = cupy.arange(rows, dtype="int32") % slots if slots > 1 else None
        q = rng.standard_normal((rows, REAL.n_head, REAL.head_dim)).astype(np.float32)
        ids, steps = selections(rng, rows), np.zeros((rows, 4), np.int32)
        steps[:] = CELLS - 1, CELLS, CELLS // 4, WIDTH
        inputs = [cupy.asarray(x) for x in (q, ids, steps)]
        out = cupy.zeros_like(inputs[0])
        picked = sorted({0, rows - 1})
        wanted = exact.attend(q[picked], kvs[0], ids[picked], steps[picked])
        cell = limits.cell_bytes(there[0])
        limit = limits.gather(ids, np.arange(rows) % slots, slots, CELLS, REAL.n_head_kv, cell)
        read = figures[f"{fmt} rows {rows} read"] = hot(limit).median
        print(f"{fmt:5} {rows:4} rows  read {read:8.2f}", flush=True)
        for schedule in schedules:
            if schedule == "split" and fmt != "int8":
                continue

            def call(schedule=schedule, inputs=inputs, held=held, slot_of=slot_of, out=out):
                q, ids, steps = inputs
                return attend(q, held, ids, steps, slot_of, out, schedule=schedule, arithmetic="exact")

            out.fill(np.nan)
            call()
            name = f"{fmt} rows {rows} {schedule}"
            if not np.array_equal(out.get()[picked].view(np.uint32), wanted.view(np.uint32)):
                bad.append(name)
            timing = hot(call)
            time, low, high = timing.median, timing.p10, timing.p90
            figures[name] = time
            splits = plan(there[:1], rows, WIDTH, schedule)
            print(
                f"{fmt:5} {rows:4} rows  {schedule:6} {time:8.2f} us  ({low:.2f} to {high:.2f})  splits {splits:2}  "
                f"share {read / time:.2f}",
                flush=True,
            )


def main():
    """Command line of the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 16, 64, 256])
    parser.add_argument("--formats", nargs="+", default=["int8"], choices=("int8", "k8v4", "q4_0"))
    parser.add_argument("--schedules", nargs="+", default=["batch", "split"], choices=("batch", "split", "step"))
    args = parser.parse_args()
    compiler.current_device()
    figures, bad = {}, []
    with cupy.cuda.Stream(non_blocking=True):
        for fmt in args.formats:
            run(fmt, args.rows, args.schedules, np.random.default_rng(1), figures, bad)
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"device": properties().name, "microseconds": figures, "bad": bad}, file, indent=1)
    for name in bad:
        print(f"differs from reference.exact: {name}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
