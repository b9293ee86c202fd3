"""Device arrays between guard words, and calls captured in a graph."""

import numpy as np

GUARD = 0x5EED5EED
WORDS = 1024


class Guarded:
    """A 4-byte array on the device, filled with ``fill``, with guard words on both sides."""

    def __init__(self, shape, dtype, fill):
        import cupy

        size = int(np.prod(shape))
        self.words = cupy.full(size + 2 * WORDS, GUARD, np.uint32)
        self.array = self.words[WORDS : WORDS + size].view(dtype).reshape(shape)
        self.array.fill(fill)

    def intact(self):
        """Whether every guard word is as it was."""
        return bool((self.words[:WORDS] == GUARD).all() and (self.words[-WORDS:] == GUARD).all())


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
