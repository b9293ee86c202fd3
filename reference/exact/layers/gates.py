"""What stands between the linear layers, exact: activations, gates, residual streams. Element by element."""

import numpy as np

from ..scalar import column_sum, one_nan, sigmoid, silu
from .norm import COLUMNS


def scaled_silu(x: np.ndarray, divisor: float) -> np.ndarray:
    """silu(x / divisor), the quotient rounded. x float32 of any shape."""
    return silu(np.asarray(x, np.float32) / np.float32(divisor))


def swiglu(gate_up: np.ndarray) -> np.ndarray:
    """silu(gate) * up. ``gate_up`` [rows, 2 * width] float32, the gate first. Returns [rows, width]."""
    gate, up = np.split(gate_up, 2, axis=-1)
    with np.errstate(over="ignore", invalid="ignore"):
        return one_nan(silu(gate) * up)


def sigmoid_gate(x: np.ndarray, gate: np.ndarray) -> np.ndarray:
    """x * sigmoid(gate). Both float32; ``gate`` [rows, 1] or in the shape of x [rows, ...]."""
    with np.errstate(over="ignore", invalid="ignore"):
        return one_nan(x * sigmoid(gate))


def mix_streams(normed: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Mean over the streams of sigmoid(share) * normed: added in ascending order, then times float32(1 / streams).

    normed, share  [rows, streams, hidden] float32

    Returns float32 [rows, hidden].
    """
    with np.errstate(over="ignore", invalid="ignore"):
        weighted = sigmoid(share) * normed
        total = weighted[:, 0]
        for stream in range(1, weighted.shape[1]):
            total = total + weighted[:, stream]
        return one_nan(total * np.float32(1 / weighted.shape[1]))


def inject(streams: np.ndarray, share: np.ndarray, y: np.ndarray) -> np.ndarray:
    """streams + (2 * sigmoid(share / number of streams)) * y, every operation rounded.

    streams [rows, streams, hidden], share [rows, streams], y [rows, hidden]; all float32

    Returns float32 [rows, streams, hidden].
    """
    factor = np.float32(2) * sigmoid(share / np.float32(streams.shape[1]))
    with np.errstate(over="ignore", invalid="ignore"):
        return one_nan(streams + factor[:, :, None] * y[:, None, :])


def ngram_gate(key: np.ndarray, query: np.ndarray, value: np.ndarray) -> np.ndarray:
    """sigmoid(r) * value per stream, r = sign(s) * sqrt(max(|s|, 1e-6)), s = key . query / sqrt(hidden).

    key, query  [rows, streams, hidden] float32; the products are added in the tree of 32 columns
    value       [rows, hidden] float32

    Returns float32 [rows, streams, hidden]. s = 0 gives r = 0.
    """
    hidden = key.shape[-1]
    with np.errstate(over="ignore", invalid="ignore"):
        s = column_sum(key * query, COLUMNS) / np.float32(np.sqrt(hidden))
        root = np.sqrt(np.maximum(np.abs(s), np.float32(1e-6)))
        r = np.where(s > 0, root, np.where(s < 0, -root, s))
        return one_nan(sigmoid(r)[:, :, None] * value[:, None, :])


def add(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x + y, one NaN. x [rows, ..., n] float32; y in the shape of x, or [rows, 1, n]: one stream for all of x's."""
    with np.errstate(over="ignore", invalid="ignore"):
        return one_nan(x + y)


def add_gated(x: np.ndarray, gated: np.ndarray, mixed: np.ndarray) -> np.ndarray:
    """x + (gated + silu(mixed)): what PLE adds to the streams. All float32 of one shape."""
    with np.errstate(over="ignore", invalid="ignore"):
        return one_nan(x + (gated + silu(mixed)))
