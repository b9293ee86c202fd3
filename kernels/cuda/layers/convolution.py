"""Short convolution on CUDA, in place on its history; bytes of ``reference.exact.recurrent``.

A lane has a channel and goes over the rows of a tile, with the inputs of several rows on their way at once.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from ..common.scalar import one_nan
from ..common.views import empty
from ..toolchain.compiler import cuda, device_function, float32, int32, int64, kernel, launch, libdevice, specialised
from ..toolchain.host import DeviceArray
from ..toolchain.ptx import ld_global_f32, st_global_f32
from ..toolchain.ptx_rows import F2, PtxRow, signature_of
from .sequences import RowBounds, check_bounds, check_rows, check_state, launches_of

THREADS = 128
ROWS = 16
"""Rows of a thread block at least; as many as the history holds, so that the first block alone reads the history."""

AHEAD = 4
"""Rows of a lane whose inputs are on their way together: one after another, each would wait for memory."""


@specialised
def conv_kernel(taps_count: int) -> Any:
    """Grid (channels / 128, tiles of ``tile`` rows, sequences), a lane to a channel."""

    held_values = taps_count * AHEAD

    @device_function
    def entry(history, x, begin, index, held, channel, pitch, wanted):
        """Entry ``index`` of the ``held`` earlier inputs of a sequence, whose rows of ``x`` follow; 0 unless wanted."""
        if not wanted:
            return float32(0)
        return ld_global_f32(history + index * pitch) if index < held else x[begin + index - held, channel]

    @kernel()
    def causal_conv_kernel(x, taps, past, bounds, dilation, tile, out):
        channel = int32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
        channels = int32(x.shape[1])
        if channel >= channels:
            return
        sequence = int32(cuda.blockIdx.z)
        begin = int32(bounds[2 * sequence])
        rows = int32(bounds[2 * sequence + 1] - begin)
        held = int32((taps_count - 1) * dilation)
        history = past[sequence] + int64(channel) * 4
        pitch = int64(channels) * 4
        row = int32(cuda.blockIdx.y * tile)
        stop = int32(min(rows, row + tile))
        values = cuda.local.array(held_values, float32)
        weights = cuda.local.array(taps_count, float32)
        for tap in range(taps_count):
            weights[tap] = taps[tap, channel]
        while row < stop:
            for i in range(AHEAD):
                for tap in range(taps_count):
                    index = int32(row + i + tap * dilation)
                    wanted = row + i < stop
                    values[i * taps_count + tap] = entry(history, x, begin, index, held, channel, pitch, wanted)
            for i in range(AHEAD):
                if row + i < stop:
                    y = libdevice.fmul_rn(values[i * taps_count], weights[0])
                    for tap in range(1, taps_count):
                        y = libdevice.fadd_rn(y, libdevice.fmul_rn(values[i * taps_count + tap], weights[tap]))
                    out[begin + row + i, channel] = one_nan(y)
            row = int32(row + AHEAD)
        if cuda.blockIdx.y == 0 and rows > 0:
            # Ascending, so that nothing is overwritten before it has been moved.
            index = int32(0)
            while index < held:
                for i in range(AHEAD):
                    later, wanted = int32(index + i + rows), index + i < held
                    values[i] = entry(history, x, begin, later, held, channel, pitch, wanted)
                for i in range(AHEAD):
                    if index + i < held:
                        st_global_f32(history + (index + i) * pitch, values[i])
                index = int32(index + AHEAD)

    return causal_conv_kernel


def causal_conv(
    x: DeviceArray,
    taps: DeviceArray,
    past: DeviceArray | Sequence[DeviceArray],
    dilation: int = 1,
    spans: Sequence[slice] | RowBounds | None = None,
) -> DeviceArray:
    """Causal depthwise convolution, ``past`` advanced in place; as ``reference.exact.recurrent.causal_conv``.

    All arrays on the device; ``past`` C-contiguous. Rows outside :class:`RowBounds` are left unset in the result.
    Raises ValueError on mismatched arrays.
    """
    rows, channels = x.shape
    check_rows("x", x, (rows, channels))
    kernel_size = len(taps)
    check_rows("taps", taps, (kernel_size, channels))
    held = (kernel_size - 1) * dilation
    check_bounds(spans, past, rows)
    for state in [past] if spans is None else past:
        check_state("past", state, (held, channels))
    out = empty((rows, channels))
    tile = max(ROWS, held)
    for addresses, bounds, sequences, most in launches_of(past, spans, rows):
        if most:
            grid = (-(-channels // THREADS), -(-most // tile), sequences)
            launch(conv_kernel(kernel_size), grid, THREADS, (x, taps, addresses, bounds, dilation, tile, out))
    return out


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each."""
    states, bounds = "UniTuple(int64, 8)", "UniTuple(int64, 16)"
    for name, row, read in (
        ("rows", F2, bounds),
        ("columns", "float32[:, :]", bounds),
        ("bounds", "float32[:, :]", "int64[::1]"),
    ):
        signature = signature_of(row, F2, states, read, "int64", "int64", F2)
        yield PtxRow(f"causal_conv_{name}", conv_kernel.build(4), signature)
