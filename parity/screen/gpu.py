"""What a CUDA device can do at most, measured now, and its state by NVML (nvidia-ml-py, extra ``bench``) or nvidia-smi.

Importing it needs numba-cuda and CuPy.
"""

import contextlib
from collections.abc import Callable
from typing import Any

from qsa.kernels.cuda.toolchain.compiler import array_module, properties

from ..bench import device, limits, timing
from .results import Limits, Rate, State

MEMORY_BYTES = 1 << 30

MACS_PER_CYCLE = {(7, 0): 512, (7, 5): 2048, (8, 0): 4096, (8, 6): 2048, (8, 7): 4096, (8, 9): 2048, (9, 0): 4096}
"""Compute capability -> multiply-adds that a multiprocessor does in a cycle at most, in its narrowest dense type: of 16
bits on Volta, 4 on Turing, Ampere and Ada, 8 on Hopper. Source: the peak rates of NVIDIA's architecture papers over
multiprocessors and clock. A device that is not in it is given :data:`UNKNOWN_MACS`."""

UNKNOWN_MACS = 16384
"""Of Blackwell's 4-bit type; more than any before it."""

DEFAULT_MHZ = 3000.0
"""Taken where nothing tells the highest clock."""


def nvml(bus: str) -> Any:
    """(pynvml, handle of the device at a PCI address), or None where NVML or nvidia-ml-py is missing."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByPciBusId(bus.encode())
    except pynvml.NVMLError:
        return None


def bus_address() -> str:
    """PCI address of the current device."""
    runtime = array_module().cuda.runtime
    return runtime.deviceGetPCIBusId(runtime.getDevice())


def state_reader(bus: str) -> Callable[[], State]:
    """A function that reads the :class:`State` of the device at a PCI address."""
    found = nvml(bus)
    if found is None:
        return lambda: by_smi(bus)
    return lambda: by_nvml(*found)


def by_nvml(library: Any, handle: Any) -> State:
    """The state as NVML tells it; what it does not tell is None."""

    def ask(name: str, *arguments: Any) -> Any:
        with contextlib.suppress(library.NVMLError, AttributeError):
            return getattr(library, name)(handle, *arguments)
        return None

    watts = ask("nvmlDeviceGetPowerUsage")
    bits = ask("nvmlDeviceGetCurrentClocksEventReasons")
    if bits is None:
        bits = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    reasons = tuple(text for bit, text in device.THROTTLED.items() if (bits or 0) & bit)
    return State(
        clock_mhz=ask("nvmlDeviceGetClockInfo", library.NVML_CLOCK_SM),
        most_mhz=ask("nvmlDeviceGetMaxClockInfo", library.NVML_CLOCK_SM),
        temperature=ask("nvmlDeviceGetTemperature", library.NVML_TEMPERATURE_GPU),
        watts=None if watts is None else watts / 1e3,
        throttled=reasons,
    )


def by_smi(bus: str) -> State:
    """The state as nvidia-smi tells it."""
    clocks = device.clocks(bus)
    return State(
        clock_mhz=clocks["sm_mhz"],
        most_mhz=clocks["max_sm_mhz"],
        temperature=device.temperature(bus),
        throttled=tuple(clocks["throttled"]),
    )


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
    """Copies of half of a set and reads of the whole, hot, less the ``small`` microseconds of an empty kernel: with them
    the rate of a small set would be that of its launch, and the floor of a larger one too high."""
    launches, replays = (2, 8) if size >= MEMORY_BYTES else (10, 20)
    move, moved = limits.copy(size // 2)
    copied, read = (timing.hot(call, launches, replays).median - small for call in (move, limits.sequential(size)))
    return Rate(size, round(moved / max(copied, small) / 1e3, 1), round(size / max(read, small) / 1e3, 1))
