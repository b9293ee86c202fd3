"""The state of a CUDA device by NVML (nvidia-ml-py, extra ``bench``), else by nvidia-smi."""

import contextlib
from collections.abc import Callable
from typing import Any

from ...bench import device
from ..results import State


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
