"""The layers with a state on a device: the simulator's tests, the model's sizes, a captured call."""

import numpy as np
import pytest

from cases.recurrent_cases import *  # noqa: F403
from cases.recurrent_cases import check_delta_rule, delta_problem
from qsa.reference.exact.layers import recurrent as exact

pytestmark = pytest.mark.gpu
backend = pytest.importorskip("qsa.kernels.cuda.backend", exc_type=ImportError)


@pytest.mark.parametrize("counts", [[1], [8], [70], [1, 3, 4]])
def test_delta_rule_of_the_real_model(backend, counts):
    check_delta_rule(backend, counts, (16, 48, 128, 128))


@pytest.mark.parametrize("rows", [1, 8, 1000])
def test_causal_conv_of_the_real_model(backend, rows):
    rng = np.random.default_rng(rows)
    x, taps = (rng.standard_normal(shape).astype(np.float32) for shape in ((rows, 10240), (4, 10240)))
    past = rng.standard_normal((3, 10240)).astype(np.float32)
    state = backend.to_device(past)
    got = backend.module.layers.causal_conv(backend.to_device(x), backend.to_device(taps), state)
    assert backend.to_host(got).tobytes() == exact.causal_conv(x, taps, past).tobytes()
    assert backend.to_host(state).tobytes() == past.tobytes()


def test_a_captured_delta_rule_goes_on_from_its_own_memory(backend):
    """Replays advance the memory in place, on rows that are filled in between."""
    from qsa.kernels.cuda.device import Program, program_stream

    arrays, states = delta_problem(np.random.default_rng(5), [2], (4, 8, 64, 64))
    q, k, wide, decay, beta = arrays
    rows = backend.to_device([q, k, wide[:, :512].reshape(2, 8, 64), decay, beta])
    memory = backend.to_device(states[0])
    program = Program(lambda: backend.module.layers.delta_rule(*rows, memory), program_stream())
    for step in range(5):
        v = np.random.default_rng(step).standard_normal((2, 8, 64)).astype(np.float32)
        rows[2].set(v)
        got = backend.to_host(program())
        assert got.tobytes() == exact.delta_rule(q, k, v, decay, beta, states[0]).tobytes(), step
    assert backend.to_host(memory).tobytes() == states[0].tobytes()
