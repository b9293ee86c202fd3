"""The simulator's scheduler: blocks, warps and lanes, each lane a greenlet.

A lane runs until it needs others (sync.py): it then switches to the next lane of its block that is ready, and
to the scheduler when there is none or when it has finished.
"""

from collections import deque
from contextvars import copy_context
from typing import Any

import numpy as np
from greenlet import getcurrent, greenlet

from ..toolchain.constants import WARP
from .state import Dim3, SimulationError, State, fault, raised_at
from .sync import stuck

PATIENCE = 50
"""Rounds of polling without a store, a finished lane or a new sight after which blocks wait for ever."""


class Lane:
    """One lane. ``clock`` counts its own synchronisations; ``seen`` [lanes] is the clock up to which it is ordered
    after every lane of its block. ``open`` and ``groups`` hold its asynchronous copies under way, ``polled`` what it
    looked at, ``value`` the result of what it last waited for; ``arrivals`` and ``waits`` count its cluster's barriers,
    ``awaits()`` says what a polling lane waits for, where that is known. ``early``: it has not waited for earlier
    launches yet, and must. ``laneid`` is its index in the warp; ``go()`` switches to it."""

    __slots__ = (
        *("arrivals", "awaits", "block", "clock", "early", "go", "greenlet", "groups", "index", "laneid", "open"),
        *("polled", "seen", "thread", "value", "waits", "warp"),
    )

    def __init__(self, block: Any, index: Any, thread: Any, warp: Any) -> None:
        self.block, self.index, self.thread, self.warp = block, index, thread, warp
        self.laneid, self.clock, self.seen = index % WARP, 1, block.origin
        self.open, self.groups, self.polled = [], [], set()
        self.value = self.awaits = None
        self.arrivals = self.waits = 0
        self.greenlet = greenlet(self._run)
        self.greenlet.gr_context = copy_context()
        self.go = self.greenlet.switch

    def _run(self):
        self.early = self.block.overlaps
        self.block.function(*self.block.args)
        if self.early:
            fault("dependency", "ends without waiting for the launches before it", self, "at its end")


class Warp:
    """Lanes that share warp operations; ``pending`` holds those under way, by mask."""

    __slots__ = ("lanes", "pending")

    def __init__(self) -> None:
        self.lanes, self.pending = [], {}


class Block:
    """One thread block under way. ``fresh`` holds the lanes not yet started, ``ready`` those that may go on, in order,
    ``polling`` those that look at memory which others write; ``cluster``: of a launch in clusters, its
    ``cluster.Cluster``; ``overlaps``: its kernel waits for earlier launches itself."""

    cluster = None
    overlaps = False

    def __init__(
        self,
        name: Any,
        function: Any,
        args: Any,
        index: Any,
        grid: Any,
        size: Any,
        shared: Any,
        registered: Any,
        backwards: Any,
    ) -> None:
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
        self.fresh = deque(lane for warp in (reversed(warps) if backwards else warps) for lane in warp.lanes)
        self.ready = deque()
        self.running = count

    def advance(self) -> None:
        """Run every lane until it is finished, waits or polls; those that polled before run again first.

        Raises :class:`SimulationError` when lanes wait for ever.
        """
        fresh, ready = self.fresh, self.ready
        ready.extend(self.polling)
        self.polling = []
        while fresh or ready:
            State.lane = (fresh or ready).popleft()
            try:
                # Lanes switch to each other: who comes back here has finished, or nobody else was ready.
                State.lane.go()
            except SimulationError:
                raise
            except Exception as error:
                try:
                    fault("python", f"{type(error).__name__}: {error}", location=raised_at(error))
                except SimulationError as found:
                    raise found from error
            if State.lane.greenlet.dead:
                self.running -= 1
                if self.cluster is not None:
                    self.cluster.leave(State.lane)
                State.progress += 1
        if self.running and not self.polling:
            stuck(self)


def run_grid(start: Any, count: Any, order: Any, resident: Any) -> None:
    """Run ``count`` clusters, of which ``start(i)`` makes the blocks of the i-th; another starts while fewer than
    ``resident`` blocks are under way.

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
                under_way += start(waiting.pop())
                idle = 0
            elif idle > PATIENCE:
                _spins(under_way, len(waiting))


def _spins(under_way, n_waiting):
    """A fault that says what the polling lanes of the blocks ``under_way`` wait for."""
    known = [lane for block in under_way for lane in block.polling if lane.awaits]
    awaited = dict.fromkeys(lane.awaits() for lane in known)
    message = f"spins for ever: {len(under_way)} blocks under way, {n_waiting} not started"
    lane = known[0] if known else under_way[0].polling[0]
    fault("barrier", "; ".join([message, *awaited]), lane)
