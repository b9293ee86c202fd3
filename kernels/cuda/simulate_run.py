"""The simulator's scheduler: blocks, warps and lanes, each lane a greenlet.

A lane runs until it needs others: a warp operation, a barrier, a poll of global memory. It then switches to the
scheduler with a request, which is carried out once all lanes that it names have arrived. Order between lanes is kept as
vector clocks, one list per set of lanes that met last, so that ``simulate_memory`` can tell an ordered pair of accesses
from a race.
"""

import sys
from contextvars import copy_context
from pathlib import Path

import numpy as np
from greenlet import getcurrent, greenlet

WARP = 32
PATIENCE = 50
"""Rounds of polling without a store, a finished lane or a new sight after which blocks wait for ever."""

FULL = 0xFFFFFFFF


class SimulationError(RuntimeError):
    """A fault in a kernel. ``kind`` is one of: barrier, divergence, unwritten, bounds, alignment, race, overflow,
    device, python. The message names kernel, block, lane and source line."""

    def __init__(self, kind, message):
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class State:
    """The lane that runs, the scheduler's greenlet, the count of stores, which tells progress from spinning, and the
    compute capability of the device that is simulated."""

    lane = None
    hub = None
    progress = 0
    capability = (9, 0)


_OWN = {
    str(Path(__file__).with_name(f"simulate{part}.py")) for part in ("", "_run", "_memory", "_ops", "_ptx", "_matrix")
}


def kernel_frame(frame):
    """The innermost frame outside the simulator's own files."""
    while frame.f_code.co_filename in _OWN and frame.f_back is not None:
        frame = frame.f_back
    return frame


def where(lane):
    """``file:line`` at which ``lane`` is, or "finished"."""
    g = lane.greenlet
    if g.dead:
        return "finished"
    frame = sys._getframe() if g is getcurrent() else g.gr_frame
    if frame is None:
        return "not started"
    frame = kernel_frame(frame)
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def requires(capability, instruction):
    """A fault unless the simulated device has at least this compute capability."""
    if State.capability < capability:
        has, needs = ("sm_{}{}".format(*one) for one in (State.capability, capability))
        fault("device", f"{instruction} needs {needs} or newer, and this device is {has}")


def fault(kind, message, lane=None):
    """Raise :class:`SimulationError` at ``lane`` (the running one when None)."""
    lane = lane or State.lane
    place = f"kernel {lane.block.name}, block {lane.block.index}, lane {lane.index}, {where(lane)}"
    raise SimulationError(kind, f"{place}: {message}")


class Dim3:
    """x, y and z of an index or a size."""

    __slots__ = ("x", "y", "z")

    def __init__(self, x, y=1, z=1):
        self.x, self.y, self.z = x, y, z

    def __str__(self):
        return f"({self.x}, {self.y}, {self.z})"


class Lane:
    """One lane. ``clock`` counts its own synchronisations; ``seen`` [lanes] is the clock up to which it is ordered
    after every lane of its block. ``open`` and ``groups`` hold its asynchronous copies under way, ``polled`` what it
    looked at."""

    __slots__ = (
        *("block", "clock", "greenlet", "groups", "index", "open", "polled"),
        *("seen", "site", "thread", "value", "warp"),
    )

    def __init__(self, block, index, thread, warp):
        self.block, self.index, self.thread, self.warp = block, index, thread, warp
        self.clock, self.seen = 1, block.origin
        self.open, self.groups, self.polled = [], [], set()
        self.value = self.site = None
        self.greenlet = greenlet(self._run)

    def _run(self, _):
        self.block.function(*self.block.args)


class Warp:
    """Lanes that share warp operations; ``pending`` holds those which have arrived, by mask."""

    __slots__ = ("lanes", "pending")

    def __init__(self):
        self.lanes, self.pending = [], {}


class Barrier:
    """One phase of a barrier: lanes expected, arrived (with the clocks they had), and waiting."""

    __slots__ = ("arrived", "clocks", "count", "values", "waiting")

    def __init__(self, count):
        self.count = count
        self.arrived, self.clocks, self.values, self.waiting = [], [], [], []


def meet(lanes, clocks):
    """Order ``lanes`` after the moments ``clocks``, (what a lane had seen, its index, its clock) each, theirs included.

    A list of clocks is never changed once lanes share it.
    """
    distinct = {id(seen): seen for seen, _, _ in clocks}
    seen = [max(column) for column in zip(*distinct.values(), strict=True)] if len(distinct) > 1 else list(clocks[0][0])
    for _, index, clock in clocks:
        seen[index] = max(seen[index], clock)
    for lane in lanes:
        lane.seen = seen


def warp_operation(operation, mask, value):
    """Called by a lane: arrive at ``operation(lanes, values)`` with the lanes of ``mask``; its result for this lane."""
    lane = State.lane
    frame = kernel_frame(sys._getframe(1))
    lane.site = (frame.f_code, frame.f_lasti)
    return State.hub.switch((lane.block.arrive_at_warp, operation, int(mask) & FULL, value))


def barrier(number, count, waits=True, combine=None, value=None):
    """Called by a lane: arrive at barrier ``number`` of ``count`` lanes; ``combine(values)`` when it waits."""
    lane = State.lane
    frame = kernel_frame(sys._getframe(1))
    lane.site = (frame.f_code, frame.f_lasti)
    return State.hub.switch((lane.block.arrive_at_barrier, number, count, waits, combine, value))


def poll(seen=None):
    """Called by a lane that looks at memory which other blocks write: others may run first.

    ``seen`` is what it saw, an address and a value: progress when it is new to the lane.
    """
    lane = State.lane
    if seen is not None and seen not in lane.polled:
        lane.polled.add(seen)
        State.progress += 1
    State.hub.switch((lane.block.poll,))


class Block:
    """One thread block under way."""

    def __init__(self, name, function, args, index, grid, size, shared, registered, backwards):
        self.name, self.function, self.args = name, function, args
        self.index, self.grid, self.size = index, grid, size
        self.memory, self.globals = shared, registered
        count = size.x * size.y * size.z
        self.origin = [0] * count
        self.barriers, self.polling = {}, []
        self.lanes, warps = [], []
        for i in range(count):
            if i % WARP == 0:
                warps.append(Warp())
            thread = Dim3(i % size.x, i // size.x % size.y, i // (size.x * size.y))
            lane = Lane(self, i, thread, warps[-1])
            warps[-1].lanes.append(lane)
            self.lanes.append(lane)
        self.warps = warps
        for lane in self.lanes:
            lane.greenlet.gr_context = copy_context()
        self.ready = [lane for warp in (reversed(warps) if backwards else warps) for lane in warp.lanes]
        self.running = count

    def advance(self):
        """Run every lane until it is finished, waits or polls; those that polled before run again first.

        Raises :class:`SimulationError` when lanes wait for ever.
        """
        self.ready += self.polling
        self.polling = []
        while self.ready:
            ready, self.ready = self.ready, []
            for lane in ready:
                State.lane = lane
                try:
                    request = lane.greenlet.switch(lane.value)
                except SimulationError:
                    raise
                except Exception as error:
                    raise self._python(lane, error) from error
                if lane.greenlet.dead:
                    self.running -= 1
                    State.progress += 1
                else:
                    lane.value = None
                    request[0](lane, *request[1:])
        if self.running and not self.polling:
            self._stuck()

    def _python(self, lane, error):
        trace, place = error.__traceback__, "?"
        while trace is not None:
            if trace.tb_frame.f_code.co_filename not in _OWN:
                place = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
            trace = trace.tb_next
        place = f"kernel {self.name}, block {self.index}, lane {lane.index}, {place}"
        return SimulationError("python", f"{place}: {type(error).__name__}: {error}")

    def poll(self, lane):
        """Request: let others run."""
        self.polling.append(lane)

    def arrive_at_warp(self, lane, operation, mask, value):
        """Request: a warp operation over the lanes of ``mask``."""
        if not mask >> (lane.index % WARP) & 1:
            fault(
                "divergence", f"{operation.__name__}: lane {lane.index % WARP} is not in its own mask {mask:#x}", lane
            )
        pending = lane.warp.pending
        group = pending.setdefault(mask, [])
        lane.value = (operation, value)
        group.append(lane)
        if len(group) < mask.bit_count():
            return
        del pending[mask]
        group.sort(key=lambda one: one.index)
        first = group[0]
        for other in group:
            if other.site != first.site or other.value[0] is not first.value[0]:
                message = (
                    f"{operation.__name__}: lane {other.index} stands at {where(other)}, at {other.value[0].__name__}"
                )
                fault("divergence", message, first)
        results = operation(group, [one.value[1] for one in group])
        for one, result in zip(group, results, strict=True):
            one.value = result
        self.ready += group

    def arrive_at_barrier(self, lane, number, count, waits, combine, value):
        """Request: a barrier of ``count`` lanes."""
        phase = self.barriers.setdefault(number, Barrier(count))
        if phase.count != count:
            fault("barrier", f"barrier {number} for {count} lanes, others came with {phase.count}", lane)
        if lane in phase.arrived:
            fault("barrier", f"barrier {number}: this lane has arrived already", lane)
        phase.arrived.append(lane)
        phase.clocks.append((lane.seen, lane.index, lane.clock))
        phase.values.append(value)
        lane.clock += 1
        (phase.waiting if waits else self.ready).append(lane)
        if len(phase.arrived) < count:
            return
        del self.barriers[number]
        self._check_warps(number, phase)
        meet(phase.waiting, phase.clocks)
        result = combine(phase.values) if combine else None
        for one in phase.waiting:
            one.value = result
        self.ready += phase.waiting

    def _check_warps(self, number, phase):
        sites = {}
        for lane in phase.arrived:
            first = sites.setdefault(lane.index // WARP, lane)
            if lane.site != first.site:
                message = f"barrier {number}: lanes {first.index} and {lane.index} of one warp came by different lines"
                fault("barrier", message, lane)

    def _stuck(self):
        """Say who waits for whom: nobody can run, and not all are finished."""
        for warp in self.warps:
            for mask, group in warp.pending.items():
                missing = [one for one in warp.lanes if mask >> (one.index % WARP) & 1 and one not in group]
                awaited = f"lane {missing[0].index} is {_at(missing[0])}" if missing else "the warp has fewer lanes"
                message = f"{group[0].value[0].__name__} by {len(group)} of {mask.bit_count()} lanes: {awaited}"
                fault("divergence", message, group[0])
        for number, phase in self.barriers.items():
            missing = [one for one in self.lanes if one not in phase.arrived]
            awaited = f"; lane {missing[0].index} is {_at(missing[0])}" if missing else ""
            message = f"barrier {number} reached by {len(phase.arrived)} of {phase.count} lanes{awaited}"
            fault("barrier", message, phase.waiting[0] if phase.waiting else phase.arrived[0])
        raise AssertionError("no lane can run and none waits")


def _at(lane):
    place = where(lane)
    return place if place == "finished" else f"at {place}"


def run_grid(start, count, order, resident):
    """Run ``count`` blocks, of which ``start(i)`` makes the i-th and ``resident`` may be under way at once.

    A block runs alone until it does nothing but poll; then the next one joins in, as on a device.
    """
    waiting = list(range(count))
    if order != "backwards":
        waiting.reverse()
    State.hub = getcurrent()
    under_way, idle = [], 0
    with np.errstate(all="ignore"):
        while waiting or under_way:
            before = State.progress
            for block in under_way:
                block.advance()
            under_way = [block for block in under_way if block.running]
            idle = 0 if State.progress != before else idle + 1
            if under_way and idle < 2:
                continue
            if waiting and len(under_way) < resident:
                under_way.append(start(waiting.pop()))
                idle = 0
            elif idle > PATIENCE:
                lane = under_way[0].polling[0]
                message = f"spins for ever: {len(under_way)} blocks under way, {len(waiting)} not started"
                fault("barrier", message, lane)
