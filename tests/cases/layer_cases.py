"""Tests of the layers without a state on CUDA, for the simulator and a device: the exact arithmetic's bytes.

The fixture ``backend`` is a :class:`support.backend.Backend`.
"""

import numpy as np
import pytest

from qsa.reference.exact import layers as exact
from qsa.reference.exact.layers.linear import QuantisedLinear
from support.arrays import bits, generator, normal
from support.layer_problems import EPS, PROBLEMS, special_rows, stacked

OWN = [name for name in PROBLEMS if name != "decay_beta"]
"""Problems of the layers that ``recurrent_cases`` does not test."""

SMALL = [name for name in OWN if not name.startswith(("linear", "experts"))]
"""Problems of one launch each, short in the simulator."""


def equal(got, want):
    """Dtype, shape and every bit are the same."""
    assert got.dtype == want.dtype and got.shape == want.shape
    np.testing.assert_array_equal(bits(got), bits(want))


def same(backend, problem, arrays, given=None):
    """``problem`` of ``arrays`` has the exact arithmetic's bytes; ``given``: the same inputs as they are passed."""
    for got, want in zip(problem.run(backend.layers, *(given or arrays)), problem.run(exact, *arrays), strict=True):
        equal(got, want)


@pytest.mark.parametrize("name", OWN)
def test_bytes_are_those_of_the_exact_arithmetic(backend, name):
    """The rows hold zeros, subnormals, the largest numbers, NaN and inf; also one row alone, and no row."""
    arrays = special_rows(PROBLEMS[name])
    for n in (12, 1, 0):
        same(backend, PROBLEMS[name], [np.ascontiguousarray(x[:n]) for x in arrays])


def gapped(xp, x):
    """``x`` as columns of a wider array of ``xp``: every axis but the last has gaps."""
    if x.ndim == 1:
        return xp.asarray(x)
    wide = xp.zeros((*x.shape[:-1], x.shape[-1] + 3), x.dtype)
    wide[..., 1 : 1 + x.shape[-1]] = xp.asarray(x)
    return wide[..., 1 : 1 + x.shape[-1]]


@pytest.mark.parametrize("name", SMALL)
def test_columns_of_a_wider_array(backend, name):
    arrays = PROBLEMS[name].rows(generator(5), 3)
    given = [gapped(backend.xp, x) for x in arrays]
    same(backend, PROBLEMS[name], arrays, given)


def test_linear_and_experts_read_columns_too(backend):
    for name in ("linear of 40 inputs", "experts"):
        arrays = PROBLEMS[name].rows(generator(6), 2)
        same(backend, PROBLEMS[name], arrays, [gapped(backend.xp, x) for x in arrays])


@pytest.mark.parametrize(("outputs", "inputs", "rows"), [(3, 1, 1), (18, 1090, 3), (70, 70, 33)])
def test_linear_of_any_weights(backend, outputs, inputs, rows):
    """Sizes are no multiples of 16 outputs and 64 inputs; more groups than warps; rows for several thread blocks."""
    rng = generator(inputs)
    weight = stacked(rng, outputs, inputs)
    x = rng.standard_normal((rows, inputs)) * np.resize([1, 1e-37, 1e30], rows)[:, None]
    x = x.astype(np.float32)
    equal(backend.layers.linear(x, backend.layers.load_linear(weight)), exact.linear(x, weight))


def test_linear_of_the_largest_products(backend):
    """Every group sums 64 products of 2^22 by 127; the signs of the outputs alternate."""
    weight = stacked(generator(1), 4, 640)
    weight.codes[:] = np.array([127, -127, 127, -127])[:, None]
    x = np.full((2, 640), np.float32(2) - np.float32(2**-23))
    x[1] *= -1
    equal(backend.layers.linear(x, backend.layers.load_linear(weight)), exact.linear(x, weight))


@pytest.mark.parametrize("dim", [1, 33, 512, 513, 4131])
def test_norms_of_any_width(backend, dim):
    """Vectors for a warp, for a thread block, and for a thread block in two pieces."""
    rng = generator(dim)
    x, gate = rng.standard_normal((2, 2, dim)).astype(np.float32)
    x[1, -1] = np.nan
    weight = rng.standard_normal(dim).astype(np.float32)
    equal(backend.layers.rms_norm(x, weight, EPS), exact.rms_norm(x, weight, EPS))
    streams = x[None] * np.float32(3)
    equal(
        backend.layers.ngram_gate(streams, gate[None], gate[:1]),
        exact.ngram_gate(streams, gate[None], gate[:1]),
    )


def test_route_of_ties_and_special_numbers(backend):
    rng = generator(2)
    values = np.array([0, -0.0, 1, 2, np.inf, -np.inf, np.nan, 1e-45], np.float32)
    for experts, tops in ((9, (1, 4, 9)), (70, (32,))):
        logits = rng.choice(values, (30, experts))
        for top in tops:
            for got, want in zip(backend.layers.route(logits, top), exact.route(logits, top), strict=True):
                equal(got, want)


@pytest.mark.parametrize("rows", [2, 34])
def test_experts_of_one_expert_and_of_none(backend, rows):
    """All rows choose one expert: 34 are more than a thread block holds. Other experts have no row.

    An id that no expert has makes its own row alone NaN.
    """
    rng = generator(7)
    layers, (gate_up, down) = backend.layers, stacked_experts(rng, 4, 9, 12)
    x, shares = normal(rng, rows, 12), normal(rng, rows, 2)
    ids = np.stack([np.full(rows, 2), np.where(np.arange(rows) == 1, 0, 3)], 1)
    want = exact.experts(x, ids, shares, gate_up, down)
    ids[-1, 1], want[-1] = 4, np.nan
    equal(layers.experts(x, ids, shares, layers.load_linear(gate_up), layers.load_linear(down)), want)


def quantised(rng, *shape):
    """Random weights [*shape] of a layer with sensible outputs: codes of all values, scales around 1 / 127."""
    codes = rng.integers(-127, 128, shape, np.int8)
    scale = rng.uniform(1e-3, 1e-2, (*shape[:-1], -(-shape[-1] // 64))).astype(np.float16)
    return QuantisedLinear(codes, scale)


def stacked_experts(rng, experts, width, hidden):
    """:func:`quantised` weights of ``experts`` experts: (gate_up, down)."""
    return quantised(rng, experts, 2 * width, hidden), quantised(rng, experts, hidden, width)


def test_launches(backend):
    """A layer is one launch, but linear two, experts five, and six where pairs are sorted."""
    for name in SMALL:
        arrays = [backend.to_device(x) for x in PROBLEMS[name].rows(generator(9), 2)]
        assert backend.counted(lambda name=name, arrays=arrays: PROBLEMS[name].run(backend.layers, *arrays)) == 1, name
    for rows in (1, 9):
        x = PROBLEMS["linear of 40 inputs"].rows(generator(9), rows)
        assert backend.counted(lambda x=x: PROBLEMS["linear of 40 inputs"].run(backend.layers, *x)) == 2
    gate_up, down = map(backend.layers.load_linear, stacked_experts(generator(9), 2, 4, 8))
    for rows, count in ((8, 5), (9, 6)):
        ids = np.zeros((rows, 1), np.int64)
        given = np.ones((rows, 8), np.float32), ids, np.ones((rows, 1), np.float32), gate_up, down
        assert backend.counted(lambda given=given: backend.layers.experts(*given)) == count


def test_bad_input_is_named(backend):
    layers, put = backend.module.layers, backend.to_device
    x = put(np.ones((2, 6), np.float32))
    heads = put(np.ones((2, 3, 4), np.float32))
    weight = backend.layers.load_linear(stacked(generator(1), 4, 6))
    table = backend.layers.load_table(stacked(generator(1), 4, 6))
    ids = put(np.zeros(3, np.int64))
    for name, call in {
        "x: shape": lambda: layers.linear(x[:, :5], weight),
        "x: .*float64": lambda: layers.linear(x.astype(np.float64), weight),
        "x: list": lambda: layers.silu([1.0]),
        "strides": lambda: layers.silu(x[:, ::2]),
        "weight: shape": lambda: layers.rms_norm(heads, put(np.ones(3, np.float32)), EPS),
        "activation = 'tanh'": lambda: layers.gated_norm(heads, heads, put(np.ones(4, np.float32)), EPS, "tanh"),
        "gate: shape": lambda: layers.sigmoid_gate(x, heads),
        "table: shape": lambda: layers.rotate(heads, put(np.ones((2, 6), np.float32))),
        "y: shape": lambda: layers.add(heads, x),
        "share: shape": lambda: layers.inject(heads, x, put(np.ones((2, 4), np.float32))),
        "value: shape": lambda: layers.ngram_gate(heads, heads, x),
        "normed: shape": lambda: layers.mix_streams(x, x),
        "gate_up: shape": lambda: layers.swiglu(put(np.ones((2, 5), np.float32))),
        "top = 7": lambda: layers.route(x, 7),
        "ids: .*int32": lambda: layers.embed(ids.astype(np.int32), table),
        "gate_up, down": lambda: layers.experts(x, ids, x, weight, weight),
    }.items():
        with pytest.raises(ValueError, match=name):
            call()
