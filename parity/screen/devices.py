"""CUDA through CuPy or PyTorch: capture and replay of graphs, events. Each contestant is timed by the library that its
arrays are of; both see the same device.
"""

import abc
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from ..backend import UnsupportedError
from ..contract.kernel import Kernel
from .calls import Call, Noted
from .samplers import EventSampler, GraphSampler, HostSampler, LateWorkError, Sampler, calls_of

T = TypeVar("T")

BUSY_SECONDS = 0.02
"""So long a device works before its clocks are read: an idle one lowers them."""


class Device(Protocol):
    """The timers of a device by one library."""

    def synchronize(self) -> None:
        """Wait for the whole device."""
        ...

    def event(self) -> Any:
        """An event of the default stream with ``record()`` and ``synchronize()``."""
        ...

    def seconds(self, start: Any, end: Any) -> float:
        """Seconds between two events."""
        ...

    def capture(self, record: Callable[[], None]) -> Any:
        """A graph of what ``record()`` launches; it runs twice before it is captured, so that nothing is compiled then.
        Raises whatever the capture raises."""
        ...

    def timed_replays(self, graph: Any, replays: int) -> float:
        """Seconds of ``replays`` replays, after one that is not timed."""
        ...

    def while_replaying(self, graph: Any, read: Callable[[], T]) -> T:
        """``read()`` while the device replays the graph."""
        ...


class _Base(abc.ABC):
    """What is alike in both libraries."""

    stream: Any

    @abc.abstractmethod
    def _in_stream(self) -> contextlib.AbstractContextManager[Any]: ...

    @abc.abstractmethod
    def _launch(self, graph: Any) -> None: ...

    @abc.abstractmethod
    def synchronize(self) -> None: ...

    @abc.abstractmethod
    def event(self) -> Any: ...

    @abc.abstractmethod
    def seconds(self, start: Any, end: Any) -> float: ...

    def timed_replays(self, graph: Any, replays: int) -> float:
        """As :meth:`Device.timed_replays`."""
        self.synchronize()
        start, end = self.event(), self.event()
        with self._in_stream():
            self._launch(graph)
            start.record()
            for _ in range(replays):
                self._launch(graph)
            end.record()
        end.synchronize()
        return self.seconds(start, end)

    def while_replaying(self, graph: Any, read: Callable[[], T]) -> T:
        """As :meth:`Device.while_replaying`."""
        one = max(self.timed_replays(graph, 1), 1e-6)
        with self._in_stream():
            for _ in range(min(20000, 1 + round(2 * BUSY_SECONDS / one))):
                self._launch(graph)
        time.sleep(BUSY_SECONDS / 2)
        found = read()
        self.synchronize()
        return found


class CupyDevice(_Base):
    """The device through CuPy. A captured call's memory comes from a pool of the device object's own."""

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self._pools: list[Any] = []

    @contextlib.contextmanager
    def _in_stream(self) -> Iterator[None]:
        with self.stream:
            yield

    def _launch(self, graph: Any) -> None:
        graph.launch(stream=self.stream)

    def synchronize(self) -> None:
        """As :meth:`Device.synchronize`."""
        self._cupy.cuda.Device().synchronize()

    def event(self) -> Any:
        """As :meth:`Device.event`; recorded in the stream that is current then."""
        return self._cupy.cuda.Event()

    def seconds(self, start: Any, end: Any) -> float:
        """As :meth:`Device.seconds`."""
        return self._cupy.cuda.get_elapsed_time(start, end) / 1e3

    def capture(self, record: Callable[[], None]) -> Any:
        """As :meth:`Device.capture`."""
        pool = self._cupy.cuda.MemoryPool()
        self._pools.append(pool)
        self.synchronize()
        with self.stream, self._cupy.cuda.using_allocator(pool.malloc):
            for _ in range(2):
                record()
            self.stream.synchronize()
            self.stream.begin_capture()
            try:
                record()
            finally:
                graph = self.stream.end_capture()
        return graph


class TorchDevice(_Base):
    """The device through PyTorch."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self.stream = torch.cuda.Stream()

    def _in_stream(self) -> contextlib.AbstractContextManager[Any]:
        return self._torch.cuda.stream(self.stream)

    def _launch(self, graph: Any) -> None:
        graph.replay()

    def synchronize(self) -> None:
        """As :meth:`Device.synchronize`."""
        self._torch.cuda.synchronize()

    def event(self) -> Any:
        """As :meth:`Device.event`; recorded in the stream that is current then."""
        return self._torch.cuda.Event(enable_timing=True)

    def seconds(self, start: Any, end: Any) -> float:
        """As :meth:`Device.seconds`."""
        return start.elapsed_time(end) / 1e3

    def capture(self, record: Callable[[], None]) -> Any:
        """As :meth:`Device.capture`."""
        torch = self._torch
        self.synchronize()
        with self._in_stream():
            for _ in range(2):
                record()
        self.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            record()
        return graph


def library_of(call: Call) -> str:
    """``cupy`` or ``torch``, whichever the call's arrays on a CUDA device are of; ``host`` where they are on none."""
    for value in call.moved.values():
        library = type(value).__module__.split(".")[0]
        if library == "cupy" or (library == "torch" and value.is_cuda):
            return library
    return "host"


def sampler_of(
    kernel: Kernel, noted: Noted, count: int, right: Callable[[Sampler], str], devices: dict[str, Device]
) -> Sampler:
    """The most exact timer that fits the call: a graph where it can be captured and its replays follow their inputs,
    else events, else the clock of the host.

    count    calls with arguments of their own
    right    why what a sampler's calls give is wrong, for the first and the second variant; empty where it is right
    devices  library -> its device, filled as they are needed

    Raises UnsupportedError where the backend refuses, and whatever the backend raises.
    """
    calls = calls_of(kernel, noted, count)
    library = library_of(calls[0])
    synchronize = kernel.module.synchronize if kernel.has("synchronize") else None
    if library == "host":
        return HostSampler(calls, synchronize)
    if library not in devices:
        devices[library] = CupyDevice() if library == "cupy" else TorchDevice()
    device = devices[library]
    if hasattr(kernel.module, "stream") or synchronize is not None:
        # A stream of its own is not one that is captured or has our events.
        wait = _both(device.synchronize, synchronize)
        return HostSampler(calls, wait, why="the backend has a stream of its own")
    why = _not_captured(calls, device, right)
    if isinstance(why, GraphSampler):
        return why
    # What a failed capture has left of the arguments is not known.
    calls = calls_of(kernel, noted, count)
    events = EventSampler(calls, device, why)
    try:
        for _ in range(3):
            events.sample(3)
    except LateWorkError as error:
        return HostSampler(calls, device.synchronize, why=f"no events: {error}")
    return events


def _both(first: Callable[[], Any], second: Callable[[], Any] | None) -> Callable[[], Any]:
    def wait() -> None:
        if second is not None:
            second()
        first()

    return wait


def _not_captured(calls: list[Call], device: Device, right: Callable[[Sampler], str]) -> GraphSampler | str:
    """The sampler of a graph, or why there is none."""
    try:
        graph = GraphSampler(calls, device)
        graph.sample(1)
        wrong = right(graph)
    except UnsupportedError:
        raise
    except Exception as error:
        # A kernel that cannot be captured says so in as many ways as there are libraries.
        lines = str(error).strip().splitlines()
        return f"{type(error).__name__}: {lines[0][:100] if lines else ''}"
    return graph if not wrong else "a replay does not follow its inputs"
