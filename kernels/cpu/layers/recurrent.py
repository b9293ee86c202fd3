"""Short convolution and gated delta rule, in place on their states, as ``reference/exact/layers/recurrent.py``."""

from collections.abc import Sequence

import numpy as np

from qsa.reference.exact.layers.recurrent import COLUMNS, check_spans

from ..common.jit import kernel, writable
from ..common.scalar import ZERO, exp, one_nan, sigmoid, softplus
from ..common.threads import share

ALONE = 1 << 20
"""A call that visits fewer elements of memory than this runs on one thread."""


@kernel
def _causal_conv(x, taps, past, dilation, out):
    rows, channels = x.shape
    held = len(past)
    for row in range(rows):
        y = out[row]
        for tap in range(len(taps)):
            index = row + tap * dilation
            source = past[index] if index < held else x[index - held]
            t = taps[tap]
            if tap == 0:
                for c in range(channels):
                    y[c] = source[c] * t[c]
            else:
                for c in range(channels):
                    y[c] = y[c] + source[c] * t[c]
        for c in range(channels):
            y[c] = one_nan(y[c])
    for index in range(held):
        # Ascending, so that nothing is overwritten before it has been moved.
        source = past[index + rows] if index + rows < held else x[index + rows - held]
        for c in range(channels):
            past[index, c] = source[c]


@kernel
def _decay_beta(a, b, dt_bias, rate, decay, beta):
    for row in range(len(a)):
        for head in range(a.shape[1]):
            decay[row, head] = exp(-(rate[head] * softplus(a[row, head] + dt_bias[head])))
            beta[row, head] = sigmoid(b[row, head])


@kernel
def _add(columns, out):
    """out [dim] = the columns [4, dim] as a butterfly."""
    c0, c1, c2, c3 = columns[0], columns[1], columns[2], columns[3]
    for v in range(out.size):
        out[v] = (c0[v] + c2[v]) + (c1[v] + c3[v])


@kernel
def _heads(begin, stop, q, k, v, decay, beta, memory, out):
    for head in range(begin, stop):
        m = memory[head]
        keys, values = m.shape
        key_head = head // (len(memory) // q.shape[1])
        columns = np.empty((COLUMNS, values), np.float32)
        correction = np.empty(values, np.float32)
        for row in range(len(v)):
            key, query, factor, share = k[row, key_head], q[row, key_head], decay[row, head], beta[row, head]
            columns[:] = ZERO
            for i in range(keys):
                line, column, x = m[i], columns[i % COLUMNS], key[i]
                for j in range(values):
                    faded = line[j] * factor
                    line[j] = faded
                    column[j] = column[j] + faded * x
            _add(columns, correction)
            for j in range(values):
                correction[j] = share * (v[row, head, j] - correction[j])
            columns[:] = ZERO
            for i in range(keys):
                line, column, x, y = m[i], columns[i % COLUMNS], key[i], query[i]
                for j in range(values):
                    new = one_nan(line[j] + x * correction[j])
                    line[j] = new
                    column[j] = column[j] + new * y
            result = out[row, head]
            _add(columns, result)
            for j in range(values):
                result[j] = one_nan(result[j])


def causal_conv(
    x: np.ndarray,
    taps: np.ndarray,
    past: np.ndarray | Sequence[np.ndarray],
    dilation: int = 1,
    spans: Sequence[slice] | None = None,
) -> np.ndarray:
    """Causal depthwise convolution: float32 [rows, channels]; ``past`` is advanced in place.

    x      [rows, channels] float32
    taps   [kernel, channels] float32: tap kernel - 1 meets the input itself
    past   [(kernel - 1) * dilation, channels] float32, the inputs before x, oldest first
    spans  of several sequences in one call: the slice of each one's rows; ``past`` is then a list

    Raises ValueError on spans that do not follow one another over all rows.
    """
    x = np.ascontiguousarray(x, np.float32)
    check_spans(spans, past, len(x))
    out = np.empty(x.shape, np.float32)
    for mine, own in [(slice(None), past)] if spans is None else zip(spans, past, strict=True):
        _causal_conv(x[mine], taps, own, dilation, out[mine])
    return out


def decay_beta(a: np.ndarray, b: np.ndarray, dt_bias: np.ndarray, rate: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """exp(-(rate * softplus(a + dt_bias))) and sigmoid(b), the decay and beta of the delta rule.

    a, b [rows, heads]; dt_bias, rate [heads]; all float32. Returns two float32 [rows, heads].
    """
    a, b = np.ascontiguousarray(a, np.float32), np.ascontiguousarray(b, np.float32)
    decay, beta = np.empty(a.shape, np.float32), np.empty(a.shape, np.float32)
    _decay_beta(a, b, writable(dt_bias), rate, decay, beta)
    return decay, beta


def delta_rule(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    decay: np.ndarray,
    beta: np.ndarray,
    memory: np.ndarray | Sequence[np.ndarray],
    spans: Sequence[slice] | None = None,
) -> np.ndarray:
    """The gated delta rule, row by row: float32 [rows, heads, value dim]; ``memory`` is advanced in place.

    q, k         [rows, key heads, key dim] float32, normed
    v            [rows, heads, value dim] float32
    decay, beta  [rows, heads] float32
    memory       [heads, key dim, value dim] float32
    spans        of several sequences in one call: the slice of each one's rows; ``memory`` is then a list

    Raises ValueError on spans that do not follow one another over all rows.
    """
    rows = [np.ascontiguousarray(x, np.float32) for x in (q, k, v, decay, beta)]
    check_spans(spans, memory, len(v))
    out = np.empty(v.shape, np.float32)
    for mine, own in [(slice(None), memory)] if spans is None else zip(spans, memory, strict=True):
        alone = np.size(own) * len(v[mine]) < ALONE
        share(alone, len(own), _heads, *(x[mine] for x in rows), own, out[mine])
    return out
