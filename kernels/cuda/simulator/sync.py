"""Where the simulator's lanes meet: warp operations, barriers, polls, and the order of memory that comes of them.

A lane that arrives notes itself and rests; the last one carries the operation out, and all of them are ready again.
Order between lanes is kept as vector clocks, one list per set of lanes that met last, so that memory.py can
tell an ordered pair of accesses from a race.
"""

import sys
from typing import Any

from ..toolchain.constants import FULL_WARP, WARP
from .state import State, fault, rest, where


class Meeting:
    """A warp operation under way: ``lanes`` and what each brought, by lane id; ``missing`` are to come."""

    __slots__ = ("lanes", "missing", "operation", "site", "values")

    def __init__(self, operation: Any, site: Any, mask: int) -> None:
        self.operation, self.site, self.missing = operation, site, mask.bit_count()
        self.lanes, self.values = [None] * WARP, [None] * WARP


class Barrier:
    """One phase of a barrier: lanes expected, arrived (with the clocks they had), and waiting."""

    __slots__ = ("arrived", "clocks", "count", "values", "waiting")

    def __init__(self, count: Any) -> None:
        self.count = count
        self.arrived, self.clocks, self.values, self.waiting = {}, [], [], []


def meet(lanes: Any, clocks: Any) -> None:
    """Order ``lanes`` after the moments ``clocks``, (what a lane had seen, its index, its clock) each, theirs included.

    A list of clocks is never changed once lanes share it.
    """
    distinct = {id(seen): seen for seen, _, _ in clocks}
    seen = [max(column) for column in zip(*distinct.values(), strict=True)] if len(distinct) > 1 else list(clocks[0][0])
    for _, index, clock in clocks:
        seen[index] = max(seen[index], clock)
    for lane in lanes:
        lane.seen = seen


def warp_operation(operation: Any, mask: int, value: Any) -> Any:
    """Called by a lane: arrive at ``operation(lanes, values)`` with the lanes of ``mask``; its result for this lane.

    Called straight from a function that kernels call, and more often than anything else here: hence written out.
    """
    lane, frame = State.lane, sys._getframe(2)
    site, laneid = (frame.f_code, frame.f_lasti), lane.laneid
    if mask.__class__ is not int or not 0 <= mask <= FULL_WARP:
        mask = int(mask) & FULL_WARP
    meeting = lane.warp.pending.get(mask)
    if meeting is None:
        meeting = lane.warp.pending[mask] = Meeting(operation, site, mask)
    elif site != meeting.site or operation is not meeting.operation:
        first = next(other for other in meeting.lanes if other is not None)
        message = f"{meeting.operation.__name__}: lane {lane.index} stands at {where(lane)}, at {operation.__name__}"
        fault("divergence", message, first)
    if not mask >> laneid & 1:
        fault("divergence", f"{operation.__name__}: lane {laneid} is not in its own mask {mask:#x}")
    meeting.lanes[laneid], meeting.values[laneid] = lane, value
    meeting.missing -= 1
    if not meeting.missing:
        _carry_out(lane, meeting, mask)
    rest(lane)
    return lane.value


def _carry_out(lane, meeting, mask):
    """The operation, now that ``lane`` has come as the last one."""
    del lane.warp.pending[mask]
    lanes, values = meeting.lanes, meeting.values
    if mask != FULL_WARP:
        values = [values[i] for i, other in enumerate(lanes) if other is not None]
        lanes = [other for other in lanes if other is not None]
    for other, result in zip(lanes, meeting.operation(lanes, values), strict=True):
        other.value = result
    # The operation may have looked at memory for other lanes.
    State.lane = lane
    lane.block.ready.extend(lanes)


def barrier(number: int, count: Any, waits: Any = True, combine: Any = None, value: Any = None) -> Any:
    """Called by a lane: arrive at barrier ``number`` of ``count`` lanes; ``combine(values)`` when it waits.

    Called straight from a function that kernels call.
    """
    lane, frame = State.lane, sys._getframe(2)
    barriers = lane.block.barriers
    phase = barriers.get(number)
    if phase is None:
        phase = barriers[number] = Barrier(count)
    elif phase.count != count:
        fault("barrier", f"barrier {number} for {count} lanes, others came with {phase.count}")
    elif lane in phase.arrived:
        fault("barrier", f"barrier {number}: this lane has arrived already")
    phase.arrived[lane] = frame.f_code, frame.f_lasti
    phase.clocks.append((lane.seen, lane.index, lane.clock))
    phase.values.append(value)
    lane.clock += 1
    if waits:
        phase.waiting.append(lane)
    if len(phase.arrived) == count:
        del barriers[number]
        _check_warps(number, phase)
        meet(phase.waiting, phase.clocks)
        result = combine(phase.values) if combine else None
        for other in phase.waiting:
            other.value = result
        lane.block.ready.extend(phase.waiting)
    if not waits:
        return None
    rest(lane)
    return lane.value


def _check_warps(number, phase):
    sites = {}
    for lane, site in phase.arrived.items():
        first = sites.setdefault(lane.index // WARP, lane)
        if site != phase.arrived[first]:
            message = f"barrier {number}: lanes {first.index} and {lane.index} of one warp came by different lines"
            fault("barrier", message, lane)


def poll(seen: Any = None) -> None:
    """Called by a lane that looks at memory which other blocks write: others may run first.

    ``seen`` is what it saw, an address and a value: progress when it is new to the lane.
    """
    lane = State.lane
    if seen is not None and seen not in lane.polled:
        lane.polled.add(seen)
        State.progress += 1
    lane.block.polling.append(lane)
    rest(lane)


def stuck(block: Any) -> None:
    """A fault that says who waits for whom: nobody of ``block`` can run, and not all are finished."""
    for warp in block.warps:
        for mask, meeting in warp.pending.items():
            missing = [other for other in warp.lanes if mask >> other.index % WARP & 1 and other not in meeting.lanes]
            awaited = f"lane {missing[0].index} is {_at(missing[0])}" if missing else "the warp has fewer lanes"
            here = f"{mask.bit_count() - meeting.missing} of {mask.bit_count()}"
            message = f"{meeting.operation.__name__} by {here} lanes: {awaited}"
            fault("divergence", message, next(other for other in meeting.lanes if other is not None))
    for number, phase in block.barriers.items():
        missing = [other for other in block.lanes if other not in phase.arrived]
        awaited = f"; lane {missing[0].index} is {_at(missing[0])}" if missing else ""
        message = f"barrier {number} reached by {len(phase.arrived)} of {phase.count} lanes{awaited}"
        fault("barrier", message, phase.waiting[0] if phase.waiting else next(iter(phase.arrived)))
    raise AssertionError("no lane can run and none waits")


def _at(lane):
    location = where(lane)
    return location if location == "finished" else f"at {location}"
