"""Norms and rotation, exact: sums of squares in the tree of 32 columns, products from left to right.

``column_sum`` takes any number of dims: column j of 32 adds dims j, j + 32, ... in ascending
order, then the columns are added with strides 16, 8, 4, 2, 1. A square that overflows makes the sum inf and the row 0.
"""

import numpy as np

from ..scalar import column_sum, one_nan, rsqrt, sigmoid, silu

COLUMNS = 32
"""Columns of the tree that sums over the dims of a row."""

ACTIVATIONS = {"sigmoid": sigmoid, "silu": silu}


def _inverse(x: np.ndarray, eps: float) -> np.ndarray:
    """1 / sqrt(mean of squares + eps) [..., 1]."""
    mean = column_sum(x * x, COLUMNS) / np.float32(x.shape[-1])
    return rsqrt(mean + np.float32(eps))[..., None]


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x * (1 / sqrt(ss / dim + eps)) * weight over the last axis.

    x       [rows, ..., dim] float32
    weight  [dim], or [..., dim] for a weight per group (residual streams); float32, the factor itself: 1 + w of the
            checkpoint, rounded once when it is loaded

    Returns float32 in the shape of x.
    """
    x = np.asarray(x, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        return one_nan(x * _inverse(x, eps) * weight)


def gated_norm(x: np.ndarray, gate: np.ndarray, weight: np.ndarray, eps: float, activation: str) -> np.ndarray:
    """x * (1 / sqrt(ss / dim + eps)) * weight * activation(gate), the output norm of Gated DeltaNet.

    x, gate [rows, heads, dim] float32; weight [dim] float32, the checkpoint's own; ``activation`` sigmoid or silu.
    Returns float32 in the shape of x.
    """
    x = np.asarray(x, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        return one_nan(x * _inverse(x, eps) * weight * ACTIVATIONS[activation](gate))


def l2_norm(x: np.ndarray, factor: float) -> np.ndarray:
    """x * (1 / sqrt(ss + 1e-6)) * factor over the last axis. x [rows, heads, dim] float32, ``factor`` float32."""
    x = np.asarray(x, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        inverse = rsqrt(column_sum(x * x, COLUMNS) + np.float32(1e-6))[..., None]
        return one_nan(x * inverse * np.float32(factor))


def rotate(x: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Rotate the pairs (i, i + n_rot/2) of each vector: a * cos - b * sin and b * cos + a * sin, every product rounded.

    x      [rows, heads, dim] float32
    table  [rows, n_rot] float32, cos in the first half, made by the host (``reference.layers.rope.rope_table``)

    Returns float32 in the shape of x; dims from n_rot on pass through.
    """
    x = np.asarray(x, np.float32)
    half = table.shape[1] // 2
    cos, sin = table[:, None, :half], table[:, None, half:]
    a, b = x[..., :half], x[..., half : 2 * half]
    with np.errstate(over="ignore", invalid="ignore"):
        turned = [a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]]
    return one_nan(np.concatenate(turned, axis=-1))
