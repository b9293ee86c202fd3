"""What the exact and the float ``attend`` share on the host: checks of arguments, pools as arguments, sets of slots."""

from collections.abc import Sequence

from qsa.reference.geometry import Geometry

from ..attend_exact.shared_memory import MAX_POOLS, POOL_FIELDS
from ..device.containers import DeviceKV
from ..toolchain.compiler import address
from ..toolchain.host import DeviceArray, Numbers
from .checks import check_array, check_schedule, check_splits

NAME = "attend"


def check_attend(
    q: DeviceArray,
    kvs: Sequence[DeviceKV],
    ids: DeviceArray,
    steps: DeviceArray,
    slots: DeviceArray | None,
    out: DeviceArray | None,
    schedule: str,
    splits: int | None,
) -> None:
    """Raises ValueError on mismatched arrays among the arguments of ``attend``, an unknown schedule, or splits that do
    not fit."""
    check_schedule(NAME, schedule)
    check_splits(schedule, splits)
    geometry, rows = kvs[0].pool.geometry, len(q)
    check_array("q", q, "float32", (rows, geometry.n_head, geometry.head_dim))
    if ids.ndim != 2:
        raise ValueError(f"ids: shape {ids.shape}: must be [rows, cap]")
    check_array("ids", ids, "int32", (rows, ids.shape[1]), alignment=4)
    check_array("steps", steps, "int32", (rows, 4))
    if slots is None and len(kvs) > 1:
        raise ValueError(f"slots: must name the slot of every row: kv is a list of {len(kvs)}")
    if slots is not None:
        check_array("slots", slots, "int32", (rows,), alignment=4)
    if out is not None:
        check_array("out", out, "float32", q.shape)


def sets_of(kvs: Sequence[DeviceKV]) -> list[tuple[int, Sequence[DeviceKV]]]:
    """(first slot, DeviceKVs) of every launch: up to four slots of one format, or one slot where formats are mixed."""
    together = MAX_POOLS if len({kv.pool.format for kv in kvs}) == 1 else 1
    return [(first, kvs[first : first + together]) for first in range(0, len(kvs), together)]


def pool_fields(kvs: Sequence[DeviceKV]) -> tuple[int, ...]:
    """Fields of the slots' pools, ``shared_memory.POOL_FIELDS`` of each, for kernels' arguments.

    Read at every call: a pool that was replaced has other addresses, or is another one at the same.
    """
    fields: list[int] = []
    for kv in kvs:
        pool, table = kv.pool, kv.table
        for array in (pool.k.codes, pool.k.scale, pool.v.codes, pool.v.scale, table):
            fields.append(address(array) if array.size else 0)
        fields += (table.size * pool.page_size, pool.page_size)
    return tuple(fields)


def fields_of(first_slot: int, count: int) -> Numbers:
    """The argument of a kernel that reads the pools of ``count`` slots from ``first_slot`` on: of a call's
    :func:`pool_fields`, with zeros in the place of further pools."""
    return Numbers(first_slot * POOL_FIELDS, (first_slot + count) * POOL_FIELDS, MAX_POOLS * POOL_FIELDS)


def kinds_of(kvs: Sequence[DeviceKV]) -> list[tuple[str, Geometry]]:
    """(format, geometry) of every slot: what a plan of ``attend`` is made for."""
    return [(kv.pool.format, kv.pool.geometry) for kv in kvs]
