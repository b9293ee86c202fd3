"""How a call of the exact ``attend`` is launched: blocks that share a row, clusters, scratch, packed arguments.

All of it depends on shapes, formats and the device alone, so it is made once, in a plan (``common/plans.py``).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from qsa.reference.formats import EXACT_FORMATS

from ...ops import MAX_SPLITS
from ..common.plans import Plan, rows_of
from ..common.pools import NAME, fields_of, kinds_of, sets_of
from ..device.containers import DeviceKV
from ..device.scratch import StreamScratch
from ..toolchain.compiler import array_module, max_clusters, prepare, properties, stream_key
from ..toolchain.constants import MAX_GRID_X
from ..toolchain.host import Argument, DeviceArray, Operand
from .exchange_scratch import UNSET, words
from .kernel import build
from .shared_memory import CELLS_OFFSET, DIM, HEADS, cell_bytes, cells_bytes, shared_bytes

GROUPS = {"int8": 4, "q4_0": 8}
"""Scales of a cell in a coding."""

SPLIT_CELLS = 64
"""Cells below which ``split`` cuts a row no further."""

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
"""Blocks of a cluster, cells of each at most, and clusters of a launch. On an H200, 2,051 cells, in microseconds: one
row of 2 KV heads in clusters of 13 (11) blocks 11.8 (12.1), by way of the scratch 14.6; four rows in clusters of 11 or
16 15.5 and 15.3, by way of the scratch in 16 blocks 15.3. 192 cells: a tile for each of 12 warps."""


def _parts(kv):
    """Warps that share a product's columns: three, or one where shared memory has no room for their sums."""
    groups = GROUPS[kv.pool.k.coding], GROUPS[kv.pool.v.coding]
    return 3 if shared_bytes(SHARE, *groups, 3) <= properties().shared_per_block else 1


def room_of(kv: DeviceKV, parts: int) -> int:
    """Cells that a block holds at most, a multiple of 32."""
    groups = GROUPS[kv.pool.k.coding], GROUPS[kv.pool.v.coding]
    held = (properties().shared_per_block - CELLS_OFFSET - cells_bytes(0, *groups)) // cell_bytes(*groups)
    return min(held // SHARE * SHARE, EACH[-1] * 128 * parts)


def _clusters(kvs, cap):
    """Whether the blocks of a row of ``cap`` ids may be a cluster."""
    int8 = all(kv.pool.format == "int8" for kv in kvs)
    return int8 and cap <= CLUSTER * CLUSTER_SHARE and properties().compute_capability == CLUSTERED


def row_blocks(kvs: Sequence[DeviceKV], rows: int, cap: int, schedule: str, splits: int | None = None) -> int:
    """Blocks that share a row and KV head in one launch of ``rows`` rows whose ids have room for ``cap`` cells."""
    # The launches of several sets of slots share the rows.
    heads = max(1, -(-rows // len(sets_of(kvs)))) * kvs[0].pool.geometry.n_head_kv
    least = max(-(-max(cap, 1) // room_of(kv, _parts(kv))) for kv in kvs)
    multiprocessors = properties().multiprocessors
    if schedule == "split":
        if splits is None:
            splits = max(1, min(2 * multiprocessors // heads, MAX_SPLITS, -(-cap // SPLIT_CELLS)))
    else:
        most = CLUSTER if heads <= FEW and _clusters(kvs, cap) else MOST
        splits = max(1, min(multiprocessors // heads, most, -(-cap // SHARE)))
    return max(splits, least)


def scratch_words(kvs: Sequence[DeviceKV], rows: int, cap: int, schedule: str, splits: int | None = None) -> int:
    """int64 words of scratch for one launch; arguments as :func:`row_blocks`."""
    splits = row_blocks(kvs, rows, cap, schedule, splits)
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
    splits = row_blocks(kvs, together if rows else 0, cap, schedule, splits)
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
    launches = []
    for first_row in range(0, rows, together):
        part = [rows_of(position, operand, first_row, together) for position, operand in enumerate(operands[:4])]
        slots = Argument(2, "int32", (4 * rows,))
        if with_slots:
            slots = rows_of(4, operands[4], first_row, together) if len(kvs) > 1 else rows_of(4, operands[4], 0, rows)
        for first_slot, held in sets_of(kvs):
            numbers = first_slot, len(held) if len(kvs) > 1 else 0, splits
            inputs = *part[:3], slots, fields_of(first_slot, len(held))
            launches.append(_prepared(held, inputs, numbers, (exchanged, part[3]), cap, schedule != "split"))
    return Plan(NAME, operands, launches, stream_key(stream), kinds_of(kvs), own)


def _each(room, threads):
    """Cells that a lane looks up of a block's ``room``."""
    return next(each for each in EACH if each * threads >= room)


def _prepared(kvs, inputs, numbers, outputs, cap, clusters):
    """One launch. ``inputs``: q, ids, steps, slots, pools; ``numbers``: first slot, pools, blocks of a row;
    ``outputs``: scratch, out."""
    geometry, pool = kvs[0].pool.geometry, kvs[0].pool
    groups = GROUPS[pool.k.coding], GROUPS[pool.v.coding]
    parts = _parts(kvs[0])
    splits = numbers[2]
    room = max(SHARE, -(-cap // (splits * SHARE)) * SHARE)
    shape = (*groups, geometry.n_head_kv, geometry.group, parts, _each(room, 128 * parts))
    arguments = (*inputs, *numbers, room, *outputs)
    grid = inputs[0].shape[0] * geometry.n_head_kv * splits
    if clusters and 1 < splits <= CLUSTER and grid <= FEW * splits and _clusters(kvs, cap):
        kernel, shared = build(*shape, True, True), shared_bytes(room, *groups, parts, splits)
        if max_clusters(kernel, arguments, 128 * parts, shared, splits) * splits >= grid:
            return prepare(kernel, grid, 128 * parts, arguments, shared, splits)
    kernel = build(*shape, properties().compute_capability >= (8, 0))
    return prepare(kernel, grid, 128 * parts, arguments, shared_bytes(room, *groups, parts))
