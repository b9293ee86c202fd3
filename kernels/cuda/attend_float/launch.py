"""``attend`` in the float arithmetic on CUDA: the engines' ordinary kernels, partials of pieces and their merge.

==========  ==============================  =================================================================
schedule    pieces of a row                 launches
==========  ==============================  =================================================================
``batch``   chunks of 64 cells              rows together, up to four slots' pools at a time; pieces, then merge
``multi``   the same                        the same, by the engines' name for several slots
``prompt``  the same                        as many rows at a time as the scratch holds
``step``    the same                        a row at a time
``split``   20, of equal chunks             as ``batch``, in one wave of about two blocks per multiprocessor
==========  ==============================  =================================================================

The first four give the same bits row by row. ``split`` differs from them by rounding; its cut depends on the row's
width alone, never on the rows beside it or on the device, which decide only how many blocks share the pieces: a row's
bits must not depend on its batch. Its form on tensor cores (``tensor``) takes every format, for heads of 256 dims and
at most 12 of them to a KV head, on a device of compute capability 8.0 whose blocks have the shared memory; else it has
the standing kernels, for int8 alone, and by them other bits. Slots of different formats take a launch per slot. Widths,
ids and page tables are read on the device: a captured graph follows them. Source: design section 8.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from qsa.reference.geometry import Geometry

from ...ops import MAX_SPLITS, refuse
from ...switches import switches
from ..common.checks import listed
from ..common.plans import Plan, PlanCache, whole
from ..common.pools import NAME, by_value, check_attend, fours_of, kinds_of, run_over
from ..device.containers import CODINGS, DeviceKV
from ..toolchain.compiler import address, array_module, prepare, properties, stream_key
from ..toolchain.constants import MAX_GRID_YZ
from ..toolchain.host import Argument, DeviceArray, Operand
from .chunk import CHUNK, offsets_of
from .merge import merge_kernel, row_floats
from .partial import pieces_kernel
from .tensor import plan as tensor

DIMS = (64, 256)

MERGE_ACTIVE_ROWS = 8
"""Rows of a call at most for which STRATA_ATTN_MERGE_ACTIVE narrows the merge."""

OWN_SCRATCH = 256 << 20
"""Bytes of scratch that a call without one takes at most, unless one row needs more."""


def pieces_of(cap: int, splits: int | None = None) -> int:
    """Pieces of a row whose ids have room for ``cap`` cells: chunks of 64, or ``splits`` if that is fewer."""
    chunks = max(1, -(-cap // CHUNK))
    return chunks if splits is None else min(chunks, splits)


def scratch_shape(rows: int, cap: int, geometry: Geometry, splits: int | None = None) -> tuple[int]:
    """Shape of the float32 scratch that holds the partials of ``rows`` rows at once."""
    return (rows * row_floats(geometry, pieces_of(cap, splits)),)


def _blocks(pieces, rows, n_head_kv, multiprocessors):
    """Blocks that share the splits of a row: one wave of about two per multiprocessor, each with as many pieces."""
    wave = max(1, min(2 * multiprocessors // (rows * n_head_kv), pieces))
    return -(-pieces // -(-pieces // wave))


def _shared(geometry):
    """Bytes of shared memory that a block of pieces needs."""
    return offsets_of(geometry.group, geometry.head_dim).end


def _refusal(kvs, schedule, scratch, needed):
    """The reason for which a call is refused, or None."""
    geometry = kvs[0].pool.geometry
    codings = {side.coding for kv in kvs for side in (kv.pool.k, kv.pool.v)}
    if not codings <= set(CODINGS) or (schedule == "split" and codings != {"int8"} and not tensor.fits(kvs)):
        return "format"
    if schedule == "split" and properties().compute_capability < (8, 0):
        return "device"
    if geometry.head_dim not in DIMS or _shared(geometry) > properties().shared_per_block:
        return "geometry"
    if any(kv.pool.geometry != geometry for kv in kvs):
        return "geometry"
    if scratch is not None and (
        scratch.dtype != "float32" or not scratch.flags.c_contiguous or address(scratch) % 16 or scratch.size < needed
    ):
        return "scratch"
    return None


def _together(rows, each, schedule, scratch):
    """Rows of one pair of launches, at least one; ``each``: floats of a row in the scratch."""
    together = 1 if schedule == "step" else max(1, rows)
    if scratch is None:
        together = min(together, max(1, OWN_SCRATCH // (4 * each)))
    elif schedule == "prompt":
        together = min(together, max(1, scratch.size // each))
    return together


def make_float_plan(
    kvs: Sequence[DeviceKV],
    rows: int,
    cap: int,
    schedule: str,
    splits: int | None,
    with_slots: bool,
    scratch: DeviceArray | None,
    stream: Any,
    allocate: bool = True,
) -> Plan | str:
    """The plan of a call of ``rows`` rows, whose ids have room for ``cap`` cells; or the reason for which it is
    refused.

    with_slots  whether a call gives the slot of every row
    scratch     the caller's, which every call gives again; None: the plan has one of its own, or, where not
                ``allocate``, a call gives one of the size of the plan's last operand
    """
    splits = MAX_SPLITS if schedule == "split" and splits is None else splits
    geometry, pieces = kvs[0].pool.geometry, pieces_of(cap, splits)
    blocks = 0
    if schedule == "split" and tensor.fits(kvs):
        blocks = tensor.blocks_of(kvs, rows, pieces)
        pieces = tensor.partials_of(blocks, pieces)
    each = row_floats(geometry, pieces)
    together = _together(rows, each, schedule, scratch)
    reason = _refusal(kvs, schedule, scratch, together * each)
    if reason:
        return reason
    together = min(together, MAX_GRID_YZ)
    results = rows, geometry.n_head, geometry.head_dim
    operands = [
        Operand("q", "float32", results),
        Operand("ids", "int32", (rows, cap), 4),
        Operand("steps", "int32", (rows, 4)),
        Operand("out", "float32", results),
    ]
    if with_slots:
        operands.append(Operand("slots", "int32", (rows,), 4))
    shape = (together * each,) if scratch is None else scratch.shape
    exchanged = Argument(len(operands), "float32", shape)
    own = [array_module().empty(shape, "float32")] if scratch is None and allocate else []
    if not own:
        operands.append(Operand("scratch", "float32", shape))
    q, ids, records, out, *slots = whole(operands[: 4 + with_slots])
    named = slots[0] if slots else Argument(2, "int32", (4 * rows,))
    arrays = _Arrays(q, ids, records, named, exchanged, out)
    launches = []
    for first_row in range(0, rows, together):
        count = min(together, rows - first_row)
        if blocks:
            launches += tensor.tensor_launches(kvs, arrays, cap, pieces, splits or 0, blocks, first_row, count)
        else:
            launches += _prepared(kvs, arrays, cap, pieces, splits or 0, first_row, count)
    return Plan(NAME, operands, launches, stream_key(stream), kinds_of(kvs), own)


class _Arrays(NamedTuple):
    """The arrays among the kernels' arguments."""

    q: Argument
    ids: Argument
    steps: Argument
    slots: Argument
    scratch: Argument
    out: Argument


def _prepared(kvs, arrays, cap, pieces, splits, first_row, rows):
    """The launches of ``rows`` rows from ``first_row`` on: pieces, then merge."""
    g = kvs[0].pool.geometry
    blocks = pieces
    if splits:
        blocks = _blocks(pieces, rows, g.n_head_kv, properties().multiprocessors)
    sets, launches = fours_of(kvs), []
    for first_slot, held in sets:
        side_k, side_v = held[0].pool.k, held[0].pool.v
        # 0 pools: every row reads the one there is.
        numbers = first_slot, len(held) if len(kvs) > 1 else 0, first_row, cap, pieces, splits
        kernel = pieces_kernel(g.group, g.head_dim, side_k.coding, side_v.coding)
        arguments = (*arrays[:5], by_value(len(held), first_slot), *numbers)
        launches.append(prepare(kernel, (blocks, g.n_head_kv, rows), g.head_dim, arguments, _shared(g)))
    active = splits > 0 or (switches().merge_active is True and rows <= MERGE_ACTIVE_ROWS)
    if len({kv.pool.v.coding for kv in kvs}) == 1:
        sets = [(0, kvs)]
    for first_slot, held in sets:
        numbers = first_slot, len(held) if len(kvs) > 1 else 0, first_row, cap, pieces, splits, int(active)
        kernel = merge_kernel(g.group, g.head_dim, held[0].pool.v.coding == "q4_0")
        arguments = (arrays.scratch, arrays.steps, arrays.slots, arrays.out, *numbers)
        launches.append(prepare(kernel, (g.n_head, rows), g.head_dim, arguments))
    return launches


_plans = PlanCache()


def attend_float(
    q: DeviceArray,
    kv: DeviceKV | Sequence[DeviceKV],
    ids: DeviceArray,
    steps: DeviceArray,
    slots: DeviceArray | None = None,
    out: DeviceArray | None = None,
    schedule: str = "batch",
    splits: int | None = None,
    scratch: DeviceArray | None = None,
    stream: Any = None,
) -> DeviceArray | Literal[False]:
    """Float attention of every row over its selected cells; all arrays on the device, C-contiguous.

    q         [rows, n_head, head_dim] float32, normed and rotated by position
    kv        a DeviceKV of any format, or a list of them with ``slots`` [rows] int32 naming each row's; a row that
              names none of them is left unwritten
    ids       [rows, cap] int32; -1, cells beyond the page table and cells whose page is not resident are not selected
    steps     [rows, 4] int32; the first ``width`` ids of each row are its cells
    out       [rows, n_head, head_dim] float32, or None: a new array
    schedule  see the module
    splits    1 to MAX_SPLITS, for ``split`` alone; None: MAX_SPLITS
    scratch   float32, :func:`scratch_shape` of all rows (``step``, ``prompt``: of one row or more), or None: a new
              array. Nothing of it need be set
    stream    a CuPy stream; None: the current one

    Returns ``out``: 0 for a row that selects nothing; a query that is not finite makes its own row and head NaN.
    Returns False before any launch for a format of no device pool and, in the split schedule off the tensor cores, one
    other than int8 (``format``), for a split on a device before sm_80 (``device``), for a head_dim other than 64 and
    256 or more heads than shared memory holds (``geometry``), and for a scratch that is too small, strided or of
    another type (``scratch``). Raises ValueError on mismatched arrays, an unknown schedule, or splits that do not fit.
    """
    kvs = [kv] if isinstance(kv, DeviceKV) else listed(kv)
    key, plan = _plans.find(
        lambda: (
            *(stream_key(stream), q.shape, ids.shape, slots is None, schedule, splits, switches().merge_active is True),
            None
            if scratch is None
            else (scratch.shape, scratch.dtype, scratch.flags.c_contiguous, address(scratch) % 16),
            *((held.pool.format, id(held.pool.geometry)) for held in kvs),
        )
    )
    if plan is None:
        check_attend(q, kvs, ids, steps, slots, out, schedule, splits)
        rows, cap = ids.shape
        made = make_float_plan(kvs, rows, cap, schedule, splits, slots is not None, scratch, stream, False)
        if isinstance(made, str):
            return refuse(NAME, made)
        plan = _plans.keep(key, made)
    out = array_module().empty(q.shape, "float32") if out is None else out
    scratch = array_module().empty(plan.operands[-1].shape, "float32") if scratch is None else scratch
    given = (scratch,) if slots is None else (slots, scratch)
    run_over(kvs, plan, (q, ids, steps, out, *given), stream)
    return out
