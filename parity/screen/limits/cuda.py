"""What a CUDA device can do at most, measured now. Importing it needs numba-cuda and CuPy."""

from collections.abc import Callable
from typing import Any

from qsa.kernels.cuda.toolchain.compiler import array_module, properties

from ...bench import limits, timing
from ..results import Limits, Rate, State

MEMORY_BYTES = 1 << 30

MACS_PER_CYCLE = {(7, 0): 512, (7, 5): 2048, (8, 0): 4096, (8, 6): 2048, (8, 7): 4096, (8, 9): 2048, (9, 0): 4096}
"""Compute capability -> multiply-adds that a multiprocessor does in a cycle at most, in its narrowest dense type: of 16
bits on Volta, 4 on Turing, Ampere and Ada, 8 on Hopper. Source: the peak rates of NVIDIA's architecture papers over
multiprocessors and clock. A device that is not in it is given :data:`UNKNOWN_MACS`."""

UNKNOWN_MACS = 16384
"""Of Blackwell's 4-bit type; more than any before it."""

DEFAULT_MHZ = 3000.0
"""Taken where nothing tells the highest clock."""


def bus_address() -> str:
    """PCI address of the current device."""
    runtime = array_module().cuda.runtime
    return runtime.deviceGetPCIBusId(runtime.getDevice())


def measured_limits(state: State) -> Limits:
    """The :class:`Limits` of the current device; takes about a second."""
    found = properties()
    small = timing.hot(limits.empty).median
    cached = sorted({max(1 << 21, found.l2 // part) for part in (8, 4, 2)})
    rates = tuple(_rate(size, small) for size in (*cached, MEMORY_BYTES))
    mhz = state.most_mhz or DEFAULT_MHZ
    each = MACS_PER_CYCLE.get(found.compute_capability, UNKNOWN_MACS)
    source = f"{found.multiprocessors} multiprocessors x {each} a cycle x {mhz:.0f} MHz"
    return Limits(found.name, int(found.l2), rates, small, small, found.multiprocessors * each * mhz * 1e6, source)


def _rate(size: int, small: float) -> Rate:
    """Copies of half of a set and reads of the whole, hot, less the ``small`` microseconds of an empty kernel: else
    the rate of a small set were that of its launch, and the floor of a larger one too high."""
    launches, replays = (2, 8) if size >= MEMORY_BYTES else (10, 20)

    def beyond(call: Callable[[], Any]) -> float:
        return max(timing.hot(call, launches, replays).median - small, small)

    cupy = array_module()
    source, target = (cupy.arange(size // 8, dtype="int32") for _ in range(2))
    # The driver's copy is not always the faster one: a kernel that writes what it read, changed, copies too.
    copied = min(beyond(lambda: cupy.copyto(target, source)), beyond(lambda: cupy.invert(source, out=target)))
    read = beyond(limits.sequential(size))
    return Rate(size, round(size / copied / 1e3, 1), round(size / read / 1e3, 1))
