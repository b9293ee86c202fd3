"""Linear layers and embedding rows on CUDA, with the bytes of ``reference/exact/layers/linear.py``.

Two launches whatever the rows: one puts them in fixed point (``fixed_rows.py``), one multiplies (``matrix.py``).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from qsa.reference.exact.layers.linear import QuantisedLinear

from ..common.scalar import NAN_BITS
from ..common.views import check_float, empty, view
from ..toolchain.compiler import (
    address,
    array_module,
    cuda,
    float32,
    int8,
    int32,
    int64,
    kernel,
    launch,
    libdevice,
    specialised,
)
from ..toolchain.host import DeviceArray
from ..toolchain.ptx import (
    half_to_float,
    int_as_float,
    ld_global_i64_nc,
    ld_global_u8_nc,
    ld_global_u16_nc,
    st_global_f32,
)
from ..toolchain.ptx_rows import PtxRow, integers
from .fixed_rows import COLUMNS, GROUP, fixed_rows
from .matrix import THREADS, UNIT, form, matrix_kernel, tensor_cores


class LoadedLinear(NamedTuple):
    """A ``QuantisedLinear`` on the device, as the kernels read it.

    ``codes`` [..., units, groups, 16, 64] int8 and ``scale`` [..., units, groups, 16] float16, a unit being 16 outputs;
    zeros where there is no output or input. ``outputs`` and ``inputs`` as they were. Indexing the leading axes of both
    arrays alike takes one of several matrices.
    """

    codes: DeviceArray
    scale: DeviceArray
    outputs: int
    inputs: int


def load_linear(weight: QuantisedLinear) -> LoadedLinear:
    """The form in which :func:`linear` and ``experts`` take a ``QuantisedLinear`` of NumPy or device arrays: one
    :class:`LoadedLinear` on the current device."""
    xp = array_module()
    *stacked, outputs, inputs = weight.codes.shape
    units, groups = -(-outputs // UNIT), -(-inputs // GROUP)
    codes = xp.zeros((*stacked, units * UNIT, groups * GROUP), np.int8)
    codes[..., :outputs, :inputs] = xp.asarray(weight.codes)
    codes = codes.reshape(*stacked, units, UNIT, groups, GROUP).swapaxes(-3, -2)
    scale = xp.zeros((*stacked, units * UNIT, groups), np.float16)
    scale[..., :outputs, :] = xp.asarray(weight.scale)
    scale = scale.reshape(*stacked, units, UNIT, groups).swapaxes(-2, -1)
    return LoadedLinear(xp.ascontiguousarray(codes), xp.ascontiguousarray(scale), outputs, inputs)


def load_table(table: QuantisedLinear) -> QuantisedLinear:
    """The form in which :func:`embed` takes a ``QuantisedLinear``: its arrays on the device as they are stored."""
    xp = array_module()
    return QuantisedLinear(xp.asarray(table.codes), xp.asarray(table.scale))


def linear(x: DeviceArray, weight: LoadedLinear) -> DeviceArray:
    """Rows times a weight matrix; as ``reference.exact.linear.linear``.

    x       [rows, in] float32 on the device, any row stride
    weight  :class:`LoadedLinear` of one matrix

    Returns float32 [rows, out]; a row that is not finite gives a row of NaN. Raises ValueError on other shapes, dtypes
    and layouts. Two launches.
    """
    check_float("x", x)
    if x.ndim != 2 or x.shape[1] != weight.inputs:
        raise ValueError(f"x: shape {tuple(x.shape)}: must be [rows, {weight.inputs}]")
    if weight.codes.ndim != 4:
        raise ValueError(f"weight: {weight.codes.ndim - 4} leading axes: must be one matrix")
    units, groups = weight.codes.shape[:2]
    seen = view("x", x)
    out = empty((seen.rows, weight.outputs))
    if out.size:
        limbs, exponents = fixed_rows((seen.address, seen.row), seen.rows, seen.n)
        chosen = form(seen.rows, units)
        arrays = [address(array) for array in (weight.codes, weight.scale, limbs, exponents)]
        grid = -(-seen.rows // (COLUMNS * chosen[1])), -(-units // chosen[0])
        sizes = seen.rows, 1, weight.outputs, units, groups, 1
        launch(matrix_kernel(*chosen, "rows", tensor_cores()), grid, THREADS, (*arrays, 0, 0, address(out), *sizes))
    return out


@specialised
def embed_kernel() -> Any:
    """The kernel of :func:`embed`. Grid (ids, pieces of the dims); addresses of ``ids``, ``codes``, ``scale`` and
    ``out``; ``n`` dims, ``groups`` and ``rows`` of the table."""

    @kernel()
    def embed_rows(ids, codes, scale, out, n, groups, rows):
        index = int64(cuda.blockIdx.x)
        d = int32(cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x)
        row = ld_global_i64_nc(ids + index * 8)
        if d >= n:
            return
        value = int_as_float(int32(NAN_BITS))
        if row >= 0 and row < rows:
            code = float32(int8(ld_global_u8_nc(codes + row * n + d)))
            value = libdevice.fmul_rn(code, half_to_float(ld_global_u16_nc(scale + (row * groups + (d >> 6)) * 2)))
        st_global_f32(out + (index * n + d) * 4, value)

    return embed_rows


def embed(ids: Any, table: QuantisedLinear) -> DeviceArray:
    """Rows of a table: float32 [..., dim] of ``ids`` [...] int64; as ``reference.exact.linear.embed``.

    ``ids`` on the device, as a captured call needs them, or a NumPy array, which is moved there first.
    ``table``: ``QuantisedLinear`` [rows, dim] of C-contiguous arrays on the device (:func:`load_table`). An id outside
    the table gives a row of NaN. Raises ValueError on other dtypes and layouts. One launch.
    """
    xp = array_module()
    ids = xp.asarray(ids)
    needed = ("ids", ids, "int64"), ("codes", table.codes, "int8"), ("scale", table.scale, "float16")
    for name, array, dtype in needed:
        if not isinstance(array, xp.ndarray) or array.dtype != dtype or not array.flags.c_contiguous:
            kind = f"{type(array).__name__} {getattr(array, 'dtype', None)}"
            raise ValueError(f"{name}: {kind}: must be a C-contiguous device array of {dtype}")
    rows, n = table.codes.shape
    out = empty((*ids.shape, n))
    if out.size:
        threads = min(THREADS, -(-n // 32) * 32)
        addresses = [address(array) for array in (ids, table.codes, table.scale, out)]
        launch(embed_kernel(), (ids.size, -(-n // threads)), threads, (*addresses, n, table.scale.shape[1], rows))
    return out


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each."""
    yield PtxRow("embed", embed_kernel.build(), integers(7))
