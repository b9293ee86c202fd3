"""``select``, exact, on CUDA: the cells a row attends to, in five schedules with the same ids.

=============  ================================================================================================
schedule       rows of up to
=============  ================================================================================================
``registers``  33,792 blocks (135,168 cells) of capacity; a thread block to a row, keys stay in registers
``wide``       any capacity; a thread block to a row, keys read again in every pass, one lane looks for the bin
``scan``       any capacity; as ``wide``, a scan over the thread block looks for the bin
``spread``     507,904 blocks (2 million cells); a thread block to a slice of a row, at most 16,384 blocks
``bounded``    17,408 blocks; 278,528 in clusters (sm_90). Keys below a bound are dropped at once; sm_80 and newer
=============  ================================================================================================

A call that names none gets what the table of ``common/defaults.py`` says. With the switch STRATA_QSA_TOPK_SCAN at 0
that is ``registers`` while they have room, beyond ``wide`` up to a capacity of 65,536 blocks and then ``spread``; at 1
``scan`` in the place of ``wide``.

Both rules of the field are in the step records' widths: the kernels select ``width`` less the tail from the complete
blocks, and cut the last one chosen when that is no whole number of blocks. What a row has is read from its step record
on the device: a captured launch serves every context.
"""

from typing import Any, Literal

from qsa.reference.geometry import REAL, RULES, Geometry

from .. import ops
from ..switches import switches
from .common.checks import check_array, check_count, check_schedule
from .common.defaults import ANY, HELD_BLOCKS, STANDING, defaults
from .common.plans import Plan, PlanCache, check_plan, whole
from .device.scratch import StreamScratch
from .toolchain.compiler import array_module, max_clusters, prepare, properties, stream_key
from .toolchain.host import Argument, DeviceArray, Operand
from .topk.bounded import BUILDS, bounded, lanes_of, shared_bytes
from .topk.kernels import CHUNK_TURNS, REGISTER_TURNS, SLICE_TURNS, one_block, spread
from .topk.radix_search import MOST_BEST, THREADS

NAME = "select"

CLUSTERS = (8, 16)
"""Thread blocks of a cluster in ``bounded``, the best first: 256K cells, 8 against 16, take 8.6 and 8.6 us for 1 row,
8.8 and 9.9 for 4. An H200 holds 30 clusters of 8 thread blocks, and 7 of 16."""

_ARGUMENTS = (*(Argument(0, dtype, (0, 0)) for dtype in ("float32", "int32", "int32")), 0, 0)
"""The kernel's arguments by type alone, which is all that a question about it needs."""

_scratch = StreamScratch()
_plans = PlanCache()


def _most_best(geometry):
    """Blocks that a row selects at most: under the rule ``cells`` a part of one more."""
    return -(-geometry.max_width // geometry.ratio)


def scratch_shape(rows: int, max_blocks: int, geometry: Geometry = REAL) -> tuple[int, int]:
    """Shape of the int32 scratch that the schedule ``spread`` needs. Zero it once; every call leaves its first column
    zero, and may use fewer rows or blocks."""
    return rows, 1 + 2 * _slices(max_blocks) * _most_best(geometry)


def _slices(max_blocks):
    return -(-max_blocks // (THREADS * SLICE_TURNS))


def _slices_fit(max_blocks, geometry):
    """Whether one thread block can hold the best of every slice."""
    return _slices(max_blocks) * _most_best(geometry) <= THREADS * SLICE_TURNS


def _scratch_fits(scratch, rows, max_blocks, geometry):
    needed = scratch_shape(rows, max_blocks, geometry)
    return all(have >= need for have, need in zip(scratch.shape, needed, strict=True))


def default_schedule(rows: int, max_blocks: int, scratch: DeviceArray | None = None, geometry: Geometry = REAL) -> str:
    """The schedule of a call that names none. ``scratch``: the caller's, which says where it fits that rows be spread,
    and where it does not that they be not."""
    switch = switches().topk_scan
    # True asks for another form of the standing path's wide selection.
    table = STANDING if switch else defaults(switch)
    schedule = table.selection_schedule(rows, max_blocks)
    # With rows beyond every other rule: what takes any capacity.
    other = table.selection_schedule(ANY, max_blocks)
    if scratch is not None and max_blocks > HELD_BLOCKS:
        schedule = "spread" if _scratch_fits(scratch, rows, max_blocks, geometry) else other
    if schedule == "bounded" and not _cluster_of(rows, max_blocks, geometry):
        schedule = "spread" if max_blocks > HELD_BLOCKS else other
    if schedule == "spread" and not _slices_fit(max_blocks, geometry):
        schedule = other
    return "scan" if switch and schedule == "wide" else schedule


def _build_of(max_blocks, size):
    """The build of ``bounded`` for a capacity, with ``size`` thread blocks a row; None where it is too much."""
    return next((blocks for blocks in BUILDS if max_blocks <= size * blocks), None)


def _cluster_of(rows, max_blocks, geometry):
    """Thread blocks of a row in ``bounded``: 1, or those of a cluster; 0 where there is none for such a capacity.

    The first cluster of which the device holds ``rows`` at once; where there is none, the first of which it holds
    any."""
    if _build_of(max_blocks, 1):
        return 1
    found = 0
    for size in CLUSTERS:
        blocks = _build_of(max_blocks, size)
        if blocks is None:
            continue
        kernel, shared = bounded(blocks, size, geometry.ratio), shared_bytes(blocks, size)
        held = max_clusters(kernel, _ARGUMENTS, lanes_of(size), shared, size)
        if held >= max(1, rows):
            return size
        found = found or (size if held else 0)
    return found


def _bounded(rows, max_blocks, cap, geometry, arrays):
    """The launch of ``bounded``; or the reason for which it is refused."""
    if properties().compute_capability < (8, 0):
        return "device"
    size = _cluster_of(rows, max_blocks, geometry)
    if not size:
        return "capacity"
    blocks = _build_of(max_blocks, size)
    arguments, shared = (*arrays, max_blocks, cap), shared_bytes(blocks, size)
    return prepare(bounded(blocks, size, geometry.ratio), rows * size, lanes_of(size), arguments, shared, size)


def _make_plan(
    rows: int,
    max_blocks: int,
    cap: int,
    geometry: Geometry,
    schedule: str,
    scratch: DeviceArray | None,
    stream: Any = None,
) -> Plan | str:
    """The plan of a call of ``rows`` rows of ``max_blocks`` scores and ``cap`` ids; or the reason for which it is
    refused. ``scratch``: the caller's, which every call of the schedule ``spread`` gives again; None: the plan has
    one, kept for the stream."""
    if _most_best(geometry) > MOST_BEST:
        return "geometry"
    turns = next((t for t in REGISTER_TURNS if max_blocks <= THREADS * t), None)
    if (schedule == "registers" and turns is None) or (schedule == "spread" and not _slices_fit(max_blocks, geometry)):
        return "capacity"
    if schedule == "spread" and scratch is not None and not _scratch_fits(scratch, rows, max_blocks, geometry):
        return "scratch"
    operands = [
        Operand("scores", "float32", (rows, max_blocks)),
        Operand("steps", "int32", (rows, 4)),
        Operand("ids", "int32", (rows, cap)),
    ]
    arrays, launches, own = whole(operands), [], []
    if scratch is not None:
        operands.append(Operand("scratch", "int32", scratch.shape))
    if rows and schedule == "spread":
        if scratch is None:
            own = [_scratch.get(scratch_shape(rows, max_blocks, geometry), stream)]
        shape = (own[0] if scratch is None else scratch).shape
        arguments = (*arrays, Argument(3, "int32", shape), max_blocks, cap, shape[1])
        kernel = spread(SLICE_TURNS, geometry.ratio)
        launches.append(prepare(kernel, (rows, _slices(max_blocks)), THREADS, arguments))
    elif rows and schedule == "bounded":
        launch = _bounded(rows, max_blocks, cap, geometry, arrays)
        if isinstance(launch, str):
            return launch
        launches.append(launch)
    elif rows:
        held = schedule == "registers"
        kernel = one_block(turns if held else CHUNK_TURNS, held, schedule != "wide", geometry.ratio)
        launches.append(prepare(kernel, rows, THREADS, (*arrays, max_blocks, cap)))
    return Plan(NAME, operands, launches, stream_key(stream), geometry, own)


def plan_select(
    rows: int,
    max_blocks: int,
    cap: int | None = None,
    *,
    geometry: Geometry = REAL,
    schedule: str | None = None,
    stream: Any = None,
) -> Plan | Literal[False]:
    """A plan of :func:`select` for calls of ``rows`` rows of ``max_blocks`` scores, whose ids have room for ``cap``
    cells (None: max_width), under either rule.

    ``stream``: the CuPy stream of the calls; None: the current one. Schedule, refusals (False, counted) and ValueError
    are those of :func:`select`. The scratch of ``spread`` is made here, so that the calls can be captured.
    """
    check_count("rows", rows)
    check_count("max_blocks", max_blocks)
    cap = geometry.max_width if cap is None else cap
    check_count("cap", cap)
    least = _least_cap(max_blocks, geometry)
    if cap < least:
        raise ValueError(f"cap = {cap}: must be {least} or more")
    schedule = default_schedule(rows, max_blocks, None, geometry) if schedule is None else schedule
    check_schedule(NAME, schedule)
    made = _make_plan(rows, max_blocks, cap, geometry, schedule, None, stream)
    return ops.refuse(NAME, made) if isinstance(made, str) else made


def _least_cap(max_blocks, geometry):
    """Cells that a row of ``max_blocks`` blocks can select."""
    return min(geometry.max_width, geometry.ratio * (max_blocks + 1) - 1)


def _check_rule(rule):
    if rule not in RULES:
        raise ValueError(f"rule = {rule!r}: allowed are {', '.join(RULES)}")


def check_select(
    scores: DeviceArray,
    steps: DeviceArray,
    ids: DeviceArray | None,
    scratch: DeviceArray | None,
    rule: str,
    geometry: Geometry,
) -> None:
    """Raises ValueError on an unknown rule, or unless the device arrays are those of :func:`select`."""
    _check_rule(rule)
    if scores.ndim != 2:
        raise ValueError(f"scores: shape {scores.shape}: must be [rows, blocks]")
    rows, max_blocks = scores.shape
    check_array("scores", scores, "float32", (rows, max_blocks))
    check_array("steps", steps, "int32", (rows, 4))
    if ids is not None:
        cap = _least_cap(max_blocks, geometry)
        if ids.ndim != 2 or ids.shape[1] < cap:
            raise ValueError(f"ids: shape {ids.shape}: must be [{rows}, {cap} or more]")
        check_array("ids", ids, "int32", (rows, ids.shape[1]))
    if scratch is not None:
        check_array("scratch", scratch, "int32", getattr(scratch, "shape", ()))
        if scratch.ndim != 2:
            raise ValueError(f"scratch: shape {scratch.shape}: must be [rows, words], see scratch_shape")


def select(
    scores: DeviceArray,
    steps: DeviceArray,
    ids: DeviceArray | None = None,
    *,
    rule: str = "blocks",
    geometry: Geometry = REAL,
    schedule: str | None = None,
    scratch: DeviceArray | None = None,
    plan: Plan | None = None,
) -> DeviceArray | Literal[False]:
    """The selected cells of every row, ascending and unique, with the ids of ``reference.exact.select``.

    scores    [rows, max_blocks] float32 on the device, C-contiguous; entries 0 to n_bid - 1 are read
    steps     [rows, 4] int32 on the device, made for ``rule``
    ids       [rows, cap] int32 on the device, or None: a new array with cap = max_width. cap at least what a row of
              max_blocks blocks can select
    schedule  see the module; None: :func:`default_schedule`
    scratch   for ``spread``, :func:`scratch_shape` int32 on the device, the first column zero; None: one kept for the
              current stream, made by the first call that needs it (so make one before a graph capture)
    plan      of :func:`plan_select`, which has chosen schedule and scratch; None: that of an earlier call like this
              one, or a new one

    Returns ``ids``: ``width`` cells of every row, then -1; a row with n_kv 0, or with a record that does not belong to
    these scores, is -1 throughout. Returns False before any launch when the capacity is beyond the schedule
    (``capacity``), the scratch too small (``scratch``) or the budget beyond 1,024 blocks (``geometry``). Raises
    ValueError on mismatched arrays, an unknown rule or an unknown schedule, and on a plan of another stream, device,
    shape or geometry.
    """
    if plan is not None:
        _check_rule(rule)
        check_plan(plan, NAME, geometry, schedule=schedule, scratch=scratch)
    else:
        key, plan = _plans.find(
            lambda: (
                *(stream_key(), scores.shape, None if ids is None else ids.shape, rule, id(geometry), schedule),
                None if scratch is None else (scratch.shape, scratch.dtype),
                switches().topk_scan,
            )
        )
    if plan is None:
        check_select(scores, steps, ids, scratch, rule, geometry)
        rows, max_blocks = scores.shape
        if schedule is None:
            schedule = default_schedule(rows, max_blocks, scratch, geometry)
        check_schedule(NAME, schedule)
        cap = geometry.max_width if ids is None else ids.shape[1]
        made = _make_plan(rows, max_blocks, cap, geometry, schedule, scratch)
        if isinstance(made, str):
            return ops.refuse(NAME, made)
        plan = _plans.keep(key, made)
    if ids is None:
        plan.addresses((scores, steps))
        ids = array_module().empty(plan.operands[2].shape, "int32")
    plan.run((scores, steps, ids) if scratch is None else (scores, steps, ids, scratch))
    return ids
