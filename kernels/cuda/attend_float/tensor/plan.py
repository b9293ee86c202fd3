"""How the tensor-core form of the float ``attend`` is launched: who takes it, blocks of a row, scratch.

Only how many blocks share a row depends on the rows of a call and on the device; which cells a piece has does not.
"""

from collections.abc import Sequence
from typing import Any

from qsa.reference.geometry import Geometry

from ...attend_exact.shared_memory import DIM, HEADS
from ...common.pools import by_value, fours_of
from ...device.containers import DeviceKV
from ...toolchain.compiler import prepare, properties
from .kernel import PIECES, RUNS, tensor_kernel
from .layout import THREADS, layout_of
from .merge import WARPS as MERGE_WARPS
from .merge import merge_tensor_kernel

RUNS_OF_ROW = 2
"""Blocks of a row up to which they leave partials of the two runs, not of every piece."""


def _shared(kvs):
    """Bytes of shared memory that a block of any of the formats needs at most."""
    return max(layout_of(kv.pool.k.coding, kv.pool.v.coding).end for kv in kvs)


def fits(kvs: Sequence[DeviceKV]) -> bool:
    """Whether the form takes K/V of these geometries and formats on the current device."""
    device = properties()
    return (
        device.compute_capability >= (8, 0)
        and all(kv.pool.geometry.head_dim == DIM and kv.pool.geometry.group <= HEADS for kv in kvs)
        and _shared(kvs) <= device.shared_per_block
    )


def blocks_of(kvs: Sequence[DeviceKV], rows: int, pieces: int) -> int:
    """Blocks that share a row and KV head of a launch of ``rows`` rows, cut into ``pieces``: one wave of them, each
    with as many pieces as another."""
    device = properties()
    resident = min(2, max(1, device.shared_per_multiprocessor // (_shared(kvs) + 1024)))
    wave = max(1, min(resident * device.multiprocessors // max(1, rows * kvs[0].pool.geometry.n_head_kv), pieces))
    return -(-pieces // -(-pieces // wave))


def partials_of(blocks: int, pieces: int) -> int:
    """Partials of a row and KV head in the scratch."""
    return pieces if blocks > RUNS_OF_ROW else min(pieces, RUNS_OF_ROW)


def row_floats(geometry: Geometry, pieces: int) -> int:
    """Words of scratch that the partials of one row take."""
    return pieces * geometry.n_head * (geometry.head_dim + 2)


def tensor_launches(
    kvs: Sequence[DeviceKV], arrays: Any, cap: int, pieces: int, splits: int, blocks: int, first_row: int, rows: int
) -> list[Any]:
    """The launches of ``rows`` rows from ``first_row`` on, ``blocks`` for each row and KV head.

    arrays  the arguments q, ids, steps, slots, scratch and out, by these names
    pieces  partials of a row and KV head in the scratch
    """
    g = kvs[0].pool.geometry
    sets, launches = fours_of(kvs), []
    rotated = {kv.pool.v.coding == "q4_0" for kv in kvs}
    for first_slot, held in sets:
        side_k, side_v = held[0].pool.k.coding, held[0].pool.v.coding
        # 0 pools: every row reads the one there is.
        numbers = first_slot, len(held) if len(kvs) > 1 else 0, first_row, cap, pieces, splits
        result = PIECES if blocks > RUNS_OF_ROW else RUNS
        kernel = tensor_kernel(g.group, side_k, side_v, result)
        inputs = arrays.q, arrays.ids, arrays.steps, arrays.slots, arrays.scratch, arrays.out
        arguments = (*inputs, by_value(len(held), first_slot), *numbers)
        shared = layout_of(side_k, side_v).end
        launches.append(prepare(kernel, (blocks, g.n_head_kv, rows), THREADS, arguments, shared))
    if len(rotated) == 1:
        sets = [(0, kvs)]
    for first_slot, held in sets:
        turned = held[0].pool.v.coding == "q4_0"
        whose = first_slot, len(held) if len(kvs) > 1 else 0, first_row, cap, pieces, splits
        units = g.n_head if turned else 2 * g.n_head
        merge = merge_tensor_kernel(g.group, turned, blocks <= RUNS_OF_ROW)
        written = arrays.scratch, arrays.steps, arrays.slots, arrays.out, *whose
        launches.append(prepare(merge, (-(-units // MERGE_WARPS), rows), 32 * MERGE_WARPS, written))
    return launches
