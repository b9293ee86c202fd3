"""The simulator's warp operations: functions of the lanes, in order, and of what each brought; the result of each lane.

``sync.warp_operation`` calls them when all lanes have arrived.
"""

from typing import Any

from ..toolchain.constants import WARP
from .numbers import int32
from .state import fault
from .sync import meet


def _take(lanes, values, source):
    by_lane = [None] * WARP
    for lane, value in zip(lanes, values, strict=True):
        by_lane[lane.laneid] = value
    results = []
    for lane, (_, argument) in zip(lanes, values, strict=True):
        wanted = source(lane.laneid, int(argument))
        brought = by_lane[wanted] if 0 <= wanted < WARP else None
        if brought is None:
            fault("divergence", f"shuffle from lane {wanted}, which takes no part", lane)
        results.append(brought[0])
    return results


def shfl_xor(lanes: Any, values: Any) -> Any:
    """Value of lane ^ argument."""
    return _take(lanes, values, lambda i, d: i ^ d)


def shfl_up(lanes: Any, values: Any) -> Any:
    """Value of lane - argument, the own one below lane 0."""
    return _take(lanes, values, lambda i, d: i - d if i >= d else i)


def shfl_down(lanes: Any, values: Any) -> Any:
    """Value of lane + argument, the own one beyond lane 31."""
    return _take(lanes, values, lambda i, d: i + d if i + d < WARP else i)


def shfl(lanes: Any, values: Any) -> Any:
    """Value of lane argument % 32."""
    return _take(lanes, values, lambda i, d: d % WARP)


class Votes(int):
    """A mask of lanes, surely an int32; arithmetic makes it an integer of any width."""


def ballot(lanes: Any, values: Any) -> Any:
    """Mask of the lanes whose value is true, an int32 as in numba: lane 31 is its sign."""
    mask = sum(1 << lane.index % WARP for lane, value in zip(lanes, values, strict=True) if value)
    return [Votes(int32(mask))] * len(lanes)


def vote_any(lanes: Any, values: Any) -> Any:
    """Whether any value is true."""
    return [any(values)] * len(lanes)


def vote_all(lanes: Any, values: Any) -> Any:
    """Whether all values are true."""
    return [all(values)] * len(lanes)


def match_any(lanes: Any, values: Any) -> Any:
    """Mask of the lanes with the own value, an int32 as in numba."""
    masks = {}
    for lane, value in zip(lanes, values, strict=True):
        masks[value] = masks.get(value, 0) | 1 << lane.index % WARP
    return [Votes(int32(masks[value])) for value in values]


def total(lanes: Any, values: Any) -> Any:
    """Sum of all values, as an int32."""
    return [int32(sum(values))] * len(lanes)


def least(lanes: Any, values: Any) -> Any:
    """Least of all values."""
    return [min(values)] * len(lanes)


def greatest(lanes: Any, values: Any) -> Any:
    """Greatest of all values."""
    return [max(values)] * len(lanes)


def syncwarp(lanes: Any, _: Any) -> Any:
    """Orders the memory of the warp's lanes."""
    clocks = [(lane.seen, lane.index, lane.clock) for lane in lanes]
    for lane in lanes:
        lane.clock += 1
    meet(lanes, clocks)
    return [None] * len(lanes)
