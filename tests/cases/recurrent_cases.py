"""The operations with a state on CUDA, whatever runs them: bytes of ``reference.exact.recurrent``.

A test file imports the tests here and has fixtures ``layers``, ``to_device`` and ``to_host``.
"""

import numpy as np
import pytest

from qsa.reference.exact.layers import recurrent as exact


def _spans(counts):
    ends = np.cumsum(counts).tolist()
    return [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]


def _same(got, want, to_host):
    for one, other in zip(got, want, strict=True):
        one = to_host(one)
        assert one.dtype == other.dtype and one.shape == other.shape
        assert one.tobytes() == np.ascontiguousarray(other).tobytes()


def _normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


CONV = [([3], 1, 3), ([20], 1, 4), ([1, 5, 2], 3, 4), ([1] * 9, 1, 4), ([30], 3, 4)]
"""Rows of every sequence, dilation, kernel: fewer rows than are held, more than a thread block takes, more sequences
than a launch."""


@pytest.mark.parametrize(("counts", "dilation", "kernel"), CONV)
def test_causal_conv(layers, to_device, to_host, counts, dilation, kernel):
    """Rows are columns of a wider matrix; states are advanced in place."""
    rng, n, channels = np.random.default_rng(len(counts)), sum(counts), 134
    x, taps = _normal(rng, n, channels + 16), _normal(rng, kernel, channels)
    x[0, 5] = np.nan
    states = [_normal(rng, (kernel - 1) * dilation, channels) for _ in counts]
    placed = [to_device(one) for one in states]
    got = layers.causal_conv(to_device(x)[:, 4:138], to_device(taps), placed, dilation, spans=_spans(counts))
    want = exact.causal_conv(x[:, 4:138], taps, states, dilation, spans=_spans(counts))
    _same([got, *placed], [want, *states], to_host)


def delta_problem(rng, counts, sizes):
    """Arguments of the delta rule, and states: normal keys, some values and decays that are no numbers."""
    key_heads, heads, keys, values = sizes
    n = sum(counts)
    q, k = _normal(rng, n, key_heads, keys) / 8, _normal(rng, n, key_heads, keys) / 8
    wide = _normal(rng, n, heads * values + 8)
    decay, beta = exact.decay_beta(_normal(rng, n, heads), _normal(rng, n, heads), _normal(rng, heads), np.ones(heads))
    wide[n // 2, 3] = np.inf
    decay[0, heads - 1] = np.nan
    return (q, k, wide, decay, beta), [_normal(rng, heads, keys, values) for _ in counts]


def check_delta_rule(layers, to_device, to_host, counts, sizes):
    """``sizes``: key heads, heads, key dims, value dims."""
    (q, k, wide, decay, beta), states = delta_problem(np.random.default_rng(sum(counts)), counts, sizes)
    placed = [to_device(one) for one in states]
    shape = (sum(counts), sizes[1], sizes[3])

    def values(x):
        return x[:, : sizes[1] * sizes[3]].reshape(shape)

    arrays = [to_device(one) for one in (q, k, decay, beta)]
    arrays.insert(2, values(to_device(wide)))
    got = layers.delta_rule(*arrays, placed, spans=_spans(counts))
    want = exact.delta_rule(q, k, values(wide), decay, beta, states, spans=_spans(counts))
    _same([got, *placed], [want, *states], to_host)


@pytest.mark.parametrize("counts", [[3], [9], [1, 2]])
def test_delta_rule(layers, to_device, to_host, counts):
    """Values that are no multiple of what a thread block takes; more rows than are staged; two sequences."""
    check_delta_rule(layers, to_device, to_host, counts, (2, 4, 16, 18))


def test_decay_beta(layers, to_device, to_host):
    rng = np.random.default_rng(3)
    wide, bias, rate = 30 * _normal(rng, 5, 20), _normal(rng, 9), np.exp(_normal(rng, 9))
    wide[0, 0], wide[1, 10], wide[2, 4], wide[3, 12] = np.nan, -np.inf, np.inf, np.nan
    want = exact.decay_beta(wide[:, :9], wide[:, 9:18], bias, rate)
    placed = to_device(wide)
    got = layers.decay_beta(placed[:, :9], placed[:, 9:18], to_device(bias), to_device(rate))
    _same(got, want, to_host)


def test_last_cells(layers, to_device, to_host):
    from qsa.reference.exact.select import last_cells

    steps = np.array([[0, 1, 0, 1], [11, 12, 3, 5], [299, 300, 75, 300], [-1, 0, 0, 0]], np.int32)
    _same([layers.last_cells(to_device(steps), 300)], [last_cells(steps, 300)], to_host)


def test_misfits_are_named(layers, to_device):
    def zeros(*shape):
        return to_device(np.zeros(shape, np.float32))

    with pytest.raises(ValueError, match=r"past: float32 \(2, 8\): must be float32 \(3, 8\)"):
        layers.causal_conv(zeros(2, 8), zeros(4, 8), zeros(2, 8))
    with pytest.raises(ValueError, match="spans: "):
        layers.causal_conv(zeros(2, 8), zeros(4, 8), [zeros(3, 8)], spans=[slice(0, 1)])
    with pytest.raises(ValueError, match="key dims must be a multiple of 16"):
        layers.delta_rule(*(zeros(1, 1, 8),) * 3, *(zeros(1, 1),) * 2, zeros(1, 8, 8))
    with pytest.raises(ValueError, match="b: "):
        layers.decay_beta(zeros(2, 3), zeros(2, 2), zeros(3), zeros(3))
