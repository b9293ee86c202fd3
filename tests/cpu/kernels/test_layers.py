"""The CPU kernels of the layers give the bytes of the exact arithmetic, whatever the rows hold and however many."""

import numpy as np
import pytest

from qsa.kernels import cpu
from qsa.model.text_model import ExactModel
from qsa.reference.exact import layers as exact
from support.arrays import bits, generator
from support.exact_models import small_model
from support.layer_problems import EPS, PROBLEMS, conv_problem, delta_problem, special_rows, stacked

layers = cpu.layers


def equal(got, want):
    assert got.dtype == want.dtype and got.shape == want.shape
    assert np.array_equal(bits(got), bits(want))


def test_both_namespaces_have_the_same_names():
    assert layers.__all__ == exact.__all__


class Recorder:
    """The exact layers; ``called`` holds the names of the operations that were asked for."""

    def __init__(self):
        self.called = set()

    def __getattr__(self, name):
        self.called.add(name)
        return getattr(exact, name)


def test_every_operation_without_a_state_has_a_problem():
    recorder = Recorder()
    for problem in PROBLEMS.values():
        problem.run(recorder, *problem.rows(generator(1), 2))
    # Two have a state, the last cells of a window are no rows, and tables are taken as they are.
    assert set(exact.__all__) - recorder.called == {"causal_conv", "delta_rule", "last_cells", "load_table"}


@pytest.mark.parametrize("name", PROBLEMS)
def test_bytes_are_those_of_the_exact_arithmetic(name):
    problem = PROBLEMS[name]
    for n in (1, 12):
        arrays = special_rows(problem)
        # A view with gaps between its rows must do as well.
        arrays = [np.repeat(x, 2, axis=0)[::2][:n] for x in arrays]
        for got, want in zip(problem.run(layers, *arrays), problem.run(exact, *arrays), strict=True):
            equal(got, want)


@pytest.mark.parametrize("name", PROBLEMS)
def test_many_rows(name):
    """Enough rows that the largest operations are shared among threads."""
    problem = PROBLEMS[name]
    arrays = problem.rows(generator(3), 300)
    for got, want in zip(problem.run(layers, *arrays), problem.run(exact, *arrays), strict=True):
        equal(got, want)


@pytest.mark.parametrize("inputs", [1, 64, 100, 576, 1300])
def test_linear_of_any_weights(inputs):
    rng = generator(inputs)
    weight = stacked(rng, 130, inputs)
    x = (rng.standard_normal((3, inputs)) * [[1], [1e-37], [1e30]]).astype(np.float32)
    equal(layers.linear(x, layers.load_linear(weight)), exact.linear(x, weight))


def test_linear_of_the_largest_products():
    """Four products of 2^22 by 127 in one int32, of either sign."""
    weight = stacked(generator(1), 4, 640)
    weight.codes[:] = np.array([127, -127, 127, -127])[:, None]
    x = np.full((2, 640), np.float32(2) - np.float32(2**-23))
    x[1] *= -1
    equal(layers.linear(x, layers.load_linear(weight)), exact.linear(x, weight))


@pytest.mark.parametrize("inputs", [1, 31, 32, 33, 100])
def test_norms_of_any_width(inputs):
    x = generator(inputs).standard_normal((4, inputs)).astype(np.float32)
    weight = np.ones(inputs, np.float32)
    equal(layers.rms_norm(x, weight, EPS), exact.rms_norm(x, weight, EPS))


@pytest.mark.parametrize(("kernel", "dilation", "n"), [(4, 1, 1), (4, 3, 2), (4, 3, 30), (1, 1, 3), (2, 5, 7)])
def test_causal_conv(kernel, dilation, n):
    results = []
    for one in (layers, exact):
        x, taps, past = conv_problem(generator(kernel + n), n, kernel, dilation)
        x[0, :3] = np.nan, np.inf, -0.0
        results += [(one.causal_conv(x, taps, past, dilation), past)]
    for got, want in zip(*results, strict=True):
        equal(got, want)


@pytest.mark.parametrize("sizes", [(1, 4, 2, 10, 7), (5, 3, 1, 9, 33), (70, 8, 2, 64, 64)])
def test_delta_rule(sizes):
    """The last one is shared among threads."""
    results = []
    for one in (layers, exact):
        rows, memory = delta_problem(generator(sizes[0]), *sizes)
        rows[2][0, 1, :2] = np.nan, 1e38
        rows[0][0, 0, 0] = -0.0
        results.append((one.delta_rule(*rows, memory), memory))
    for got, want in zip(*results, strict=True):
        equal(got, want)


def test_route_of_ties_and_special_numbers():
    rng = generator(2)
    logits = rng.choice(np.array([0, -0.0, 1, 2, np.inf, -np.inf, np.nan, 1e-45], np.float32), (400, 9))
    for top in (1, 4, 9):
        for got, want in zip(layers.route(logits, top), exact.route(logits, top), strict=True):
            equal(got, want)


@pytest.mark.parametrize("rule", ["blocks", "cells"])
def test_a_model_on_kernels_gives_the_bytes_of_the_exact_one(rule):
    want = ExactModel.from_model(small_model(draft=True), rule=rule)
    got = ExactModel(want.config, want.stored, rule=rule, backend=cpu)
    ids = (np.random.PCG64(1).random_raw(101) % np.uint64(97)).astype(np.int64)
    results = []
    for model, lengths in ((want, [101]), (got, [50, 1, 8, 1, 41])):
        state, logits, streams, begin = model.init_state(101), [], [], 0
        for length in lengths:
            one, output = model.forward(ids[begin : begin + length], state)
            logits.append(one)
            streams.append(output.streams)
            begin += length
        streams = np.concatenate(streams)
        x, _ = model.draft.forward(streams[:40], ids[1:41], [0], [40], [model.draft.init_state(64)])
        results.append((np.concatenate(logits), streams, x))
    for one, other in zip(*results, strict=True):
        equal(one, other)
