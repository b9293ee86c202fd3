"""Memory on the device that operations and tests ask for: scratch of each stream, buffers between guard words."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..toolchain.compiler import array_module, as_numpy, stream_key
from ..toolchain.host import DeviceArray


class StreamScratch:
    """Scratch arrays of ``dtype``, full of ``unset`` when they are made, one kept for each device and stream (and
    thread, where that has its own default stream).

    For kernels that leave a scratch as they found it. A captured graph may hold one, so none is given up: a larger one
    takes its place when it is needed.
    """

    def __init__(self, dtype: str = "int32", unset: int = 0) -> None:
        self._dtype, self._unset = dtype, unset
        self._held: dict[tuple[int, int, int], list[DeviceArray]] = {}

    def get(self, shape: Sequence[int], stream: Any = None) -> DeviceArray:
        """The array of ``stream``, or the current one, on the current device: of at least ``shape``, which has as many
        axes in every call."""
        held = self._held.setdefault(stream_key(stream), [])
        if not held or any(have < need for have, need in zip(held[-1].shape, shape, strict=True)):
            known = held[-1].shape if held else shape
            held.append(array_module().full(tuple(map(max, known, shape)), self._unset, self._dtype))
        return held[-1]


GUARD = 256
"""Guard bytes on either side of a guarded buffer: CuPy's alignment is kept."""

_MARK, _POISON = 0xA5, 0xFF


class Guarded:
    """A buffer on the device between two guards; ``array`` is the buffer, poisoned: NaN, or -1 as an integer.

    A launch that leaves it must leave the guards: :meth:`check`.
    """

    def __init__(self, shape: Sequence[int], dtype: Any) -> None:
        xp = array_module()
        dtype = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self._whole = xp.full(nbytes + 2 * GUARD, _MARK, np.uint8)
        self.array = self._whole[GUARD : GUARD + nbytes].view(dtype).reshape(shape)
        self._whole[GUARD : GUARD + nbytes] = _POISON

    def check(self, name: str) -> None:
        """Raises AssertionError naming the buffer and the first byte beyond it that was written."""
        whole = as_numpy(self._whole)
        for side, guard in (("before", whole[:GUARD]), ("after", whole[-GUARD:])):
            bad = np.flatnonzero(guard != _MARK)
            if bad.size:
                raise AssertionError(f"{name}: {bad.size} bytes written {side} the buffer, first at {bad[0]}")
