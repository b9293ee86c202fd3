"""The kernel that goes over arrays element by element, and what it makes of their elements."""

from collections.abc import Iterator, Sequence
from typing import Any

from ..common.scalar import one_nan, sigmoid, silu
from ..common.views import PER_THREAD, element_grid, empty, float_bits
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
from ..toolchain.ptx import int_as_float, ld_global_f32_nc, st_global_f32
from ..toolchain.ptx_rows import PtxRow, integers


@device_function
def _scaled_silu(x, y, z, value):
    return silu(libdevice.fdiv_rn(x, value))


@device_function
def swiglu_of(gate, up):
    """silu(gate) * up."""
    return one_nan(libdevice.fmul_rn(silu(gate), up))


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
    return one_nan(libdevice.fadd_rn(x, libdevice.fadd_rn(y, silu(z))))


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
def elements_kernel(name: str) -> Any:
    """The kernel of one operation of :data:`APPLIED`.

    Grid ``views.element_grid``. Of each of three inputs address and the strides of rows, middle and elements (0 to
    stretch it); ``out`` address; ``n`` elements; ``value`` the bits of a float32.
    """
    apply, count = APPLIED[name]

    @device_function
    def fetch(x, wanted, first, n, base, stride):
        for i in range(PER_THREAD):
            d = int32(first + i * cuda.blockDim.x)
            x[i] = ld_global_f32_nc(base + int64(d) * stride) if wanted and d < n else float32(0)

    @kernel()
    def each_element(
        a, a_row, a_step, a_element, b, b_row, b_step, b_element, c, c_row, c_step, c_element, out, n, value
    ):
        row, middle = int64(cuda.blockIdx.x), int64(cuda.blockIdx.y)
        first = int32(cuda.blockIdx.z * (cuda.blockDim.x * PER_THREAD) + cuda.threadIdx.x)
        x, y = cuda.local.array(PER_THREAD, float32), cuda.local.array(PER_THREAD, float32)
        z = cuda.local.array(PER_THREAD, float32)
        fetch(x, True, first, n, a + row * a_row + middle * a_step, a_element)
        fetch(y, count > 1, first, n, b + row * b_row + middle * b_step, b_element)
        fetch(z, count > 2, first, n, c + row * c_row + middle * c_step, c_element)
        out += (row * cuda.gridDim.y + middle) * n * 4
        number = int_as_float(int32(value))
        for i in range(PER_THREAD):
            d = int32(first + i * cuda.blockDim.x)
            if d < n:
                st_global_f32(out + int64(d) * 4, apply(x[i], y[i], z[i], number))

    return each_element


NOTHING = (0, 0, 0, 0)
"""In the place of an input that an operation does not have."""


def elements(
    name: str,
    shape: Sequence[int],
    rows: int,
    middle: int,
    n: int,
    *inputs: tuple[int, int, int, int],
    value: float = 0.0,
) -> DeviceArray:
    """``name`` of :data:`APPLIED` over [rows, middle, n] into a new array of ``shape``; one launch.

    ``inputs``: address and the strides of rows, middle and elements of each. ``value``: the operation's number.
    """
    out = empty(shape)
    if out.size:
        grid, threads = element_grid(rows, middle, n)
        sources = [number for source in (*inputs, NOTHING, NOTHING)[:3] for number in source]
        launch(elements_kernel(name), grid, threads, (*sources, address(out), n, float_bits(value)))
    return out


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each."""
    for name in APPLIED:
        yield PtxRow(f"elements_{name}", elements_kernel.build(name), integers(15))
