"""Buffers on the device between guard bytes, and calls captured in a graph."""

import numpy as np

GUARD_BYTES = 4096
"""Guard bytes on either side of a buffer; CuPy's alignment is kept."""

GUARD, POISON = 0xA5, 0xFF


class Guarded:
    """``array`` [*shape] of ``dtype`` with guard bytes on both sides, in arrays of ``xp`` (NumPy or CuPy).

    It is full of ``fill``; where that is None, of NaN, or of -1 in integers.
    """

    def __init__(self, shape, dtype, fill, xp):
        n_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        self._bytes = xp.full(n_bytes + 2 * GUARD_BYTES, GUARD, np.uint8)
        self._bytes[GUARD_BYTES : GUARD_BYTES + n_bytes] = POISON
        self.array = self._bytes[GUARD_BYTES : GUARD_BYTES + n_bytes].view(dtype).reshape(shape)
        if fill is not None:
            self.array.fill(fill)

    def check(self, name):
        """Raises AssertionError when a guard byte has changed; the message gives ``name``, the side and the byte."""
        for side, guard in (("before", self._bytes[:GUARD_BYTES]), ("after", self._bytes[-GUARD_BYTES:])):
            changed = (guard != GUARD).nonzero()[0]
            assert not changed.size, f"{name}: {changed.size} bytes written {side} the buffer, first at {changed[0]}"


def captured(call):
    """A function that replays ``call``'s launches, captured in a graph, and waits for them. ``call`` is made once
    before, so that nothing is compiled during the capture."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        call()
        stream.synchronize()
        stream.begin_capture()
        call()
        graph = stream.end_capture()

    def replay():
        # The stream does not wait for the default one, on which buffers are filled.
        cupy.cuda.Device().synchronize()
        graph.launch(stream=stream)
        stream.synchronize()

    return replay


def replay(graph):
    """Launch a :class:`qsa.kernels.cuda.device.Graph` and wait for it. The launch itself waits for what the current
    stream, on which the tests fill buffers, was given before."""
    graph.replay()
    graph.stream.synchronize()
