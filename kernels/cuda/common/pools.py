"""What the exact and the float ``attend`` share on the host: checks of arguments, pools as arguments, sets of slots."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

from qsa.reference.geometry import Geometry

from ..attend_exact.shared_memory import MAX_POOLS, POOL_FIELDS
from ..device.containers import DeviceKV
from ..toolchain.compiler import places
from ..toolchain.host import Argument, DeviceArray, Numbers
from .checks import check_array, check_schedule, check_splits
from .plans import Plan
from .pool_tables import ROW, PlannedTable, by_slot, kind_of

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


class PoolSet(NamedTuple):
    """The slots' pools as one launch has them, which attends for the rows of the slots of ``kv``'s format.

    kv        a slot of that format
    pools     the kernel's argument: of a call's :func:`pool_fields`, or of the plan's table
    slots     of the call; 0: one, which every row reads
    tabled    whether ``pools`` is a table (``pool_tables.py``), of all slots of the call
    """

    kv: DeviceKV
    pools: Numbers | Argument
    slots: int
    tabled: bool


def in_table(kvs: Sequence[DeviceKV]) -> bool:
    """Whether launches over these slots find their pools in a table: more slots than go by value, or mixed formats."""
    return len(kvs) > MAX_POOLS or len({kv.pool.format for kv in kvs}) > 1


def sets_of(kvs: Sequence[DeviceKV], position: int = 0) -> list[PoolSet]:
    """:class:`PoolSet` of every launch: one for each format. ``position``: that of the table among a plan's arrays."""
    if not in_table(kvs):
        return [PoolSet(kvs[0], by_value(len(kvs)), len(kvs) if len(kvs) > 1 else 0, False)]
    table = Argument(position, "int64", (len(kvs), ROW))
    first_of: dict[str, DeviceKV] = {}
    for kv in kvs:
        first_of.setdefault(kv.pool.format, kv)
    return [PoolSet(kv, table, len(kvs), True) for kv in first_of.values()]


def pool_fields(kvs: Sequence[DeviceKV]) -> tuple[int, ...]:
    """Fields of the slots' pools: ADDRESSES of each, then SIZES of each.

    Read at every call: a pool that was replaced has other addresses, or is another one at the same. Half a microsecond
    a slot: of many slots this is most of what a call costs the host.
    """
    arrays: list[DeviceArray] = []
    sizes: list[int] = []
    for kv in kvs:
        pool, table = kv.pool, kv.table
        k, v, page_size = pool.k, pool.v, pool.page_size
        arrays += (k.codes, k.scale, v.codes, v.scale, table)
        sizes += (table.size * page_size, page_size)
    return (*places(arrays), *sizes)


def by_value(count: int, first_slot: int = 0) -> Numbers:
    """The argument of a kernel that reads the pools of ``count`` slots from ``first_slot`` on: of a call's
    :func:`by_slot` fields, with zeros in the place of further pools."""
    return Numbers(first_slot * POOL_FIELDS, (first_slot + count) * POOL_FIELDS, MAX_POOLS * POOL_FIELDS)


def fours_of(kvs: Sequence[DeviceKV]) -> list[tuple[int, Sequence[DeviceKV]]]:
    """(first slot, DeviceKVs) of every launch that has pools by value alone: up to four slots of one format, or one
    slot where formats are mixed."""
    together = MAX_POOLS if len({kv.pool.format for kv in kvs}) == 1 else 1
    return [(first, kvs[first : first + together]) for first in range(0, len(kvs), together)]


def planned_table(kvs: Sequence[DeviceKV], key: tuple[int, int, int]) -> PlannedTable | None:
    """The table of a plan for the stream of ``key`` over slots like these; None where they go by value."""
    return PlannedTable(key, [kind_of(kv.pool.k.coding, kv.pool.v.coding) for kv in kvs]) if in_table(kvs) else None


def run_over(kvs: Sequence[DeviceKV], plan: Plan, arrays: Sequence[Any], stream: Any) -> None:
    """Run ``plan`` with a call's ``arrays`` over ``kvs``, on its ``stream``, a CuPy stream; None: the current one."""
    fields = pool_fields(kvs)
    if plan.table is None:
        plan.run(arrays, by_slot(fields))
        return
    # A new table takes memory of the stream on which it is written.
    with nullcontext() if stream is None else stream:
        plan.run(arrays, fields)


def kinds_of(kvs: Sequence[DeviceKV]) -> list[tuple[str, Geometry]]:
    """(format, geometry) of every slot: what a plan of ``attend`` is made for."""
    return [(kv.pool.format, kv.pool.geometry) for kv in kvs]
