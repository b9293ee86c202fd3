"""Tests of the layers with a state on CUDA, for the simulator and a device: the exact arithmetic's bytes.

The fixture ``backend`` is a :class:`support.backend.Backend`.
"""

import numpy as np
import pytest

from qsa.reference.exact.layers import recurrent as exact
from qsa.reference.exact.select import last_cells
from support.arrays import normal


def _spans(counts):
    ends = np.cumsum(counts).tolist()
    return [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]


def _same(backend, got, want):
    for array, wanted in zip(got, want, strict=True):
        result = backend.to_host(array)
        assert result.dtype == wanted.dtype and result.shape == wanted.shape
        assert result.tobytes() == np.ascontiguousarray(wanted).tobytes()


CONV = [([3], 1, 3), ([20], 1, 4), ([1, 5, 2], 3, 4), ([1] * 9, 1, 4), ([30], 3, 4)]
"""(rows of every sequence, dilation, kernel): fewer rows than the state holds, more than a thread block takes, more
sequences than a launch."""


@pytest.mark.parametrize(("counts", "dilation", "kernel"), CONV)
def test_causal_conv(backend, counts, dilation, kernel):
    """The input is columns of a wider matrix; the states are advanced in place."""
    rng, n, channels = np.random.default_rng(len(counts)), sum(counts), 134
    x, taps = normal(rng, n, channels + 16), normal(rng, kernel, channels)
    x[0, 5] = np.nan
    states = [normal(rng, (kernel - 1) * dilation, channels) for _ in counts]
    on_device = [backend.to_device(state) for state in states]
    got = backend.module.layers.causal_conv(
        backend.to_device(x)[:, 4:138], backend.to_device(taps), on_device, dilation, spans=_spans(counts)
    )
    want = exact.causal_conv(x[:, 4:138], taps, states, dilation, spans=_spans(counts))
    _same(backend, [got, *on_device], [want, *states])


def delta_problem(rng, counts, sizes):
    """(q, k, values as columns of a wider matrix, decay, beta) and states. One value is inf, one decay NaN."""
    key_heads, heads, keys, values = sizes
    n = sum(counts)
    q, k = normal(rng, n, key_heads, keys) / 8, normal(rng, n, key_heads, keys) / 8
    wide = normal(rng, n, heads * values + 8)
    decay, beta = exact.decay_beta(normal(rng, n, heads), normal(rng, n, heads), normal(rng, heads), np.ones(heads))
    wide[n // 2, 3] = np.inf
    decay[0, heads - 1] = np.nan
    return (q, k, wide, decay, beta), [normal(rng, heads, keys, values) for _ in counts]


def check_delta_rule(backend, counts, sizes):
    """Outputs and states; ``sizes``: (key heads, heads, key dims, value dims)."""
    (q, k, wide, decay, beta), states = delta_problem(np.random.default_rng(sum(counts)), counts, sizes)
    on_device = [backend.to_device(state) for state in states]
    shape = (sum(counts), sizes[1], sizes[3])

    def values(x):
        return x[:, : sizes[1] * sizes[3]].reshape(shape)

    arrays = [backend.to_device(x) for x in (q, k, decay, beta)]
    arrays.insert(2, values(backend.to_device(wide)))
    got = backend.module.layers.delta_rule(*arrays, on_device, spans=_spans(counts))
    want = exact.delta_rule(q, k, values(wide), decay, beta, states, spans=_spans(counts))
    _same(backend, [got, *on_device], [want, *states])


@pytest.mark.parametrize("kept", [[(0, 2), (3, 4), (5, 5)], [(1, 9)], [(0, 9)], [(i, i + 1) for i in range(8)]])
def test_bounds_that_the_device_reads(backend, kept):
    """Rows between and after them are left alone, and of a sequence without a row its state."""
    rng, n, sizes = np.random.default_rng(5), 9, (2, 4, 16, 18)
    (q, k, wide, decay, beta), memories = delta_problem(rng, [n] + [0] * (len(kept) - 1), sizes)
    v = wide[:, : sizes[1] * sizes[3]].reshape(n, sizes[1], sizes[3])
    x, taps = normal(rng, n, 40), normal(rng, 4, 40)
    pasts = [normal(rng, 3, 40) for _ in kept]
    bounds = np.array([end for pair in kept for end in pair] + [0] * (16 - 2 * len(kept)))
    spans = backend.module.layers.sequences.RowBounds(backend.to_device(bounds), n)
    arrays = [backend.to_device(a) for a in (q, k, np.ascontiguousarray(v), decay, beta)]
    on_device = [[backend.to_device(state) for state in states] for states in (memories, pasts)]
    backend.module.layers.delta_rule(*arrays, on_device[0], spans=spans)
    backend.module.layers.causal_conv(backend.to_device(x), backend.to_device(taps), on_device[1], spans=spans)
    for (first, end), memory, past in zip(kept, memories, pasts, strict=True):
        rows = slice(first, end)
        if end > first:
            exact.delta_rule(q[rows], k[rows], v[rows], decay[rows], beta[rows], memory)
            exact.causal_conv(x[rows], taps, past)
    _same(backend, [*on_device[0], *on_device[1]], [*memories, *pasts])
    with pytest.raises(ValueError, match="at most 8"):
        backend.module.layers.causal_conv(backend.to_device(x), backend.to_device(taps), on_device[1] * 9, spans=spans)


@pytest.mark.parametrize("counts", [[3], [9], [1, 2]])
def test_delta_rule(backend, counts):
    """The value dims are no multiple of a thread block's; more rows than are staged; two sequences."""
    check_delta_rule(backend, counts, (2, 4, 16, 18))


def test_decay_beta(backend):
    rng = np.random.default_rng(3)
    wide, bias, rate = 30 * normal(rng, 5, 20), normal(rng, 9), np.exp(normal(rng, 9))
    wide[0, 0], wide[1, 10], wide[2, 4], wide[3, 12] = np.nan, -np.inf, np.inf, np.nan
    want = exact.decay_beta(wide[:, :9], wide[:, 9:18], bias, rate)
    columns = backend.to_device(wide)
    got = backend.module.layers.decay_beta(
        columns[:, :9], columns[:, 9:18], backend.to_device(bias), backend.to_device(rate)
    )
    _same(backend, got, want)


def test_last_cells(backend):
    steps = np.array([[0, 1, 0, 1], [11, 12, 3, 5], [299, 300, 75, 300], [-1, 0, 0, 0]], np.int32)
    _same(backend, [backend.module.layers.last_cells(backend.to_device(steps), 300)], [last_cells(steps, 300)])


def test_misfits_are_named(backend):
    def zeros(*shape):
        return backend.to_device(np.zeros(shape, np.float32))

    with pytest.raises(ValueError, match=r"past: float32 \(2, 8\): must be float32 \(3, 8\)"):
        backend.module.layers.causal_conv(zeros(2, 8), zeros(4, 8), zeros(2, 8))
    with pytest.raises(ValueError, match="spans: "):
        backend.module.layers.causal_conv(zeros(2, 8), zeros(4, 8), [zeros(3, 8)], spans=[slice(0, 1)])
    with pytest.raises(ValueError, match="key dims must be a multiple of 16"):
        backend.module.layers.delta_rule(*(zeros(1, 1, 8),) * 3, *(zeros(1, 1),) * 2, zeros(1, 8, 8))
    with pytest.raises(ValueError, match="b: "):
        backend.module.layers.decay_beta(zeros(2, 3), zeros(2, 2), zeros(3), zeros(3))
