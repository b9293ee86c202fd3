"""Activations, gates and residual streams, element by element, as ``reference/exact/layers/gates.py``."""

import math

import numpy as np

from ..common.jit import kernel
from ..common.scalar import ZERO, column_dot, one_nan, sigmoid
from ..common.scalar import silu as one_silu

TWO = np.float32(2)
LEAST = np.float32(1e-6)


@kernel
def _silu(x, divisor, out):
    for i in range(x.size):
        out[i] = one_silu(x[i] / divisor)


@kernel
def _swiglu(gate_up, out):
    for row in range(len(out)):
        swiglu_row(gate_up[row], out[row])


@kernel
def swiglu_row(gate_up, out):
    """out [width] = silu(gate) * up of gate_up [2 * width]."""
    width = out.size
    gate, up = gate_up[:width], gate_up[width:]
    for i in range(width):
        out[i] = one_nan(one_silu(gate[i]) * up[i])


@kernel
def _sigmoid_gate(x, gate, out):
    """x, out [rows, n]; gate [rows, n or 1]."""
    for row in range(len(x)):
        source, g, y = x[row], gate[row], out[row]
        if g.size == 1:
            factor = sigmoid(g[0])
            for i in range(source.size):
                y[i] = one_nan(source[i] * factor)
        else:
            for i in range(source.size):
                y[i] = one_nan(source[i] * sigmoid(g[i]))


@kernel
def _mix_streams(normed, share, factor, out):
    for row in range(len(out)):
        y = out[row]
        for stream in range(normed.shape[1]):
            x, s = normed[row, stream], share[row, stream]
            if stream == 0:
                for d in range(y.size):
                    y[d] = sigmoid(s[d]) * x[d]
            else:
                for d in range(y.size):
                    y[d] = y[d] + sigmoid(s[d]) * x[d]
        for d in range(y.size):
            y[d] = one_nan(y[d] * factor)


@kernel
def _inject(streams, share, y, out):
    count = np.float32(streams.shape[1])
    for row in range(len(out)):
        for stream in range(streams.shape[1]):
            factor = TWO * sigmoid(share[row, stream] / count)
            x, added, result = streams[row, stream], y[row], out[row, stream]
            for d in range(x.size):
                result[d] = one_nan(x[d] + factor * added[d])


@kernel
def _ngram_gate(key, query, value, root_hidden, out):
    columns = np.empty(32, np.float32)
    for row in range(len(out)):
        for stream in range(key.shape[1]):
            s = column_dot(key[row, stream], query[row, stream], columns) / root_hidden
            # Whichever way it compares, a NaN in s reaches the sigmoid.
            magnitude = abs(s) if abs(s) > LEAST or s != s else LEAST
            root = np.float32(math.sqrt(magnitude))
            gate = sigmoid(root if s > ZERO else (-root if s < ZERO else s))
            v, y = value[row], out[row, stream]
            for d in range(v.size):
                y[d] = one_nan(gate * v[d])


@kernel
def _add(x, y, out):
    """x, out [rows, streams, n]; y [rows, streams or 1, n]."""
    for row in range(len(x)):
        for stream in range(x.shape[1]):
            source, added = x[row, stream], y[row, stream % y.shape[1]]
            result = out[row, stream]
            for d in range(source.size):
                result[d] = one_nan(source[d] + added[d])


@kernel
def _add_gated(x, gated, mixed, out):
    for i in range(x.size):
        out[i] = one_nan(x[i] + (gated[i] + one_silu(mixed[i])))


def _contiguous(*arrays: np.ndarray) -> list[np.ndarray]:
    return [np.ascontiguousarray(x, np.float32) for x in arrays]


def scaled_silu(x: np.ndarray, divisor: float) -> np.ndarray:
    """silu(x / divisor); x float32 of any shape, the result in the same shape."""
    x = np.ascontiguousarray(x, np.float32)
    out = np.empty(x.shape, np.float32)
    _silu(x.ravel(), np.float32(divisor), out.reshape(-1))
    return out


def silu(x: np.ndarray) -> np.ndarray:
    """x * sigmoid(x); x float32 of any shape, the result in the same shape. A quotient by 1 is exact."""
    return scaled_silu(x, 1)


def swiglu(gate_up: np.ndarray) -> np.ndarray:
    """silu(gate) * up of ``gate_up`` [rows, 2 * width] float32, the gate first. Returns float32 [rows, width]."""
    gate_up = np.ascontiguousarray(gate_up, np.float32)
    out = np.empty((len(gate_up), gate_up.shape[1] // 2), np.float32)
    _swiglu(gate_up, out)
    return out


def sigmoid_gate(x: np.ndarray, gate: np.ndarray) -> np.ndarray:
    """x * sigmoid(gate), float32 in the shape of x [rows, ...]; ``gate`` float32 in the same shape or [rows, 1]."""
    x, gate = _contiguous(x, gate)
    out = np.empty(x.shape, np.float32)
    rows = len(x)
    _sigmoid_gate(x.reshape(rows, -1), gate.reshape(rows, -1), out.reshape(rows, -1))
    return out


def mix_streams(normed: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Mean over the streams of sigmoid(share) * normed: float32 [rows, hidden].

    normed, share  [rows, streams, hidden] float32; the order of the sum is that of ``reference.exact.layers``
    """
    normed, share = _contiguous(normed, share)
    out = np.empty((len(normed), normed.shape[2]), np.float32)
    _mix_streams(normed, share, np.float32(1 / normed.shape[1]), out)
    return out


def inject(streams: np.ndarray, share: np.ndarray, y: np.ndarray) -> np.ndarray:
    """streams + (2 * sigmoid(share / number of streams)) * y: float32 [rows, streams, hidden].

    streams [rows, streams, hidden], share [rows, streams], y [rows, hidden]; all float32
    """
    streams, share, y = _contiguous(streams, share, y)
    out = np.empty(streams.shape, np.float32)
    _inject(streams, share, y, out)
    return out


def ngram_gate(key: np.ndarray, query: np.ndarray, value: np.ndarray) -> np.ndarray:
    """sigmoid(r) * value per stream, r = sign(s) * sqrt(max(|s|, 1e-6)), s = key . query / sqrt(hidden).

    key, query  [rows, streams, hidden] float32
    value       [rows, hidden] float32

    Returns float32 [rows, streams, hidden].
    """
    key, query, value = _contiguous(key, query, value)
    out = np.empty(key.shape, np.float32)
    _ngram_gate(key, query, value, np.float32(np.sqrt(key.shape[-1])), out)
    return out


def add(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x + y: float32 in the shape of x [rows, ..., n]; y in the same shape, or [rows, 1, n] for every stream of x."""
    x, y = _contiguous(x, y)
    out = np.empty(x.shape, np.float32)
    shape = (len(x), -1, x.shape[-1])
    _add(x.reshape(shape), y.reshape(shape), out.reshape(shape))
    return out


def add_gated(x: np.ndarray, gated: np.ndarray, mixed: np.ndarray) -> np.ndarray:
    """x + (gated + silu(mixed)); all three and the result float32 of one shape."""
    x, gated, mixed = _contiguous(x, gated, mixed)
    out = np.empty(x.shape, np.float32)
    _add_gated(x.ravel(), gated.ravel(), mixed.ravel(), out.reshape(-1))
    return out
