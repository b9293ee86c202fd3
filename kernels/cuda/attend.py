"""``attend`` on CUDA: the exact arithmetic in every schedule; the float one is in ``attend_float``.

One kernel (attend_exact/kernel.py) serves every schedule of the exact arithmetic, and all give the same bytes. A
schedule only says how many blocks share a row:

==========  =======================================================================================================
schedule    blocks that share a row and KV head
==========  =======================================================================================================
``batch``   as many as leave no multiprocessor without a block: one wave, one block each
``multi``   the same, by the engines' name for several slots
``prompt``  the same
``step``    the same, a row at a time
``split``   up to 20, about two blocks per multiprocessor over all rows; int8 alone
==========  =======================================================================================================

A single row of int8 on sm_90 goes in a cluster of blocks, which tell each other by way of shared memory; otherwise, and
in the schedule ``split``, they do by way of the scratch. Up to four slots' pools take one launch; slots of different
formats take a launch each. Widths, ids and page tables are read on the device: a captured graph follows them. Source:
design sections 4, 5 and 8.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from qsa.reference.formats import EXACT_FORMATS

from ..ops import MAX_SPLITS, WINDOW_ROWS, refuse
from ..switches import switches
from .attend_exact.exchange_scratch import UNSET, words
from .attend_exact.kernel import build
from .attend_exact.shared_memory import CELLS_OFFSET, DIM, HEADS, cell_bytes, cells_bytes, shared_bytes
from .attend_float.launch import attend_float
from .common.pools import NAME, checked, pool_fields, sets_of
from .device.containers import DeviceKV
from .device.scratch import StreamScratch
from .toolchain.compiler import array_module, launch, max_clusters, properties
from .toolchain.constants import MAX_GRID_X
from .toolchain.host import DeviceArray

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


def _room(kv, parts):
    """Cells that a block holds at most, a multiple of 32."""
    groups = GROUPS[kv.pool.k.coding], GROUPS[kv.pool.v.coding]
    held = (properties().shared_per_block - CELLS_OFFSET - cells_bytes(0, *groups)) // cell_bytes(*groups)
    return min(held // SHARE * SHARE, EACH[-1] * 128 * parts)


def _clusters(kvs, cap):
    """Whether the blocks of a row of ``cap`` ids may be a cluster."""
    int8 = all(kv.pool.format == "int8" for kv in kvs)
    return int8 and cap <= CLUSTER * CLUSTER_SHARE and properties().compute_capability == CLUSTERED


def plan(kvs: Sequence[DeviceKV], rows: int, cap: int, schedule: str, splits: int | None = None) -> int:
    """Blocks that share a row and KV head in one launch of ``rows`` rows whose ids have room for ``cap`` cells."""
    # The launches of several sets of slots share the rows.
    heads = max(1, -(-rows // len(sets_of(kvs)))) * kvs[0].pool.geometry.n_head_kv
    least = max(-(-max(cap, 1) // _room(kv, _parts(kv))) for kv in kvs)
    multiprocessors = properties().multiprocessors
    if schedule == "split":
        if splits is None:
            splits = max(1, min(2 * multiprocessors // heads, MAX_SPLITS, -(-cap // SPLIT_CELLS)))
    else:
        most = CLUSTER if heads <= FEW and _clusters(kvs, cap) else MOST
        splits = max(1, min(multiprocessors // heads, most, -(-cap // SHARE)))
    return max(splits, least)


def scratch_words(kvs: Sequence[DeviceKV], rows: int, cap: int, schedule: str, splits: int | None = None) -> int:
    """int64 words of scratch for one launch; arguments as :func:`plan`."""
    splits = plan(kvs, rows, cap, schedule, splits)
    groups = max(GROUPS[kv.pool.v.coding] for kv in kvs)
    return rows * kvs[0].pool.geometry.n_head_kv * words(splits, groups) if splits > 1 else 0


def new_scratch(n_words: int) -> DeviceArray:
    """A scratch of ``n_words``, int64 on the device. Every launch leaves it as it was made; launches that may run at
    the same time need one each."""
    return array_module().full(max(1, n_words), UNSET, np.int64)


_scratch = StreamScratch("int64", UNSET)


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


def attend(
    q: DeviceArray,
    kv: DeviceKV | Sequence[DeviceKV],
    ids: DeviceArray,
    steps: DeviceArray,
    slots: DeviceArray | None = None,
    out: DeviceArray | None = None,
    *,
    schedule: str | None = None,
    splits: int | None = None,
    arithmetic: str | None = None,
    scratch: DeviceArray | None = None,
    stream: Any = None,
) -> DeviceArray | Literal[False]:
    """Attention of every row over its selected cells; all arrays on the device, C-contiguous.

    q           [rows, n_head, 256] float32, normed and rotated by position
    kv          a DeviceKV, or a list of them with ``slots`` [rows] int32 naming each row's; a row that names none of
                them is left unwritten. Of one DeviceKV alone the rows are all its own, and ``slots`` need not be given.
                int8 V scales are not negative, as ``append_kv`` writes them
    ids         [rows, cap] int32; -1, cells beyond the page table and cells whose page is not resident are not selected
    steps       [rows, 4] int32; the first ``width`` ids of each row are its cells
    out         [rows, n_head, 256] float32, or None: a new array
    schedule    see the module; None: ``split`` where ``splits`` are given, and under the switch split_attn where that
                fits and the call has the rows of a window (8 at most), else ``batch``
    splits      1 to MAX_SPLITS, for ``split`` alone; None: chosen
    arithmetic  ``exact``, ``float``, or None: the switch QSA_ARITHMETIC
    scratch     of :func:`new_scratch` and :func:`scratch_words`, or None: one kept for the device and stream. For the
                float arithmetic as ``attend_float`` says
    stream      a CuPy stream; None: the current one

    Returns ``out``: 0 for a row that selects nothing; a query that is not finite makes its own row and head NaN.
    Returns False before any launch for a format outside the exact arithmetic and, in the split schedule, one other than
    int8 (``format``), for a split on a device before sm_80 (``device``), for a head_dim other than 256, more than 12
    heads to a KV head, or more cells than a row's blocks can hold (``geometry``), and for a scratch that is too small
    or of another type (``scratch``). Raises ValueError on mismatched arrays, an unknown schedule or arithmetic, or
    splits that do not fit. Page tables are checked when a :class:`~qsa.kernels.cuda.device.containers.DeviceKV` is made
    and by its ``set_table``; nothing is synchronised here to check them again.
    """
    if schedule is None and splits is None and switches().split_attn and len(q) <= WINDOW_ROWS:
        answer = attend(
            q, kv, ids, steps, slots, out, schedule="split", arithmetic=arithmetic, scratch=scratch, stream=stream
        )
        # What does not fit, a format or a scratch, keeps the schedule it had.
        if answer is not False:
            return answer
    if schedule is None:
        schedule = "batch" if splits is None else "split"
    arithmetic = switches().arithmetic if arithmetic is None else arithmetic
    if arithmetic == "float":
        return attend_float(q, kv, ids, steps, slots, out, schedule, splits, scratch, stream)
    if arithmetic != "exact":
        raise ValueError(f"arithmetic = {arithmetic!r}: allowed are exact and float")
    call = checked(q, kv, ids, steps, slots, out, schedule, splits)
    kvs, rows, cap = call.kvs, call.rows, call.cap
    reason = _refusal(kvs, schedule)
    if reason:
        return refuse(NAME, reason)
    together = 1 if schedule == "step" else rows
    splits = plan(kvs, together, cap, schedule, splits)
    if splits > properties().multiprocessors or together * call.geometry.n_head_kv * splits > MAX_GRID_X:
        return refuse(NAME, "geometry")
    groups = max(GROUPS[held.pool.v.coding] for held in kvs)
    needed = together * call.geometry.n_head_kv * words(splits, groups) if splits > 1 else 0
    if scratch is not None and (scratch.dtype != np.int64 or not scratch.flags.c_contiguous or scratch.size < needed):
        return refuse(NAME, "scratch")
    out = array_module().empty(q.shape, "float32") if out is None else out
    if rows == 0:
        return out
    if scratch is None:
        scratch = _scratch.get((max(1, needed),), stream)
    for first_row in range(0, rows, together):
        part = slice(first_row, first_row + together)
        for first_slot, held in sets_of(kvs):
            _launch(
                held,
                (q[part], ids[part], steps[part], call.slots[part] if len(kvs) > 1 else call.slots),
                (first_slot, len(held) if len(kvs) > 1 else 0, splits),
                (scratch, out[part]),
                cap,
                schedule != "split",
                stream,
            )
    return out


def _each(room, threads):
    """Cells that a lane looks up of a block's ``room``."""
    return next(each for each in EACH if each * threads >= room)


def _launch(kvs, inputs, numbers, outputs, cap, clusters, stream):
    geometry, pool = kvs[0].pool.geometry, kvs[0].pool
    groups = GROUPS[pool.k.coding], GROUPS[pool.v.coding]
    parts = _parts(kvs[0])
    first_slot, n_pools, splits = numbers
    room = max(SHARE, -(-cap // (splits * SHARE)) * SHARE)
    shape = (*groups, geometry.n_head_kv, geometry.group, parts, _each(room, 128 * parts))
    arguments = (*inputs, pool_fields(kvs), first_slot, n_pools, splits, room, *outputs)
    grid = len(inputs[0]) * geometry.n_head_kv * splits
    if clusters and 1 < splits <= CLUSTER and grid <= FEW * splits and _clusters(kvs, cap):
        kernel, shared = build(*shape, True, True), shared_bytes(room, *groups, parts, splits)
        if max_clusters(kernel, arguments, 128 * parts, shared, splits) * splits >= grid:
            launch(kernel, grid, 128 * parts, arguments, shared=shared, stream=stream, cluster=splits)
            return
    launch(
        build(*shape, properties().compute_capability >= (8, 0)),
        grid,
        128 * parts,
        arguments,
        shared=shared_bytes(room, *groups, parts),
        stream=stream,
    )
