"""The operations with a state on the device, at the model's sizes too."""

import numpy as np
import pytest

from cases.recurrent_cases import *  # noqa: F403
from cases.recurrent_cases import check_delta_rule, delta_problem
from qsa.reference.exact.layers import recurrent as exact

pytestmark = pytest.mark.gpu
backend = pytest.importorskip("qsa.kernels.cuda.backend", exc_type=ImportError)


@pytest.fixture(scope="module")
def layers():
    return backend.layers


@pytest.fixture(scope="module")
def to_device():
    return backend.to_device


@pytest.fixture(scope="module")
def to_host():
    return backend.to_host


@pytest.mark.parametrize("counts", [[1], [8], [70], [1, 3, 4]])
def test_delta_rule_of_the_real_model(layers, to_device, to_host, counts):
    check_delta_rule(layers, to_device, to_host, counts, (16, 48, 128, 128))


@pytest.mark.parametrize("rows", [1, 8, 1000])
def test_causal_conv_of_the_real_model(layers, to_device, to_host, rows):
    rng = np.random.default_rng(rows)
    x, taps = (rng.standard_normal(shape).astype(np.float32) for shape in ((rows, 10240), (4, 10240)))
    past = rng.standard_normal((3, 10240)).astype(np.float32)
    placed = to_device(past)
    got = layers.causal_conv(to_device(x), to_device(taps), placed)
    assert to_host(got).tobytes() == exact.causal_conv(x, taps, past).tobytes()
    assert to_host(placed).tobytes() == past.tobytes()


def test_a_captured_delta_rule_goes_on_from_its_own_memory(layers, to_device, to_host):
    """Replays advance the memory in place, on rows that are filled in between."""
    from qsa.kernels.cuda.device import Program, program_stream

    arrays, states = delta_problem(np.random.default_rng(5), [2], (4, 8, 64, 64))
    q, k, wide, decay, beta = arrays
    rows, placed = [to_device(x) for x in (q, k, wide[:, :512].reshape(2, 8, 64), decay, beta)], to_device(states[0])
    program = Program(lambda: layers.delta_rule(*rows, placed), program_stream())
    for turn in range(5):
        v = np.random.default_rng(turn).standard_normal((2, 8, 64)).astype(np.float32)
        rows[2].set(v)
        got = to_host(program())
        assert got.tobytes() == exact.delta_rule(q, k, v, decay, beta, states[0]).tobytes(), turn
    assert to_host(placed).tobytes() == states[0].tobytes()
