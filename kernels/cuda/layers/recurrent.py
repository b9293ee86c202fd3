"""Short convolution and gated delta rule on CUDA, in place on their states; bytes of ``reference.exact.recurrent``.

A call takes the rows of up to 8 sequences in one launch, further ones in further launches: the addresses of their
states and the bounds of their rows are arguments, so a captured launch holds them; of :class:`RowBounds` it holds the
address alone, and every replay reads them. Rows may be strided: columns of a projection are read where they lie.

The delta rule gives 4 lanes to a value of a head's memory: lane j holds the keys j, j + 4, ..., which is the contract's
column j, in registers over all rows of the call. No other lane ever reads them, so nothing waits between rows but the
two shuffles that add the columns; key and query rows come through shared memory.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from qsa.reference.exact.layers.recurrent import COLUMNS, check_spans

from ..common.checks import check_array
from ..common.scalar import exp, one_nan, sigmoid, softplus
from ..common.views import empty
from ..toolchain.compiler import address, cuda, float32, int32, int64, kernel, launch, libdevice, specialised
from ..toolchain.constants import FULL_WARP
from ..toolchain.host import DeviceArray
from ..toolchain.ptx import ld_global_f32, ld_shared_v4_f32, shared_base, st_global_f32
from ..toolchain.ptx_rows import F1, F2, F3, PtxRow, signature_of

MAX_SEQUENCES = 8
"""Sequences of one launch."""


class RowBounds(NamedTuple):
    """In the place of ``spans``: which rows of each sequence are taken, read on the device.

    ``bounds`` int64 [16] on the device: first row and the row after the last of each of up to 8 sequences, which need
    not follow one another. ``most``: rows of a sequence at most.
    """

    bounds: DeviceArray
    most: int


CONV_THREADS = 128
CONV_ROWS = 16
"""Rows of a thread block at least; as many as the history holds, so that the first block alone reads the history."""

THREADS = 64
VALUES = THREADS // COLUMNS
"""Values of a head that a thread block of the delta rule takes: at 48 heads of 128, three blocks per multiprocessor."""

STAGED = 8
"""Rows whose keys and queries lie in shared memory at a time."""

PAD = 4
"""Floats between the columns of a staged row: four lanes that read 16 bytes each then meet different banks."""

GATE_THREADS = 128


@specialised
def conv_kernel(taps_count: int) -> Any:
    """Grid (channels / 128, tiles of ``tile`` rows, sequences), a lane to a channel."""

    @kernel()
    def causal_conv_kernel(x, taps, past, bounds, dilation, tile, out):
        channel = int32(cuda.blockIdx.x * CONV_THREADS + cuda.threadIdx.x)
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
        while row < stop:
            y = float32(0)
            for tap in range(taps_count):
                index = int32(row + tap * dilation)
                value = ld_global_f32(history + index * pitch) if index < held else x[begin + index - held, channel]
                product = libdevice.fmul_rn(value, taps[tap, channel])
                y = product if tap == 0 else libdevice.fadd_rn(y, product)
            out[begin + row, channel] = one_nan(y)
            row = int32(row + 1)
        if cuda.blockIdx.y == 0 and rows > 0:
            # Ascending, so that nothing is overwritten before it has been moved.
            index = int32(0)
            while index < held:
                later = int32(index + rows)
                value = ld_global_f32(history + later * pitch) if later < held else x[begin + later - held, channel]
                st_global_f32(history + index * pitch, value)
                index = int32(index + 1)

    return causal_conv_kernel


@kernel()
def decay_beta_kernel(a, b, dt_bias, rate, decay, beta):
    """Grid over rows * heads, a lane to a pair."""
    heads = int32(dt_bias.shape[0])
    item = int32(cuda.blockIdx.x * GATE_THREADS + cuda.threadIdx.x)
    row, head = int32(item // heads), int32(item % heads)
    if row < a.shape[0]:
        speed = libdevice.fmul_rn(rate[head], softplus(libdevice.fadd_rn(a[row, head], dt_bias[head])))
        decay[row, head] = exp(-speed)
        beta[row, head] = sigmoid(b[row, head])


@specialised
def delta_kernel(keys: int, values: int, repeat: int) -> Any:
    """Grid (values / 16, heads, sequences), four lanes to a value of one head's memory [keys, values]."""
    per = keys // COLUMNS
    column_floats = per + PAD
    row_floats = COLUMNS * column_floats
    queries = STAGED * row_floats
    shared_floats = 2 * queries

    @kernel()
    def delta_rule_kernel(q, k, v, decay, beta, memory, bounds, out):
        staged = cuda.shared.array(shared_floats, float32)
        base = shared_base(staged)
        lane = int32(cuda.threadIdx.x)
        column = int32(lane % COLUMNS)
        value = int32(cuda.blockIdx.x * VALUES + lane // COLUMNS)
        own = value < values
        # Lanes beyond the last value keep it company, so that every lane takes part in the shuffles.
        value = int32(min(value, values - 1))
        head, sequence = int32(cuda.blockIdx.y), int32(cuda.blockIdx.z)
        key_head = int32(head // repeat)
        begin, end = int32(bounds[2 * sequence]), int32(bounds[2 * sequence + 1])
        source = memory[sequence] + ((int64(head) * keys + column) * values + value) * 4
        m = cuda.local.array(per, float32)
        for i in range(per):
            m[i] = ld_global_f32(source + i * (COLUMNS * values * 4))
        mine = int32(base + column * (column_floats * 4))
        first = begin
        while first < end:
            held = int32(min(STAGED, end - first))
            cuda.syncthreads()
            item = lane
            while item < held * keys:
                row, key = int32(item // keys), int32(item % keys)
                target = int32(row * row_floats + key % COLUMNS * column_floats + key // COLUMNS)
                staged[target] = k[first + row, key_head, key]
                staged[queries + target] = q[first + row, key_head, key]
                item = int32(item + THREADS)
            cuda.syncthreads()
            row = int32(0)
            while row < held:
                factor, share = decay[first + row, head], beta[first + row, head]
                wanted = v[first + row, head, value]
                key_row = int32(mine + row * (row_floats * 4))
                query_row = int32(key_row + queries * 4)
                total = float32(0)
                for i in range(0, per, 4):
                    x = ld_shared_v4_f32(int32(key_row + i * 4))
                    for j in range(4):
                        faded = libdevice.fmul_rn(m[i + j], factor)
                        m[i + j] = faded
                        total = libdevice.fadd_rn(total, libdevice.fmul_rn(faded, x[j]))
                total = libdevice.fadd_rn(total, cuda.shfl_xor_sync(FULL_WARP, total, 2))
                total = libdevice.fadd_rn(total, cuda.shfl_xor_sync(FULL_WARP, total, 1))
                correction = libdevice.fmul_rn(share, libdevice.fsub_rn(wanted, total))
                total = float32(0)
                for i in range(0, per, 4):
                    x = ld_shared_v4_f32(int32(key_row + i * 4))
                    y = ld_shared_v4_f32(int32(query_row + i * 4))
                    for j in range(4):
                        new = libdevice.fadd_rn(m[i + j], libdevice.fmul_rn(x[j], correction))
                        m[i + j] = new
                        total = libdevice.fadd_rn(total, libdevice.fmul_rn(new, y[j]))
                total = libdevice.fadd_rn(total, cuda.shfl_xor_sync(FULL_WARP, total, 2))
                total = libdevice.fadd_rn(total, cuda.shfl_xor_sync(FULL_WARP, total, 1))
                if own and column == 0:
                    out[first + row, head, value] = one_nan(total)
                row = int32(row + 1)
            first = int32(first + held)
        if own:
            # A NaN stays one whatever comes, so it need not have its one form before the memory is stored.
            for i in range(per):
                st_global_f32(source + i * (COLUMNS * values * 4), one_nan(m[i]))

    return delta_rule_kernel


def _launches(states, spans, rows):
    """(addresses of the states, bounds of their rows, sequences, most rows) of every launch, filled up to 8."""
    if isinstance(spans, RowBounds):
        yield (*map(address, states), *(0,) * (MAX_SEQUENCES - len(states))), spans.bounds, len(states), spans.most
        return
    if spans is None:
        states, spans = [states], [slice(0, rows)]
    for first in range(0, len(spans), MAX_SEQUENCES):
        part, held = spans[first : first + MAX_SEQUENCES], states[first : first + MAX_SEQUENCES]
        fill = MAX_SEQUENCES - len(part)
        bounds = (*(end for span in part for end in (span.start, span.stop)), *(0,) * (2 * fill))
        addresses = (*map(address, held), *(0,) * fill)
        yield addresses, bounds, len(part), max(span.stop - span.start for span in part)


def _check_spans(spans, states, rows):
    """As ``check_spans``, of :class:`RowBounds` too."""
    if not isinstance(spans, RowBounds):
        check_spans(spans, states, rows)
        return
    check_array("bounds", spans.bounds, "int64", (2 * MAX_SEQUENCES,), alignment=8)
    if len(states) > MAX_SEQUENCES or not 0 <= spans.most <= rows:
        raise ValueError(f"spans: {len(states)} states, {spans.most} rows: at most {MAX_SEQUENCES}, and {rows} rows")


def _check_state(name, state, shape):
    if state.shape != shape or state.dtype != "float32" or not state.flags.c_contiguous:
        raise ValueError(f"{name}: {state.dtype} {state.shape}: must be float32 {shape}, C-contiguous")


def _check(name, x, shape):
    if x.shape != shape or x.dtype != "float32":
        raise ValueError(f"{name}: {x.dtype} {x.shape}: must be float32 {shape}")


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
    _check("x", x, (rows, channels))
    kernel_size = len(taps)
    _check("taps", taps, (kernel_size, channels))
    held = (kernel_size - 1) * dilation
    _check_spans(spans, past, rows)
    for state in [past] if spans is None else past:
        _check_state("past", state, (held, channels))
    out = empty((rows, channels))
    tile = max(CONV_ROWS, held)
    for addresses, bounds, sequences, most in _launches(past, spans, rows):
        if most:
            grid = (-(-channels // CONV_THREADS), -(-most // tile), sequences)
            launch(conv_kernel(kernel_size), grid, CONV_THREADS, (x, taps, addresses, bounds, dilation, tile, out))
    return out


def decay_beta(
    a: DeviceArray, b: DeviceArray, dt_bias: DeviceArray, rate: DeviceArray
) -> tuple[DeviceArray, DeviceArray]:
    """Decay and beta of the delta rule; arguments and result as ``reference.exact.recurrent.decay_beta``."""
    rows, heads = a.shape
    for name, x, shape in (
        ("a", a, (rows, heads)),
        ("b", b, (rows, heads)),
        ("dt_bias", dt_bias, (heads,)),
        ("rate", rate, (heads,)),
    ):
        _check(name, x, shape)
    decay, beta = (empty((rows, heads)) for _ in range(2))
    if rows:
        launch(decay_beta_kernel, -(-rows * heads // GATE_THREADS), GATE_THREADS, (a, b, dt_bias, rate, decay, beta))
    return decay, beta


def delta_rule(
    q: DeviceArray,
    k: DeviceArray,
    v: DeviceArray,
    decay: DeviceArray,
    beta: DeviceArray,
    memory: DeviceArray | Sequence[DeviceArray],
    spans: Sequence[slice] | RowBounds | None = None,
) -> DeviceArray:
    """The gated delta rule, ``memory`` advanced in place; as ``reference.exact.recurrent.delta_rule``.

    All arrays on the device; ``memory`` C-contiguous. Rows outside :class:`RowBounds` are left unset in the result.
    Raises ValueError on mismatched arrays, or unless the key dims are a multiple of 16, whole reads of four to a
    column.
    """
    rows, key_heads, keys = q.shape
    _, heads, values = v.shape
    if keys % (4 * COLUMNS) or heads % key_heads:
        raise ValueError(f"q: shape {q.shape}: key dims must be a multiple of {4 * COLUMNS}, heads divide {heads}")
    for name, x, shape in (
        ("q", q, (rows, key_heads, keys)),
        ("k", k, (rows, key_heads, keys)),
        ("v", v, (rows, heads, values)),
        ("decay", decay, (rows, heads)),
        ("beta", beta, (rows, heads)),
    ):
        _check(name, x, shape)
    _check_spans(spans, memory, rows)
    for state in [memory] if spans is None else memory:
        _check_state("memory", state, (heads, keys, values))
    out = empty((rows, heads, values))
    for addresses, bounds, sequences, most in _launches(memory, spans, rows):
        if most:
            grid = (-(-values // VALUES), heads, sequences)
            run = delta_kernel(keys, values, heads // key_heads)
            launch(run, grid, THREADS, (q, k, v, decay, beta, addresses, bounds, out))
    return out


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each."""
    states, bounds, read = "UniTuple(int64, 8)", "UniTuple(int64, 16)", "int64[::1]"
    for name, row in (("rows", F2), ("columns", "float32[:, :]")):
        signature = signature_of(row, F2, states, bounds, "int64", "int64", F2)
        yield PtxRow(f"causal_conv_{name}", conv_kernel.build(4), signature)
        yield PtxRow(f"decay_beta_{name}", decay_beta_kernel, signature_of(row, row, F1, F1, F2, F2))
    for name, value in (("rows", F3), ("columns", "float32[:, :, :]")):
        signature = signature_of(F3, F3, value, F2, F2, states, bounds, F3)
        yield PtxRow(f"delta_rule_{name}", delta_kernel.build(128, 128, 3), signature)
    signature = signature_of("float32[:, :]", F2, states, read, "int64", "int64", F2)
    yield PtxRow("causal_conv_bounds", conv_kernel.build(4), signature)
    signature = signature_of(F3, F3, "float32[:, :, :]", F2, F2, states, read, F3)
    yield PtxRow("delta_rule_bounds", delta_kernel.build(128, 128, 3), signature)
