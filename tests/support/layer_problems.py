"""One problem for every operation without a state in the layers' namespace: rows in, rows out.

PROBLEMS: name -> Problem. ``rows(rng, n)`` gives arrays whose first axis is the row; ``run(layers, *rows)`` gives
arrays of the same kind. Sizes are awkward on purpose: no multiples of 32, 64 or of a power of two.
"""

from typing import NamedTuple

import numpy as np

from qsa.reference.exact.layers.linear import QuantisedLinear, quantise
from support.arrays import generator, normal

_rng = generator(31)
EPS = 1e-6


MATRIX = quantise(normal(_rng, 37, 600))
NARROW = quantise(normal(_rng, 70, 40))
GATE_UP, DOWN = quantise(normal(_rng, 5, 52, 100)), quantise(normal(_rng, 5, 100, 26))
WEIGHT, STREAM_WEIGHT, HEAD_WEIGHT = normal(_rng, 100), normal(_rng, 3, 45), normal(_rng, 48)
RATE, BIAS = np.exp(normal(_rng, 6)), normal(_rng, 6)


class Problem(NamedTuple):
    """A layer's inputs and its call: ``rows(rng, n)`` and ``run(layers, *rows)`` give arrays [n, ...]."""

    rows: object
    run: object


def spread(*shape):
    """Rows of normal numbers whose magnitudes differ from row to row by powers of e."""

    def rows(rng, n):
        x = rng.standard_normal((n, *shape)).astype(np.float32)
        return x * np.exp(2 * rng.standard_normal((n,) + (1,) * len(shape))).astype(np.float32)

    return rows


def several(*makers):
    """The inputs of several makers as one list."""
    return lambda rng, n: [make(rng, n) for make in makers]


def _angles(rng, n):
    angle = rng.uniform(0, 6.3, (n, 8))
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)


def _choices(rng, n):
    return np.argsort(rng.random((n, 5)), axis=1)[:, :2]


def _experts(layers, x, ids, shares):
    return [layers.experts(x, ids, shares, layers.load_linear(GATE_UP), layers.load_linear(DOWN))]


def _gated(activation):
    return lambda layers, x, gate: [layers.gated_norm(x, gate, HEAD_WEIGHT, EPS, activation)]


PROBLEMS = {
    "linear": Problem(several(spread(600)), lambda layers, x: [layers.linear(x, layers.load_linear(MATRIX))]),
    "linear of 40 inputs": Problem(
        several(spread(40)), lambda layers, x: [layers.linear(x, layers.load_linear(NARROW))]
    ),
    "rms_norm": Problem(several(spread(100)), lambda layers, x: [layers.rms_norm(x, WEIGHT, EPS)]),
    "rms_norm of streams": Problem(several(spread(3, 45)), lambda layers, x: [layers.rms_norm(x, STREAM_WEIGHT, EPS)]),
    "rms_norm of heads": Problem(several(spread(4, 48)), lambda layers, x: [layers.rms_norm(x, HEAD_WEIGHT, EPS)]),
    "gated_norm, sigmoid": Problem(several(spread(4, 48), spread(4, 48)), _gated("sigmoid")),
    "gated_norm, silu": Problem(several(spread(4, 48), spread(4, 48)), _gated("silu")),
    "l2_norm": Problem(several(spread(2, 48)), lambda layers, x: [layers.l2_norm(x, np.float32(48**-0.5))]),
    "rotate": Problem(several(spread(3, 24), _angles), lambda layers, x, table: [layers.rotate(x, table)]),
    "silu": Problem(several(spread(77)), lambda layers, x: [layers.silu(x)]),
    "scaled_silu": Problem(several(spread(77)), lambda layers, x: [layers.scaled_silu(x, 3)]),
    "swiglu": Problem(several(spread(74)), lambda layers, x: [layers.swiglu(x)]),
    "sigmoid_gate": Problem(several(spread(4, 9), spread(4, 9)), lambda layers, x, g: [layers.sigmoid_gate(x, g)]),
    "sigmoid_gate of one": Problem(several(spread(36), spread(1)), lambda layers, x, g: [layers.sigmoid_gate(x, g)]),
    "mix_streams": Problem(several(spread(3, 45), spread(3, 45)), lambda layers, x, s: [layers.mix_streams(x, s)]),
    "inject": Problem(several(spread(3, 45), spread(3), spread(45)), lambda layers, x, s, y: [layers.inject(x, s, y)]),
    "ngram_gate": Problem(
        several(spread(3, 45), spread(3, 45), spread(45)), lambda layers, k, q, v: [layers.ngram_gate(k, q, v)]
    ),
    "add": Problem(several(spread(3, 45), spread(1, 45)), lambda layers, x, y: [layers.add(x, y)]),
    "add_gated": Problem(
        several(spread(3, 5), spread(3, 5), spread(3, 5)), lambda layers, x, g, m: [layers.add_gated(x, g, m)]
    ),
    "decay_beta": Problem(
        several(spread(6), spread(6)), lambda layers, a, b: list(layers.decay_beta(a, b, BIAS, RATE))
    ),
    "route": Problem(several(spread(11)), lambda layers, x: list(layers.route(x, 4))),
    "experts": Problem(several(spread(100), _choices, spread(2)), _experts),
    "embed": Problem(several(lambda rng, n: rng.integers(0, 37, n)), lambda layers, ids: [layers.embed(ids, MATRIX)]),
}
"""``embed`` reads a table as it is stored; everything else loads its weights first."""

SPECIALS = np.array([0, -0.0, 1e-45, -1e-40, 1.17549435e-38, 3.4e38, -3.4e38, 1e19, -2e19, 1], np.float32)


def special_rows(problem, n=12, seed=8):
    """Inputs of ``problem`` whose rows 2 to 8 hold zeros, subnormals and the largest numbers; row 9 is 0, row 10 has a
    NaN, row 11 an infinity."""
    rng = generator(seed)
    arrays = problem.rows(rng, n)
    for x in arrays:
        if x.dtype == np.float32:
            flat = x.reshape(n, -1)
            for row in range(2, 8):
                columns = rng.integers(0, flat.shape[1], 3)
                flat[row, columns] = rng.choice(SPECIALS, 3)
            flat[8] = rng.choice(SPECIALS[:5], flat.shape[1])
            flat[9] = 0
            flat[10, 0] = np.nan
            flat[11, -1] = np.inf
    return arrays


def stacked(rng, out, inputs):
    """A random QuantisedLinear with every code from -127 to 127 and scales over the whole range of float16."""
    codes = rng.integers(-127, 128, (out, inputs)).astype(np.int8)
    scale = np.exp2(rng.uniform(-24, 15.9, (out, -(-inputs // 64)))).astype(np.float16)
    return QuantisedLinear(codes, scale)


def conv_problem(rng, n, kernel, dilation):
    """Inputs, taps and history of a short convolution over 7 channels."""
    taps = rng.standard_normal((kernel, 7)).astype(np.float32)
    past = rng.standard_normal(((kernel - 1) * dilation, 7)).astype(np.float32)
    return rng.standard_normal((n, 7)).astype(np.float32), taps, past


def delta_problem(rng, n, heads=4, key_heads=2, dim=10, values=7):
    """Rows (q, k, v, decay, beta) and the memory of a gated delta rule."""
    unit = rng.standard_normal((2, n, key_heads, dim))
    q, k = (unit / np.linalg.norm(unit, axis=-1, keepdims=True)).astype(np.float32)
    v = rng.standard_normal((n, heads, values)).astype(np.float32)
    decay, beta = rng.uniform(0, 1, (2, n, heads)).astype(np.float32)
    return [q, k, v, decay, beta], rng.standard_normal((heads, dim, values)).astype(np.float32)
