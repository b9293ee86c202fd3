"""Router and experts on CUDA, with the bytes of ``reference/exact/layers/experts.py``.

A row and one of its experts are a pair. Up to :data:`ALONE` rows every pair is multiplied by itself, as reading the
weights is all that it costs; more rows are sorted by expert first, so that pairs of one expert share its weights.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..common.scalar import NAN_BITS, exp, one_nan
from ..common.views import check_float, check_shape, empty, single_grid, view
from ..toolchain.compiler import (
    address,
    array_module,
    cuda,
    device_function,
    float32,
    int32,
    int64,
    kernel,
    launch,
    libdevice,
    specialised,
)
from ..toolchain.constants import FULL_WARP, WARP
from ..toolchain.host import DeviceArray
from ..toolchain.ptx import (
    float_as_int,
    int_as_float,
    ld_global_f32_nc,
    ld_global_i64_nc,
    st_global_f32,
    st_global_i64,
)
from ..toolchain.ptx_rows import PtxRow, integers
from .fixed_rows import fixed_rows
from .linear import LoadedLinear
from .matrix import FEW, MANY, SOME, THREADS, matrix_kernel, tensor_cores
from .sort_pairs import MOST_EXPERTS, sorted_pairs

ALONE = 8
"""Rows up to which pairs are not sorted."""

ROUTED = 8
"""Rows, a warp each, of a thread block of the router."""

LAST = 0x7FFFFFFF


@device_function
def _key(x, expert):
    """int64 that orders as the router prefers: value, -0 as +0 and NaN below all numbers, then the lower expert."""
    bits = float_as_int(libdevice.fadd_rn(x, float32(0)))
    value = int32(bits ^ LAST) if bits < 0 else bits
    if x != x:
        value = int32(-LAST - 1)
    return int64(value) * 4294967296 + int64(LAST - expert)


@specialised
def route_kernel() -> Any:
    """The kernel of :func:`route`: a warp to a row, block (32, rows). Address and row stride of ``logits``, addresses
    of ``ids`` and ``shares`` [rows, top], how many ``rows`` and ``experts``, ``top``."""

    @kernel()
    def route_rows(logits, row_stride, ids, shares, rows, experts, top):
        lane = int32(cuda.threadIdx.x)
        row = int64(cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y)
        if row >= rows:
            return
        logits += row * row_stride
        chosen = int32(0)
        last = int64(LAST) * 4294967296
        for rank in range(top):
            best = int64(-LAST - 1) * 4294967296
            expert = lane
            while expert < experts:
                key = _key(ld_global_f32_nc(logits + int64(expert) * 4), expert)
                if key < last and key > best:
                    best = key
                expert = int32(expert + WARP)
            for stride in (16, 8, 4, 2, 1):
                best = max(best, cuda.shfl_xor_sync(FULL_WARP, best, stride))
            last = best
            if lane == rank:
                chosen = int32(LAST - (best & LAST))
        x = ld_global_f32_nc(logits + int64(chosen) * 4)
        mass = exp(libdevice.fsub_rn(x, cuda.shfl_sync(FULL_WARP, x, 0)))
        total = cuda.shfl_sync(FULL_WARP, mass, 0)
        for rank in range(1, top):
            total = libdevice.fadd_rn(total, cuda.shfl_sync(FULL_WARP, mass, rank))
        if lane < top:
            st_global_i64(ids + (row * top + lane) * 8, int64(chosen))
            st_global_f32(shares + (row * top + lane) * 4, one_nan(libdevice.fdiv_rn(mass, total)))

    return route_rows


def route(logits: DeviceArray, top: int) -> tuple[DeviceArray, DeviceArray]:
    """The experts of each row and their shares; as ``reference.exact.experts.route``.

    logits [rows, experts] float32 on the device, any row stride; ``top`` from 1 to 32, the lanes of a warp, and at most
    the number of experts. Returns ``ids`` [rows, top] int64 and ``shares`` [rows, top] float32.
    Raises ValueError on anything else. One launch.
    """
    check_float("logits", logits)
    if logits.ndim != 2:
        raise ValueError(f"logits: shape {tuple(logits.shape)}: must be [rows, experts]")
    rows, experts = logits.shape
    if not 1 <= top <= min(experts, WARP):
        raise ValueError(f"top = {top}: must be from 1 to {min(experts, WARP)}")
    ids, shares = array_module().empty((rows, top), np.int64), empty((rows, top))
    if rows:
        seen, each = view("logits", logits), min(rows, ROUTED)
        arguments = seen.address, seen.row, address(ids), address(shares), rows, experts, top
        launch(route_kernel(), -(-rows // each), (WARP, each), arguments)
    return ids, shares


@specialised
def combine_kernel(top: int) -> Any:
    """The kernel that adds the ``top`` experts of a row by share, in rank order. Grid ``views.single_grid`` of [rows,
    n]; addresses of ``parts`` [rows, top, n] and ``ids`` [rows, top], address, row stride and step of ``shares``,
    address of ``out``, ``n``, how many ``experts``."""

    @kernel()
    def combine(parts, ids, shares, s_row, s_step, out, n, experts):
        row = int64(cuda.blockIdx.x)
        d = int32(cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x)
        if d >= n:
            return
        parts += row * top * n * 4 + int64(d) * 4
        shares += row * s_row
        ids += row * top * 8
        # All ranks are on their way before the first is waited for.
        part, share = cuda.local.array(top, float32), cuda.local.array(top, float32)
        expert = cuda.local.array(top, int64)
        for rank in range(top):
            part[rank] = ld_global_f32_nc(parts + int64(rank) * n * 4)
            share[rank] = ld_global_f32_nc(shares + rank * s_step)
            expert[rank] = ld_global_i64_nc(ids + rank * 8)
        least, most = expert[0], expert[0]
        total = libdevice.fmul_rn(share[0], part[0])
        for rank in range(1, top):
            least, most = min(least, expert[rank]), max(most, expert[rank])
            total = libdevice.fadd_rn(total, libdevice.fmul_rn(share[rank], part[rank]))
        known = least >= 0 and most < experts
        st_global_f32(out + (row * n + d) * 4, one_nan(total) if known else int_as_float(int32(NAN_BITS)))

    return combine


def _products(x, weight, pairs, choice, table, order, per_row):
    """float32 [pairs, outputs]: the fixed-point rows ``x`` (limbs, exponents) of pairs by their experts."""
    out = empty((pairs, weight.outputs))
    units, groups = weight.codes.shape[1:3]
    form = FEW if choice == "each" else MANY if tensor_cores() else SOME
    arrays = [address(array) for array in (weight.codes, weight.scale, *x, table)]
    addresses = *arrays, 0 if order is None else address(order), address(out)
    blocks = pairs if choice == "each" else len(table)
    sizes = pairs, per_row, weight.outputs, units, groups, len(weight.codes)
    chosen = matrix_kernel(*form, choice, tensor_cores())
    launch(chosen, (blocks, -(-units // form[0])), THREADS, (*addresses, *sizes))
    return out


def experts(
    x: DeviceArray, ids: DeviceArray, shares: DeviceArray, gate_up: LoadedLinear, down: LoadedLinear
) -> DeviceArray:
    """The chosen experts' outputs by share; as ``reference.exact.experts.experts``.

    x        [rows, hidden] float32, any row stride
    ids      [rows, top] int64, copied unless C-contiguous; shares [rows, top] float32
    gate_up  LoadedLinear [experts, 2 * width, hidden]; down [experts, hidden, width], at most 12,288 experts

    Returns float32 [rows, hidden]; a row with an id outside the experts is NaN. Raises ValueError on other shapes,
    dtypes and layouts. Five launches, six beyond :data:`ALONE` rows.
    """
    check_float("x", x)
    count, width = len(gate_up.codes), down.inputs
    if gate_up.codes.ndim != 5 or down.codes.ndim != 5 or len(down.codes) != count or count > MOST_EXPERTS:
        raise ValueError(f"gate_up, down: {count} and {len(down.codes)} experts: must be as many, up to {MOST_EXPERTS}")
    if gate_up.outputs != 2 * width or gate_up.inputs != down.outputs:
        sizes = f"{gate_up.outputs} x {gate_up.inputs} and {down.outputs} x {width}"
        raise ValueError(f"gate_up, down: {sizes}: must be 2 * width x hidden and hidden x width")
    if x.ndim != 2 or x.shape[1] != gate_up.inputs:
        raise ValueError(f"x: shape {tuple(x.shape)}: must be [rows, {gate_up.inputs}]")
    seen, rows = view("x", x), len(x)
    if not isinstance(ids, array_module().ndarray) or ids.dtype != np.int64:
        raise ValueError(f"ids: {type(ids).__name__}: must be a device array of int64")
    if ids.ndim != 2 or len(ids) != rows or not ids.shape[1]:
        raise ValueError(f"ids: shape {tuple(ids.shape)}: must be [{rows}, top]")
    ids = array_module().ascontiguousarray(ids)
    check_shape("shares", shares, ids.shape)
    top, given = ids.shape[1], view("shares", shares)
    out = empty(x.shape)
    if not out.size:
        return out
    pairs = rows * top
    choice, table, order = "each", ids, None
    if rows > ALONE:
        choice, (table, order) = "grouped", sorted_pairs(ids, pairs, count)
    fixed = fixed_rows((seen.address, seen.row), rows, seen.n)
    both = _products(fixed, gate_up, pairs, choice, table, order, top)
    fixed = fixed_rows((address(both), 8 * width), pairs, width, gated=True)
    parts = _products(fixed, down, pairs, choice, table, order, 1)
    grid, threads = single_grid(rows, seen.n)
    addresses = address(parts), address(ids), given.address, given.row, 4, address(out)
    launch(combine_kernel(top), grid, threads, (*addresses, seen.n, count))
    return out


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each."""
    yield PtxRow("route", route_kernel.build(), integers(7))
    yield PtxRow("combine_experts", combine_kernel.build(8), integers(8))
