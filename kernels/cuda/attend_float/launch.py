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
bits must not depend on its batch. Slots of different formats take a launch per slot. Widths, ids and page tables are
read on the device: a captured graph follows them. Source: design section 8.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from qsa.reference.geometry import Geometry

from ...ops import MAX_SPLITS, refuse
from ...switches import switches
from ..common.pools import NAME, checked, pool_fields, sets_of
from ..device.containers import CODINGS, DeviceKV
from ..toolchain.compiler import address, array_module, launch, properties
from ..toolchain.constants import MAX_GRID_YZ
from ..toolchain.host import DeviceArray
from .chunk import CHUNK, offsets_of
from .merge import merge_kernel, row_floats
from .partial import pieces_kernel

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
    if not codings <= set(CODINGS) or (schedule == "split" and codings != {"int8"}):
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


class _Launches(NamedTuple):
    """What the launches of one call share."""

    q: DeviceArray
    ids: DeviceArray
    steps: DeviceArray
    slots: DeviceArray
    scratch: DeviceArray
    out: DeviceArray
    cap: int
    pieces: int
    splits: int
    stream: Any

    def run(self, kvs: Sequence[DeviceKV], first_row: int, rows: int) -> None:
        """Pieces, then merge, of ``rows`` rows."""
        g = kvs[0].pool.geometry
        blocks = self.pieces
        if self.splits:
            blocks = _blocks(self.pieces, rows, g.n_head_kv, properties().multiprocessors)
        sets = sets_of(kvs)
        for first_slot, held in sets:
            side_k, side_v = held[0].pool.k, held[0].pool.v
            # 0 pools: every row reads the one there is.
            n_pools = len(held) if len(kvs) > 1 else 0
            launch(
                pieces_kernel(g.group, g.head_dim, side_k.coding, side_v.coding),
                (blocks, g.n_head_kv, rows),
                g.head_dim,
                (
                    *(
                        self.q,
                        self.ids,
                        self.steps,
                        self.slots,
                        self.scratch,
                        pool_fields(held),
                        first_slot,
                        n_pools,
                        first_row,
                    ),
                    *(self.cap, self.pieces, self.splits),
                ),
                shared=_shared(g),
                stream=self.stream,
            )
        active = self.splits > 0 or (switches().merge_active and rows <= MERGE_ACTIVE_ROWS)
        if len({kv.pool.v.coding for kv in kvs}) == 1:
            sets = [(0, kvs)]
        for first_slot, held in sets:
            n_pools = len(held) if len(kvs) > 1 else 0
            launch(
                merge_kernel(g.group, g.head_dim, held[0].pool.v.coding == "q4_0"),
                (g.n_head, rows),
                g.head_dim,
                (
                    *(self.scratch, self.steps, self.slots, self.out, first_slot, n_pools, first_row, self.cap),
                    *(self.pieces, self.splits, int(active)),
                ),
                stream=self.stream,
            )


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
    Returns False before any launch for a format of no device pool and, in the split schedule, one other than int8
    (``format``), for a split on a device before sm_80 (``device``), for a head_dim other than 64 and 256 or more heads
    than shared memory holds (``geometry``), and for a scratch that is too small, strided or of another type
    (``scratch``). Raises ValueError on mismatched arrays, an unknown schedule, or splits that do not fit.
    """
    call = checked(q, kv, ids, steps, slots, out, schedule, splits)
    splits = MAX_SPLITS if schedule == "split" and splits is None else splits
    kvs, rows, cap, geometry = call.kvs, call.rows, call.cap, call.geometry
    pieces = pieces_of(cap, splits)
    each = row_floats(geometry, pieces)
    together = 1 if schedule == "step" else max(1, rows)
    if scratch is None:
        together = min(together, max(1, OWN_SCRATCH // (4 * each)))
    elif schedule == "prompt":
        together = min(together, max(1, scratch.size // each))
    reason = _refusal(kvs, schedule, scratch, together * each)
    if reason:
        return refuse(NAME, reason)
    together = min(together, MAX_GRID_YZ)
    out = array_module().empty(q.shape, "float32") if out is None else out
    if rows == 0:
        return out
    scratch = array_module().empty(together * each, "float32") if scratch is None else scratch
    launches = _Launches(q, ids, steps, call.slots, scratch, out, cap, pieces, splits or 0, stream)
    for first_row in range(0, rows, together):
        launches.run(kvs, first_row, min(together, rows - first_row))
    return out
