"""The CUDA device's properties and clocks. ``python -m qsa.parity.bench.device`` prints it as one line of JSON."""

import argparse
import contextlib
import importlib.metadata
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

THROTTLED = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of NVML's clock event reasons with which a timing depends on power or cooling and not on the kernel alone."""

PACKAGES = (
    *("numpy", "numba", "llvmlite", "numba-cuda", "numba-cuda-mlir", "cuda-bindings", "cuda-core"),
    *("cupy-cuda12x", "cupy-cuda13x"),
)


def facts() -> dict[str, Any]:
    """Dict of ``device`` (as in an evidence record), ``driver`` and ``versions``. Raises ImportError without a CUDA
    device."""
    from qsa.kernels.cuda.toolchain import compiler

    found, runtime = compiler.properties(), compiler.array_module().cuda.runtime
    whole = runtime.getDeviceProperties(compiler.current_device())
    versions = {"python": platform.python_version(), "toolkit": _version(runtime.runtimeGetVersion())}
    for name in ("qsa-parity", *PACKAGES):
        # On a device machine the sources may be used without an installation.
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "device": {
            "name": found.name,
            "compute_capability": ".".join(map(str, found.compute_capability)),
            "multiprocessors": found.multiprocessors,
            "memory": int(whole["totalGlobalMem"]),
            "l2": int(found.l2),
        },
        "driver": _driver() or f"CUDA {_version(runtime.driverGetVersion())}",
        "versions": versions,
    }


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _driver() -> str:
    found = _smi("driver_version")
    if found:
        return found[0]
    with contextlib.suppress(OSError):
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0].strip()
    return ""


def _smi(fields: str, device: int | str = 0) -> list[str]:
    """Values of nvidia-smi's ``fields`` (joined by commas) for a device's number or PCI address; [] without it."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", f"--id={device}"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        if done.returncode == 0 and done.stdout.strip():
            return [value.strip() for value in done.stdout.strip().splitlines()[0].split(",")]
    return []


def clocks(device: int | str = 0) -> dict[str, Any]:
    """Dict of ``sm_mhz``, ``max_sm_mhz`` (int, or None where unknown) and ``throttled`` (list of reasons) at this
    moment. Call it while the device works: an idle one lowers its clocks."""
    for word in ("clocks_event_reasons", "clocks_throttle_reasons"):
        found = _smi(f"clocks.sm,clocks.max.sm,{word}.active", device)
        if len(found) == 3:
            return parse_clocks(*found)
    return {"sm_mhz": None, "max_sm_mhz": None, "throttled": []}


def temperature(device: int | str = 0) -> float | None:
    """Degrees Celsius of the device as nvidia-smi tells them, None where it does not."""
    found = _smi("temperature.gpu", device)
    return float(found[0]) if found and found[0].isdigit() else None


def parse_clocks(now: str, top: str, reasons: str) -> dict[str, Any]:
    """:func:`clocks` of nvidia-smi's three texts, such as ``"1980"``, ``"1980"``, ``"0x0000000000000004"``."""
    try:
        bits = int(reasons, 16)
    except ValueError:
        bits = 0
    mhz = [int(text) if text.isdigit() else None for text in (now, top)]
    return {"sm_mhz": mhz[0], "max_sm_mhz": mhz[1], "throttled": [THROTTLED[bit] for bit in THROTTLED if bits & bit]}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the facts as JSON; returns 1, with the reason on standard error, where there is no CUDA device."""
    argparse.ArgumentParser(prog="qsa.parity.bench.device", description=__doc__).parse_args(argv)
    try:
        print(json.dumps(facts()))
    except ImportError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
