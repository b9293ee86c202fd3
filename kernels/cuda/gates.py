"""Activations, gates and residual streams, element by element, as ``reference/exact/gates.py``.

Arrays lie on the device; inputs may be views whose last axis is contiguous (``views.py``), results are new and
C-contiguous. Every operation is one launch.
"""

import numpy as np

from .compiler import (
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
from .norm import NARROW, THREADS, TILE, dot_by_block, dot_by_warp, vector_grid
from .ptx import int_as_float, ld_global_f32_nc, shared_base, st_global_f32
from .scalar import one_nan, sigmoid
from .scalar import silu as one_silu
from .views import PER_THREAD, check_float, check_shape, element_grid, float_bits, view

LEAST = 1e-6
"""Below it PLE's gate takes no root."""


@device_function
def _scaled_silu(x, y, z, value):
    return one_silu(libdevice.fdiv_rn(x, value))


@device_function
def swiglu_of(gate, up):
    """silu(gate) * up."""
    return one_nan(libdevice.fmul_rn(one_silu(gate), up))


@device_function
def _swiglu(x, y, z, value):
    return swiglu_of(x, y)


@device_function
def _sigmoid_gate(x, y, z, value):
    return one_nan(libdevice.fmul_rn(x, sigmoid(y)))


@device_function
def _inject(x, y, z, value):
    factor = libdevice.fmul_rn(float32(2), sigmoid(libdevice.fdiv_rn(y, value)))
    return one_nan(libdevice.fadd_rn(x, libdevice.fmul_rn(factor, z)))


@device_function
def _add(x, y, z, value):
    return one_nan(libdevice.fadd_rn(x, y))


@device_function
def _add_gated(x, y, z, value):
    return one_nan(libdevice.fadd_rn(x, libdevice.fadd_rn(y, one_silu(z))))


APPLIED = {
    "scaled_silu": (_scaled_silu, 1),
    "swiglu": (_swiglu, 2),
    "sigmoid_gate": (_sigmoid_gate, 2),
    "inject": (_inject, 3),
    "add": (_add, 2),
    "add_gated": (_add_gated, 3),
}
"""Operation -> (what it makes of its inputs' elements and the number ``value``, how many inputs it has)."""


@specialised
def elements_kernel(name):
    """The kernel of one operation of :data:`APPLIED`.

    Grid ``views.element_grid``. Of each of three inputs address and the strides of rows, middle and elements (0 to
    stretch it); ``out`` address; ``n`` elements; ``value`` the bits of a float32.
    """
    apply, count = APPLIED[name]

    @device_function
    def fetch(x, wanted, first, n, base, one):
        for i in range(PER_THREAD):
            d = int32(first + i * cuda.blockDim.x)
            x[i] = ld_global_f32_nc(base + int64(d) * one) if wanted and d < n else float32(0)

    @kernel()
    def elements(a, a_row, a_step, a_one, b, b_row, b_step, b_one, c, c_row, c_step, c_one, out, n, value):
        row, middle = int64(cuda.blockIdx.x), int64(cuda.blockIdx.y)
        first = int32(cuda.blockIdx.z * (cuda.blockDim.x * PER_THREAD) + cuda.threadIdx.x)
        x, y = cuda.local.array(PER_THREAD, float32), cuda.local.array(PER_THREAD, float32)
        z = cuda.local.array(PER_THREAD, float32)
        fetch(x, True, first, n, a + row * a_row + middle * a_step, a_one)
        fetch(y, count > 1, first, n, b + row * b_row + middle * b_step, b_one)
        fetch(z, count > 2, first, n, c + row * c_row + middle * c_step, c_one)
        out += (row * cuda.gridDim.y + middle) * n * 4
        number = int_as_float(int32(value))
        for i in range(PER_THREAD):
            d = int32(first + i * cuda.blockDim.x)
            if d < n:
                st_global_f32(out + int64(d) * 4, apply(x[i], y[i], z[i], number))

    return elements


@specialised
def mix_kernel():
    """The kernel of :func:`mix_streams`. Grid ``views.element_grid`` of [rows, 1, hidden]; places of ``normed`` and
    ``share``, address of ``out``, how many streams, ``n`` dims, the bits of 1 / streams."""

    @kernel()
    def mix(normed, x_row, x_step, share, s_row, s_step, out, streams, n, value):
        row = int64(cuda.blockIdx.x)
        first = int32(cuda.blockIdx.z * (cuda.blockDim.x * PER_THREAD) + cuda.threadIdx.x)
        normed += row * x_row
        share += row * s_row
        out += row * n * 4
        for i in range(PER_THREAD):
            d = int32(first + i * cuda.blockDim.x)
            if d < n:
                x, s = normed + int64(d) * 4, share + int64(d) * 4
                total = libdevice.fmul_rn(sigmoid(ld_global_f32_nc(s)), ld_global_f32_nc(x))
                for stream in range(1, streams):
                    factor = sigmoid(ld_global_f32_nc(s + stream * s_step))
                    total = libdevice.fadd_rn(total, libdevice.fmul_rn(factor, ld_global_f32_nc(x + stream * x_step)))
                total = libdevice.fmul_rn(total, int_as_float(int32(value)))
                st_global_f32(out + int64(d) * 4, one_nan(total))

    return mix


@specialised
def ngram_kernel(wide):
    """The kernel of :func:`ngram_gate`; ``wide``: a thread block to a stream, else a warp.

    Grid ``norm.vector_grid``. Places of ``key`` and ``query``, address and row stride of ``value``, address of ``out``,
    how many streams, ``n`` dims, the bits of float32(sqrt(n)).
    """
    words = TILE if wide else 1
    lanes = THREADS if wide else 32

    @kernel()
    def ngram(key, k_row, k_step, query, q_row, q_step, value, v_row, out, streams, n, root):
        memory = cuda.shared.array(words, float32)
        lane = int32(cuda.threadIdx.x)
        stream = int32(cuda.blockIdx.y)
        if wide:
            lane = int32(lane + cuda.threadIdx.y * 32)
        else:
            stream = int32(stream * cuda.blockDim.y + cuda.threadIdx.y)
            if stream >= streams:
                return
        row = int64(cuda.blockIdx.x)
        key += row * k_row + stream * k_step
        query += row * q_row + stream * q_step
        value += row * v_row
        out += (row * streams + stream) * n * 4
        s = dot_by_block(key, query, n, shared_base(memory), lane) if wide else dot_by_warp(key, query, n, lane)
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


NOTHING = (0, 0, 0, 0)
"""In the place of an input that an operation does not have."""


def _elements(name, shape, rows, middle, n, *inputs, value=0.0):
    """One launch of an operation over [rows, middle, n]; ``inputs``: (address, row, step, one) each."""
    out = array_module().empty(shape, np.float32)
    if out.size:
        grid, threads = element_grid(rows, middle, n)
        places = [number for place in (*inputs, NOTHING, NOTHING)[:3] for number in place]
        launch(elements_kernel(name), grid, threads, (*places, address(out), n, float_bits(value)))
    return out


def scaled_silu(x, divisor):
    """silu(x / divisor); x float32 of any shape. Raises ValueError on another dtype or layout."""
    seen = view("x", x)
    return _elements("scaled_silu", x.shape, seen.rows, seen.middle, seen.n, (*seen.place, 4), value=divisor)


def silu(x):
    """x * sigmoid(x), float32 of any shape: a quotient by 1 is exact. Raises ValueError as :func:`scaled_silu`."""
    return scaled_silu(x, 1)


def swiglu(gate_up):
    """silu(gate) * up of ``gate_up`` [rows, 2 * width] float32; as ``reference.exact.gates.swiglu``.

    Raises ValueError on another shape, dtype or layout.
    """
    check_float("gate_up", gate_up)
    if gate_up.ndim != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"gate_up: shape {tuple(gate_up.shape)}: must be [rows, 2 * width]")
    seen = view("gate_up", gate_up)
    rows, width = seen.rows, seen.n // 2
    up = (seen.address + 4 * width, seen.row, 0, 4)
    return _elements("swiglu", (rows, width), rows, 1, width, (*seen.place, 4), up)


def sigmoid_gate(x, gate):
    """x * sigmoid(gate); as ``reference.exact.gates.sigmoid_gate``.

    x [rows, ...] float32; gate in the shape of x, or [rows, 1] for an x [rows, n]. Raises ValueError on other shapes,
    dtypes and layouts.
    """
    seen, other = view("x", x), view("gate", gate)
    one = x.ndim == 2 and gate.shape == (len(x), 1)
    if not one:
        check_shape("gate", gate, x.shape)
    gates = (*other.place, 0 if one else 4)
    return _elements("sigmoid_gate", x.shape, seen.rows, seen.middle, seen.n, (*seen.place, 4), gates)


def _streams(name, x):
    """View of ``x`` [rows, streams, hidden]. Raises ValueError on anything else."""
    check_float(name, x)
    if x.ndim != 3 or not x.shape[1]:
        raise ValueError(f"{name}: shape {tuple(x.shape)}: must be [rows, streams, hidden]")
    return view(name, x)


def mix_streams(normed, share):
    """Mean over the streams of sigmoid(share) * normed; as ``reference.exact.gates.mix_streams``.

    normed, share [rows, streams, hidden] float32. Returns float32 [rows, hidden]. Raises ValueError on other shapes,
    dtypes and layouts.
    """
    seen, other = _streams("normed", normed), _streams("share", share)
    check_shape("share", share, normed.shape)
    out = array_module().empty((seen.rows, seen.n), np.float32)
    if out.size:
        grid, threads = element_grid(seen.rows, 1, seen.n)
        arguments = (*seen.place, *other.place, address(out), seen.middle, seen.n, float_bits(1 / seen.middle))
        launch(mix_kernel(), grid, threads, arguments)
    return out


def inject(streams, share, y):
    """streams + (2 * sigmoid(share / number of streams)) * y; as ``reference.exact.gates.inject``.

    streams [rows, streams, hidden], share [rows, streams], y [rows, hidden] float32. Returns float32 in the shape of
    streams. Raises ValueError on other shapes, dtypes and layouts.
    """
    seen, shares, added = _streams("streams", streams), view("share", share), view("y", y)
    check_shape("share", share, streams.shape[:2])
    check_shape("y", y, (seen.rows, seen.n))
    places = (*seen.place, 4), (shares.address, shares.row, 4, 0), (*added.place, 4)
    return _elements("inject", streams.shape, *seen[1:4], *places, value=seen.middle)


def ngram_gate(key, query, value):
    """sigmoid(r) * value per stream, r the signed root of key . query; as ``reference.exact.gates.ngram_gate``.

    key, query [rows, streams, hidden], value [rows, hidden] float32. Returns float32 in the shape of key.
    Raises ValueError on other shapes, dtypes and layouts.
    """
    keys, queries, values = _streams("key", key), _streams("query", query), view("value", value)
    check_shape("query", query, key.shape)
    check_shape("value", value, (keys.rows, keys.n))
    out = array_module().empty(key.shape, np.float32)
    if out.size:
        grid, block = vector_grid(*keys[1:4])
        places = *keys.place, *queries.place, values.address, values.row, address(out)
        root = float_bits(np.float32(np.sqrt(keys.n)))
        launch(ngram_kernel(keys.n > NARROW), grid, block, (*places, keys.middle, keys.n, root))
    return out


def add(x, y):
    """x + y, one NaN. x [rows, ..., n] float32; y in the shape of x, or [rows, 1, n] for an x [rows, streams, n].

    Raises ValueError on other shapes, dtypes and layouts.
    """
    seen, other = view("x", x), view("y", y)
    if not (x.ndim == 3 and tuple(y.shape) == (seen.rows, 1, seen.n)):
        check_shape("y", y, x.shape)
    return _elements("add", x.shape, *seen[1:4], (*seen.place, 4), (*other.stretched(seen.middle), 4))


def add_gated(x, gated, mixed):
    """x + (gated + silu(mixed)), float32 of one shape. Raises ValueError on other shapes, dtypes and layouts."""
    seen = view("x", x)
    check_shape("gated", gated, x.shape)
    check_shape("mixed", mixed, x.shape)
    places = [(*view(name, one).place, 4) for name, one in (("x", x), ("gated", gated), ("mixed", mixed))]
    return _elements("add_gated", x.shape, *seen[1:4], *places)
