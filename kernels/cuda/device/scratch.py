"""Scratch arrays on the device, kept for each stream."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from ..toolchain.compiler import array_module, stream_key
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
        """The array of the CuPy ``stream``, or the current one, on the current device: of at least ``shape``, which has
        as many axes in every call."""
        held = self._held.setdefault(stream_key(stream), [])
        if not held or any(have < need for have, need in zip(held[-1].shape, shape, strict=True)):
            known = held[-1].shape if held else shape
            # Filled on the stream of the launches that will use it: on another they would not wait for that.
            with nullcontext() if stream is None else stream:
                held.append(array_module().full(tuple(map(max, known, shape)), self._unset, self._dtype))
        return held[-1]
