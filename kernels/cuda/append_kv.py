"""``append_kv`` on CUDA: encode K and V of new cells and write them into pages and the host copy.

Exact: the bytes of ``reference.append_kv``. One warp takes one vector of head_dim values, a run of consecutive dims per
lane, so that groups, the rotation and the packing of nibbles are shuffles. Which page a row goes to is read on the
device, from the step record and the page table, so a captured graph follows both.

One file: an operation has the same name and path in truth, CPU and CUDA, and its kernel is used by nothing else.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from qsa.reference.formats import GROUP

from .. import ops
from .common.checks import check_array, check_count, check_distinct, listed
from .common.plans import Plan, PlanCache, check_plan, whole
from .common.pools import kinds_of
from .device.containers import CODINGS, SLOT_FIELDS, DeviceKV, slot_table
from .toolchain.compiler import (
    cuda,
    device_function,
    float32,
    int32,
    int64,
    kernel,
    libdevice,
    prepare,
    specialised,
    stream_key,
)
from .toolchain.constants import FULL_WARP, WARP
from .toolchain.host import Argument, DeviceArray, Operand
from .toolchain.ptx import (
    float_to_half,
    half_to_float,
    ld_global_i32,
    prmt,
    rint_s32,
    st_global_i32,
    st_global_u8,
    st_global_u16,
    start_next,
    trunc_s32,
    wait_for_earlier,
)
from .toolchain.ptx_rows import F3, I1, I2, PtxRow, signature_of

NAME = "append_kv"

_plans = PlanCache()
PAGE_TABLE, PAGE_SIZE, TABLE_SIZE, K_CODING, V_CODING = map(
    SLOT_FIELDS.index, ("table", "page_size", "table_size", "k_coding", "v_coding")
)
HOST = SLOT_FIELDS.index("host_k_codes")


@device_function
def group_max(x, lanes):
    """Largest value over runs of ``lanes`` lanes, a power of two."""
    stride = int32(1)
    while stride < lanes:
        x = libdevice.fmaxf(x, cuda.shfl_xor_sync(FULL_WARP, x, stride))
        stride = int32(stride * 2)
    return x


def build(coding: str, head_dim: int) -> tuple[Any, Any]:
    """Device function ``encode(x, codes, scales, lane)``: codes of ``x`` [per lane] float32 to the address ``codes``,
    scales to ``scales``; either address 0 is left out by the caller. One function per coding and head_dim."""
    per = head_dim // WARP
    group_lanes = GROUP.get(coding, head_dim) // per
    half_lanes = group_lanes // 2
    factor = head_dim**-0.5

    @device_function
    def int8(x, code, lane):
        amax = float32(0)
        for i in range(per):
            amax = libdevice.fmaxf(amax, libdevice.fabsf(x[i]))
        scale = float_to_half(libdevice.fdiv_rn(group_max(amax, group_lanes), float32(127)))
        stored = half_to_float(scale)
        for i in range(per):
            code[i] = int32(0)
            if stored > float32(0):
                code[i] = int32(max(-127, min(127, rint_s32(libdevice.fdiv_rn(x[i], stored)))))
        return scale

    @device_function
    def rotate(x, lane):
        stride = 1
        while stride < per:
            for i in range(per):
                if i & stride == 0:
                    low, high = x[i], x[i + stride]
                    x[i] = libdevice.fadd_rn(low, high)
                    x[i + stride] = libdevice.fsub_rn(low, high)
            stride *= 2
        step = int32(1)
        while step < WARP:
            for i in range(per):
                own = x[i]
                other = cuda.shfl_xor_sync(FULL_WARP, own, step)
                if lane & step:
                    x[i] = libdevice.fsub_rn(other, own)
                else:
                    x[i] = libdevice.fadd_rn(own, other)
            step = int32(step * 2)
        for i in range(per):
            x[i] = libdevice.fmul_rn(x[i], float32(factor))

    @device_function
    def q4_0(x, code, lane):
        rotate(x, lane)
        high, low = x[0], -x[0]
        for i in range(1, per):
            high = libdevice.fmaxf(high, x[i])
            low = libdevice.fmaxf(low, -x[i])
        high, low = group_max(high, group_lanes), group_max(low, group_lanes)
        extreme = -low
        if high >= low:
            extreme = high
        d = libdevice.fdiv_rn(extreme, float32(-8))
        scale = float_to_half(d)
        inverse = libdevice.fdiv_rn(float32(1), d)
        if half_to_float(scale) == float32(0):
            # The larger of +0 and -0 is nobody's rule: a scale of 0 has one sign.
            scale = int32(0)
            inverse = float32(0)
        for i in range(per):
            level = libdevice.fadd_rn(libdevice.fmul_rn(x[i], inverse), float32(8.5))
            own = int32(max(0, min(15, trunc_s32(level))))
            # Element j of a group shares a byte with element j + 16, half the group's lanes away.
            code[i] = int32(own | (cuda.shfl_xor_sync(FULL_WARP, own, half_lanes) << 4))
        return scale

    @device_function
    def fp16(x, code, lane):
        for i in range(per):
            code[i] = float_to_half(x[i])
        return int32(0)

    @device_function
    def store_bytes(address, code):
        # Words where a lane has whole ones: the host copy is written over the bus.
        if per % 4 == 0:
            for i in range(0, per, 4):
                low = prmt(code[i], code[i + 1], int32(0x0040))
                high = prmt(code[i + 2], code[i + 3], int32(0x0040))
                st_global_i32(address + i, prmt(low, high, int32(0x5410)))
        else:
            for i in range(per):
                st_global_u8(address + i, code[i])

    @device_function
    def store_int8(code, scale, codes, scales, vector, lane):
        store_bytes(codes + vector * head_dim + lane * per, code)
        if lane % group_lanes == 0:
            st_global_u16(scales + (vector * (WARP // group_lanes) + lane // group_lanes) * 2, scale)

    @device_function
    def store_q4_0(code, scale, codes, scales, vector, lane):
        within = lane % group_lanes
        if within < half_lanes:
            store_bytes(codes + vector * (head_dim // 2) + (lane // group_lanes) * 16 + within * per, code)
        if within == 0:
            st_global_u16(scales + (vector * (WARP // group_lanes) + lane // group_lanes) * 2, scale)

    @device_function
    def store_fp16(code, scale, codes, scales, vector, lane):
        address = codes + (vector * head_dim + lane * per) * 2
        for i in range(per):
            st_global_u16(address + 2 * i, code[i])

    encode, store = {"int8": (int8, store_int8), "q4_0": (q4_0, store_q4_0), "fp16": (fp16, store_fp16)}[coding]
    return encode, store


@specialised
def append_kernel(coding: str, n_head_kv: int, head_dim: int) -> Any:
    """The kernel for one coding. Grid (rows, n_head_kv, sides), a warp each; side ``first_side`` + z is K (0) or V (1).

    ``slots`` [rows] int32, read when ``several``; ``table`` a slot table. Rows of a slot whose side has another coding
    are left alone.
    """
    encode, store = build(coding, head_dim)
    number, per = CODINGS.index(coding), head_dim // WARP

    @kernel()
    def append_kv_kernel(k, v, steps, slots, several, table, first_side):
        row, head = int32(cuda.blockIdx.x), int32(cuda.blockIdx.y)
        side, lane = int32(cuda.blockIdx.z + first_side), int32(cuda.threadIdx.x)
        start_next()
        wait_for_earlier()
        pos, slot = steps[row, 0], slots[row] if several else int32(0)
        # Beyond the table stands no address to write to.
        if pos < 0 or slot < 0 or slot >= table.shape[0] or table[slot, K_CODING + side] != number:
            return
        page_size = int32(table[slot, PAGE_SIZE])
        logical, offset = int32(pos // page_size), int32(pos % page_size)
        if logical >= table[slot, TABLE_SIZE]:
            return
        x, code = cuda.local.array(per, float32), cuda.local.array(per, int32)
        for i in range(per):
            x[i] = k[row, head, lane * per + i] if side == 0 else v[row, head, lane * per + i]
        scale = encode(x, code, lane)
        page = int64(ld_global_i32(table[slot, PAGE_TABLE] + int64(logical) * 4))
        if page >= 0:
            vector = (page * n_head_kv + head) * page_size + offset
            store(code, scale, table[slot, 2 * side], table[slot, 2 * side + 1], vector, lane)
        if table[slot, HOST] != 0:
            vector = (int64(logical) * n_head_kv + head) * page_size + offset
            store(code, scale, table[slot, HOST + 2 * side], table[slot, HOST + 2 * side + 1], vector, lane)

    return append_kv_kernel


def fits(coding: str, head_dim: int) -> bool:
    """Whether a warp can hold a vector of ``head_dim`` values of ``coding``: whole lanes to a group and to its half."""
    per, rest = divmod(head_dim, WARP)
    group = GROUP.get(coding, head_dim)
    lanes = group // per if per and group % per == 0 else 0
    power = lanes & (lanes - 1) == 0
    return rest == 0 and lanes > (1 if coding == "q4_0" else 0) and power and lanes <= WARP


def append_kv(
    k: DeviceArray,
    v: DeviceArray,
    kv: DeviceKV | Sequence[DeviceKV],
    steps: DeviceArray,
    slots: DeviceArray | None = None,
    *,
    plan: Plan | None = None,
) -> bool:
    """Write the cell at ``pos`` of every row: into its page where that is resident, and always into the host copy.

    k, v   [rows, n_head_kv, head_dim] float32 on the device, C-contiguous (as all arrays here), finite; K already
           normed and rotated by position
    kv     a DeviceKV, or a list of them with ``slots`` [rows] int32 (on the device) naming each row's
    steps  [rows, 4] int32 on the device; a row with pos -1, or beyond its slot's capacity, or whose slot is none of
           ``kv``, writes nothing
    plan   of :func:`plan_append_kv`; None: that of an earlier call like this one, or a new one

    Returns True, or False when a geometry does not fit a warp. Raises ValueError on mismatched arrays, no DeviceKV at
    all, one DeviceKV for two slots, and a plan of another stream, device, shape or kind of K/V; nothing is launched
    then. Nothing is synchronised, so what only the device knows is not reported: a slot that does not exist; values
    that the format cannot hold, of which the scale is infinite and the codes are 0, in fp16 the values themselves
    infinite; an entry of a page table that was written on the device
    (:class:`~qsa.kernels.cuda.device.containers.DeviceKV` says when tables are checked); a page of one pool in the
    tables of two slots that both write it, of which one row's cell stays.
    """
    kvs = [kv] if isinstance(kv, DeviceKV) else listed(kv)
    if plan is not None:
        check_plan(plan, NAME, kinds_of(kvs))
    else:
        key, plan = _plans.find(
            lambda: (
                *(stream_key(), k.shape, slots is None),
                *((held.pool.format, id(held.pool.geometry)) for held in kvs),
            )
        )
    if plan is None:
        check_append(k, v, kvs, steps, slots)
        made = _make_plan(kvs, len(k), slots is not None)
        if isinstance(made, str):
            return ops.refuse(NAME, made)
        plan = _plans.keep(key, made)
    check_distinct(kvs)
    table = slot_table(kvs)
    plan.run((k, v, steps, table) if slots is None else (k, v, steps, table, slots))
    return True


def check_append(
    k: DeviceArray, v: DeviceArray, kvs: Sequence[DeviceKV], steps: DeviceArray, slots: DeviceArray | None
) -> None:
    """Raises ValueError on mismatched arrays among the arguments of :func:`append_kv`."""
    g, rows = kvs[0].pool.geometry, len(k)
    for name, array in (("k", k), ("v", v)):
        check_array(name, array, "float32", (rows, g.n_head_kv, g.head_dim), alignment=4)
    check_array("steps", steps, "int32", (rows, 4), alignment=4)
    if slots is None and len(kvs) > 1:
        raise ValueError(f"slots: missing: {len(kvs)} slots need the slot of every row")
    if slots is not None:
        check_array("slots", slots, "int32", (rows,), alignment=4)


def _make_plan(kvs: Sequence[DeviceKV], rows: int, with_slots: bool, stream: Any = None) -> Plan | str:
    """The plan of a call of ``rows`` rows; or the reason for which it is refused."""
    g = kvs[0].pool.geometry
    sides = {side.coding for held in kvs for side in (held.pool.k, held.pool.v)}
    if any(held.pool.geometry != g for held in kvs) or not all(fits(coding, g.head_dim) for coding in sides):
        return "geometry"
    vectors = rows, g.n_head_kv, g.head_dim
    operands = [
        Operand("k", "float32", vectors, 4),
        Operand("v", "float32", vectors, 4),
        Operand("steps", "int32", (rows, 4), 4),
        Operand("slot table", "int64", (len(kvs), len(SLOT_FIELDS)), 8),
    ]
    slots = Argument(2, "int32", (4 * rows,))
    if with_slots:
        operands.append(Operand("slots", "int32", (rows,), 4))
        slots = Argument(4, "int32", (rows,))
    k, v, steps, table, *_ = whole(operands)
    launches = []
    for coding in sorted(sides) if rows else ():
        used = [i for i in (0, 1) if any((held.pool.k, held.pool.v)[i].coding == coding for held in kvs)]
        kernel = append_kernel(coding, g.n_head_kv, g.head_dim)
        arguments = (k, v, steps, slots, int(with_slots), table, used[0])
        launches.append(prepare(kernel, (rows, g.n_head_kv, len(used)), WARP, arguments))
    return Plan(NAME, operands, launches, stream_key(stream), kinds_of(kvs))


def plan_append_kv(
    kv: DeviceKV | Sequence[DeviceKV], rows: int, *, with_slots: bool | None = None, stream: Any = None
) -> Plan | Literal[False]:
    """A plan of :func:`append_kv` for calls of ``rows`` rows over K/V of these formats and this geometry: of ``kv``, or
    as many others like it.

    with_slots  whether calls give ``slots``; None: where ``kv`` is a list of several
    stream      the CuPy stream of the calls; None: the current one

    Returns False, a refusal, as :func:`append_kv`. Raises ValueError on a count below 0, and on several slots whose
    rows name none. The plan holds no pool: calls give theirs.
    """
    kvs = listed(kv)
    check_count("rows", rows)
    with_slots = len(kvs) > 1 if with_slots is None else with_slots
    if len(kvs) > 1 and not with_slots:
        raise ValueError(f"with_slots = {with_slots}: kv is a list of {len(kvs)}, whose rows must name their slots")
    made = _make_plan(kvs, rows, with_slots, stream)
    return ops.refuse(NAME, made) if isinstance(made, str) else made


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each."""
    signature = signature_of(F3, F3, I2, I1, "int64", "int64[:, ::1]", "int64")
    for coding in ("int8", "q4_0", "fp16"):
        yield PtxRow(f"append_kv_{coding}", append_kernel.build(coding, 2, 256), signature)
