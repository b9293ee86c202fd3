"""Times the float ``attend`` on a CUDA device in its two forms, after holding both to float64.

    python -m qsa.parity.bench.cuda_float [--json PATH] [--rows 1 4 16 64 256] [--formats int8 fp16] [--prompt 512]
                                          [--forms standing tensor exact] [--turns 2]

The inputs are those of ``cuda_attend``: 24 query heads on 2 KV heads of 256 dims, 2,051 selected cells of 65,535 a row,
up to 4 slots. ``--prompt`` adds rows of one slot whose selections change by a tenth from row to row. The forms are the
standing one (schedule ``batch``) and that of the tensor cores (``split``), and the exact arithmetic;
they are timed in turn, forth and back, ``--turns`` times, by ``timing.hot``: medians in microseconds. Errors are norms
of the first and the last row against float64. An error beyond LIMIT is named at the end, with exit code 1.
"""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import cupy
import numpy as np

from qsa.kernels.cuda.attend import attend
from qsa.kernels.cuda.device import to_device
from qsa.kernels.cuda.toolchain import compiler
from qsa.kernels.cuda.toolchain.compiler import properties
from qsa.reference.attend import attend as truth
from qsa.reference.geometry import REAL
from qsa.reference.kv import PagedKV

from . import script
from .cuda_attend import CELLS, SLOTS, WIDTH, random_slot, selections
from .timing import hot

LIMIT = 2e-6
"""Relative error of a row: float32 kernels have 2e-7 to 5e-7 on these inputs."""

FORMS = {"standing": ("batch", "float"), "tensor": ("split", "float"), "exact": ("batch", "exact")}


def _slot(rng: np.random.Generator, format: str) -> PagedKV:
    """A slot of random cells."""
    if format != "fp16":
        return random_slot(rng, format)
    kv = PagedKV.new(format, CELLS, table=rng.permutation(-(-CELLS // 4)))
    for side in (kv.pool.k, kv.pool.v):
        side.codes[:] = rng.standard_normal(side.codes.shape, np.float32).astype(np.float16)
    return kv


def _prompt(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Ids int32 [rows, 2051] of which a tenth changes from one row to the next."""
    ids = selections(rng, 1).repeat(rows, axis=0)
    chosen = ids[0, :-3:4] // 4
    for row in range(1, rows):
        free = np.ones(CELLS // 4, bool)
        free[chosen] = False
        places = rng.permutation(chosen.size)[: chosen.size // 10]
        chosen[places] = rng.permutation(np.flatnonzero(free))[: places.size]
        ids[row, :-3] = (np.sort(chosen)[:, None] * 4 + np.arange(4)).ravel()
    return ids


def _row_errors(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    axes = tuple(range(1, got.ndim))
    return np.sqrt(((got - want) ** 2).sum(axes) / (want**2).sum(axes))


def run(
    name: str, kv: PagedKV, slots: int, ids: np.ndarray, forms: Sequence[str], turns: int, figures: script.Figures
) -> None:
    """Check and time one case, its rows in ``slots`` slots of the same cells."""
    rng, rows = np.random.default_rng(7), len(ids)
    there: Any = [to_device(kv) for _ in range(slots)]
    slot_of = cupy.arange(rows, dtype="int32") % slots if slots > 1 else None
    there = there if slots > 1 else there[0]
    q = rng.standard_normal((rows, REAL.n_head, REAL.head_dim)).astype(np.float32)
    steps = np.zeros((rows, 4), np.int32)
    steps[:] = CELLS - 1, CELLS, CELLS // 4, WIDTH
    q_d, ids_d, steps_d = (cupy.asarray(x) for x in (q, ids, steps))
    out = cupy.zeros_like(q_d)
    picked = sorted({0, rows - 1})
    wanted = truth(q[picked], kv, ids[picked], steps[picked])
    calls = {}
    for form in forms:
        schedule, arithmetic = FORMS[form]
        calls[form] = partial(
            attend, q_d, there, ids_d, steps_d, slot_of, out, schedule=schedule, arithmetic=arithmetic
        )
        out.fill(np.nan)
        calls[form]()
        worst = float(_row_errors(out.get()[picked].astype(np.float64), wanted).max())
        print(f"{name:16} {form:9} error {worst:.2e}", flush=True)
        if not worst < LIMIT:
            figures.wrong.append(f"{name} {form}: error {worst:.2e}")
    times: dict[str, list[float]] = {form: [] for form in forms}
    for turn in range(turns):
        for form in forms if turn % 2 == 0 else forms[::-1]:
            times[form].append(hot(calls[form]).median)
    for form, found in times.items():
        shown = " ".join(f"{time:8.2f}" for time in found)
        figures.add(f"{name} {form}", found, f"{name:16} {form:9} {shown} us")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of the benchmark; returns 1 when an error is too large."""
    parser = script.parser("cuda_float", __doc__)
    parser.add_argument("--rows", nargs="*", type=int, default=[1, 4, 16, 64, 256])
    parser.add_argument("--formats", nargs="+", default=["int8", "fp16"], choices=("int8", "k8v4", "q4_0", "fp16"))
    parser.add_argument("--prompt", nargs="*", type=int, default=[512])
    parser.add_argument("--forms", nargs="+", default=["standing", "tensor"], choices=tuple(FORMS))
    parser.add_argument("--turns", type=int, default=2)
    arguments = parser.parse_args(argv)
    compiler.current_device()
    figures = script.Figures()
    with cupy.cuda.Stream(non_blocking=True):
        for format in arguments.formats:
            rng = np.random.default_rng(1)
            kv = _slot(rng, format)
            forms = [form for form in arguments.forms if form != "exact" or format != "fp16"]
            for rows in arguments.rows:
                ids = selections(rng, rows)
                run(f"{format} rows {rows}", kv, min(rows, SLOTS), ids, forms, arguments.turns, figures)
            for rows in arguments.prompt:
                run(f"{format} prompt {rows}", kv, 1, _prompt(rng, rows), forms, arguments.turns, figures)
    report = {"device": properties().name, "microseconds": figures.values, "bad": figures.wrong}
    return figures.finish(arguments.json, report)


if __name__ == "__main__":
    sys.exit(main())
