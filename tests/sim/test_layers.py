"""The layers' operations without a state on CUDA, in the simulator."""

from dataclasses import replace

import numpy as np
import pytest

from cases.layer_cases import *  # noqa: F403
from cases.layer_cases import equal, stacked_experts
from qsa.kernels.cuda import simulator
from qsa.reference.exact import layers as exact
from support.arrays import generator, normal
from support.layer_problems import stacked


def test_without_tensor_cores(backend):
    """The products by dp4a, as before sm_80: a step's and a longer call's, and sorted pairs."""
    rng = generator(3)
    weight = stacked(rng, 17, 70)
    gate_up, down = stacked_experts(rng, 2, 5, 9)
    layers, turing = backend.layers, replace(simulator.settings.properties, compute_capability=(7, 5))
    with simulator.configured(properties=turing):
        for rows in (1, 9):
            x = normal(rng, rows, 70)
            equal(layers.linear(x, layers.load_linear(weight)), exact.linear(x, weight))
        x, shares, ids = normal(rng, 9, 9), normal(rng, 9, 1), rng.integers(0, 2, (9, 1))
        got = layers.experts(x, ids, shares, layers.load_linear(gate_up), layers.load_linear(down))
    equal(got, exact.experts(x, ids, shares, gate_up, down))


def test_an_address_in_a_gap_of_a_view_is_a_fault():
    """The simulator holds a kernel to the elements of a view, not to the array behind it."""
    compiler, ptx = simulator.load("toolchain.compiler"), simulator.load("toolchain.ptx")

    def read(address, out):
        out[0] = ptx.ld_global_f32_nc(address)

    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    view, out = x[:, 1:3], np.zeros(1, np.float32)
    base = compiler.address(view)
    for offset, value in ((0, 1), (4, 2), (16, 5), (36, 10)):
        simulator.launch(compiler.kernel()(read), 1, 1, (base + offset, out))
        assert out[0] == value
    for offset in (-4, 8, 12, 40, 48):
        with pytest.raises(simulator.SimulationError, match="bounds"):
            simulator.launch(compiler.kernel()(read), 1, 1, (base + offset, out))
