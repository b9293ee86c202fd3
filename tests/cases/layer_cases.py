"""Tests of the layers' operations without a state on CUDA, for simulator and device: the exact arithmetic's bytes.

The fixture ``backend`` is a :class:`Backend`.
"""

import numpy as np
import pytest

from qsa.reference.exact import layers as exact
from qsa.reference.exact.layers.linear import QuantisedLinear
from support.attention import generator
from support.layer_problems import EPS, PROBLEMS, bits, special_rows, stacked

OWN = [name for name in PROBLEMS if name != "decay_beta"]
"""Problems whose operations have no file of their own with tests of their own."""

SMALL = [name for name in OWN if not name.startswith(("linear", "experts"))]
"""Problems of one short launch."""


class Backend:
    """The layers of one compiler, called with NumPy arrays or with arrays of the device, which stay as they are.

    Results come back as NumPy arrays.
    """

    def __init__(self, layers, device, launches):
        self.layers, self.device, self.launches = layers, device, launches

    def put(self, x):
        """``x`` on the device, tables of weights included."""
        if isinstance(x, QuantisedLinear):
            return self.layers.load_table(x)
        return self.device.to_device(x) if type(x) is np.ndarray else x

    def counted(self, call):
        """Launches that ``call()`` makes."""
        before = sum(self.launches().values())
        call()
        return sum(self.launches().values()) - before

    def __getattr__(self, name):
        operation = getattr(self.layers, name)
        if name.startswith("load_"):
            return operation

        def call(*arguments):
            result = operation(*map(self.put, arguments))
            return tuple(map(self.device.to_host, result)) if isinstance(result, tuple) else self.device.to_host(result)

        return call


def equal(got, want):
    assert got.dtype == want.dtype and got.shape == want.shape
    np.testing.assert_array_equal(bits(got), bits(want))


def same(backend, problem, arrays, given=None):
    """``problem`` on the device, of ``given`` or the arrays themselves, has the exact arithmetic's bytes."""
    for got, want in zip(problem.run(backend, *(given or arrays)), problem.run(exact, *arrays), strict=True):
        equal(got, want)


@pytest.mark.parametrize("name", OWN)
def test_bytes_are_those_of_the_exact_arithmetic(backend, name):
    """Zeros, subnormals, the largest numbers, NaN and inf among the rows; a row alone, and none at all."""
    arrays = special_rows(PROBLEMS[name])
    for n in (12, 1, 0):
        same(backend, PROBLEMS[name], [np.ascontiguousarray(x[:n]) for x in arrays])


def gapped(xp, x):
    """``x`` as columns of a wider array: every axis but the last has gaps."""
    if x.ndim == 1:
        return xp.asarray(x)
    wide = xp.zeros((*x.shape[:-1], x.shape[-1] + 3), x.dtype)
    wide[..., 1 : 1 + x.shape[-1]] = xp.asarray(x)
    return wide[..., 1 : 1 + x.shape[-1]]


@pytest.mark.parametrize("name", SMALL)
def test_columns_of_a_wider_array(backend, name):
    arrays = PROBLEMS[name].rows(generator(5), 3)
    given = [gapped(backend.device.array_module(), x) for x in arrays]
    same(backend, PROBLEMS[name], arrays, given)


def test_linear_and_experts_read_columns_too(backend):
    for name in ("linear of 40 inputs", "experts"):
        arrays = PROBLEMS[name].rows(generator(6), 2)
        same(backend, PROBLEMS[name], arrays, [gapped(backend.device.array_module(), x) for x in arrays])


@pytest.mark.parametrize(("outputs", "inputs", "rows"), [(3, 1, 1), (18, 1090, 3), (70, 70, 33)])
def test_linear_of_any_weights(backend, outputs, inputs, rows):
    """Tails of 16 outputs and 64 inputs; more groups than warps; more than one thread block of rows."""
    rng = generator(inputs)
    weight = stacked(rng, outputs, inputs)
    x = rng.standard_normal((rows, inputs)) * np.resize([1, 1e-37, 1e30], rows)[:, None]
    x = x.astype(np.float32)
    equal(backend.linear(x, backend.load_linear(weight)), exact.linear(x, weight))


def test_linear_of_the_largest_products(backend):
    """64 products of 2^22 by 127 of either sign in every group."""
    weight = stacked(generator(1), 4, 640)
    weight.codes[:] = np.array([127, -127, 127, -127])[:, None]
    x = np.full((2, 640), np.float32(2) - np.float32(2**-23))
    x[1] *= -1
    equal(backend.linear(x, backend.load_linear(weight)), exact.linear(x, weight))


@pytest.mark.parametrize("dim", [1, 33, 512, 513, 4131])
def test_norms_of_any_width(backend, dim):
    """A warp's vectors and a block's, and those that a block takes in two pieces."""
    rng = generator(dim)
    x, gate = rng.standard_normal((2, 2, dim)).astype(np.float32)
    x[1, -1] = np.nan
    weight = rng.standard_normal(dim).astype(np.float32)
    equal(backend.rms_norm(x, weight, EPS), exact.rms_norm(x, weight, EPS))
    streams = x[None] * np.float32(3)
    equal(
        backend.ngram_gate(streams, gate[None], gate[:1]),
        exact.ngram_gate(streams, gate[None], gate[:1]),
    )


def test_route_of_ties_and_special_numbers(backend):
    rng = generator(2)
    values = np.array([0, -0.0, 1, 2, np.inf, -np.inf, np.nan, 1e-45], np.float32)
    for experts, tops in ((9, (1, 4, 9)), (70, (32,))):
        logits = rng.choice(values, (30, experts))
        for top in tops:
            for got, want in zip(backend.route(logits, top), exact.route(logits, top), strict=True):
                equal(got, want)


@pytest.mark.parametrize("rows", [2, 34])
def test_experts_of_one_expert_and_of_none(backend, rows):
    """All rows to one expert, of 34 more than a thread block holds of it; experts without a row. An id that is no
    expert's poisons its own row alone."""
    rng = generator(7)
    gate_up, down = stacked_experts(rng, 4, 9, 12)
    x, shares = spread(rng, rows, 12), spread(rng, rows, 2)
    ids = np.stack([np.full(rows, 2), np.where(np.arange(rows) == 1, 0, 3)], 1)
    want = exact.experts(x, ids, shares, gate_up, down)
    ids[-1, 1], want[-1] = 4, np.nan
    equal(backend.experts(x, ids, shares, backend.load_linear(gate_up), backend.load_linear(down)), want)


def spread(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def stacked_experts(rng, experts, width, hidden):
    """Random weights of ``experts`` experts with sensible scales: (gate_up, down)."""

    def one(out, inputs):
        codes = rng.integers(-127, 128, (experts, out, inputs)).astype(np.int8)
        scale = rng.uniform(1e-3, 1e-2, (experts, out, -(-inputs // 64))).astype(np.float16)
        return QuantisedLinear(codes, scale)

    return one(2 * width, hidden), one(hidden, width)


def test_launches(backend):
    """One launch an operation; a linear layer two, experts five, and six where pairs are sorted."""
    for name in SMALL:
        arrays = [backend.put(x) for x in PROBLEMS[name].rows(generator(9), 2)]
        assert backend.counted(lambda name=name, arrays=arrays: PROBLEMS[name].run(backend, *arrays)) == 1, name
    for rows in (1, 9):
        x = PROBLEMS["linear of 40 inputs"].rows(generator(9), rows)
        assert backend.counted(lambda x=x: PROBLEMS["linear of 40 inputs"].run(backend, *x)) == 2
    gate_up, down = (backend.load_linear(one) for one in stacked_experts(generator(9), 2, 4, 8))
    for rows, count in ((8, 5), (9, 6)):
        ids = np.zeros((rows, 1), np.int64)
        given = np.ones((rows, 8), np.float32), ids, np.ones((rows, 1), np.float32), gate_up, down
        assert backend.counted(lambda given=given: backend.experts(*given)) == count


def test_bad_input_is_named(backend):
    layers, put = backend.layers, backend.put
    x = put(np.ones((2, 6), np.float32))
    heads = put(np.ones((2, 3, 4), np.float32))
    weight = backend.load_linear(stacked(generator(1), 4, 6))
    table = backend.load_table(stacked(generator(1), 4, 6))
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
