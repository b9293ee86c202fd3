"""Activations, gates and residual streams, element by element, as ``reference/exact/layers/gates.py``.

Arrays lie on the device; inputs may be views whose last axis is contiguous (``views.py``), results are new and
C-contiguous. Every operation is one launch.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..common.scalar import one_nan, sigmoid
from ..common.views import check_float, check_shape, empty, float_bits, single_grid, view
from ..toolchain.compiler import address, cuda, float32, int32, int64, kernel, launch, libdevice, specialised
from ..toolchain.host import DeviceArray
from ..toolchain.ptx import int_as_float, ld_global_f32_nc, st_global_f32
from ..toolchain.ptx_rows import PtxRow, integers
from .elements import elements
from .norm import BY_BLOCK, BY_WARP, vector_grid

LEAST = 1e-6
"""Below it PLE's gate takes no root."""


@specialised
def mix_kernel(streams: int) -> Any:
    """The kernel of :func:`mix_streams` for so many streams. Grid ``views.single_grid`` of [rows, hidden]; layouts of
    ``normed`` and ``share``, address of ``out``, ``n`` dims, the bits of 1 / streams."""

    @kernel()
    def mix(normed, x_row, x_step, share, s_row, s_step, out, n, value):
        row = int64(cuda.blockIdx.x)
        d = int32(cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x)
        if d >= n:
            return
        normed += row * x_row + int64(d) * 4
        share += row * s_row + int64(d) * 4
        # All streams are on their way before the first is waited for.
        x, s = cuda.local.array(streams, float32), cuda.local.array(streams, float32)
        for stream in range(streams):
            s[stream] = ld_global_f32_nc(share + stream * s_step)
            x[stream] = ld_global_f32_nc(normed + stream * x_step)
        total = libdevice.fmul_rn(sigmoid(s[0]), x[0])
        for stream in range(1, streams):
            total = libdevice.fadd_rn(total, libdevice.fmul_rn(sigmoid(s[stream]), x[stream]))
        total = libdevice.fmul_rn(total, int_as_float(int32(value)))
        st_global_f32(out + (row * n + d) * 4, one_nan(total))

    return mix


@specialised
def ngram_kernel(wide: bool) -> Any:
    """The kernel of :func:`ngram_gate`; ``wide``: a thread block to a stream, else a warp.

    Grid ``norm.vector_grid``. Arguments: layouts of ``key`` and ``query``, address and row stride of ``value``, address
    of ``out``, the number of streams, ``n`` dims, the bits of float32(sqrt(n)).
    """
    own_vector, dot, lanes = BY_BLOCK if wide else BY_WARP

    @kernel()
    def ngram(key, k_row, k_step, query, q_row, q_step, value, v_row, out, streams, n, root):
        lane, stream = own_vector()
        if not wide and stream >= streams:
            return
        row = int64(cuda.blockIdx.x)
        key += row * k_row + stream * k_step
        query += row * q_row + stream * q_step
        value += row * v_row
        out += (row * streams + stream) * n * 4
        s = dot(key, query, n, lane)
        s = libdevice.fdiv_rn(s, int_as_float(int32(root)))
        # Whichever way it compares, a NaN in s reaches the sigmoid.
        magnitude = libdevice.fabsf(s)
        if magnitude < float32(LEAST):
            magnitude = float32(LEAST)
        r = libdevice.fsqrt_rn(magnitude)
        if not s > float32(0):
            r = -r if s < float32(0) else s
        gate = sigmoid(r)
        d = lane
        while d < n:
            at = int64(d) * 4
            st_global_f32(out + at, one_nan(libdevice.fmul_rn(gate, ld_global_f32_nc(value + at))))
            d = int32(d + lanes)

    return ngram


def scaled_silu(x: DeviceArray, divisor: float) -> DeviceArray:
    """silu(x / divisor); x float32 of any shape. Raises ValueError on another dtype or layout."""
    seen = view("x", x)
    return elements("scaled_silu", x.shape, seen.rows, seen.middle, seen.n, (*seen.layout, 4), value=divisor)


def silu(x: DeviceArray) -> DeviceArray:
    """x * sigmoid(x), float32 of any shape: a quotient by 1 is exact. Raises ValueError as :func:`scaled_silu`."""
    return scaled_silu(x, 1)


def swiglu(gate_up: DeviceArray) -> DeviceArray:
    """silu(gate) * up of ``gate_up`` [rows, 2 * width] float32; as ``reference.exact.gates.swiglu``.

    Raises ValueError on another shape, dtype or layout.
    """
    check_float("gate_up", gate_up)
    if gate_up.ndim != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"gate_up: shape {tuple(gate_up.shape)}: must be [rows, 2 * width]")
    seen = view("gate_up", gate_up)
    rows, width = seen.rows, seen.n // 2
    up = (seen.address + 4 * width, seen.row, 0, 4)
    return elements("swiglu", (rows, width), rows, 1, width, (*seen.layout, 4), up)


def sigmoid_gate(x: DeviceArray, gate: DeviceArray) -> DeviceArray:
    """x * sigmoid(gate); as ``reference.exact.gates.sigmoid_gate``.

    x [rows, ...] float32; gate in the shape of x, or [rows, 1] for an x [rows, n]. Raises ValueError on other shapes,
    dtypes and layouts.
    """
    seen, other = view("x", x), view("gate", gate)
    per_row = x.ndim == 2 and gate.shape == (len(x), 1)
    if not per_row:
        check_shape("gate", gate, x.shape)
    gates = (*other.layout, 0 if per_row else 4)
    return elements("sigmoid_gate", x.shape, seen.rows, seen.middle, seen.n, (*seen.layout, 4), gates)


def _streams(name, x):
    """View of ``x`` [rows, streams, hidden]. Raises ValueError on anything else."""
    check_float(name, x)
    if x.ndim != 3 or not x.shape[1]:
        raise ValueError(f"{name}: shape {tuple(x.shape)}: must be [rows, streams, hidden]")
    return view(name, x)


def mix_streams(normed: DeviceArray, share: DeviceArray) -> DeviceArray:
    """Mean over the streams of sigmoid(share) * normed; as ``reference.exact.gates.mix_streams``.

    normed, share [rows, streams, hidden] float32. Returns float32 [rows, hidden]. Raises ValueError on other shapes,
    dtypes and layouts.
    """
    seen, other = _streams("normed", normed), _streams("share", share)
    check_shape("share", share, normed.shape)
    out = empty((seen.rows, seen.n))
    if out.size:
        grid, threads = single_grid(seen.rows, seen.n)
        arguments = (*seen.layout, *other.layout, address(out), seen.n, float_bits(1 / seen.middle))
        launch(mix_kernel(seen.middle), grid, threads, arguments)
    return out


def inject(streams: DeviceArray, share: DeviceArray, y: DeviceArray) -> DeviceArray:
    """streams + (2 * sigmoid(share / number of streams)) * y; as ``reference.exact.gates.inject``.

    streams [rows, streams, hidden], share [rows, streams], y [rows, hidden] float32. Returns float32 in the shape of
    streams. Raises ValueError on other shapes, dtypes and layouts.
    """
    seen, shares, added = _streams("streams", streams), view("share", share), view("y", y)
    check_shape("share", share, streams.shape[:2])
    check_shape("y", y, (seen.rows, seen.n))
    layouts = (*seen.layout, 4), (shares.address, shares.row, 4, 0), (*added.layout, 4)
    return elements("inject", streams.shape, *seen[1:4], *layouts, value=seen.middle)


def ngram_gate(key: DeviceArray, query: DeviceArray, value: DeviceArray) -> DeviceArray:
    """sigmoid(r) * value per stream, r the signed root of key . query; as ``reference.exact.gates.ngram_gate``.

    key, query [rows, streams, hidden], value [rows, hidden] float32. Returns float32 in the shape of key.
    Raises ValueError on other shapes, dtypes and layouts.
    """
    keys, queries, values = _streams("key", key), _streams("query", query), view("value", value)
    check_shape("query", query, key.shape)
    check_shape("value", value, (keys.rows, keys.n))
    out = empty(key.shape)
    if out.size:
        wide, grid, block = vector_grid(*keys[1:4])
        layouts = *keys.layout, *queries.layout, values.address, values.row, address(out)
        root = float_bits(float(np.sqrt(keys.n)))
        launch(ngram_kernel(wide), grid, block, (*layouts, keys.middle, keys.n, root))
    return out


def add(x: DeviceArray, y: DeviceArray) -> DeviceArray:
    """x + y, one NaN. x [rows, ..., n] float32; y in the shape of x, or [rows, 1, n] for an x [rows, streams, n].

    Raises ValueError on other shapes, dtypes and layouts.
    """
    seen, other = view("x", x), view("y", y)
    if not (x.ndim == 3 and tuple(y.shape) == (seen.rows, 1, seen.n)):
        check_shape("y", y, x.shape)
    return elements("add", x.shape, *seen[1:4], (*seen.layout, 4), (*other.stretched(seen.middle), 4))


def add_gated(x: DeviceArray, gated: DeviceArray, mixed: DeviceArray) -> DeviceArray:
    """x + (gated + silu(mixed)), float32 of one shape. Raises ValueError on other shapes, dtypes and layouts."""
    seen = view("x", x)
    check_shape("gated", gated, x.shape)
    check_shape("mixed", mixed, x.shape)
    layouts = [(*view(name, array).layout, 4) for name, array in (("x", x), ("gated", gated), ("mixed", mixed))]
    return elements("add_gated", x.shape, *seen[1:4], *layouts)


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each."""
    yield PtxRow("mix_streams", mix_kernel.build(4), integers(9))
    for wide in (False, True):
        yield PtxRow(f"ngram_gate{'_wide' * wide}", ngram_kernel.build(wide), integers(12))
