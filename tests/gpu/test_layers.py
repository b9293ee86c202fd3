"""The layers' operations without a state on a device: the simulator's tests, real sizes, guarded results, graphs."""

import importlib
from types import SimpleNamespace

import numpy as np
import pytest

from cases.layer_cases import (  # noqa: F401
    OWN,
    Backend,
    equal,
    same,
    spread,
    stacked_experts,
    test_bad_input_is_named,
    test_bytes_are_those_of_the_exact_arithmetic,
    test_columns_of_a_wider_array,
    test_experts_of_one_expert_and_of_none,
    test_launches,
    test_linear_and_experts_read_columns_too,
    test_linear_of_any_weights,
    test_linear_of_the_largest_products,
    test_norms_of_any_width,
    test_route_of_ties_and_special_numbers,
)
from qsa.reference.exact import layers as exact
from qsa.reference.exact.layers.linear import QuantisedLinear
from support.attention import generator
from support.guarded import captured
from support.layer_problems import EPS, PROBLEMS, special_rows

pytestmark = pytest.mark.gpu

ALLOCATING = ("layers.experts", "layers.fixed_rows", "layers.linear", "layers.sort_pairs", "common.views")
"""Modules that allocate what kernels write."""


def module(name):
    """A module by its full name: as an attribute of the package it may be an operation."""
    return importlib.import_module(f"qsa.kernels.cuda.{name}")


@pytest.fixture(scope="module")
def backend():
    pytest.importorskip("cupy", reason="CuPy is missing (extra cuda12 or cuda13)")
    module("toolchain.compiler").current_device()
    device = SimpleNamespace(
        to_device=module("device").to_device,
        to_host=module("device").to_host,
        array_module=module("toolchain.compiler").array_module,
    )
    return Backend(module("layers"), device, module("toolchain.host").launches)


def quantised(rng, *shape):
    """Random weights of a layer that gives sensible numbers: codes of all values, scales around 1 / 127."""
    codes = rng.integers(-127, 128, shape, np.int8)
    scale = rng.uniform(1e-3, 1e-2, (*shape[:-1], -(-shape[-1] // 64))).astype(np.float16)
    return QuantisedLinear(codes, scale)


@pytest.mark.parametrize("rows", [1, 2, 8, 9, 33, 1000])
@pytest.mark.parametrize(("outputs", "inputs"), [(12288, 2560), (2560, 640), (37, 10240)])
def test_linear_of_real_sizes(backend, outputs, inputs, rows):
    """Against all outputs of the first and the last row, and against some outputs of all rows."""
    rng = generator(outputs + rows)
    weight, x = quantised(rng, outputs, inputs), spread(rng, rows, inputs)
    x[rows // 2, -1] = np.nan if rows > 2 else 1e30
    got = backend.linear(x, backend.load_linear(weight))
    ends = np.array([0, rows - 1])
    equal(got[ends], exact.linear(x[ends], weight))
    some = np.unique(np.concatenate([[0, outputs - 1], rng.integers(0, outputs, 30)]))
    equal(np.ascontiguousarray(got[:, some]), exact.linear(x, weight.part(some)))


@pytest.mark.parametrize("rows", [1, 8])
def test_linear_of_a_vocabulary(backend, rows):
    """248,320 outputs of 2,560 inputs: codes beyond 2^29 bytes, more thread blocks than are resident."""
    rng = generator(rows)
    part, x = quantised(rng, 31040, 2560), spread(rng, rows, 2560)
    whole = QuantisedLinear(np.tile(part.codes, (8, 1)), np.tile(part.scale, (8, 1)))
    got = backend.linear(x, backend.load_linear(whole))
    for start in range(0, 248320, 31040):
        equal(np.ascontiguousarray(got[:, start : start + 31040]), np.ascontiguousarray(got[:, :31040]))
    some = np.unique(rng.integers(0, 31040, 500))
    equal(np.ascontiguousarray(got[:, some]), exact.linear(x, part.part(some)))


@pytest.fixture(scope="module")
def real_experts(backend):
    """512 experts of 640 by 2,560, 64 of them different: (gate_up, down, the same loaded)."""
    rng = generator(11)
    both = quantised(rng, 64, 1280, 2560), quantised(rng, 64, 2560, 640)
    xp = backend.device.array_module()
    loaded = []
    for one in both:
        small = backend.load_linear(one)
        repeated = (xp.tile(array, (8,) + (1,) * (array.ndim - 1)) for array in small[:2])
        loaded.append(type(small)(*repeated, *small[2:]))
    return (*both, *loaded)


@pytest.mark.parametrize("rows", [1, 8, 9, 70])
def test_experts_of_real_sizes(backend, real_experts, rows):
    gate_up, down, *loaded = real_experts
    rng = generator(rows)
    x, logits = spread(rng, rows, 2560), spread(rng, rows, 512)
    x[rows - 1, 0] = np.inf if rows > 1 else 1
    ids, shares = backend.route(logits, 10)
    equal(ids, exact.route(logits, 10)[0])
    got = backend.experts(x, ids, shares, *loaded)
    some = np.unique([0, rows // 2, rows - 1])
    equal(got[some], exact.experts(x[some], ids[some] % 64, shares[some], gate_up, down))


def test_more_rows_than_a_grid_dimension(backend):
    """70,000 rows of every operation: a hundred rows' bytes 700 times."""
    for name in OWN:
        arrays = PROBLEMS[name].rows(generator(4), 100)
        tiled = [np.tile(x, (700,) + (1,) * (x.ndim - 1)) for x in arrays]
        problem = PROBLEMS[name]
        for got, want in zip(problem.run(backend, *tiled), problem.run(exact, *arrays), strict=True):
            equal(got.reshape(700, -1), np.broadcast_to(want.reshape(1, -1), (700, want.size)))


class _Fenced:
    """CuPy whose new arrays stand between guards, poisoned."""

    def __init__(self, cupy):
        self.cupy, self.made = cupy, []

    def __getattr__(self, name):
        return getattr(self.cupy, name)

    def empty(self, shape, dtype):
        self.made.append(module("device").Guarded(shape if isinstance(shape, tuple) else (shape,), dtype))
        return self.made[-1].array


@pytest.mark.parametrize("name", OWN)
def test_nothing_is_written_beyond_the_results(backend, name, monkeypatch):
    """Results and scratch between guards; what an operation leaves unwritten would be NaN."""
    fenced = _Fenced(backend.device.array_module())
    for one in ALLOCATING:
        monkeypatch.setattr(module(one), "array_module", lambda: fenced)
    for n in (12, 3):
        same(backend, PROBLEMS[name], [np.ascontiguousarray(x[:n]) for x in special_rows(PROBLEMS[name])])
    assert fenced.made
    for guarded in fenced.made:
        guarded.check(name)


@pytest.mark.parametrize("rows", [1, 20])
def test_a_graph_follows_its_inputs(backend, rows):
    """A block of a model captured, and replayed with other rows: nothing of the first ones is left in the launches."""
    rng = generator(rows)
    layers, put = backend.layers, backend.put
    weight, head = quantised(rng, 300, 256), quantised(rng, 12, 300)
    experts = stacked_experts(rng, 8, 32, 256)
    norm = spread(rng, 256)

    def block(layers, x, streams, norm, weight, head, *experts):
        normed = layers.rms_norm(x, norm, EPS)
        projected = layers.linear(normed, weight)
        ids, shares = layers.route(projected[:, :8], 3)
        y = layers.add(layers.experts(normed, ids, shares, *experts), layers.sigmoid_gate(x, projected[:, 9:10]))
        return layers.inject(streams, layers.linear(projected, head)[:, :3], y)

    x, streams = put(spread(rng, rows, 256)), put(spread(rng, rows, 3, 256))
    loaded = [layers.load_linear(one) for one in (weight, head, *experts)]
    results, there = [], put(norm)

    def call():
        # What the call before made goes back to the pool first: nothing may be allocated during a capture.
        results.clear()
        results.append(block(layers, x, streams, there, *loaded))

    replay = captured(call)
    for _ in range(3):
        now = spread(rng, rows, 256), spread(rng, rows, 3, 256)
        now[0][-1, 3] = np.nan
        x.set(now[0])
        streams.set(now[1])
        replay()
        equal(backend.device.to_host(results[0]), block(exact, *now, norm, weight, head, *experts))


def test_repeats_are_equal(backend):
    """Pairs are sorted by atomics, whose order is left to chance; no byte may be."""
    rng = generator(5)
    experts = [backend.load_linear(one) for one in stacked_experts(rng, 8, 64, 128)]
    x, shares, ids = spread(rng, 300, 128), spread(rng, 300, 4), rng.integers(0, 8, (300, 4))
    given = [backend.put(one) for one in (x, ids, shares)]
    first = backend.experts(*given, *experts)
    for _ in range(50):
        equal(backend.experts(*given, *experts), first)
