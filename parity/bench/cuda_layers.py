"""Times the layers' operations on a CUDA device at the published model's sizes, in graphs.

    python -m qsa.parity.bench.cuda_layers [--json PATH] [--rows 1 8 1000] [--only linear experts small]

Every figure is the median over replays of a captured graph that holds ten calls, divided by ten, in microseconds
(``qsa.parity.timing.hot``). The ten calls of a linear layer have weights of their own, so that nothing is found in the
L2 cache: ``GB/s`` are the bytes of codes and scales over the time, ``TMAC/s`` the products of a weight and an input.
The bytes are the tests' affair (``tests/gpu/test_layers.py``).
"""

import argparse
import itertools
import json

import cupy
import numpy as np

from qsa.kernels.cuda import layers
from qsa.kernels.cuda.layers.linear import LoadedLinear

from . import timing

HIDDEN, WIDTH, EXPERTS, TOP, STREAMS, HEADS, DIM = 2560, 640, 512, 10, 4, 24, 256
MATRICES = {"in": (12288, HIDDEN), "out": (HIDDEN, 6144), "shared": (HIDDEN, WIDTH), "low": (68, STREAMS * HIDDEN)}
COPIES = 10


def weights(outputs, inputs, *leading):
    """Random weights on the device, as ``load_linear`` would lay them out."""
    shape = (*leading, -(-outputs // 16), -(-inputs // 64), 16)
    codes = cupy.random.randint(-127, 128, (*shape, 64), dtype=np.int8)
    scale = cupy.full(shape, 0.005, np.float16)
    return LoadedLinear(codes, scale, outputs, inputs)


def rows_of(*shape):
    return cupy.random.standard_normal(shape, dtype=np.float32)


class Figures:
    """Times so far by name."""

    def __init__(self):
        self.found = {}

    def time(self, name, call, nbytes=0, products=0):
        found = timing.hot(call)
        self.found[name] = {"us": found.median, "p10": found.p10, "p90": found.p90}
        rates = f"{nbytes / found.median / 1e3:8.0f} GB/s" * bool(nbytes)
        rates += f"{products / found.median / 1e6:8.2f} TMAC/s" * bool(products)
        print(f"{name:<32} {found.median:10.2f} us {rates}", flush=True)


def linear(figures, rows_list):
    for name, (outputs, inputs) in MATRICES.items():
        turn = itertools.cycle([weights(outputs, inputs) for _ in range(COPIES)])
        size = outputs * inputs
        for rows in rows_list:
            x = rows_of(rows, inputs)
            figures.time(
                f"linear {name} {outputs}x{inputs} rows {rows}",
                lambda x=x, turn=turn: layers.linear(x, next(turn)),
                size + size // 32,
                rows * size,
            )
    head, x = weights(248320, HIDDEN), rows_of(8, HIDDEN)
    for rows in (1, 8):
        size = 248320 * HIDDEN
        figures.time(f"linear head rows {rows}", lambda rows=rows: layers.linear(x[:rows], head), size + size // 32)


def experts(figures, rows_list):
    gate_up, down = weights(2 * WIDTH, HIDDEN, EXPERTS), weights(HIDDEN, WIDTH, EXPERTS)
    each = 3 * WIDTH * HIDDEN
    for rows in rows_list:
        x, logits = rows_of(rows, HIDDEN), rows_of(rows, EXPERTS)
        figures.time(f"route rows {rows}", lambda logits=logits: layers.route(logits, TOP))
        # Ten choices in turn, so that a step's experts come from memory.
        chosen = itertools.cycle([layers.route(rows_of(rows, EXPERTS), TOP) for _ in range(COPIES)])
        used = min(rows * TOP, EXPERTS)
        figures.time(
            f"experts rows {rows}",
            lambda x=x, chosen=chosen: layers.experts(x, *next(chosen), gate_up, down),
            used * (each + each // 32),
            rows * TOP * each,
        )


def small(figures, rows_list):
    weight, groups, head = rows_of(HIDDEN), rows_of(STREAMS, HIDDEN), rows_of(DIM)
    for rows in rows_list:
        x, streams, heads = rows_of(rows, HIDDEN), rows_of(rows, STREAMS, HIDDEN), rows_of(rows, HEADS, DIM)
        table, share, wide = rows_of(rows, 64), rows_of(rows, STREAMS), rows_of(rows, 2 * WIDTH)
        for name, call in {
            "rms_norm": lambda x=x: layers.rms_norm(x, weight, 1e-6),
            "rms_norm of streams": lambda streams=streams: layers.rms_norm(streams, groups, 1e-6),
            "rms_norm of heads": lambda heads=heads: layers.rms_norm(heads, head, 1e-6),
            "rotate": lambda heads=heads, table=table: layers.rotate(heads, table),
            "swiglu": lambda wide=wide: layers.swiglu(wide),
            "sigmoid_gate": lambda heads=heads: layers.sigmoid_gate(heads, heads),
            "mix_streams": lambda streams=streams: layers.mix_streams(streams, streams),
            "inject": lambda streams=streams, share=share, x=x: layers.inject(streams, share, x),
            "ngram_gate": lambda streams=streams, x=x: layers.ngram_gate(streams, streams, x),
        }.items():
            figures.time(f"{name} rows {rows}", call)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 32, 1000])
    parser.add_argument("--only", nargs="+", choices=("linear", "experts", "small"))
    given = parser.parse_args()
    figures = Figures()
    for one in (linear, experts, small):
        if not given.only or one.__name__ in given.only:
            one(figures, given.rows)
    if given.json:
        with open(given.json, "w") as file:
            json.dump(figures.found, file, indent=1)


if __name__ == "__main__":
    main()
