"""Gated delta rule on CUDA, in place on its memories; bytes of ``reference.exact.recurrent``.

Rows may be strided: columns of a projection are read where they lie.

The delta rule gives 4 lanes to a value of a head's memory: lane j holds the keys j, j + 4, ..., which is the contract's
column j, in registers over all rows of the call. No other lane ever reads them, so nothing waits between rows but the
two shuffles that add the columns; key and query rows come through shared memory.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from qsa.reference.exact.layers.recurrent import COLUMNS

from ..common.scalar import exp, one_nan, sigmoid, softplus
from ..common.views import empty
from ..toolchain.compiler import cuda, float32, int32, int64, kernel, launch, libdevice, specialised
from ..toolchain.constants import FULL_WARP
from ..toolchain.host import DeviceArray
from ..toolchain.ptx import ld_global_f32, ld_shared_v4_f32, shared_base, st_global_f32
from ..toolchain.ptx_rows import F1, F2, F3, PtxRow, signature_of
from .sequences import RowBounds, check_bounds, check_rows, check_state, launches_of

THREADS = 64
VALUES = THREADS // COLUMNS
"""Values of a head that a thread block of the delta rule takes: at 48 heads of 128, three blocks per multiprocessor."""

STAGED = 8
"""Rows whose keys and queries lie in shared memory at a time."""

PAD = 4
"""Floats between the columns of a staged row: four lanes that read 16 bytes each then meet different banks."""

GATE_THREADS = 128


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
        check_rows(name, x, shape)
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
        check_rows(name, x, shape)
    check_bounds(spans, memory, rows)
    for state in [memory] if spans is None else memory:
        check_state("memory", state, (heads, keys, values))
    out = empty((rows, heads, values))
    for addresses, bounds, sequences, most in launches_of(memory, spans, rows):
        if most:
            grid = (-(-values // VALUES), heads, sequences)
            run = delta_kernel(keys, values, heads // key_heads)
            launch(run, grid, THREADS, (q, k, v, decay, beta, addresses, bounds, out))
    return out


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each."""
    states, bounds, read = "UniTuple(int64, 8)", "UniTuple(int64, 16)", "int64[::1]"
    for name, row in (("rows", F2), ("columns", "float32[:, :]")):
        yield PtxRow(f"decay_beta_{name}", decay_beta_kernel, signature_of(row, row, F1, F1, F2, F2))
    for name, value in (("rows", F3), ("columns", "float32[:, :, :]")):
        signature = signature_of(F3, F3, value, F2, F2, states, bounds, F3)
        yield PtxRow(f"delta_rule_{name}", delta_kernel.build(128, 128, 3), signature)
    signature = signature_of(F3, F3, "float32[:, :, :]", F2, F2, states, read, F3)
    yield PtxRow("delta_rule_bounds", delta_kernel.build(128, 128, 3), signature)
