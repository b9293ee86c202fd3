"""Checks of device arrays and schedules that the operations share."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from ...ops import check_schedule, check_splits
from ..device.containers import DeviceIndex, DeviceKV
from ..toolchain.compiler import address, array_module

__all__ = [
    "check_array",
    "check_count",
    "check_distinct",
    "check_index",
    "check_schedule",
    "check_splits",
    "listed",
]


def listed(kv: DeviceKV | Sequence[DeviceKV]) -> list[DeviceKV]:
    """The list of DeviceKVs that ``kv`` is, or is one of. Raises ValueError on none, and on anything else."""
    kvs = list(kv) if isinstance(kv, Sequence) else [kv]
    wrong = [held for held in kvs if not isinstance(held, DeviceKV)]
    if wrong or not kvs:
        found = type(wrong[0]).__name__ if wrong else kv
        raise ValueError(f"kv: {found}: must be a DeviceKV, or a list of one or more")
    return kvs


def check_distinct(kvs: Sequence[DeviceKV]) -> None:
    """Raises ValueError when one DeviceKV stands for two slots, whose rows would then share every page."""
    first: dict[int, int] = {}
    for slot, held in enumerate(kvs):
        other = first.setdefault(id(held), slot)
        if other != slot:
            raise ValueError(f"kv: slots {other} and {slot} are one DeviceKV: each needs pages of its own")


def check_index(index: Any) -> DeviceIndex:
    """``index``. Raises ValueError unless it is a DeviceIndex."""
    if not isinstance(index, DeviceIndex):
        raise ValueError(f"index: {type(index).__name__}: must be a DeviceIndex")
    return index


def check_count(name: str, value: Any) -> None:
    """Raises ValueError unless ``value`` is an integer, 0 or more."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} = {value!r}: must be an integer, 0 or more")


def check_array(name: str, array: Any, dtype: str, shape: Sequence[int], alignment: int = 16) -> None:
    """Raises ValueError unless the device array ``array`` has ``dtype`` and ``shape``, is C-contiguous and starts at a
    multiple of ``alignment`` bytes: 16, as vector loads want it, unless its elements are read one by one."""
    if not isinstance(array, array_module().ndarray):
        raise ValueError(f"{name}: {type(array).__name__}: must be an array on the device")
    if array.dtype != dtype or array.shape != tuple(shape):
        raise ValueError(f"{name}: {array.dtype} {array.shape}: must be {dtype} {tuple(shape)}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name}: strides {array.strides}: must be C-contiguous")
    if array.size and address(array) % alignment:
        raise ValueError(f"{name}: address {address(array):#x}: must be a multiple of {alignment}")
