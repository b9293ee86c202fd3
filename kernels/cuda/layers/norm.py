"""Norms and rotation, as ``reference/exact/layers/norm.py``: a vector is summed in the tree of 32 columns by one warp.

A lane holds a column, so a short vector is a warp's own affair. A long one (more than :data:`NARROW` dims) has a thread
block: all its warps fetch and multiply, the first one adds the products in their order, all of them write.

Arrays lie on the device; ``x``, ``gate`` and ``table`` may be views whose last axis is contiguous (``views.py``), the
result is new and C-contiguous. Every operation is one launch.
"""

from collections.abc import Iterator
from typing import Any

from ..common.scalar import one_nan, rsqrt, sigmoid, silu, warp_sum
from ..common.views import check_float, check_shape, empty, float_bits, view
from ..toolchain.compiler import (
    address,
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
from ..toolchain.host import DeviceArray
from ..toolchain.ptx import int_as_float, ld_global_f32_nc, ld_shared_f32, shared_base, st_global_f32, st_shared_f32
from ..toolchain.ptx_rows import PtxRow, integers

NARROW = 512
"""Dims up to which a warp has a vector for itself: 16 turns."""

WARPS = 8
"""Warps of a thread block."""

THREADS = 32 * WARPS
AHEAD = 8
"""Loads of a lane under way at once."""

TILE = 4096
"""Products that a thread block holds at a time."""

EPSILON = 1e-6
"""What :func:`l2_norm` adds to the sum of squares."""


@device_function
def _column(x, y, n, lane):
    """Column ``lane`` of the products of two vectors [n] at global addresses; beyond the end it adds +0."""
    a, b = cuda.local.array(AHEAD, float32), cuda.local.array(AHEAD, float32)
    total = float32(0)
    first = lane
    while first < n:
        for i in range(AHEAD):
            d = int32(first + 32 * i)
            a[i] = ld_global_f32_nc(x + int64(d) * 4) if d < n else float32(0)
            b[i] = ld_global_f32_nc(y + int64(d) * 4) if d < n else float32(0)
        for i in range(AHEAD):
            total = libdevice.fadd_rn(total, libdevice.fmul_rn(a[i], b[i]))
        first = int32(first + 32 * AHEAD)
    return total


@device_function
def dot_by_warp(x, y, n, lane):
    """Sum of the products of two vectors [n] at global addresses, in every lane of a warp."""
    return warp_sum(_column(x, y, n, lane))


@device_function
def dot_by_block(x, y, n, thread):
    """:func:`dot_by_warp` by a block of 256 lanes."""
    tile = shared_base(cuda.shared.array(TILE, float32))
    a, b = cuda.local.array(AHEAD, float32), cuda.local.array(AHEAD, float32)
    total = float32(0)
    start = int32(0)
    while start < n:
        count = int32(min(n - start, TILE))
        first = thread
        while first < count:
            for i in range(AHEAD):
                d = int32(first + THREADS * i)
                a[i] = ld_global_f32_nc(x + int64(start + d) * 4) if d < count else float32(0)
                b[i] = ld_global_f32_nc(y + int64(start + d) * 4) if d < count else float32(0)
            for i in range(AHEAD):
                d = int32(first + THREADS * i)
                if d < count:
                    st_shared_f32(int32(tile + d * 4), libdevice.fmul_rn(a[i], b[i]))
            first = int32(first + THREADS * AHEAD)
        cuda.syncthreads()
        if thread < 32:
            first = thread
            while first < count:
                for i in range(AHEAD):
                    d = int32(first + 32 * i)
                    a[i] = ld_shared_f32(int32(tile + d * 4)) if d < count else float32(0)
                for i in range(AHEAD):
                    total = libdevice.fadd_rn(total, a[i])
                first = int32(first + 32 * AHEAD)
        cuda.syncthreads()
        start = int32(start + TILE)
    if thread < 32:
        total = warp_sum(total)
        if thread == 0:
            st_shared_f32(tile, total)
    cuda.syncthreads()
    return ld_shared_f32(tile)


@device_function
def _vector_of_warp():
    return int32(cuda.threadIdx.x), int32(int32(cuda.blockIdx.y) * cuda.blockDim.y + cuda.threadIdx.y)


@device_function
def _vector_of_block():
    return int32(int32(cuda.threadIdx.x) + cuda.threadIdx.y * 32), int32(cuda.blockIdx.y)


BY_WARP = _vector_of_warp, dot_by_warp, 32
BY_BLOCK = _vector_of_block, dot_by_block, THREADS
"""How a kernel over vectors goes about one: (this lane's number and the vector's in its row, the sum of the products of
two vectors, how many lanes it has). Warps have numbers beyond the row's last vector too, thread blocks do not."""


def vector_grid(rows: int, middle: int, n: int) -> tuple[bool, tuple[int, int], Any]:
    """(wide, grid, block) of the kernels over vectors [rows, middle, n]: a warp each, or, ``wide``, a thread block each
    beyond :data:`NARROW` dims."""
    if n > NARROW:
        return True, (rows, middle), (32, WARPS)
    warps = min(middle, WARPS)
    return False, (rows, -(-middle // warps)), (32, warps)


@specialised
def norm_kernel(kind: str, wide: bool) -> Any:
    """The kernel of ``rms``, ``l2``, ``sigmoid`` or ``silu`` (the gated norms); ``wide``: a thread block to a vector.

    Grid :func:`vector_grid`. Address, row stride and step of ``x`` and ``gate``; address and step of ``weight``;
    address of ``out``; vectors of a row; ``n`` dims; ``value``: the bits of eps, or of l2's factor.
    """
    own_vector, dot, lanes = BY_BLOCK if wide else BY_WARP
    weighted, mean, gated, with_silu = kind != "l2", kind != "l2", kind in ("sigmoid", "silu"), kind == "silu"

    @device_function
    def fetch(values, wanted, base, first, n):
        for i in range(AHEAD):
            d = int32(first + i * lanes)
            values[i] = ld_global_f32_nc(base + int64(d) * 4) if wanted and d < n else float32(0)

    @kernel()
    def norm(x, x_row, x_step, gate, gate_row, gate_step, weight, weight_step, out, vectors, n, value):
        lane, vector = own_vector()
        if not wide and vector >= vectors:
            return
        row = int64(cuda.blockIdx.x)
        x += row * x_row + vector * x_step
        gate += row * gate_row + vector * gate_step
        weight += vector * weight_step
        out += (row * vectors + vector) * n * 4
        number = int_as_float(int32(value))
        own, weights = cuda.local.array(AHEAD, float32), cuda.local.array(AHEAD, float32)
        gates = cuda.local.array(AHEAD, float32)
        # They do not depend on the sum, so they come while it is made.
        fetch(weights, weighted, weight, lane, n)
        fetch(gates, gated, gate, lane, n)
        total = dot(x, x, n, lane)
        if mean:
            total = libdevice.fadd_rn(libdevice.fdiv_rn(total, float32(n)), number)
        else:
            total = libdevice.fadd_rn(total, float32(EPSILON))
        inverse = rsqrt(total)
        first = lane
        while first < n:
            fetch(own, True, x, first, n)
            for i in range(AHEAD):
                d = int32(first + i * lanes)
                if d < n:
                    y = libdevice.fmul_rn(own[i], inverse)
                    y = libdevice.fmul_rn(y, weights[i] if weighted else number)
                    if gated:
                        y = libdevice.fmul_rn(y, silu(gates[i]) if with_silu else sigmoid(gates[i]))
                    st_global_f32(out + int64(d) * 4, one_nan(y))
            first = int32(first + AHEAD * lanes)
            fetch(weights, weighted, weight, first, n)
            fetch(gates, gated, gate, first, n)

    return norm


@specialised
def rotate_kernel() -> Any:
    """The kernel of :func:`rotate`. Grid (rows, heads, pieces of the dims); address, row stride and step of ``x``;
    address and row stride of ``table``; address of ``out``; ``n`` dims; half of the rotated ones."""

    @kernel()
    def rotate_pairs(x, x_row, x_step, table, table_row, out, n, half):
        row, head = int64(cuda.blockIdx.x), int64(cuda.blockIdx.y)
        d = int32(cuda.blockIdx.z * cuda.blockDim.x + cuda.threadIdx.x)
        if d >= n:
            return
        x += row * x_row + head * x_step
        table += row * table_row
        y = ld_global_f32_nc(x + int64(d) * 4)
        if d < 2 * half:
            upper = d >= half
            pair = int32(d - half if upper else d)
            other = ld_global_f32_nc(x + int64(pair if upper else pair + half) * 4)
            cos = ld_global_f32_nc(table + int64(pair) * 4)
            sin = ld_global_f32_nc(table + int64(pair + half) * 4)
            straight, crossed = libdevice.fmul_rn(y, cos), libdevice.fmul_rn(other, sin)
            y = libdevice.fadd_rn(straight, crossed) if upper else libdevice.fsub_rn(straight, crossed)
        st_global_f32(out + ((row * cuda.gridDim.y + head) * n + d) * 4, one_nan(y))

    return rotate_pairs


def _norm(kind, x, gate, weight, value):
    """One launch over the vectors of the :class:`views.View` ``x`` into a new array [rows, middle, n]."""
    out = empty((x.rows, x.middle, x.n))
    if out.size:
        wide, grid, block = vector_grid(x.rows, x.middle, x.n)
        arguments = (*x.layout, *gate, *weight, address(out), x.middle, x.n, float_bits(value))
        launch(norm_kernel(kind, wide), grid, block, arguments)
    return out


def _vectors(name, x):
    """:class:`views.View` of ``x`` [rows, dim] or [rows, groups, dim]. Raises ValueError on anything else."""
    check_float(name, x)
    if x.ndim not in (2, 3):
        raise ValueError(f"{name}: shape {tuple(x.shape)}: must be [rows, dim] or [rows, groups, dim]")
    return view(name, x)


def _weight(weight, shape):
    """(address, step) of a norm's weight: [dim], or one for each group of a row of ``shape``."""
    check_float("weight", weight)
    if tuple(weight.shape) not in (shape[-1:], shape[1:]) or not weight.flags.c_contiguous:
        needed = f"{list(shape[-1:])} or {list(shape[1:])}"
        raise ValueError(f"weight: shape {tuple(weight.shape)}: must be {needed}, C-contiguous")
    return address(weight), 4 * shape[-1] if weight.ndim > 1 else 0


def rms_norm(x: DeviceArray, weight: DeviceArray, eps: float) -> DeviceArray:
    """x * (1 / sqrt(ss / dim + eps)) * weight over the last axis; as ``reference.exact.norm.rms_norm``.

    x       [rows, dim] or [rows, groups, dim] float32
    weight  [dim], or [groups, dim] for a weight per group; float32, C-contiguous

    Returns float32 in the shape of x. Raises ValueError on other shapes, dtypes and layouts.
    """
    seen = _vectors("x", x)
    return _norm("rms", seen, (0, 0, 0), _weight(weight, x.shape), eps).reshape(x.shape)


def gated_norm(x: DeviceArray, gate: DeviceArray, weight: DeviceArray, eps: float, activation: str) -> DeviceArray:
    """x * (1 / sqrt(ss / dim + eps)) * weight * activation(gate); as ``reference.exact.norm.gated_norm``.

    x, gate [rows, heads, dim] float32; weight [dim] float32, C-contiguous; ``activation`` sigmoid or silu.
    Returns float32 in the shape of x. Raises ValueError on other shapes, dtypes and layouts, and another activation.
    """
    if activation not in ("sigmoid", "silu"):
        raise ValueError(f"activation = {activation!r}: allowed are sigmoid, silu")
    seen = _vectors("x", x)
    check_shape("gate", gate, x.shape)
    return _norm(activation, seen, _vectors("gate", gate).layout, _weight(weight, x.shape), eps).reshape(x.shape)


def l2_norm(x: DeviceArray, factor: float) -> DeviceArray:
    """x * (1 / sqrt(ss + 1e-6)) * factor over the last axis; as ``reference.exact.norm.l2_norm``.

    x [rows, dim] or [rows, heads, dim] float32; ``factor`` a number. Returns float32 in the shape of x.
    Raises ValueError on other shapes, dtypes and layouts.
    """
    return _norm("l2", _vectors("x", x), (0, 0, 0), (0, 0), factor).reshape(x.shape)


def rotate(x: DeviceArray, table: DeviceArray) -> DeviceArray:
    """Rotate the pairs (i, i + n_rot/2) of each vector; as ``reference.exact.norm.rotate``.

    x      [rows, heads, dim] float32
    table  [rows, n_rot] float32, cos in the first half; n_rot even and at most dim

    Returns float32 in the shape of x. Raises ValueError on other shapes, dtypes and layouts.
    """
    check_float("x", x)
    check_float("table", table)
    if x.ndim != 3:
        raise ValueError(f"x: shape {tuple(x.shape)}: must be [rows, heads, dim]")
    rows, heads, dim = x.shape
    if table.ndim != 2 or len(table) != rows or table.shape[1] % 2 or table.shape[1] > dim:
        raise ValueError(f"table: shape {tuple(table.shape)}: must be [{rows}, n_rot], n_rot even and at most {dim}")
    out = empty(x.shape)
    if out.size:
        seen = view("table", table)
        threads = min(THREADS, -(-dim // 32) * 32)
        arguments = (*view("x", x).layout, seen.address, seen.row, address(out), dim, table.shape[1] // 2)
        launch(rotate_kernel(), (rows, heads, -(-dim // threads)), threads, arguments)
    return out


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each."""
    for kind, wide in (("rms", True), ("l2", False), ("sigmoid", True), ("silu", False)):
        yield PtxRow(f"norm_{kind}{'_wide' * wide}", norm_kernel.build(kind, wide), integers(12))
    yield PtxRow("rotate", rotate_kernel.build(), integers(8))
