"""Timers of a contestant's calls: each gives seconds of one call, over as many as it is asked for.

``hot``: one call is made again and again; a call that is not timed comes first, so that its data is back in the caches
after another contestant's turn. ``cold``: calls with arguments of their own take turns, together larger than the cache.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..backend import UnsupportedError
from ..contract.kernel import Kernel
from .calls import Call, Noted
from .results import State

COLD_FACTOR = 2
"""The arguments of cold calls are together so many times the cache."""

MOST_COPIES, MOST_COLD_BYTES, MOST_COLD_SECONDS = 512, 1 << 28, 2.0
"""Copies of the arguments of a cold call at most, bytes that they touch together, seconds that one turn takes."""

LATE_SHARE, LATE_SECONDS = 0.2, 50e-6
"""A device may work on after the last event for so large a share of the time, and so long: else the kernel runs on a
stream that the events do not see."""

LATE_TIMES = 3
"""So often in a row it is late before that is said of the kernel and not of other work on the machine."""


class Sampler(Protocol):
    """A timer of one contestant's calls.

    contract  how it measures
    calls     the calls that it makes
    """

    contract: str
    calls: Sequence[Call]

    def sample(self, count: int) -> float:
        """Seconds of one call, over ``count`` calls."""
        ...

    def outputs(self) -> list[Any]:
        """What the last sample gave, as values of the host: of one call, or of several."""
        ...

    def state(self, read: Callable[[], State]) -> State:
        """``read()`` while the processor or device is at work on the calls."""
        ...


def copies(cache: str, touched: int, cache_bytes: int, seconds: float = 0.0) -> int:
    """Number of calls with arguments of their own that take turns; ``seconds`` is what one takes.

    Raises UnsupportedError where they would be too many to empty the cache, or take too long.
    """
    if cache == "hot":
        return 1
    wanted = max(2, -(-min(COLD_FACTOR * cache_bytes, MOST_COLD_BYTES) // max(1, touched)))
    if wanted > MOST_COPIES:
        raise UnsupportedError(f"cold: {wanted:,} copies of the {touched:,} bytes of a call would be needed")
    if wanted * seconds > MOST_COLD_SECONDS:
        raise UnsupportedError(f"cold: {wanted:,} calls of {seconds:.2g} s would be needed for each sample")
    return wanted


def calls_of(kernel: Kernel, noted: Noted, count: int) -> list[Call]:
    """``count`` calls with arguments of their own."""
    return [Call(kernel, noted, number) for number in range(count)]


class HostSampler:
    """Times with the clock of the host. A backend's ``synchronize`` is called, and timed, at the end of a sample."""

    def __init__(
        self,
        calls: Sequence[Call],
        synchronize: Callable[[], Any] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        why: str = "",
    ) -> None:
        self.calls, self._synchronize, self._clock = calls, synchronize, clock
        self._at, self._last, self._returned = 0, calls[0], calls[0].first()
        what = "clock of the host" if synchronize is None else "clock of the host, synchronised"
        self.contract = f"{what}, {rotation(calls)}{f'; {why}' if why else ''}"

    def sample(self, count: int) -> float:
        """As :meth:`Sampler.sample`."""
        chosen = [self.calls[(self._at + number) % len(self.calls)] for number in range(count)]
        functions, clock = [call.function for call in chosen], self._clock
        if len(self.calls) == 1:
            self._returned = functions[0]()
        if self._synchronize is not None:
            self._synchronize()
        begin = clock()
        for function in functions:
            returned = function()
        if self._synchronize is not None:
            self._synchronize()
        taken = clock() - begin
        self._at, self._last, self._returned = self._at + count, chosen[-1], returned
        return taken / count

    def outputs(self) -> list[Any]:
        """As :meth:`Sampler.outputs`: of the last call."""
        return [self._last.result(self._returned)]

    def state(self, read: Callable[[], State]) -> State:
        """As :meth:`Sampler.state`: right after a call."""
        self.calls[0].function()
        return read()


def rotation(calls: Sequence[Call]) -> str:
    """In words: hot, or over how many arguments the calls take turns."""
    return "hot" if len(calls) == 1 else f"cold: {len(calls)} calls with arguments of their own in turn"


class EventSampler:
    """Times between events of a device's default stream, launches by the host included.

    ``device``: a ``devices.Device``. Raises LateWorkError when the device works on after the last event time after
    time; once may be another process on the device or the processor.
    """

    def __init__(self, calls: Sequence[Call], device: Any, why: str) -> None:
        self.calls, self._device = calls, device
        self._at, self._last, self._returned = 0, calls[0], calls[0].first()
        self.contract = f"events, {rotation(calls)}, launches by the host included; no graph: {why}"

    def sample(self, count: int) -> float:
        """As :meth:`Sampler.sample`."""
        for _ in range(LATE_TIMES):
            taken, late = self._sample(count)
            if late <= max(LATE_SHARE * taken, LATE_SECONDS):
                return taken / count
        raise LateWorkError(f"the device worked for {1e6 * late:.0f} us after the last event")

    def _sample(self, count: int) -> tuple[float, float]:
        """(seconds of ``count`` calls, seconds that the device then still worked)."""
        chosen = [self.calls[(self._at + number) % len(self.calls)] for number in range(count)]
        if len(self.calls) == 1:
            self._returned = chosen[0].function()
        self._device.synchronize()
        start, end = self._device.event(), self._device.event()
        start.record()
        for call in chosen:
            returned = call.function()
        end.record()
        end.synchronize()
        ended = time.perf_counter()
        self._device.synchronize()
        late = time.perf_counter() - ended
        taken = self._device.seconds(start, end)
        self._at, self._last, self._returned = self._at + count, chosen[-1], returned
        return taken, late

    def outputs(self) -> list[Any]:
        """As :meth:`Sampler.outputs`: of the last call."""
        return [self._last.result(self._returned)]

    def state(self, read: Callable[[], State]) -> State:
        """As :meth:`Sampler.state`."""
        for call in self.calls:
            call.function()
        found = read()
        self._device.synchronize()
        return found


class LateWorkError(RuntimeError):
    """A device worked on after the event that should have been its last."""


HOT_LAUNCHES = 10
"""Launches of a hot call in one graph: the cost of launching the graph is shared."""


class GraphSampler:
    """Times replays of a captured graph of the calls, between events. Raises whatever the capture raises."""

    def __init__(self, calls: Sequence[Call], device: Any) -> None:
        self.calls, self._device = calls, device
        self._returned: list[Any] = []
        repeats = HOT_LAUNCHES if len(calls) == 1 else 1
        self._launches = repeats * len(calls)

        def record() -> None:
            # What a captured call returned is held: its memory is written at every replay.
            self._returned = [call.first() for call in calls for _ in range(repeats)]

        self._graph = device.capture(record)
        self.contract = f"graph of {self._launches} launches replayed between events, {rotation(calls)}"

    def sample(self, count: int) -> float:
        """As :meth:`Sampler.sample`, rounded up to whole replays."""
        replays = -(-count // self._launches)
        return self._device.timed_replays(self._graph, replays) / (replays * self._launches)

    def outputs(self) -> list[Any]:
        """As :meth:`Sampler.outputs`: of the first and the last call in the graph."""
        self._device.synchronize()
        ends = dict.fromkeys((0, self._launches - 1))
        each = self._launches // len(self.calls)
        return [self.calls[at // each].result(self._returned[at]) for at in ends]

    def state(self, read: Callable[[], State]) -> State:
        """As :meth:`Sampler.state`: while replays are under way."""
        return self._device.while_replaying(self._graph, read)
