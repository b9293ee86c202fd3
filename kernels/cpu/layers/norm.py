"""Norms and rotation: sums of squares in the tree of 32 columns, as ``reference/exact/layers/norm.py``."""

import math

import numpy as np

from ..common.jit import kernel, writable
from ..common.scalar import ONE, column_dot, one_nan, sigmoid

SILU = {"sigmoid": False, "silu": True}


@kernel
def _inverse(x, eps, columns):
    mean = column_dot(x, x, columns) / np.float32(x.size)
    return ONE / np.float32(math.sqrt(mean + eps))


@kernel
def _rms_norm(x, weight, eps, out):
    """x, out [n, groups, dim]; weight [groups, dim]."""
    columns = np.empty(32, np.float32)
    for i in range(len(x)):
        for j in range(x.shape[1]):
            row, w, y = x[i, j], weight[j], out[i, j]
            inverse = _inverse(row, eps, columns)
            for d in range(row.size):
                y[d] = one_nan(row[d] * inverse * w[d])


@kernel
def _gated_norm(x, gate, weight, eps, silu, out):
    columns = np.empty(32, np.float32)
    for i in range(len(x)):
        row, g, y = x[i], gate[i], out[i]
        inverse = _inverse(row, eps, columns)
        if silu:
            for d in range(row.size):
                y[d] = one_nan(row[d] * inverse * weight[d] * one_nan(g[d] * sigmoid(g[d])))
        else:
            for d in range(row.size):
                y[d] = one_nan(row[d] * inverse * weight[d] * sigmoid(g[d]))


@kernel
def _l2_norm(x, factor, out):
    columns = np.empty(32, np.float32)
    for i in range(len(x)):
        row, y = x[i], out[i]
        inverse = ONE / np.float32(math.sqrt(column_dot(row, row, columns) + np.float32(1e-6)))
        for d in range(row.size):
            y[d] = one_nan(row[d] * inverse * factor)


@kernel
def _rotate(x, table, out):
    half = table.shape[1] // 2
    for i in range(len(x)):
        for j in range(x.shape[1]):
            row, y = x[i, j], out[i, j]
            for d in range(half):
                a, b, cos, sin = row[d], row[d + half], table[i, d], table[i, d + half]
                y[d] = one_nan(a * cos - b * sin)
                y[d + half] = one_nan(b * cos + a * sin)
            for d in range(2 * half, row.size):
                y[d] = one_nan(row[d])


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x * (1 / sqrt(ss / dim + eps)) * weight over the last axis: float32 in the shape of x.

    x       [rows, ..., dim] float32
    weight  [dim], or [..., dim] for a weight per group; float32
    """
    x = np.ascontiguousarray(x, np.float32)
    out = np.empty(x.shape, np.float32)
    weight = weight.reshape(-1, x.shape[-1])
    shape = (-1, *weight.shape)
    _rms_norm(x.reshape(shape), weight, np.float32(eps), out.reshape(shape))
    return out


def gated_norm(x: np.ndarray, gate: np.ndarray, weight: np.ndarray, eps: float, activation: str) -> np.ndarray:
    """x * (1 / sqrt(ss / dim + eps)) * weight * activation(gate), the output norm of Gated DeltaNet.

    x, gate     [rows, heads, dim] float32
    weight      [dim] float32
    activation  ``sigmoid`` or ``silu``

    Returns float32 in the shape of x. Raises KeyError on another activation.
    """
    x, gate = np.ascontiguousarray(x, np.float32), np.ascontiguousarray(gate, np.float32)
    out = np.empty(x.shape, np.float32)
    rows = (-1, x.shape[-1])
    options = writable(weight), np.float32(eps), SILU[activation]
    _gated_norm(x.reshape(rows), gate.reshape(rows), *options, out.reshape(rows))
    return out


def l2_norm(x: np.ndarray, factor: float) -> np.ndarray:
    """x * (1 / sqrt(ss + 1e-6)) * factor over the last axis of x [rows, heads, dim] float32, in the shape of x."""
    x = np.ascontiguousarray(x, np.float32)
    out = np.empty(x.shape, np.float32)
    rows = (-1, x.shape[-1])
    _l2_norm(x.reshape(rows), np.float32(factor), out.reshape(rows))
    return out


def rotate(x: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Rotate the pairs (i, i + n_rot/2) of each vector: float32 in the shape of x.

    x      [rows, heads, dim] float32; dims from n_rot on pass through
    table  [rows, n_rot] float32, cosines in the first half
    """
    x = np.ascontiguousarray(x, np.float32)
    out = np.empty(x.shape, np.float32)
    _rotate(x, np.ascontiguousarray(table), out)
    return out
