"""Linear layers and embedding rows: integer dots of 64, float32 in the tree of 8 columns.

Source: ``reference/exact/layers/linear.py``, whose steps are used here. A code times a fixed-point input needs 30 bits,
and four such products fit an int32, so a group of 64 is 16 sums of four in 32 bits that are then added in 64.
"""

from typing import NamedTuple

import numba
import numpy as np

from qsa.reference.exact.layers.linear import COLUMNS, GROUP, QuantisedLinear, embed, load_table, padded
from qsa.reference.exact.scalar import QUERY_BITS

from ..jit import kernel
from ..scalar import NAN, ZERO, power_of_two, rint

__all__ = ["embed", "linear", "load_linear", "load_table"]

LANES = GROUP // 4
INFINITY_BITS = 0x7F800000

BLOCK = 64
"""Outputs of one work item."""

ALONE = 1 << 21
"""A call of fewer products than this runs on one thread: starting the others would cost as much."""


@kernel
def fixed_row(x, xi):
    """Fill xi [padded] int32 with rint(x * 2^(22 - e)) of x [dim] float32, then zeros.

    Returns (e, finite) as ``scalar.fixed_point``. The largest magnitude is found among the bits, where NaN and inf are
    the largest and nothing branches.
    """
    bits = x.view(np.int32)
    top = np.int32(0)
    for i in range(bits.size):
        top = max(top, np.int32(bits[i] & 0x7FFFFFFF))
    if top == 0 or top >= INFINITY_BITS:
        xi[:] = 0
        return 0, top == 0
    e = (np.float64(np.int32(top).view(np.float32)).view(np.int64) >> 52) - 1022
    factor = power_of_two(QUERY_BITS - e)
    for i in range(x.size):
        xi[i] = np.int32(rint(np.float64(x[i]) * factor))
    xi[x.size :] = 0
    return e, True


@kernel
def _dot(x, codes):
    """int64 dot product of x [64] int32, at most 2^22, and codes [64] int8, at most 127."""
    total = np.int64(0)
    for i in range(LANES):
        p = np.int32(x[i] * np.int32(codes[i]))
        p = np.int32(p + np.int32(x[i + LANES] * np.int32(codes[i + LANES])))
        p = np.int32(p + np.int32(x[i + 2 * LANES] * np.int32(codes[i + 2 * LANES])))
        p = np.int32(p + np.int32(x[i + 3 * LANES] * np.int32(codes[i + 3 * LANES])))
        total += np.int64(p)
    return total


@kernel
def outputs(xi, e, codes, scale, first, stop, out):
    """out [first:stop] of one row: xi [padded] int32 and e of the row, codes [out, padded] int8 and scale [out, groups]
    float32 of the weights.

    All in one body: a call for every output would cost as much as the output.
    """
    columns = np.empty(COLUMNS, np.float32)
    factor = power_of_two(min(max(e - QUERY_BITS, -700), 700))
    for o in range(first, stop):
        for j in range(COLUMNS):
            columns[j] = ZERO
        for group in range(scale.shape[1]):
            part = slice(group * GROUP, (group + 1) * GROUP)
            j = group & (COLUMNS - 1)
            columns[j] = columns[j] + np.float32(_dot(xi[part], codes[o, part])) * scale[o, group]
        even = (columns[0] + columns[4]) + (columns[2] + columns[6])
        odd = (columns[1] + columns[5]) + (columns[3] + columns[7])
        out[o] = np.float32(np.float64(even + odd) * factor)


@kernel
def _outputs(item, fixed, codes, scale, out):
    xi, e, finite = fixed
    first, stop = item * BLOCK, min((item + 1) * BLOCK, len(codes))
    for row in range(len(xi)):
        if finite[row]:
            outputs(xi[row], e[row], codes, scale, first, stop, out[row])
        else:
            out[row, first:stop] = NAN


@kernel(parallel=True)
def _outputs_all(items, fixed, codes, scale, out):
    for item in numba.prange(items):
        _outputs(np.int64(item), fixed, codes, scale, out)


@kernel
def fixed_rows(x, padded):
    """(xi [rows, padded] int32, e [rows], finite [rows]) of x [rows, in]."""
    xi = np.empty((len(x), padded), np.int32)
    e, finite = np.empty(len(x), np.int64), np.empty(len(x), np.bool_)
    for row in range(len(x)):
        e[row], finite[row] = fixed_row(x[row], xi[row])
    return xi, e, finite


@kernel
def _linear(x, codes, scale, out):
    fixed = fixed_rows(x, codes.shape[1])
    items = (len(codes) + BLOCK - 1) // BLOCK
    if codes.size * len(x) < ALONE:
        for item in range(items):
            _outputs(item, fixed, codes, scale, out)
    else:
        _outputs_all(items, fixed, codes, scale, out)


class LoadedLinear(NamedTuple):
    """A ``QuantisedLinear`` as the kernels read it: ``codes`` [..., out, padded] int8 with zeros up to a multiple of 64
    inputs, ``scale`` [..., out, groups] float32, ``inputs`` as they were."""

    codes: np.ndarray
    scale: np.ndarray
    inputs: int


def load_linear(weight: QuantisedLinear) -> LoadedLinear:
    """The form in which :func:`linear` and ``experts`` take a ``QuantisedLinear`` [..., out, in]."""
    codes, scale = np.ascontiguousarray(padded(weight.codes)), np.ascontiguousarray(weight.scale, np.float32)
    return LoadedLinear(codes, scale, weight.codes.shape[-1])


def linear(x: np.ndarray, weight: LoadedLinear) -> np.ndarray:
    """Rows times a weight matrix: float32 [rows, out]; a row that is not finite gives a row of NaN.

    x       [rows, in] float32
    weight  from :func:`load_linear`: [out, in]

    Raises ValueError on mismatched shapes.
    """
    x = np.ascontiguousarray(x, np.float32)
    codes, scale, inputs = weight
    if x.ndim != 2 or x.shape[1] != inputs:
        raise ValueError(f"x: shape {x.shape}: must be [rows, {inputs}]")
    out = np.empty((len(x), len(codes)), np.float32)
    _linear(x, codes, scale, out)
    return out
