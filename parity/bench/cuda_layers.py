"""Times the layers' operations on a CUDA device at the published model's sizes, in graphs.

    python -m qsa.parity.bench.cuda_layers [--json PATH] [--rows 1 8 1000] [--only linear experts small]

Every figure is the median over replays of a captured graph that holds ten calls, divided by ten, in microseconds
(``timing.hot``). The ten calls of a linear layer have weights of their own, so that none is in the L2 cache. ``GB/s``
are the bytes of codes and scales over the time, ``TMAC/s`` the products of a weight and an input. The results are not
compared here: ``tests/gpu/test_layers.py`` does that.
"""

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import cupy
import numpy as np

from qsa.kernels.cuda import layers
from qsa.kernels.cuda.layers.linear import LoadedLinear

from . import script, timing

HIDDEN, WIDTH, EXPERTS, TOP, STREAMS, HEADS, DIM = 2560, 640, 512, 10, 4, 24, 256
MATRICES = {"in": (12288, HIDDEN), "out": (HIDDEN, 6144), "shared": (HIDDEN, WIDTH), "low": (68, STREAMS * HIDDEN)}
COPIES = 10


def weights(outputs: int, inputs: int, *leading: int) -> LoadedLinear:
    """Random weights on the device, as ``load_linear`` would lay them out."""
    shape = (*leading, -(-outputs // 16), -(-inputs // 64), 16)
    codes = cupy.random.randint(-127, 128, (*shape, 64), dtype=np.int8)
    scale = cupy.full(shape, 0.005, np.float16)
    return LoadedLinear(codes, scale, outputs, inputs)


def rows_of(*shape: int) -> Any:
    """Random float32 numbers [shape] on the device."""
    return cupy.random.standard_normal(shape, dtype=np.float32)


class Figures(script.Figures):
    """Median, 10th and 90th percentile in microseconds by name."""

    def time(self, name: str, call: Callable[[], Any], nbytes: int = 0, products: int = 0) -> None:
        """Time ``call``, which reads ``nbytes`` of weights and multiplies ``products`` pairs."""
        found = timing.hot(call)
        rates = f"{nbytes / found.median / 1e3:8.0f} GB/s" * bool(nbytes)
        rates += f"{products / found.median / 1e6:8.2f} TMAC/s" * bool(products)
        values = {"us": found.median, "p10": found.p10, "p90": found.p90}
        self.add(name, values, f"{name:<32} {found.median:10.2f} us {rates}")


def linear_in_turn(x: Any, turn: Iterator[LoadedLinear]) -> Any:
    """A linear layer with the next weights of ``turn``."""
    return layers.linear(x, next(turn))


def experts_in_turn(x: Any, turn: Iterator[tuple[Any, Any]], gate_up: LoadedLinear, down: LoadedLinear) -> Any:
    """The experts of the next choice of ``turn``."""
    ids, shares = next(turn)
    return layers.experts(x, ids, shares, gate_up, down)


def linear(figures: Figures, rows_list: Iterable[int]) -> None:
    """Linear layers of the model, and its head."""
    for name, (outputs, inputs) in MATRICES.items():
        turn = itertools.cycle([weights(outputs, inputs) for _ in range(COPIES)])
        size = outputs * inputs
        for rows in rows_list:
            x = rows_of(rows, inputs)
            figures.time(
                f"linear {name} {outputs}x{inputs} rows {rows}",
                partial(linear_in_turn, x, turn),
                size + size // 32,
                rows * size,
            )
    head, x = weights(248320, HIDDEN), rows_of(8, HIDDEN)
    for rows in (1, 8):
        size = 248320 * HIDDEN
        figures.time(f"linear head rows {rows}", partial(layers.linear, x[:rows], head), size + size // 32)


def experts(figures: Figures, rows_list: Iterable[int]) -> None:
    """The choice of experts, and the experts."""
    gate_up, down = weights(2 * WIDTH, HIDDEN, EXPERTS), weights(HIDDEN, WIDTH, EXPERTS)
    each = 3 * WIDTH * HIDDEN
    for rows in rows_list:
        x, logits = rows_of(rows, HIDDEN), rows_of(rows, EXPERTS)
        figures.time(f"route rows {rows}", partial(layers.route, logits, TOP))
        # Ten choices in turn, so that a step's experts come from memory.
        chosen = itertools.cycle([layers.route(rows_of(rows, EXPERTS), TOP) for _ in range(COPIES)])
        used = min(rows * TOP, EXPERTS)
        figures.time(
            f"experts rows {rows}",
            partial(experts_in_turn, x, chosen, gate_up, down),
            used * (each + each // 32),
            rows * TOP * each,
        )


def small(figures: Figures, rows_list: Iterable[int]) -> None:
    """Norms, rotation, gates and streams."""
    weight, groups, head = rows_of(HIDDEN), rows_of(STREAMS, HIDDEN), rows_of(DIM)
    for rows in rows_list:
        x, streams, heads = rows_of(rows, HIDDEN), rows_of(rows, STREAMS, HIDDEN), rows_of(rows, HEADS, DIM)
        table, share, wide = rows_of(rows, 64), rows_of(rows, STREAMS), rows_of(rows, 2 * WIDTH)
        for name, call in {
            "rms_norm": partial(layers.rms_norm, x, weight, 1e-6),
            "rms_norm of streams": partial(layers.rms_norm, streams, groups, 1e-6),
            "rms_norm of heads": partial(layers.rms_norm, heads, head, 1e-6),
            "rotate": partial(layers.rotate, heads, table),
            "swiglu": partial(layers.swiglu, wide),
            "sigmoid_gate": partial(layers.sigmoid_gate, heads, heads),
            "mix_streams": partial(layers.mix_streams, streams, streams),
            "inject": partial(layers.inject, streams, share, x),
            "ngram_gate": partial(layers.ngram_gate, streams, streams, x),
        }.items():
            figures.time(f"{name} rows {rows}", call)


PARTS = {"linear": linear, "experts": experts, "small": small}


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of the benchmark; returns 0."""
    parser = script.parser("cuda_layers", __doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 32, 1000])
    parser.add_argument("--only", nargs="+", choices=PARTS)
    arguments = parser.parse_args(argv)
    figures = Figures()
    for name, part in PARTS.items():
        if not arguments.only or name in arguments.only:
            part(figures, arguments.rows)
    return figures.finish(arguments.json, figures.values)


if __name__ == "__main__":
    sys.exit(main())
