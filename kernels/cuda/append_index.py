"""``append_index`` on CUDA: raw indexer keys into tail, dead key and pooled keys.

Exact: the bytes of ``reference.exact.append_index``, one row or many. A warp takes a row: when it completes a block it
looks back for the block's other keys, among the rows before it and then in the tail. The tail itself is written when
every row has read it: after a barrier in a window, which is one thread block, or by a second launch. Keys of the index
format ``int16`` are encoded by the warp that has made them.
"""

from collections.abc import Iterator
from typing import Any, Literal

from qsa.reference.geometry import Geometry

from .. import ops
from ..ops import WINDOW_ROWS
from .common.checks import check_array, check_count, check_index
from .common.key_codes import key_code, key_exponent, magnitude
from .common.plans import Plan, PlanCache, check_plan, whole
from .common.scalar import warp_max
from .device.containers import DeviceIndex
from .toolchain.compiler import (
    cuda,
    device_function,
    float32,
    int32,
    kernel,
    libdevice,
    prepare,
    specialised,
    stream_key,
)
from .toolchain.constants import FULL_WARP, WARP
from .toolchain.host import DeviceArray, Operand
from .toolchain.ptx import wait_for_earlier
from .toolchain.ptx_rows import F1, F2, H1, H2, I2, PtxRow, signature_of

NAME = "append_index"

FIELDS = "tail", "dead", "pooled", "weight", "rope", "rope0"
"""The index's arrays, in the order of the kernel's arguments."""

EXPONENTS = "dead_exponent", "pooled_exponent"
"""Those of encoded keys, which follow."""

_plans = PlanCache()


@specialised
def append_kernels(idx_dim: int, n_rot: int, ratio: int, eps: float) -> tuple[Any, Any, Any]:
    """(append, append_coded, write_tail) for one geometry.

    ``append``, ``append_coded`` (index format ``int16``): grid (rows / 8), 256 lanes; with ``own_tail`` it is one block
    and writes the tail too.
    ``write_tail``: one block of (ratio - 1) warps.
    """
    per, half = idx_dim // WARP, n_rot // 2
    half_lanes = half // per
    quarter = 1 / ratio

    @device_function
    def norm_rotate(x, weight, rope, lane):
        total = libdevice.fmul_rn(x[0], x[0])
        for i in range(1, per):
            total = libdevice.fadd_rn(total, libdevice.fmul_rn(x[i], x[i]))
        for stride in (16, 8, 4, 2, 1):
            total = libdevice.fadd_rn(total, cuda.shfl_xor_sync(FULL_WARP, total, stride))
        mean = libdevice.fdiv_rn(total, float32(idx_dim))
        root = libdevice.fsqrt_rn(libdevice.fadd_rn(mean, float32(eps)))
        inverse = libdevice.fdiv_rn(float32(1), root)
        # Dims i and i + half lie half_lanes apart; lanes beyond the rotated dims exchange with themselves.
        partner = lane
        if lane < half_lanes:
            partner = int32(lane + half_lanes)
        elif lane < 2 * half_lanes:
            partner = int32(lane - half_lanes)
        for i in range(per):
            x[i] = libdevice.fmul_rn(libdevice.fmul_rn(x[i], inverse), weight[lane * per + i])
            other = cuda.shfl_sync(FULL_WARP, x[i], partner)
            if partner != lane:
                dim = min(lane, partner) * per + i
                straight = libdevice.fmul_rn(x[i], rope[dim])
                crossed = libdevice.fmul_rn(other, rope[half + dim])
                x[i] = libdevice.fsub_rn(straight, crossed) if lane < partner else libdevice.fadd_rn(straight, crossed)

    @device_function
    def store_tail(raw, steps, tail, rows, position, lane):
        for back in range(rows):
            row = rows - 1 - back
            pos = steps[row, 0]
            if pos >= 0 and pos % ratio == position:
                for i in range(per):
                    tail[position, lane * per + i] = raw[row, lane * per + i]
                return

    @device_function
    def dead_key(x, raw, row, weight, rope0, lane):
        for i in range(per):
            x[i] = raw[row, lane * per + i]
        norm_rotate(x, weight, rope0, lane)

    @device_function
    def pooled_key(x, raw, steps, tail, row, weight, rope, lane):
        for position in range(ratio - 1):
            before = int32(row - 1)
            while before >= 0 and (steps[before, 0] < 0 or steps[before, 0] % ratio != position):
                before = int32(before - 1)
            for i in range(per):
                key = raw[before, lane * per + i] if before >= 0 else tail[position, lane * per + i]
                x[i] = key if position == 0 else libdevice.fadd_rn(x[i], key)
        for i in range(per):
            x[i] = libdevice.fmul_rn(libdevice.fadd_rn(x[i], raw[row, lane * per + i]), float32(quarter))
        norm_rotate(x, weight, rope, lane)

    @device_function
    def own_tails(raw, steps, tail, rows, own_tail, warp, lane):
        if own_tail:
            cuda.syncthreads()
            if warp < ratio - 1:
                store_tail(raw, steps, tail, rows, warp, lane)

    @device_function
    def exponent_of(x):
        largest = magnitude(x[0])
        for i in range(1, per):
            largest = max(largest, magnitude(x[i]))
        return key_exponent(warp_max(largest))

    @kernel()
    def append_index_kernel(raw, steps, tail, dead, pooled, weight, rope, rope0, rows, own_tail):
        lane, warp = int32(cuda.threadIdx.x % WARP), int32(cuda.threadIdx.x // WARP)
        row = int32(cuda.blockIdx.x * WINDOW_ROWS + warp)
        wait_for_earlier()
        pos = steps[row, 0] if row < rows else int32(-1)
        x = cuda.local.array(per, float32)
        if pos == 0:
            dead_key(x, raw, row, weight, rope0, lane)
            for i in range(per):
                dead[lane * per + i] = x[i]
        block = int32(pos // ratio)
        if pos >= 0 and pos % ratio == ratio - 1 and block < pooled.shape[0]:
            pooled_key(x, raw, steps, tail, row, weight, rope[block], lane)
            for i in range(per):
                pooled[block, lane * per + i] = x[i]
        own_tails(raw, steps, tail, rows, own_tail, warp, lane)

    @kernel()
    def append_coded_kernel(
        raw, steps, tail, dead, pooled, weight, rope, rope0, dead_exponent, pooled_exponent, rows, own_tail
    ):
        lane, warp = int32(cuda.threadIdx.x % WARP), int32(cuda.threadIdx.x // WARP)
        row = int32(cuda.blockIdx.x * WINDOW_ROWS + warp)
        wait_for_earlier()
        pos = steps[row, 0] if row < rows else int32(-1)
        x = cuda.local.array(per, float32)
        if pos == 0:
            dead_key(x, raw, row, weight, rope0, lane)
            e = exponent_of(x)
            for i in range(per):
                dead[lane * per + i] = key_code(x[i], e)
            if lane == 0:
                dead_exponent[0] = e
        block = int32(pos // ratio)
        if pos >= 0 and pos % ratio == ratio - 1 and block < pooled.shape[0]:
            pooled_key(x, raw, steps, tail, row, weight, rope[block], lane)
            e = exponent_of(x)
            for i in range(per):
                pooled[block, lane * per + i] = key_code(x[i], e)
            if lane == 0:
                pooled_exponent[block] = e
        own_tails(raw, steps, tail, rows, own_tail, warp, lane)

    @kernel()
    def write_tail_kernel(raw, steps, tail, rows):
        lane, warp = int32(cuda.threadIdx.x % WARP), int32(cuda.threadIdx.x // WARP)
        wait_for_earlier()
        store_tail(raw, steps, tail, rows, warp, lane)

    return append_index_kernel, append_coded_kernel, write_tail_kernel


def fits(geometry: Geometry) -> bool:
    """Whether a warp can hold a key: whole lanes to the rotated half, a warp for every position of the tail."""
    per, rest = divmod(geometry.idx_dim, WARP)
    return rest == 0 and geometry.n_rot // 2 % per == 0 and 2 <= geometry.ratio <= WINDOW_ROWS + 1


def append_index(raw: DeviceArray, steps: DeviceArray, index: DeviceIndex, *, plan: Plan | None = None) -> bool:
    """Append the raw indexer key of every row, in order.

    raw    [rows, idx_dim] float32 on the device, C-contiguous, neither normed nor rotated
    steps  [rows, 4] int32 on the device; a row with pos -1 appends nothing; positions of one call ascend
    index  a DeviceIndex; a block beyond it is not written
    plan   of :func:`plan_append_index`; None: that of an earlier call like this one, or a new one

    Returns True, or False when the geometry does not fit a warp. Raises ValueError on mismatched arrays, and on a plan
    of another stream, device, shape or geometry. Windows of up to 8 rows are one launch, longer calls two.
    """
    g = check_index(index).geometry
    if plan is not None:
        check_plan(plan, NAME, g)
    else:
        key, plan = _plans.find(lambda: (*stream_key(), raw.shape, index.format, index.pooled.shape, id(g)))
    if plan is None:
        check_array("raw", raw, "float32", (len(raw), g.idx_dim), alignment=4)
        check_array("steps", steps, "int32", (len(raw), 4), alignment=4)
        made = _make_plan(index, len(raw))
        if isinstance(made, str):
            return ops.refuse(NAME, made)
        plan = _plans.keep(key, made)
    plan.run((raw, steps, *(getattr(index, name) for name in fields(index))))
    return True


def fields(index: DeviceIndex) -> tuple[str, ...]:
    """Names of the index's arrays, in the order of the kernel's arguments."""
    return FIELDS if index.format == "fp32" else FIELDS + EXPONENTS


def _make_plan(index: DeviceIndex, rows: int, stream: Any = None) -> Plan | str:
    """The plan of a call of ``rows`` rows; or the reason for which it is refused."""
    g = index.geometry
    if not fits(g):
        return "geometry"
    coded = index.format == "int16"
    codes = ("dead", "pooled", *EXPONENTS) if coded else ()
    operands = [
        Operand("raw", "float32", (rows, g.idx_dim), 4),
        Operand("steps", "int32", (rows, 4), 4),
        *(
            Operand(f"index.{name}", "int16" if name in codes else "float32", getattr(index, name).shape, 4)
            for name in fields(index)
        ),
    ]
    append, append_coded, write_tail = append_kernels(g.idx_dim, g.n_rot, g.ratio, g.eps)
    arguments, launches, window = whole(operands), [], rows <= WINDOW_ROWS
    if rows:
        grid = -(-rows // WINDOW_ROWS)
        launches.append(
            prepare(append_coded if coded else append, grid, WINDOW_ROWS * WARP, (*arguments, rows, int(window)))
        )
    if rows and not window:
        launches.append(prepare(write_tail, 1, (g.ratio - 1) * WARP, (*arguments[:3], rows)))
    return Plan(NAME, operands, launches, stream_key(stream), g)


def plan_append_index(index: DeviceIndex, rows: int, *, stream: Any = None) -> Plan | Literal[False]:
    """A plan of :func:`append_index` for calls of ``rows`` rows over ``index`` or another of its size and geometry.

    ``stream``: the CuPy stream of the calls; None: the current one. Returns False, a refusal, as :func:`append_index`.
    Raises ValueError on a count below 0. The plan holds no array: calls give theirs.
    """
    check_count("rows", rows)
    made = _make_plan(index, rows, stream)
    return ops.refuse(NAME, made) if isinstance(made, str) else made


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each."""
    append, append_coded, write_tail = append_kernels.build(128, 64, 4, 1e-6)
    yield PtxRow("append_index", append, signature_of(F2, I2, F2, F1, F2, F1, F2, F1, "int64", "int64"))
    keys = signature_of(F2, I2, F2, H1, H2, F1, F2, F1, H1, H1, "int64", "int64")
    yield PtxRow("append_index_int16", append_coded, keys)
    yield PtxRow("append_index_tail", write_tail, signature_of(F2, I2, F2, "int64"))
