"""Calls that are made again and again: their inputs in fixed buffers, their launches in a graph.

Without a device (the simulator) a program is carried out every time, over the same buffers.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from threading import local
from typing import Any

import numpy as np

from ..common.views import THREADS
from ..toolchain.compiler import address, array_module, cuda, int32, int64, kernel, launch, pinned
from ..toolchain.ptx import ld_global_i64, st_global_i64
from ..toolchain.ptx_rows import PtxRow, signature_of

WORD = 8
ALIGNED = 16
"""Bytes to a multiple of which every array of a staging is aligned: what vector loads want."""


@kernel()
def move_kernel(source, target, words):
    """Copy ``words`` of 8 bytes between two addresses. Grid (words / 256)."""
    word = int32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
    if word < words:
        st_global_i64(target + int64(word) * WORD, ld_global_i64(source + int64(word) * WORD))


class Staging:
    """Arrays of a call on the device that are filled from the host: one copy a call moves them all.

    ``arrays``: name -> NumPy array, for shapes and dtypes. :attr:`arrays` are those on the device: name -> array.
    """

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        slices, end = {}, 0
        for name, array in arrays.items():
            slices[name] = slice(end, end + array.nbytes)
            end += -(-array.nbytes // ALIGNED) * ALIGNED
        words = max(1, end // WORD)
        host, self._seen = pinned((words,), np.int64)
        self._words = array_module().zeros((words,), np.int64)
        bytes_ = {side: whole.view(np.uint8) for side, whole in (("host", host), ("device", self._words))}

        def views(side):
            return {
                name: bytes_[side][slices[name]].view(array.dtype).reshape(array.shape)
                for name, array in arrays.items()
            }

        self._host, self.arrays = views("host"), views("device")

    def fill(self, arrays: dict[str, np.ndarray]) -> None:
        """Write ``arrays`` (as given at first) into the host's side. An earlier :meth:`move` must be over."""
        for name, array in arrays.items():
            self._host[name][...] = array

    def move(self) -> None:
        """Copy the host's side to the device: a launch, which can be captured."""
        words = self._words.size
        launch(move_kernel, -(-words // THREADS), THREADS, (address(self._seen), address(self._words), words))


class Program:
    """What ``record()`` launches, as often as it is called.

    The first call carries it out, the second captures it in a graph and launches that, later ones launch the graph
    again. So nothing is compiled, loaded or looked up for the first time during the capture, and no call is made twice
    for its effects. Everything ``record`` allocates comes from a pool of the program's own and stays where it is.

    stream  a CuPy stream, not the default one; programs that read each other's results share it. A call waits for what
            the current stream was given before, and the current stream for the call. None in the simulator.
    clock   None, or an object whose attributes ``device`` and ``waited`` gain the seconds that a call took on the
            device and that the host waited for it; they are known when it is waited for, or when the next one is made

    ``result``: what ``record`` returned last; :attr:`generation` counts those results, whose arrays differ.
    """

    def __init__(self, record: Callable[[], Any], stream: Any, clock: Any = None) -> None:
        self._record, self.stream, self._clock = record, stream, clock
        self._graph: Any = None
        # Recorded again at every call: a wait is for what an event stood for when it was asked.
        self._before: Any = None if stream is None else _event()
        timed = clock is not None
        self._done: Any = None if stream is None else _event(timed)
        self._begin: Any = _event(True) if timed and stream is not None else None
        self._called = self._running = False
        self.result, self.generation = None, 0
        self._pool: Any = None if stream is None else array_module().cuda.MemoryPool()

    def wait(self) -> None:
        """Wait for the last call. What it wrote to page-locked memory can then be read."""
        if not self._called:
            return
        if self._clock is None:
            self._done.synchronize()
            return
        begin = time.perf_counter()
        self._done.synchronize()
        self._clock.waited += time.perf_counter() - begin
        self._count()

    def _count(self) -> None:
        """Give the clock the seconds of a call that is over."""
        if self._running and self._done.done:
            self._running = False
            self._clock.device += array_module().cuda.get_elapsed_time(self._begin, self._done) / 1000

    def __call__(self) -> Any:
        """Carry it out behind all that the current stream was given; returns :attr:`result` at once."""
        if self.stream is None:
            return self._make_timed()
        if self._running:
            self._count()
        current = array_module().cuda.get_current_stream()
        other = current.ptr != self.stream.ptr
        if other:
            self.stream.wait_event(current.record(self._before))
        if self.generation == 1:
            # Before the time begins: what the host takes to make a graph is not the device's.
            with self.stream, array_module().cuda.using_allocator(self._pool.malloc):
                self._capture()
        if self._begin is not None:
            self.stream.record(self._begin)
        if self._graph is not None:
            self.launch()
        else:
            with self.stream, array_module().cuda.using_allocator(self._pool.malloc):
                self._make()
        self.stream.record(self._done)
        self._called = True
        self._running = self._begin is not None
        if other:
            current.wait_event(self._done)
        return self.result

    def launch(self) -> None:
        """Launch the captured graph alone, on the program's stream, ordered with no other; returns at once."""
        self._graph.launch(stream=self.stream)

    def _make_timed(self):
        begin = time.perf_counter()
        try:
            return self._make()
        finally:
            if self._clock is not None:
                seconds = time.perf_counter() - begin
                self._clock.device += seconds
                self._clock.waited += seconds

    def _make(self):
        self.result = self._record()
        self.generation += 1
        return self.result

    def _capture(self):
        self.stream.begin_capture()
        _captured.stream = self.stream
        try:
            self._make()
        finally:
            _captured.stream = None
            graph = self.stream.end_capture()
        self._graph = graph


def _event(timed: bool = False):
    """An event that is ordered and waited for, and timed only where that is asked."""
    return array_module().cuda.Event(disable_timing=not timed)


def program_stream() -> Any:
    """A stream for programs; None in the simulator."""
    cuda = getattr(array_module(), "cuda", None)
    return None if cuda is None else cuda.Stream(non_blocking=True)


class _Captured(local):
    """The stream that this thread captures for a program, or None."""

    stream: Any = None


_captured = _Captured()

BRANCHES = 8
"""Branches of a graph that :func:`together` makes at most."""

_sides: dict[tuple[int, int], list[tuple[Any, Any]]] = {}


def _branches_of(stream):
    """(stream, event) of every branch of what ``stream`` captures; the first is ``stream`` itself."""
    cuda = array_module().cuda
    key = cuda.runtime.getDevice(), stream.ptr
    if key not in _sides:
        sides = [cuda.Stream(non_blocking=True) for _ in range(BRANCHES - 1)]
        _sides[key] = [(each, _event()) for each in (stream, *sides)]
    return _sides[key]


def together(calls: Sequence[Callable[[], Any]]) -> None:
    """Carry out ``calls``, of which none reads or writes what another one writes.

    In a program that is being captured they become branches of its graph, which the device may run at the same time:
    launches of a few thread blocks each otherwise wait for one another. Elsewhere they are made in order. What follows
    waits for all of them.
    """
    if _captured.stream is None or len(calls) < 2:
        for call in calls:
            call()
        return
    (stream, begin), *sides = _branches_of(_captured.stream)[: len(calls)]
    stream.record(begin)
    for i, (side, end) in enumerate(sides, 1):
        side.wait_event(begin)
        with side:
            for call in calls[i::BRANCHES]:
                call()
        side.record(end)
    for call in calls[::BRANCHES]:
        call()
    for _, end in sides:
        stream.wait_event(end)


class Graph:
    """A captured graph of what ``record()`` launches on the current device; :meth:`replay` launches it again.

    ``record`` runs twice: once to compile and set attributes, once captured. Raises RuntimeError when it returns False,
    a refusal. Attributes: ``stream`` (a CuPy stream), on which it was captured and is replayed.
    """

    def __init__(self, record: Callable[[], Any]) -> None:
        cupy = array_module()
        self.stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.get_current_stream().synchronize()
        with self.stream:
            if record() is False:
                raise RuntimeError("graph: the operation was refused")
            self.stream.synchronize()
            self.stream.begin_capture()
            record()
            self._graph = self.stream.end_capture()

    def replay(self) -> None:
        """Launch the graph on its stream, behind all that the current stream was given before; returns at once."""
        current = array_module().cuda.get_current_stream()
        if current.ptr != self.stream.ptr:
            self.stream.wait_event(current.record())
        self._graph.launch(stream=self.stream)


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each."""
    yield PtxRow("program_move", move_kernel, signature_of("int64", "int64", "int64"))
