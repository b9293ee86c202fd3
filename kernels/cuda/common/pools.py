"""What the exact and the float ``attend`` share on the host: checked arguments, pools as arguments, sets of slots."""

from collections.abc import Sequence
from typing import NamedTuple

from qsa.reference.geometry import Geometry

from ..attend_exact.shared_memory import MAX_POOLS, POOL_FIELDS
from ..device.containers import DeviceKV
from ..toolchain.compiler import address
from ..toolchain.host import DeviceArray
from .checks import check_array, check_schedule, check_splits, listed

NAME = "attend"


class Call(NamedTuple):
    """The arguments of one call of ``attend``, checked; ``kvs`` a list, ``slots`` an array that no kernel reads where
    there is one pool."""

    q: DeviceArray
    kvs: list[DeviceKV]
    ids: DeviceArray
    steps: DeviceArray
    slots: DeviceArray
    geometry: Geometry

    @property
    def rows(self) -> int:
        """Rows of the call."""
        return len(self.q)

    @property
    def cap(self) -> int:
        """Ids that a row has room for."""
        return self.ids.shape[1]


def checked(
    q: DeviceArray,
    kv: DeviceKV | Sequence[DeviceKV],
    ids: DeviceArray,
    steps: DeviceArray,
    slots: DeviceArray | None,
    out: DeviceArray | None,
    schedule: str,
    splits: int | None,
) -> Call:
    """:class:`Call` of ``attend``'s arguments. Raises ValueError on mismatched arrays, no DeviceKV at all, an unknown
    schedule, or splits that do not fit."""
    check_schedule(NAME, schedule)
    check_splits(schedule, splits)
    kvs = listed(kv)
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
    # One signature of the kernels, whether slots are read or not.
    return Call(q, kvs, ids, steps, steps.reshape(-1) if slots is None else slots, geometry)


def sets_of(kvs: Sequence[DeviceKV]) -> list[tuple[int, Sequence[DeviceKV]]]:
    """(first slot, DeviceKVs) of every launch: up to four slots of one format, or one slot where formats are mixed."""
    together = MAX_POOLS if len({kv.pool.format for kv in kvs}) == 1 else 1
    return [(first, kvs[first : first + together]) for first in range(0, len(kvs), together)]


def pool_fields(kvs: Sequence[DeviceKV]) -> tuple[int, ...]:
    """Fields of up to four slots' pools, as ``shared_memory.POOL_FIELDS`` says, for a kernel's argument."""
    fields: tuple[int, ...] = ()
    for kv in kvs:
        sides = [array for side in (kv.pool.k, kv.pool.v) for array in (side.codes, side.scale)]
        fields += tuple(address(array) if array.size else 0 for array in (*sides, kv.table))
        fields += (kv.capacity, kv.pool.page_size)
    return fields + (0,) * (MAX_POOLS * POOL_FIELDS - len(fields))
