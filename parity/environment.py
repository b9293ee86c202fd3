"""``qsa env``: the machine, the versions and the switches of a run. The same facts stand in every report."""

import argparse
import contextlib
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from qsa.kernels.switches import VARIABLES, Switches
from qsa.reference.exact import CONTRACT

_PACKAGES = ("qsa-parity", "numpy", "numba", "llvmlite", "numba-cuda", "cupy-cuda12x", "cupy-cuda13x", "xxhash", "rich")


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Add the command ``env``; its ``run`` default takes the parsed arguments and returns the exit code."""
    parser = subparsers.add_parser("env", help="print CPU, threads, versions, GPU or why there is none, switches")
    parser.set_defaults(run=show)
    return parser


def show(arguments: argparse.Namespace) -> int:
    """Print the facts, a line each; returns 0."""
    for key, value in facts().items():
        shown = ", ".join(f"{name} {what}" for name, what in value.items()) if isinstance(value, dict) else value
        print(f"{key:10} {shown}")
        if key == "gpu" and shown.startswith("none"):
            print(f"{'left out':10} for want of a GPU: the CUDA backend on a device, tests/gpu, the gate's speed")
    return 0


def facts() -> dict[str, Any]:
    """Dict of ``system``, ``python``, ``cpu`` (model), ``cores`` (usable), ``threads`` (of numba), ``target`` (CPU name
    that numba compiles for), ``versions``, ``gpu``, ``switches``, ``contract``.

    Raises ValueError when a switch has a value that is not allowed.
    """
    threads, target = _numba()
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": threads,
        "target": target,
        "versions": _versions(),
        "gpu": _gpu(),
        "switches": _switches(),
        "contract": CONTRACT,
    }


def default_backend(found: dict[str, Any]) -> str:
    """``cuda`` where :func:`facts` found a GPU, else ``cpu``."""
    return "cpu" if found["gpu"].startswith("none") else "cuda"


def headline(found: dict[str, Any]) -> str:
    """CPU, threads and GPU of :func:`facts` on one line."""
    return f"CPU {found['cpu']}, {found['threads']} threads; GPU {found['gpu']}"


def cpu_name() -> str:
    """The processor's name where the system gives one, else its architecture."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _numba() -> tuple[int, str]:
    """(threads of numba, the CPU that it compiles for); (1, why not) where it is missing."""
    try:
        import llvmlite.binding
        import numba
    except ImportError as error:
        return 1, f"none: {error}"
    config: Any = numba.config
    return config.NUMBA_NUM_THREADS, config.CPU_NAME or llvmlite.binding.get_host_cpu_name()


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _gpu() -> str:
    """Name and compute capability of the first device, or ``none`` and why."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("numba-cuda")
        return _device()
    return "none: numba-cuda is missing (extra cuda12 or cuda13)"


def _device() -> str:
    # Whatever a broken driver or toolkit raises is the reason there is no GPU, not a reason to stop.
    try:
        from numba import cuda

        if not cuda.is_available():
            return f"none: {str(cuda.cuda_error() or 'no CUDA driver').strip().splitlines()[0]}"
        device = cuda.get_current_device()
        name = device.name.decode() if isinstance(device.name, bytes) else device.name
        return f"{name}, compute capability {'.'.join(map(str, device.compute_capability))}"
    except Exception as error:
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        return f"none: {text}"


def _switches() -> dict[str, str]:
    state = Switches.from_environment()
    words = {None: "unset", False: "0", True: "1"}
    return {VARIABLES[name]: words.get(getattr(state, name), state.arithmetic) for name in VARIABLES}
