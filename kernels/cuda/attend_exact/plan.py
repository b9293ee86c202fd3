"""How a call of the exact ``attend`` is launched: blocks that share a row, clusters, scratch, packed arguments.

All of it depends on shapes, formats and the device alone, so it is made once, in a plan (``common/plans.py``).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from qsa.reference.formats import EXACT_FORMATS

from ...ops import MAX_SPLITS
from ...switches import switches
from ..attend_few import plan as few
from ..common.defaults import defaults
from ..common.plans import Plan, rows_of
from ..common.pool_tables import ROW
from ..common.pools import NAME, by_value, in_table, kinds_of, planned_table, sets_of
from ..device.containers import DeviceKV
from ..device.scratch import StreamScratch
from ..toolchain.compiler import array_module, max_clusters, prepare, properties, resident_blocks, stream_key
from ..toolchain.constants import MAX_GRID_X
from ..toolchain.host import Argument, DeviceArray, Operand
from .exchange_scratch import UNSET, words
from .kernel import build
from .shared_memory import CELLS_OFFSET, DIM, HEADS, TILE, cell_bytes, cells_bytes, shared_bytes

GROUPS = {"int8": 4, "q4_0": 8}
"""Scales of a cell in a coding."""

SPLIT_CELLS = 64
"""Cells below which ``split`` cuts a row no further."""

SPLIT_RESIDENT = 2
"""Blocks a multiprocessor that ``split`` fills at most. Where it planned two and one fits, on an H200, 2,051 cells, it
took 14.0 us for 1 row, 26.2 for 4, 40.6 for 16 and 85.7 for 64, against 11.7, 15.0, 25.1 and 64.4 of ``batch``."""

SHARE = 32
"""Cells below which the other schedules cut a row no further."""

MOST = 20
"""Blocks that share a row at most in the other schedules, unless its cells need more: beyond, telling each other costs
more than a smaller share saves."""

EACH = (1, 2, 6)
"""Cells that a lane looks up, one form of the kernel each; more than 6 hold no block's cells."""

CLUSTERED = (9, 0)
"""The device on which the blocks of a row may be a cluster; measured there alone."""

CLUSTER, CLUSTER_SHARE, FEW = 13, 192, 2
"""In the standing path: blocks of a cluster, cells of each at most, and clusters of a launch. On an H200, 2,051 cells,
in microseconds: one row of 2 KV heads in clusters of 13 (11) blocks 11.8 (12.1), by way of the scratch 14.6. 192 cells:
a tile for each of 12 warps."""


def _parts(kv):
    """Warps that share a product's columns: three, or one where shared memory has no room for their sums."""
    groups = GROUPS[kv.pool.k.coding], GROUPS[kv.pool.v.coding]
    return 3 if shared_bytes(SHARE, *groups, 3) <= properties().shared_per_block else 1


def room_of(kv: DeviceKV, parts: int) -> int:
    """Cells that a block holds at most, a multiple of 32."""
    groups = GROUPS[kv.pool.k.coding], GROUPS[kv.pool.v.coding]
    held = (properties().shared_per_block - CELLS_OFFSET - cells_bytes(0, *groups)) // cell_bytes(*groups)
    return min(held // SHARE * SHARE, EACH[-1] * 128 * parts)


def _int8(kvs):
    """Whether all K/V are of the one format of which there are clusters."""
    return all(kv.pool.format == "int8" for kv in kvs)


def _clusters(kvs, cap):
    """Whether the blocks of a row of ``cap`` ids may be a cluster in the standing path."""
    return _int8(kvs) and cap <= CLUSTER * CLUSTER_SHARE and properties().compute_capability == CLUSTERED


class _Form(NamedTuple):
    """The kernel of a launch, its lanes, the cells of a block's shared memory, the bytes of it, and whether the slots'
    pools come in a table."""

    kernel: Any
    lanes: int
    room: int
    shared: int
    tabled: bool


def _form(kv, cap, splits, cluster, tabled):
    """:class:`_Form` of ``splits`` blocks that share ``cap`` cells, or of such a ``cluster``; ``tabled``: the slots'
    pools come in a table."""
    groups, geometry, parts = (GROUPS[kv.pool.k.coding], GROUPS[kv.pool.v.coding]), kv.pool.geometry, _parts(kv)
    lanes, room = 128 * parts, max(SHARE, -(-cap // (splits * SHARE)) * SHARE)
    shape = (*groups, geometry.n_head_kv, geometry.group, parts, next(each for each in EACH if each * lanes >= room))
    if cluster:
        kernel = build(*shape, True, True, room <= lanes // 32 * TILE, tabled)
    else:
        kernel = build(*shape, properties().compute_capability >= (8, 0), False, False, tabled)
    return _Form(kernel, lanes, room, shared_bytes(room, *groups, parts, splits if cluster else 1), tabled)


def _held_clusters(form, splits):
    """Clusters of ``splits`` blocks that the device holds at once; the driver is asked once for each form."""
    if form.shared > properties().shared_per_block:
        return 0
    return max_clusters(form.kernel, _ARGUMENTS[form.tabled], form.lanes, form.shared, splits)


def _resident(form):
    """Blocks of the form that a multiprocessor holds at once; the driver is asked once for each form."""
    return resident_blocks(form.kernel, _ARGUMENTS[form.tabled], form.lanes, form.shared)


_ARGUMENTS = [
    (
        *(Argument(0, kind, (0,) * axes) for kind, axes in (("float32", 3), ("int32", 2), ("int32", 2), ("int32", 1))),
        *(pools, 0, 0, 0),
        *(Argument(0, kind, (0,) * axes) for kind, axes in (("int64", 1), ("float32", 3))),
    )
    for pools in (by_value(1), Argument(0, "int64", (0, ROW)))
]
"""The kernel's arguments by type alone, which is all that a question about it needs: pools by value, by a table."""


def _table_cluster(kvs, rows, cap):
    """Blocks of the cluster that a row and KV head get by the table of ``common/defaults.py``; 0 where it has none for
    such a call, or the device holds no size of it often enough."""
    table = defaults(switches().split_attn)
    heads = rows * kvs[0].pool.geometry.n_head_kv
    if not 0 < heads <= table.cluster_heads or cap > table.cluster_cells or not _int8(kvs):
        return 0
    for size in dict.fromkeys(min(size, -(-cap // SHARE)) for size in table.clusters):
        # One wave, at a block each: a size that is too large by this is not worth compiling.
        one_wave = size > 1 and size * heads <= properties().multiprocessors
        if one_wave and _held_clusters(_form(kvs[0], cap, size, True, in_table(kvs)), size) >= heads:
            return size
    return 0


def _few_form(kvs, rows, cap, schedule):
    """The :class:`~qsa.kernels.cuda.attend_few.plan.Form` of a call of few rows by that table, or None."""
    table = defaults(switches().split_attn)
    within = table.few_cells <= cap <= table.cluster_cells
    if not rows or not within or schedule == "split" or len(kvs) > 1 or not _int8(kvs):
        return None
    for rule in table.few:
        form = few.form_of(kvs[0], cap, rule.blocks) if rows <= rule.rows else None
        if form is not None and few.fits(form, rows):
            return form
    return None


def row_blocks(kvs: Sequence[DeviceKV], rows: int, cap: int, schedule: str, splits: int | None = None) -> int:
    """Blocks that share a row and KV head in one launch of ``rows`` rows whose ids have room for ``cap`` cells, in the
    current state of the switch split_attn."""
    form = _few_form(kvs, rows, cap, schedule)
    if form is not None:
        return form.blocks
    size = 0 if schedule == "split" else _table_cluster(kvs, rows, cap)
    return size or _standing_blocks(kvs, rows, cap, schedule, splits)


def _standing_blocks(kvs, rows, cap, schedule, splits):
    """:func:`row_blocks` of the standing path, and of ``split``."""
    # The launches of several formats share the rows.
    heads = max(1, -(-rows // len(sets_of(kvs)))) * kvs[0].pool.geometry.n_head_kv
    least = max(-(-max(cap, 1) // room_of(kv, _parts(kv))) for kv in kvs)
    multiprocessors = properties().multiprocessors
    if schedule == "split":
        if splits is None:
            most = min(MAX_SPLITS, -(-cap // SPLIT_CELLS))
            splits = max(1, least, min(SPLIT_RESIDENT * multiprocessors // heads, most))
            # In one wave: a second block a multiprocessor only where there is room for it.
            if splits * heads > multiprocessors:
                held = min(_resident(_form(kvs[0], cap, splits, False, in_table(kvs))), SPLIT_RESIDENT)
                splits = max(1, min(held * multiprocessors // heads, most))
    else:
        most = CLUSTER if heads <= FEW and _clusters(kvs, cap) else MOST
        splits = max(1, min(multiprocessors // heads, most, -(-cap // SHARE)))
    return max(splits, least)


def scratch_words(kvs: Sequence[DeviceKV], rows: int, cap: int, schedule: str, splits: int | None = None) -> int:
    """int64 words of scratch for one launch, enough in every state of the switch; arguments as :func:`row_blocks`."""
    standing = _standing_blocks(kvs, rows, cap, schedule, splits)
    splits = max(standing, row_blocks(kvs, rows, cap, schedule, splits))
    groups = max(GROUPS[kv.pool.v.coding] for kv in kvs)
    return rows * kvs[0].pool.geometry.n_head_kv * words(splits, groups) if splits > 1 else 0


def new_scratch(n_words: int) -> DeviceArray:
    """A scratch of ``n_words``, int64 on the device. Every launch leaves it as it was made; launches that may run at
    the same time need one each."""
    return array_module().full(max(1, n_words), UNSET, np.int64)


kept_scratch = StreamScratch("int64", UNSET)


def _refusal(kvs, schedule):
    """The reason for which a call is refused whatever its scratch, or None."""
    formats = {kv.pool.format for kv in kvs}
    geometry = kvs[0].pool.geometry
    if not formats <= set(EXACT_FORMATS) or (schedule == "split" and formats != {"int8"}):
        return "format"
    if schedule == "split" and properties().compute_capability < (8, 0):
        return "device"
    if geometry.head_dim != DIM or geometry.group > HEADS or any(kv.pool.geometry != geometry for kv in kvs):
        return "geometry"
    return None


def make_plan(
    kvs: Sequence[DeviceKV],
    rows: int,
    cap: int,
    schedule: str,
    splits: int | None,
    with_slots: bool,
    scratch: DeviceArray | None,
    stream: Any,
) -> Plan | str:
    """The plan of a call of ``rows`` rows, whose ids have room for ``cap`` cells; or the reason for which
    it is refused.

    with_slots  whether a call gives the slot of every row
    scratch     the caller's, which every call gives again; None: the plan has one, kept for the stream
    """
    reason = _refusal(kvs, schedule)
    if reason:
        return reason
    together = 1 if schedule == "step" else max(1, rows)
    geometry = kvs[0].pool.geometry
    form = _few_form(kvs, together if rows else 0, cap, schedule)
    cluster = 0 if form is not None or schedule == "split" or not rows else _table_cluster(kvs, together, cap)
    splits = cluster or _standing_blocks(kvs, together if rows else 0, cap, schedule, splits)
    if splits > properties().multiprocessors or together * geometry.n_head_kv * splits > MAX_GRID_X:
        return "geometry"
    groups = max(GROUPS[held.pool.v.coding] for held in kvs)
    needed = together * geometry.n_head_kv * words(splits, groups) if splits > 1 else 0
    if scratch is not None and (scratch.dtype != np.int64 or not scratch.flags.c_contiguous or scratch.size < needed):
        return "scratch"
    results = rows, geometry.n_head, geometry.head_dim
    operands = [
        Operand("q", "float32", results),
        Operand("ids", "int32", (rows, cap), 4),
        Operand("steps", "int32", (rows, 4)),
        Operand("out", "float32", results),
    ]
    if with_slots:
        operands.append(Operand("slots", "int32", (rows,), 4))
    own = [] if scratch is not None else [kept_scratch.get((max(1, needed),), stream)]
    # The scratch is the last array, whether a call gives it or the plan has it.
    exchanged = Argument(len(operands), "int64", own[0].shape if scratch is None else scratch.shape)
    if scratch is not None:
        operands.append(Operand("scratch", "int64", scratch.shape, 8))
    # The table of pools, where there is one, comes after it.
    sets, launches = sets_of(kvs, exchanged.position + 1), []
    for first_row in range(0, rows, together):
        part = [rows_of(position, operand, first_row, together) for position, operand in enumerate(operands[:4])]
        slots = Argument(2, "int32", (4 * rows,))
        if with_slots:
            slots = rows_of(4, operands[4], first_row, together) if len(kvs) > 1 else rows_of(4, operands[4], 0, rows)
        for each in sets:
            if form is not None:
                launches.append(few.prepared(form, part[0].shape[0], tuple(part[:3]), part[3]))
                continue
            tried = cluster > 0 or (schedule != "split" and _standing_cluster(each.kv, together, cap, splits))
            launches.append(_prepared(each, (*part[:3], slots), splits, (exchanged, part[3]), cap, tried))
    key = stream_key(stream)
    return Plan(NAME, operands, launches, key, kinds_of(kvs), own, planned_table(kvs, key))


def _standing_cluster(kv, rows, cap, splits):
    """Whether the blocks of a row should be a cluster in the standing path."""
    few = rows * kv.pool.geometry.n_head_kv <= FEW
    return few and 1 < splits <= CLUSTER and _clusters([kv], cap)


def _prepared(each, inputs, splits, outputs, cap, cluster):
    """One launch, over the slots of the :class:`PoolSet` ``each``. ``inputs``: q, ids, steps, slots; ``splits``: blocks
    of a row; ``outputs``: scratch, out. ``cluster``: those blocks are one, if the device holds all of them at once."""
    heads = inputs[0].shape[0] * each.kv.pool.geometry.n_head_kv
    form = _form(each.kv, cap, splits, cluster, each.tabled)
    if cluster and _held_clusters(form, splits) < heads:
        cluster, form = False, _form(each.kv, cap, splits, False, each.tabled)
    arguments = (*inputs, each.pools, each.slots, splits, form.room, *outputs)
    size = splits if cluster else 1
    return prepare(form.kernel, heads * splits, form.lanes, arguments, form.shared, size)
