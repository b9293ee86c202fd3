"""``attend`` on CUDA: the exact arithmetic in every schedule; the float one is in ``attend_float``.

One kernel (``attend_kernel``) serves every schedule of the exact arithmetic, and all give the same bytes; a schedule
only says how many blocks share a row:

==========  =======================================================================================================
schedule    blocks that share a row and KV head
==========  =======================================================================================================
``batch``   as many as leave no multiprocessor without a block: one wave, one block each
``multi``   the same, by the engines' name for several slots
``prompt``  the same
``step``    the same, a row at a time
``split``   up to 20, about two blocks per multiprocessor over all rows; int8 alone
==========  =======================================================================================================

Up to four slots' pools take one launch; slots of different formats take a launch each. Widths, ids and page tables are
read on the device: a captured graph follows them. Source: design sections 4, 5 and 8.
"""

import numpy as np

from ...reference.formats import EXACT_FORMATS
from ..ops import MAX_SPLITS, WINDOW_ROWS, refuse
from ..switches import switches
from .attend_exchange import UNSET, words
from .attend_float import attend_float
from .attend_kernel import DIM, HEADS, MAX_POOLS, POOL_FIELDS, build, cell_bytes, shared_bytes
from .checks import check_array, check_schedule
from .compiler import address, array_module, launch, properties

NAME = "attend"

GROUPS = {"int8": 4, "q4_0": 8}
"""Scales of a cell in a coding."""

CHUNK = 64
"""Cells below which ``split`` cuts a row no further."""

SHARE = 32
"""Cells below which the other schedules cut a row no further."""

MOST = 20
"""Blocks that share a row at most in the other schedules, unless its cells need more: beyond, telling each other costs
more than a smaller share saves."""

MAX_GRID = (1 << 31) - 1


def _parts(kv):
    """Warps that share a product's columns: three, or one where shared memory has no room for their sums."""
    groups = GROUPS[kv.pool.k.coding], GROUPS[kv.pool.v.coding]
    return 3 if shared_bytes(SHARE, *groups, 3) <= properties().shared_per_block else 1


def _room(kv, parts):
    """Cells that a block holds at most, a multiple of 32."""
    groups = GROUPS[kv.pool.k.coding], GROUPS[kv.pool.v.coding]
    fixed = shared_bytes(0, 0, 0, 1)
    return (properties().shared_per_block - fixed) // cell_bytes(*groups) // SHARE * SHARE


def plan(kvs, rows, cap, schedule, splits=None):
    """Blocks that share a row and KV head in one launch of ``rows`` rows whose ids have room for ``cap`` cells."""
    # The launches of several sets of slots share the rows.
    heads = max(1, -(-rows // len(_sets(kvs)))) * kvs[0].pool.geometry.n_head_kv
    least = max(-(-max(cap, 1) // _room(kv, _parts(kv))) for kv in kvs)
    multiprocessors = properties().multiprocessors
    if schedule == "split":
        if splits is None:
            splits = max(1, min(2 * multiprocessors // heads, MAX_SPLITS, -(-cap // CHUNK)))
    else:
        splits = max(1, min(multiprocessors // heads, MOST, -(-cap // SHARE)))
    return max(splits, least)


def scratch_words(kvs, rows, cap, schedule, splits=None):
    """int64 words of scratch for one launch; arguments as :func:`plan`."""
    splits = plan(kvs, rows, cap, schedule, splits)
    groups = max(GROUPS[kv.pool.v.coding] for kv in kvs)
    return rows * kvs[0].pool.geometry.n_head_kv * words(splits, groups) if splits > 1 else 0


def new_scratch(n_words):
    """A scratch of ``n_words``, int64 on the device. Every launch leaves it as it was made; launches that may run at
    the same time need one each."""
    return array_module().full(max(1, n_words), UNSET, np.int64)


_scratches = {}


def _own_scratch(n_words, stream):
    """The scratch of calls without one on ``stream``. A larger one takes its place when needed; the smaller ones stay,
    since captured graphs may hold them."""
    held = _scratches.setdefault(stream, [])
    if not held or held[-1].size < n_words:
        held.append(new_scratch(n_words))
    return held[-1]


def _pool(kv):
    sides = [array for side in (kv.pool.k, kv.pool.v) for array in (side.codes, side.scale)]
    return *(address(array) for array in (*sides, kv.table)), kv.capacity, kv.pool.page_size


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
    q,
    kv,
    ids,
    steps,
    slots=None,
    out=None,
    *,
    schedule=None,
    splits=None,
    arithmetic=None,
    scratch=None,
    stream=None,
):
    """Attention of every row over its selected cells; all arrays on the device, C-contiguous.

    q           [rows, n_head, 256] float32, normed and rotated by position
    kv          a DeviceKV, or a list of them with ``slots`` [rows] int32 naming each row's; a row that names none of
                them is left unwritten. int8 V scales are not negative, as ``append_kv`` writes them
    ids         [rows, cap] int32; -1, cells beyond the page table and cells whose page is not resident are not selected
    steps       [rows, 4] int32; the first ``width`` ids of each row are its cells
    out         [rows, n_head, 256] float32, or None: a new array
    schedule    see the module; None: ``split`` where ``splits`` are given, and under the switch split_attn where that
                fits and the call has the rows of a window (8 at most), else ``batch``
    splits      1 to MAX_SPLITS, for ``split`` alone; None: chosen
    arithmetic  ``exact``, ``float``, or None: the switch QSA_ARITHMETIC
    scratch     of :func:`new_scratch` and :func:`scratch_words`, or None: one kept for the stream. For the float
                arithmetic as ``attend_float`` says
    stream      a CuPy stream; None: the current one

    Returns ``out``: 0 for a row that selects nothing; a query that is not finite makes its own row and head NaN.
    Returns False before any launch for a format outside the exact arithmetic and, in the split schedule, one other than
    int8 (``format``), for a split on a device before sm_80 (``device``), for a head_dim other than 256, more than 12
    heads to a KV head, or more cells than a row's blocks can hold (``geometry``), and for a scratch that is too small
    or of another type (``scratch``). Raises ValueError on mismatched arrays, an unknown schedule or arithmetic, or
    splits that do not fit.
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
    check_schedule(NAME, schedule)
    if splits is not None and (schedule != "split" or not 1 <= splits <= MAX_SPLITS):
        raise ValueError(f"splits = {splits}: the schedule split takes 1 to {MAX_SPLITS}, {schedule!r} takes none")
    kvs = list(kv) if isinstance(kv, (list, tuple)) else [kv]
    geometry, rows = kvs[0].pool.geometry, len(q)
    check_array("q", q, "float32", (rows, geometry.n_head, geometry.head_dim))
    if ids.ndim != 2:
        raise ValueError(f"ids: shape {ids.shape}: must be [rows, cap]")
    cap = ids.shape[1]
    check_array("ids", ids, "int32", (rows, cap), alignment=4)
    check_array("steps", steps, "int32", (rows, 4))
    if len(kvs) > 1:
        if slots is None:
            raise ValueError(f"slots: must name the slot of every row: kv is a list of {len(kvs)}")
        check_array("slots", slots, "int32", (rows,), alignment=4)
    if out is not None:
        check_array("out", out, "float32", q.shape)
    reason = _refusal(kvs, schedule)
    if reason:
        return refuse(NAME, reason)
    together = 1 if schedule == "step" else rows
    splits = plan(kvs, together, cap, schedule, splits)
    if splits > properties().multiprocessors or together * geometry.n_head_kv * splits > MAX_GRID:
        return refuse(NAME, "geometry")
    groups = max(GROUPS[one.pool.v.coding] for one in kvs)
    needed = together * geometry.n_head_kv * words(splits, groups) if splits > 1 else 0
    if scratch is not None and (scratch.dtype != np.int64 or not scratch.flags.c_contiguous or scratch.size < needed):
        return refuse(NAME, "scratch")
    out = array_module().empty(q.shape, "float32") if out is None else out
    if rows == 0:
        return out
    if scratch is None:
        key = array_module().cuda.get_current_stream().ptr if stream is None and hasattr(array_module(), "cuda") else 0
        scratch = _own_scratch(needed, stream.ptr if stream is not None else key)
    # One signature of the kernel, whether slots are read or not.
    slots = steps.reshape(-1) if slots is None else slots
    for first_row in range(0, rows, together):
        part = slice(first_row, first_row + together)
        for first_slot, held in _sets(kvs):
            _launch(
                held,
                (q[part], ids[part], steps[part], slots[part] if len(kvs) > 1 else slots),
                (first_slot, len(held) if len(kvs) > 1 else 0, splits),
                (scratch, out[part]),
                cap,
                stream,
            )
    return out


def _sets(kvs):
    """(first slot, DeviceKVs) of every launch: up to four slots of one format, or one slot where formats are mixed."""
    together = MAX_POOLS if len({kv.pool.format for kv in kvs}) == 1 else 1
    return [(first, kvs[first : first + together]) for first in range(0, len(kvs), together)]


def _launch(kvs, inputs, numbers, outputs, cap, stream):
    geometry, pool = kvs[0].pool.geometry, kvs[0].pool
    groups = GROUPS[pool.k.coding], GROUPS[pool.v.coding]
    parts = _parts(kvs[0])
    kernel = build(*groups, geometry.n_head_kv, geometry.group, parts, properties().compute_capability >= (8, 0))
    pools = sum(map(_pool, kvs), ())
    pools += (0,) * (MAX_POOLS * POOL_FIELDS - len(pools))
    first_slot, n_pools, splits = numbers
    room = max(SHARE, -(-cap // (splits * SHARE)) * SHARE)
    launch(
        kernel,
        len(inputs[0]) * geometry.n_head_kv * splits,
        128 * parts,
        (*inputs, pools, first_slot, n_pools, splits, room, *outputs),
        shared=shared_bytes(room, *groups, parts),
        stream=stream,
    )
