"""``block_scores``, exact, on CUDA: float32 in the lane tree, in four schedules with the same bytes.

===============  ==========  =================================================================================
schedule         kernel      rows
===============  ==========  =================================================================================
``warp``         one_row     any number, each reads the keys for itself; several blocks of a warp under way
``multi_query``  butterfly   up to 8, a key is read once for all of them
``transposed``   transposed  up to 8, a warp to a row; the warps of a thread block walk over the same keys
``prompt``       transposed  any number, 8 to a thread block
===============  ==========  =================================================================================

The kernels are in ``block_scores_kernels``. How many blocks a row has is read from its step record on the device: a
captured launch serves every context, and unused capacity costs nothing.
"""

from typing import Literal

from .. import ops
from ..ops import WINDOW_ROWS
from ..switches import switches
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
from .common.checks import check_array, check_index, check_schedule
from .device.containers import DeviceIndex
from .toolchain.compiler import array_module, launch, properties
from .toolchain.constants import MAX_GRID_YZ
from .toolchain.host import DeviceArray


def _grid(groups, warps, blocks_per_turn, max_blocks, warps_resident):
    """Grid (x, y) of ``groups`` row groups: about as many thread blocks of ``warps`` warps as are resident at once."""
    resident = properties().multiprocessors * (warps_resident // warps)
    return min(-(-max_blocks // blocks_per_turn), -(-resident // groups)), min(groups, MAX_GRID_YZ)


def standing_schedule(rows: int) -> str:
    """The schedule of a call that names none."""
    if rows > WINDOW_ROWS:
        return "prompt"
    if switches().scores_transposed:
        return "transposed"
    return "warp" if rows == 1 else "multi_query"


def check_scores(q_idx: DeviceArray, index: DeviceIndex, steps: DeviceArray, out: DeviceArray | None) -> None:
    """Raises ValueError unless the device arrays have the shapes and dtypes that the kernels read and write."""
    g = check_index(index).geometry
    rows = q_idx.shape[0]
    check_array("q_idx", q_idx, "float32", (rows, g.idx_heads, g.idx_dim))
    check_array("steps", steps, "int32", (rows, 4))
    if out is not None:
        check_array("out", out, "float32", (rows, index.max_blocks))


def block_scores(
    q_idx: DeviceArray,
    index: DeviceIndex,
    steps: DeviceArray,
    out: DeviceArray | None = None,
    *,
    schedule: str | None = None,
) -> DeviceArray | Literal[False]:
    """Scores of every block for every row, with the bytes of ``reference.exact.block_scores``.

    q_idx     [rows, idx_heads, idx_dim] float32 on the device, C-contiguous
    index     device :class:`Index`; its ``pooled`` and ``dead`` (float32) are read
    steps     [rows, 4] int32 on the device
    out       [rows, max_blocks] float32 on the device, or None: a new array of -inf
    schedule  see the module; None: the standing one

    Returns ``out``: blocks 0 to n_bid are written, later ones are left as they are; a row with n_kv 0, or with a record
    beyond the index, is left whole. Returns False before any launch when the geometry is not 4 heads of 128 dims
    (``geometry``) or there are more rows than the schedule takes (``schedule``). Raises ValueError on mismatched arrays
    or an unknown schedule.
    """
    check_scores(q_idx, index, steps, out)
    g, rows, max_blocks = index.geometry, q_idx.shape[0], index.max_blocks
    schedule = standing_schedule(rows) if schedule is None else schedule
    check_schedule("block_scores", schedule)
    if (g.idx_heads, g.idx_dim) != (HEADS, DIM):
        return ops.refuse("block_scores", "geometry")
    if schedule in ("multi_query", "transposed") and rows > WINDOW_ROWS:
        return ops.refuse("block_scores", "schedule")
    if out is None:
        out = array_module().full((rows, max_blocks), -float("inf"), "float32")
    if rows == 0:
        return out
    group = min(rows, WINDOW_ROWS)
    groups = -(-rows // group)
    arrays = (q_idx, index.pooled, index.dead, steps, out)
    if schedule == "warp":
        grid = _grid(rows, WARPS, WARPS * KEYS, max_blocks, RESIDENT * WARPS)
        launch(one_row(KEYS, LEAST), grid, THREADS, (*arrays, rows, max_blocks, g.ratio))
    elif schedule == "multi_query":
        grid = _grid(groups, WARPS, WARPS, max_blocks, 4 * WARPS)
        launch(butterfly, grid, THREADS, (*arrays, rows, group, max_blocks, g.ratio))
    else:
        shares = WARPS // group
        grid = _grid(groups, group * shares, 8 * shares, max_blocks, BLOCKS_PER_MULTIPROCESSOR * WARPS)
        launch(transposed, grid, (32, group, shares), (*arrays, rows, max_blocks, g.ratio))
    return out
