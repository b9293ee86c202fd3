"""How a call of few rows is launched: which kernel, its shared memory and its packed arguments."""

from typing import Any, NamedTuple

from ..attend_exact.shared_memory import POOL_FIELDS, STEP
from ..device.containers import DeviceKV
from ..toolchain.compiler import max_clusters, prepare, properties
from ..toolchain.host import Argument, Numbers
from .exchange import reciprocal_of
from .kernel import build
from .layout import HEADS, MOST_BLOCKS, owned_pairs, shared_bytes, turns_of
from .values import LANE_CELLS

PARTS = 3
"""Blocks have so many times four warps. On an H200, one row in 13 blocks took 7.0 us with 12 warps, 7.7 with 16, 7.9
with 20 and 7.4 with 8: a warp that has no tile carries out the rest of the instructions all the same."""

_POOL = Numbers(0, POOL_FIELDS, POOL_FIELDS)
_ARGUMENTS = (
    *(Argument(0, dtype, (0,) * axes) for dtype, axes in (("float32", 3), ("int32", 2), ("int32", 2))),
    *(_POOL, 0, 0, 0, 0, 0),
    Argument(0, "float32", (0, 0, 0)),
)
"""The kernel's arguments by type alone, which is all that a question about it needs."""


class Form(NamedTuple):
    """What a launch is made of: kernel, lanes, bytes of shared memory, blocks and cells of each, clusters of a row."""

    kernel: Any
    lanes: int
    shared: int
    blocks: int
    room: int
    clusters: int


def form_of(kv: DeviceKV, cap: int, most: int, parts: int = PARTS) -> Form | None:
    """The :class:`Form` of rows that have room for ``cap`` ids, in clusters of up to ``most`` blocks; None where there
    is none."""
    geometry = kv.pool.geometry
    room = -(-cap // (min(most, MOST_BLOCKS) * STEP)) * STEP
    if cap < 1 or room > LANE_CELLS * parts:
        return None
    # No more blocks than there are shares.
    blocks = -(-cap // room)
    shared = shared_bytes(room, parts, blocks)
    if blocks < 2 or shared > properties().shared_per_block:
        return None
    kernel = build(geometry.n_head_kv, geometry.group, parts, turns_of(room, parts), room <= LANE_CELLS)
    return Form(kernel, 128 * parts, shared, blocks, room, geometry.n_head_kv * -(-geometry.group // HEADS))


def fits(form: Form, rows: int) -> bool:
    """Whether the device holds all clusters of ``rows`` rows at once; the driver is asked once for each form."""
    held = max_clusters(form.kernel, _ARGUMENTS, form.lanes, form.shared, form.blocks)
    return rows * form.clusters <= held


def prepared(form: Form, rows: int, inputs: tuple[Argument, ...], out: Argument) -> Any:
    """The launch of ``rows`` rows of one pool. ``inputs``: q, ids, steps."""
    own = owned_pairs(form.blocks)
    numbers = form.blocks, form.room, own, reciprocal_of(form.blocks), reciprocal_of(own)
    grid = rows * form.clusters * form.blocks
    return prepare(form.kernel, grid, form.lanes, (*inputs, _POOL, *numbers, out), form.shared, form.blocks)
