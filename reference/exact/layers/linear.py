"""Linear layers and embedding rows, exact: int8 weights with a scale per 64 inputs, integer sums, one fixed tree.

Source: design section 4, "Linear layers of the engine". A product of a row with a weight matrix takes four steps:

1. The row goes to fixed point as a query does: e such that max|x| < 2^e, xi = rint(x * 2^(22 - e)).
2. Per group of 64 inputs the exact integer D_g = sum of xi * code. A last group that is not full is filled with zeros.
3. t_g = float32(D_g) * scale_g, both roundings to nearest even.
4. The t_g are added in the tree of 8 columns (``scalar.column_sum``): column j adds the groups j, j + 8, j + 16, ... in
   ascending order, from +0 on, then the columns are added with strides 4, 2, 1; then times 2^(e - 22), rounded once.

Eight columns because a GPU warp that reads a weight row in one piece holds eight groups at a time, four lanes each.

Codes stay within +-127, so 4 products of 23 by 7 bits fit an int32: |4 * 2^22 * 127| < 2^31.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...formats import GROUP as FORMAT_GROUP
from ...formats import encode_int8
from ..scalar import NAN, QUERY_BITS, column_sum, fixed_point, scale

GROUP = FORMAT_GROUP["int8"]
"""Inputs that share a scale."""

COLUMNS = 8
"""Columns of the tree that adds the groups."""

CHUNK = 1 << 22
"""Weights widened to float64 at a time (32 MiB)."""


class QuantisedLinear(NamedTuple):
    """Weights of a linear layer, or the rows of a table.

    ``codes`` [..., out, in] int8 from -127 to 127; ``scale`` [..., out, ceil(in / 64)] float16, not negative. The value
    of a weight is code * scale, exactly a float32. Leading axes stack several matrices (experts); indexing the tuple's
    two arrays alike takes one of them.
    """

    codes: np.ndarray
    scale: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the codes."""
        return self.codes.shape

    def part(self, index: Any) -> "QuantisedLinear":
        """The matrices, or the rows of one, at ``index`` (anything that indexes the leading axes)."""
        return QuantisedLinear(self.codes[index], self.scale[index])


def padded(x: np.ndarray) -> np.ndarray:
    """``x`` [..., n] filled up with zeros to a multiple of 64 on the last axis."""
    missing = -x.shape[-1] % GROUP
    if not missing:
        return x
    return np.concatenate([x, np.zeros((*x.shape[:-1], missing), x.dtype)], axis=-1)


def quantise(weight: np.ndarray) -> QuantisedLinear:
    """:class:`QuantisedLinear` of ``weight`` [..., out, in] of any float dtype, by the rule of int8 K/V.

    Per 64 inputs: scale = fp16(amax / 127), code = clamp(rint(w / scale), -127, 127), 0 where the scale is 0; in
    float32. What :func:`dequantise` gives back has the same codes, except where a scale is subnormal in fp16.
    Raises ValueError where a scale would not be finite (a weight that is not, or of 8.3 million and more).
    """
    inputs = weight.shape[-1]
    codes, scales = encode_int8(padded(np.asarray(weight, np.float32)))
    return QuantisedLinear(np.ascontiguousarray(codes[..., :inputs]), scales)


def dequantise(weight: QuantisedLinear) -> np.ndarray:
    """float32 values [..., out, in] of a :class:`QuantisedLinear`; exact: 7 bits times 11."""
    per_input = np.repeat(weight.scale.astype(np.float32), GROUP, axis=-1)[..., : weight.shape[-1]]
    return weight.codes.astype(np.float32) * per_input


def linear(x: np.ndarray, weight: QuantisedLinear) -> np.ndarray:
    """Rows times a weight matrix, in the steps at the top of this file.

    x       [rows, in] float32
    weight  :class:`QuantisedLinear` of one matrix [out, in]

    Returns float32 [rows, out]; a row that is not finite gives a row of NaN. Raises ValueError on mismatched shapes.
    """
    x = np.asarray(x, np.float32)
    out, inputs = weight.shape
    if x.ndim != 2 or x.shape[1] != inputs:
        raise ValueError(f"x: shape {x.shape}: must be [rows, {inputs}]")
    xi, e = fixed_point(x)
    groups = weight.scale.shape[1]
    xi = padded(xi).reshape(len(x), groups, GROUP).transpose(1, 0, 2).astype(np.float64)
    result = np.empty((len(x), out), np.float32)
    for part in np.array_split(np.arange(out), max(1, -(-out * inputs // CHUNK))):
        codes = padded(weight.codes[part]).reshape(len(part), groups, GROUP).transpose(1, 2, 0).astype(np.float64)
        # |D_g| < 64 * 2^22 * 2^7 = 2^35: exact in float64 in whatever order the product adds.
        dots = (xi @ codes).astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            terms = dots * weight.scale[part].T[:, None].astype(np.float32)
            total = column_sum(terms.transpose(1, 2, 0), COLUMNS)
            result[:, part] = scale(total, (e - QUERY_BITS)[:, None])
    result[~np.isfinite(x).all(axis=1)] = NAN
    return result


def embed(ids: np.ndarray, table: QuantisedLinear) -> np.ndarray:
    """Rows of a table: float32 [..., dim] of ``ids`` [...] int64, code * scale, exact. ``table``:
    :class:`QuantisedLinear` [rows, dim]. The ids must be in the table."""
    return dequantise(table.part(ids))


def joined(weights: Sequence[Any]) -> Any:
    """Several matrices with the same inputs as one: their outputs one after the other. No output's bytes change.

    ``weights``: all :class:`QuantisedLinear`, or all arrays [out, in].
    """
    if not isinstance(weights[0], QuantisedLinear):
        return np.concatenate(weights, axis=-2)
    return QuantisedLinear(*(np.concatenate(arrays, axis=-2) for arrays in zip(*weights, strict=True)))


def load_table(table: QuantisedLinear) -> QuantisedLinear:
    """The form in which this backend's :func:`embed` takes a table of rows: as it is."""
    return table


def load_linear(weight: QuantisedLinear) -> QuantisedLinear:
    """The form in which this backend's :func:`linear` and ``experts`` take a :class:`QuantisedLinear`: as it is."""
    return weight
