"""A worker of pytest-xdist for each GPU, where there are several."""

from collections.abc import Mapping
from pathlib import Path

GPUS = Path("/proc/driver/nvidia/gpus")
"""Where the driver lists its devices, a folder each."""


def visible_device(environment: Mapping[str, str], folder: Path = GPUS) -> str | None:
    """The device that this worker is to see, for CUDA_VISIBLE_DEVICES: of those that are visible the next in turn; None
    where nothing needs to change."""
    worker = environment.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        devices = [str(number) for number, _ in enumerate(folder.iterdir())] if folder.is_dir() else []
    else:
        devices = [name.strip() for name in chosen.split(",") if name.strip()]
    if not worker.isdecimal() or len(devices) < 2:
        return None
    return devices[int(worker) % len(devices)]
