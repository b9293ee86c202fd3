"""The two operations with a state per sequence, exact: short convolution and gated delta rule, float32 in one order.

Both advance their state in place and take any number of rows: rows in one call give the bytes of rows one by one.
"""

from collections.abc import Sequence
from typing import cast

import numpy as np

from ..scalar import column_sum, exp, one_nan, sigmoid, softplus

COLUMNS = 4
"""Columns of the tree that sums over the key dims of a memory."""


def check_spans(spans: Sequence[slice] | None, states: np.ndarray | Sequence[np.ndarray], rows: int) -> None:
    """Raises ValueError unless ``spans``, where given, are slices that follow one another over all ``rows``, one for
    each of ``states``."""
    if spans is None:
        return
    ends = [0, *(span.stop for span in spans)]
    if len(spans) != len(states) or [span.start for span in spans] != ends[:-1] or ends[-1] != rows:
        raise ValueError(f"spans: {spans} of {len(states)} states: one after the other over {rows} rows is required")


def causal_conv(
    x: np.ndarray,
    taps: np.ndarray,
    past: np.ndarray | Sequence[np.ndarray],
    dilation: int = 1,
    spans: Sequence[slice] | None = None,
) -> np.ndarray:
    """Causal depthwise convolution: ((x_0 * t_0 + x_1 * t_1) + x_2 * t_2) + ..., oldest input first.

    x      [rows, channels] float32
    taps   [kernel, channels] float32: tap kernel - 1 meets the input itself
    past   [(kernel - 1) * dilation, channels] float32, the inputs before x, oldest first; advanced in place
    spans  of several sequences in one call: the slice of each one's rows; ``past`` is then a list

    Returns float32 [rows, channels]. Raises ValueError on spans that do not follow one another over all rows.
    """
    if spans is not None:
        check_spans(spans, past, len(x))
        parts = [causal_conv(x[mine], taps, own, dilation) for mine, own in zip(spans, past, strict=True)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
    state = cast(np.ndarray, past)  # without spans it is one array
    rows = len(x)
    inputs = np.concatenate([state, x])
    with np.errstate(over="ignore", invalid="ignore"):
        y = inputs[:rows] * taps[0]
        for tap in range(1, len(taps)):
            y = y + inputs[tap * dilation : tap * dilation + rows] * taps[tap]
    state[...] = inputs[rows:]
    return one_nan(y)


def decay_beta(a: np.ndarray, b: np.ndarray, dt_bias: np.ndarray, rate: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Decay and beta of the delta rule: exp(-(rate * softplus(a + dt_bias))) and sigmoid(b).

    a, b [rows, heads]; dt_bias, rate [heads], rate = exp(A_log); all float32. Returns two float32 [rows, heads].
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return exp(-(rate * softplus(a + dt_bias))), sigmoid(b)


def delta_rule(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    decay: np.ndarray,
    beta: np.ndarray,
    memory: np.ndarray | Sequence[np.ndarray],
    spans: Sequence[slice] | None = None,
) -> np.ndarray:
    """The gated delta rule, row by row.

    q, k         [rows, key heads, key dim] float32, normed; key head j serves the value heads j * repeat to
                 (j + 1) * repeat - 1
    v            [rows, heads, value dim] float32
    decay, beta  [rows, heads] float32
    memory       [heads, key dim, value dim] float32; advanced in place
    spans        of several sequences in one call: the slice of each one's rows; ``memory`` is then a list

    Per row and head: M = M * decay; c = beta * (v - M^T k); M = M + k c; out = M^T q. Sums over the key dims go in the
    tree of 4 columns (column j adds dims j, j + 4, ...; then strides 2, 1) over rounded products.
    Returns float32 [rows, heads, value dim]. Raises ValueError on spans that do not follow one another over all rows.
    """
    if spans is not None:
        check_spans(spans, memory, len(v))
        parts = [
            delta_rule(q[mine], k[mine], v[mine], decay[mine], beta[mine], own)
            for mine, own in zip(spans, memory, strict=True)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
    out = np.empty_like(v)
    state = cast(np.ndarray, memory)  # without spans it is one array
    repeat = state.shape[0] // q.shape[1]
    with np.errstate(over="ignore", invalid="ignore"):
        for row in range(len(v)):
            key, query = (np.repeat(x[row], repeat, axis=0)[:, :, None] for x in (k, q))
            faded = state * decay[row][:, None, None]
            recalled = column_sum((faded * key).transpose(0, 2, 1), COLUMNS)
            correction = beta[row][:, None] * (v[row] - recalled)
            state[...] = one_nan(faded + key * correction[:, None, :])
            out[row] = one_nan(column_sum((state * query).transpose(0, 2, 1), COLUMNS))
    return out
