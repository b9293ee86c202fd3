"""The layers' operations without a state on a device: the simulator's tests, real sizes, guarded results, graphs."""

import numpy as np
import pytest

from cases.layer_cases import *  # noqa: F403
from cases.layer_cases import OWN, equal, quantised, same, stacked_experts
from qsa.reference.exact import layers as exact
from qsa.reference.exact.layers.linear import QuantisedLinear
from support.arrays import generator, normal
from support.guarded import captured
from support.layer_problems import EPS, PROBLEMS, special_rows

pytestmark = pytest.mark.gpu

ALLOCATING = "layers.experts", "layers.fixed_rows", "layers.linear", "layers.sort_pairs", "common.views"
"""Modules that allocate what kernels write."""


@pytest.mark.parametrize("rows", [1, 2, 8, 9, 33, 1000])
@pytest.mark.parametrize(("outputs", "inputs"), [(12288, 2560), (2560, 640), (37, 10240)])
def test_linear_of_real_sizes(backend, outputs, inputs, rows):
    """Against all outputs of the first and the last row, and against some outputs of all rows."""
    rng = generator(outputs + rows)
    weight, x = quantised(rng, outputs, inputs), normal(rng, rows, inputs)
    x[rows // 2, -1] = np.nan if rows > 2 else 1e30
    got = backend.layers.linear(x, backend.layers.load_linear(weight))
    ends = np.array([0, rows - 1])
    equal(got[ends], exact.linear(x[ends], weight))
    some = np.unique(np.concatenate([[0, outputs - 1], rng.integers(0, outputs, 30)]))
    equal(np.ascontiguousarray(got[:, some]), exact.linear(x, weight.part(some)))


@pytest.mark.parametrize("rows", [1, 8])
def test_linear_of_a_vocabulary(backend, rows):
    """248,320 outputs of 2,560 inputs: codes beyond 2^29 bytes, more thread blocks than are resident."""
    rng = generator(rows)
    part, x = quantised(rng, 31040, 2560), normal(rng, rows, 2560)
    whole = QuantisedLinear(np.tile(part.codes, (8, 1)), np.tile(part.scale, (8, 1)))
    got = backend.layers.linear(x, backend.layers.load_linear(whole))
    for start in range(0, 248320, 31040):
        equal(np.ascontiguousarray(got[:, start : start + 31040]), np.ascontiguousarray(got[:, :31040]))
    some = np.unique(rng.integers(0, 31040, 500))
    equal(np.ascontiguousarray(got[:, some]), exact.linear(x, part.part(some)))


@pytest.fixture(scope="module")
def real_experts(backend):
    """512 experts of 640 by 2,560, 64 of them different: (gate_up, down, the same loaded)."""
    rng = generator(11)
    both = quantised(rng, 64, 1280, 2560), quantised(rng, 64, 2560, 640)
    loaded = []
    for weight in both:
        small = backend.layers.load_linear(weight)
        repeated = (backend.xp.tile(array, (8,) + (1,) * (array.ndim - 1)) for array in small[:2])
        loaded.append(type(small)(*repeated, *small[2:]))
    return (*both, *loaded)


@pytest.mark.parametrize("rows", [1, 8, 9, 70])
def test_experts_of_real_sizes(backend, real_experts, rows):
    gate_up, down, *loaded = real_experts
    rng = generator(rows)
    x, logits = normal(rng, rows, 2560), normal(rng, rows, 512)
    x[rows - 1, 0] = np.inf if rows > 1 else 1
    ids, shares = backend.layers.route(logits, 10)
    equal(ids, exact.route(logits, 10)[0])
    got = backend.layers.experts(x, ids, shares, *loaded)
    some = np.unique([0, rows // 2, rows - 1])
    equal(got[some], exact.experts(x[some], ids[some] % 64, shares[some], gate_up, down))


def test_more_rows_than_a_grid_dimension(backend):
    """70,000 rows of every operation: a hundred rows' bytes 700 times."""
    for name in OWN:
        arrays = PROBLEMS[name].rows(generator(4), 100)
        tiled = [np.tile(x, (700,) + (1,) * (x.ndim - 1)) for x in arrays]
        problem = PROBLEMS[name]
        for got, want in zip(problem.run(backend.layers, *tiled), problem.run(exact, *arrays), strict=True):
            equal(got.reshape(700, -1), np.broadcast_to(want.reshape(1, -1), (700, want.size)))


class _GuardedArrays:
    """CuPy whose function ``empty`` gives poisoned arrays between guards: ``made`` holds them all."""

    def __init__(self, backend):
        self._backend, self.made = backend, []

    def __getattr__(self, name):
        return getattr(self._backend.xp, name)

    def empty(self, shape, dtype):
        self.made.append(self._backend.guarded(shape, dtype))
        return self.made[-1].array


@pytest.mark.parametrize("name", OWN)
def test_nothing_is_written_beyond_the_results(backend, name, monkeypatch):
    """Results and scratch between guards; what an operation leaves unwritten would be NaN."""
    arrays = _GuardedArrays(backend)
    for module in ALLOCATING:
        monkeypatch.setattr(backend.load(module), "array_module", lambda: arrays)
    for n in (12, 3):
        same(backend, PROBLEMS[name], [np.ascontiguousarray(x[:n]) for x in special_rows(PROBLEMS[name])])
    assert arrays.made
    for guarded in arrays.made:
        guarded.check(name)


@pytest.mark.parametrize("rows", [1, 20])
def test_a_graph_follows_its_inputs(backend, rows):
    """A block of a model captured, and replayed with other rows: nothing of the first ones is left in the launches."""
    rng = generator(rows)
    layers, put = backend.module.layers, backend.to_device
    weight, head = quantised(rng, 300, 256), quantised(rng, 12, 300)
    experts = stacked_experts(rng, 8, 32, 256)
    norm = normal(rng, 256)

    def block(layers, x, streams, norm, weight, head, *experts):
        normed = layers.rms_norm(x, norm, EPS)
        projected = layers.linear(normed, weight)
        ids, shares = layers.route(projected[:, :8], 3)
        y = layers.add(layers.experts(normed, ids, shares, *experts), layers.sigmoid_gate(x, projected[:, 9:10]))
        return layers.inject(streams, layers.linear(projected, head)[:, :3], y)

    x, streams = put(normal(rng, rows, 256)), put(normal(rng, rows, 3, 256))
    loaded = [layers.load_linear(weights) for weights in (weight, head, *experts)]
    results, norm_on_device = [], put(norm)

    def call():
        # What the call before made goes back to the pool first: nothing may be allocated during a capture.
        results.clear()
        results.append(block(layers, x, streams, norm_on_device, *loaded))

    replay = captured(call)
    for _ in range(3):
        now = normal(rng, rows, 256), normal(rng, rows, 3, 256)
        now[0][-1, 3] = np.nan
        x.set(now[0])
        streams.set(now[1])
        replay()
        equal(backend.to_host(results[0]), block(exact, *now, norm, weight, head, *experts))


def test_repeats_are_equal(backend):
    """Pairs are sorted by atomics, whose order is left to chance; no byte may be."""
    rng = generator(5)
    experts = list(map(backend.layers.load_linear, stacked_experts(rng, 8, 64, 128)))
    x, shares, ids = normal(rng, 300, 128), normal(rng, 300, 4), rng.integers(0, 8, (300, 4))
    given = backend.to_device([x, ids, shares])
    first = backend.layers.experts(*given, *experts)
    for _ in range(50):
        equal(backend.layers.experts(*given, *experts), first)
