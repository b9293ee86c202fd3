"""``block_scores``, exact, on CUDA: float32 in the lane tree, in five schedules with the same bytes.

===============  ==========  =================================================================================
schedule         kernel      rows
===============  ==========  =================================================================================
``warp``         one_row     any number, each reads the keys for itself; several blocks of a warp under way
``multi_query``  butterfly   up to 8, a key is read once for all of them
``transposed``   transposed  up to 8, a warp to a row; the warps of a thread block walk over the same keys
``prompt``       transposed  any number, 8 to a thread block
``held``         held        any number, 8 to a thread block; keys are in shared memory while they go by (sm_80)
===============  ==========  =================================================================================

The kernels are in ``block_scores_kernels`` and ``block_scores_held``. Encoded keys (index format ``int16``) have a
kernel of their own in ``block_scores_int16``, which serves every schedule: ``warp`` has one row to a thread block, in
the others rows share the keys. How many blocks a row has is read from its step record on the device: a captured launch
serves every context, and unused capacity costs nothing. A call that names no schedule gets that of the switch
STRATA_QSA_SCORES_TRANSPOSED, or where it is unset that of the table in ``common/defaults.py``.
"""

from typing import Any, Literal

from .. import ops
from ..ops import WINDOW_ROWS
from ..switches import switches
from . import block_scores_int16
from .block_scores_held import BLOCKS, held, shape_of, shared_bytes
from .block_scores_held import RESIDENT as HELD_RESIDENT
from .block_scores_kernels import (
    BLOCKS_PER_MULTIPROCESSOR,
    DIM,
    HEADS,
    KEYS,
    LEAST,
    RESIDENT,
    THREADS,
    WARPS,
    butterfly,
    one_row,
    transposed,
)
from .common.checks import check_array, check_count, check_index, check_schedule
from .common.defaults import defaults
from .common.plans import Plan, PlanCache, check_plan, whole
from .device.containers import DeviceIndex
from .toolchain.compiler import array_module, prepare, properties, stream_key
from .toolchain.constants import MAX_GRID_YZ
from .toolchain.host import DeviceArray, Operand

NAME = "block_scores"

_plans = PlanCache()


def _grid(groups, warps, blocks_per_turn, max_blocks, warps_resident):
    """Grid (x, y) of ``groups`` row groups: about as many thread blocks of ``warps`` warps as are resident at once."""
    resident = properties().multiprocessors * (warps_resident // warps)
    return min(-(-max_blocks // blocks_per_turn), -(-resident // groups)), min(groups, MAX_GRID_YZ)


def default_schedule(rows: int, max_blocks: int) -> str:
    """The schedule of a call of ``rows`` rows over ``max_blocks`` blocks that names none: the switch's, or the
    table's."""
    switch = switches().scores_transposed
    if switch and rows <= WINDOW_ROWS:
        return "transposed"
    return defaults(switch).scores_schedule(rows, max_blocks)


def _default_schedule(index, rows):
    coded = index.format == "int16"
    return block_scores_int16.default_schedule(rows) if coded else default_schedule(rows, index.max_blocks)


def check_scores(q_idx: DeviceArray, index: DeviceIndex, steps: DeviceArray, out: DeviceArray | None) -> None:
    """Raises ValueError unless the device arrays have the shapes and dtypes that the kernels read and write."""
    g = check_index(index).geometry
    rows = q_idx.shape[0]
    check_array("q_idx", q_idx, "float32", (rows, g.idx_heads, g.idx_dim))
    check_array("steps", steps, "int32", (rows, 4))
    if out is not None:
        check_array("out", out, "float32", (rows, index.max_blocks))


def _make_plan(index: DeviceIndex, rows: int, schedule: str, stream: Any = None) -> Plan | str:
    """The plan of a call of ``rows`` rows; or the reason for which it is refused."""
    g, max_blocks = index.geometry, index.max_blocks
    if (g.idx_heads, g.idx_dim) != (HEADS, DIM):
        return "geometry"
    if schedule in ("multi_query", "transposed") and rows > WINDOW_ROWS:
        return "schedule"
    if schedule == "held" and index.format == "fp32" and properties().compute_capability < (8, 0):
        return "device"
    key = stream_key(stream)
    if index.format == "int16":
        operands = block_scores_int16.operands(index, rows)
        prepared = block_scores_int16.launches(whole(operands), rows, max_blocks, g.ratio, schedule)
        return Plan(NAME, operands, prepared, key, g)
    operands = (
        Operand("q_idx", "float32", (rows, g.idx_heads, g.idx_dim)),
        Operand("index.pooled", "float32", index.pooled.shape),
        Operand("index.dead", "float32", index.dead.shape),
        Operand("steps", "int32", (rows, 4)),
        Operand("out", "float32", (rows, max_blocks)),
    )
    return Plan(NAME, operands, _launches(whole(operands), rows, max_blocks, g.ratio, schedule), key, g)


def _launches(arrays, rows, max_blocks, ratio, schedule):
    if rows == 0:
        return []
    group = min(rows, WINDOW_ROWS)
    groups = -(-rows // group)
    if schedule == "warp":
        grid = _grid(rows, WARPS, WARPS * KEYS, max_blocks, RESIDENT * WARPS)
        return [prepare(one_row(KEYS, LEAST), grid, THREADS, (*arrays, rows, max_blocks, ratio))]
    if schedule == "multi_query":
        grid = _grid(groups, WARPS, WARPS, max_blocks, 4 * WARPS)
        return [prepare(butterfly, grid, THREADS, (*arrays, rows, group, max_blocks, ratio))]
    if schedule == "held":
        group, shares = shape_of(rows)
        grid = _grid(groups, group * shares, BLOCKS * shares, max_blocks, HELD_RESIDENT * WARPS)
        arguments = (*arrays, rows, max_blocks, ratio)
        return [prepare(held, grid, (32, group, shares), arguments, shared_bytes(shares))]
    shares = WARPS // group
    grid = _grid(groups, group * shares, 8 * shares, max_blocks, BLOCKS_PER_MULTIPROCESSOR * WARPS)
    return [prepare(transposed, grid, (32, group, shares), (*arrays, rows, max_blocks, ratio))]


def plan_block_scores(
    index: DeviceIndex, rows: int, *, schedule: str | None = None, stream: Any = None
) -> Plan | Literal[False]:
    """A plan of :func:`block_scores` for calls of ``rows`` rows over ``index`` or another of its size and geometry.

    ``stream``: the CuPy stream of the calls; None: the current one. Schedule, refusals (False, counted) and ValueError
    are those of :func:`block_scores`. The plan holds no array: calls give theirs.
    """
    check_count("rows", rows)
    schedule = _default_schedule(index, rows) if schedule is None else schedule
    check_schedule(NAME, schedule)
    made = _make_plan(index, rows, schedule, stream)
    return ops.refuse(NAME, made) if isinstance(made, str) else made


def block_scores(
    q_idx: DeviceArray,
    index: DeviceIndex,
    steps: DeviceArray,
    out: DeviceArray | None = None,
    *,
    schedule: str | None = None,
    plan: Plan | None = None,
) -> DeviceArray | Literal[False]:
    """Scores of every block for every row, with the bytes of ``reference.exact.block_scores``.

    q_idx     [rows, idx_heads, idx_dim] float32 on the device, C-contiguous
    index     device :class:`Index`; its ``pooled`` and ``dead`` are read, of either format
    steps     [rows, 4] int32 on the device
    out       [rows, max_blocks] float32 on the device, or None: a new array of -inf
    schedule  see the module; None: :func:`default_schedule`
    plan      of :func:`plan_block_scores`, which has chosen the schedule; None: that of an earlier call like this one,
              or a new one

    Returns ``out``: blocks 0 to n_bid are written, later ones are left as they are; a row with n_kv 0, or with a record
    beyond the index, is left whole. Returns False before any launch when the geometry is not 4 heads of 128 dims
    (``geometry``), there are more rows than the schedule takes (``schedule``), or the device lacks the asynchronous
    copies that ``held`` needs (``device``: before sm_80). Raises ValueError on mismatched arrays, an unknown schedule,
    and a plan of another stream, device, shape or geometry.
    """
    if plan is not None:
        check_plan(plan, NAME, index.geometry, schedule=schedule)
    else:
        key, plan = _plans.find(
            lambda: (
                *(stream_key(), q_idx.shape, index.format, index.pooled.shape, id(index.geometry), schedule),
                switches().scores_transposed,
            )
        )
    if plan is None:
        check_scores(q_idx, index, steps, out)
        rows = len(q_idx)
        schedule = _default_schedule(index, rows) if schedule is None else schedule
        check_schedule(NAME, schedule)
        made = _make_plan(index, rows, schedule)
        if isinstance(made, str):
            return ops.refuse(NAME, made)
        plan = _plans.keep(key, made)
    inputs: tuple[DeviceArray, ...] = q_idx, index.pooled, index.dead, steps
    if index.format == "int16":
        inputs = q_idx, index.pooled, index.pooled_exponent, index.dead, index.dead_exponent, steps
    if out is None:
        plan.addresses(inputs)
        out = array_module().full(plan.operands[-1].shape, -float("inf"), "float32")
    plan.run((*inputs, out))
    return out
