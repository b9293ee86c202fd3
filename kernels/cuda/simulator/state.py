"""What all of the simulator knows: the lane that runs, who runs next, where a lane stands, how a fault is told."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from greenlet import getcurrent


class SimulationError(RuntimeError):
    """A fault in a kernel. ``kind`` is one of: barrier, divergence, unwritten, bounds, alignment, race, overflow,
    dependency, device, python. The message names kernel, block, lane and source line."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class State:
    """The lane that runs, the scheduler's greenlet, the count of stores, which tells progress from spinning, and the
    compute capability of the device that is simulated."""

    lane: Any = None
    hub: Any = None
    progress = 0
    capability: tuple[int, int] = (9, 0)


class Dim3:
    """x, y and z of an index or a size."""

    __slots__ = ("x", "y", "z")

    def __init__(self, x: int, y: int = 1, z: int = 1) -> None:
        self.x, self.y, self.z = x, y, z

    def __str__(self):
        return f"({self.x}, {self.y}, {self.z})"


def rest(lane: Any) -> None:
    """Called by ``lane``, the running one, that cannot go on: the next ready lane of its block runs, or the scheduler
    when there is none. Returns when somebody switches back to it.

    The scheduler starts every lane before one goes on; a greenlet counts the depth of the one that started it as its
    own, so lanes do not start each other.
    """
    block = lane.block
    if block.ready and not block.fresh:
        State.lane = other = block.ready.popleft()
        other.go()
    else:
        State.hub.switch()


def requires(capability: tuple[int, int], instruction: str) -> None:
    """A fault unless the simulated device has at least this compute capability."""
    if State.capability < capability:
        has, needs = ("sm_{}{}".format(*version) for version in (State.capability, capability))
        fault("device", f"{instruction} needs {needs} or newer, and this device is {has}")


_OWN = {str(path) for path in Path(__file__).parent.glob("*.py")}


def kernel_frame(frame: FrameType) -> FrameType:
    """The innermost frame outside the simulator's own files."""
    while frame.f_code.co_filename in _OWN and frame.f_back is not None:
        frame = frame.f_back
    return frame


def where(lane: Any) -> str:
    """``file:line`` at which ``lane`` is, or "finished"."""
    g = lane.greenlet
    if g.dead:
        return "finished"
    frame = sys._getframe() if g is getcurrent() else g.gr_frame
    if frame is None:
        return "not started"
    frame = kernel_frame(frame)
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def raised_at(error: BaseException) -> str:
    """``file:line`` of the kernel at which ``error`` was raised."""
    trace, location = error.__traceback__, "?"
    while trace is not None:
        if trace.tb_frame.f_code.co_filename not in _OWN:
            location = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return location


def fault(kind: str, message: str, lane: Any = None, location: str | None = None) -> NoReturn:
    """Raise :class:`SimulationError` at ``lane``, the running one when None; ``location`` where it is not there now."""
    lane = lane or State.lane
    at = f"kernel {lane.block.name}, block {lane.block.index}, lane {lane.index}, {location or where(lane)}"
    raise SimulationError(kind, f"{at}: {message}")


def early(what: str) -> NoReturn:
    """:func:`fault` of the running lane, which touches ``what`` too early."""
    fault("dependency", f"{what} before the kernel waited for the launches before it")
