"""Linear layers and embedding rows: integer dots of 64, float32 in the tree of 8 columns.

Source: ``reference/exact/layers/linear.py``, whose steps are used here. The dots are those of ``products/``: rows go
to records of limbs once, and four rows at a time meet blocks of 16 outputs.
"""

from typing import NamedTuple

import numpy as np

from qsa.reference.exact.layers.linear import COLUMNS, QuantisedLinear, embed, load_table, padded
from qsa.reference.exact.scalar import QUERY_BITS

from ..common.jit import kernel
from ..common.scalar import NAN, power_of_two
from ..common.threads import share
from ..products.form import HALF_CODE, QUADS, TILE_BYTES, WIDE
from ..products.records import all_records
from ..products.tile import LINE, RECORD, clear, finish, tile_1_1, tile_1_4, tile_4_1

__all__ = ["embed", "linear", "load_linear", "load_table"]

ROWS = 4
"""Rows whose sums are made together."""

BLOCKS = 4
"""Blocks of 16 outputs of one work item, and of a tile of one row."""

CHUNK = 64
"""Rows of one work item at most: their records stay in a cache while the item's weights do."""

ALONE = 1 << 23
"""A call of fewer products than this runs on one thread: starting the others would cost as much."""


@kernel
def _finish(sums, count, e, out, first):
    """out [first : first + 16], as far as ``out`` reaches, from the columns at the address ``sums``."""
    factor = power_of_two(min(max(e - QUERY_BITS, -700), 700))
    if first + WIDE <= out.size:
        finish(sums, count, factor, out.ctypes.data + 4 * first)
    else:
        line = np.empty(WIDE, np.float32)
        finish(sums, count, factor, line.ctypes.data)
        for o in range(first, out.size):
            out[o] = line[o - first]


@kernel
def _columns(groups):
    """Columns that can hold terms, a power of two: +0 is in the others, and adding it changes no sum that began at
    +0."""
    return COLUMNS if groups > COLUMNS // 2 else groups if groups < 3 else COLUMNS // 2


@kernel
def _one_outputs(records, e, codes, scale, first, stop, columns, out):
    """As :func:`few_outputs` of one row: records [groups, RECORD], out [outputs]."""
    groups = scale.shape[1]
    x, sums = records.ctypes.data, columns.ctypes.data
    used = _columns(groups)
    block = first
    while block < stop:
        blocks = BLOCKS if block + BLOCKS <= stop else 1
        clear(sums, blocks * used)
        code, scales = codes[block].ctypes.data, scale[block].ctypes.data
        for group in range(groups):
            line = sums + LINE * (group & (COLUMNS - 1))
            weight, share = code + TILE_BYTES * group, scales + LINE * group
            record = (x + RECORD * group,)
            if blocks == BLOCKS:
                tile_1_4(weight, TILE_BYTES * groups, record, share, LINE * groups, line, LINE * used)
            else:
                tile_1_1(weight, 0, record, share, 0, line, 0)
        for i in range(blocks):
            _finish(sums + LINE * used * i, used, e, out, (block + i) * WIDE)
        block += blocks


@kernel
def few_outputs(records, rows, e, codes, scale, first, stop, columns, out):
    """Outputs of the blocks ``first`` to ``stop`` of 1 to 4 rows into out [rows, outputs].

    records      [n, groups, RECORD] uint8 of all rows, from ``all_records``
    rows         numbers [1 to 4] of the rows among the n
    e            [n] int64
    codes        [blocks, groups, TILE_BYTES] uint8; scale [blocks, groups, 16] float32
    columns      [ROWS * COLUMNS, WIDE] float32, scratch
    """
    if rows.size == 1:
        _one_outputs(records[rows[0]], e[rows[0]], codes, scale, first, stop, columns, out[0])
        return
    groups, count = scale.shape[1], rows.size
    start, size, sums = records.ctypes.data, RECORD * groups, columns.ctypes.data
    used = _columns(groups)
    x0, x1 = start + size * rows[0], start + size * rows[1]
    x2, x3 = start + size * rows[min(2, count - 1)], start + size * rows[count - 1]
    for block in range(first, stop):
        clear(sums, ROWS * used)
        code, factor = codes[block].ctypes.data, scale[block].ctypes.data
        for group in range(groups):
            record = RECORD * group
            tile_4_1(
                code + TILE_BYTES * group,
                0,
                (x0 + record, x1 + record, x2 + record, x3 + record),
                factor + LINE * group,
                0,
                sums + LINE * (group & (COLUMNS - 1)),
                LINE * used,
            )
        for i in range(count):
            _finish(sums + LINE * used * i, used, e[rows[i]], out[i], block * WIDE)


@kernel
def _items(start, end, parts, records, e, finite, codes, scale, out):
    """Work items ``start`` to ``end``, each up to CHUNK rows and BLOCKS blocks; ``parts`` of them for every chunk."""
    columns = np.empty((ROWS * COLUMNS, WIDE), np.float32)
    rows = np.arange(len(out))
    for item in range(start, end):
        begin, first = item // parts * CHUNK, item % parts * BLOCKS
        last, stop = min(begin + CHUNK, len(out)), min(first + BLOCKS, len(codes))
        for row in range(begin, last, ROWS):
            few = rows[row : min(row + ROWS, last)]
            few_outputs(records, few, e, codes, scale, first, stop, columns, out[row:])
        for row in range(begin, last):
            if not finite[row]:
                out[row, first * WIDE : stop * WIDE] = NAN


@kernel
def _linear(items, parts, x, codes, scale, out):
    """All of a small call in one: going from Python to a kernel and back costs as much as a small layer."""
    records, e, finite = all_records(x, scale.shape[1])
    _items(np.int64(0), items, parts, records, e, finite, codes, scale, out)


class LoadedLinear(NamedTuple):
    """A ``QuantisedLinear`` as the kernels read it, in blocks of 16 outputs and groups of 64 inputs, both filled up
    with zeros.

    codes            [..., blocks, groups, TILE_BYTES] uint8, code + 128, in the order of ``products/form.py``
    scale            [..., blocks, groups, 16] float32
    outputs, inputs  as they were
    """

    codes: np.ndarray
    scale: np.ndarray
    outputs: int
    inputs: int


def load_linear(weight: QuantisedLinear) -> LoadedLinear:
    """The form in which :func:`linear` and ``experts`` take a ``QuantisedLinear`` [..., out, in]."""
    outputs, inputs = weight.shape[-2:]
    missing = [(0, 0)] * (weight.codes.ndim - 2) + [(0, -outputs % WIDE), (0, 0)]
    codes, scale = np.pad(padded(weight.codes), missing), np.pad(weight.scale.astype(np.float32), missing)
    *stacked, rows, groups = scale.shape
    blocks = *stacked, rows // WIDE
    codes = (codes.view(np.uint8) ^ np.uint8(HALF_CODE)).reshape(*blocks, WIDE, groups, QUADS, 4)
    codes = np.moveaxis(codes, -4, -2).reshape(*blocks, groups, TILE_BYTES)
    scale = np.moveaxis(scale.reshape(*blocks, WIDE, groups), -2, -1)
    return LoadedLinear(np.ascontiguousarray(codes), np.ascontiguousarray(scale), outputs, inputs)


def linear(x: np.ndarray, weight: LoadedLinear) -> np.ndarray:
    """Rows times a weight matrix: float32 [rows, out]; a row that is not finite gives a row of NaN.

    x       [rows, in] float32
    weight  from :func:`load_linear`: [out, in]

    Raises ValueError on mismatched shapes.
    """
    x = np.ascontiguousarray(x, np.float32)
    if x.ndim != 2 or x.shape[1] != weight.inputs:
        raise ValueError(f"x: shape {x.shape}: must be [rows, {weight.inputs}]")
    out = np.empty((len(x), weight.outputs), np.float32)
    parts = -(-len(weight.codes) // BLOCKS)
    items = -(-len(x) // CHUNK) * parts
    if weight.codes.size * len(x) < ALONE:
        _linear(items, parts, x, weight.codes, weight.scale, out)
    else:
        records = all_records(x, weight.scale.shape[1])
        share(False, items, _items, parts, *records, weight.codes, weight.scale, out)
    return out
