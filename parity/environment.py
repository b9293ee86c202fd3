"""``qsa env``: the machine, the versions and the switches of a run. The same facts stand in every report."""

import argparse
import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

from qsa import golden
from qsa.kernels.cuda.toolchain import choice
from qsa.kernels.sources import root
from qsa.kernels.switches import VARIABLES, Switches
from qsa.reference.exact import CONTRACT

_PACKAGES = (
    *("qsa-parity", "numpy", "numba", "llvmlite", "numba-cuda", "numba-cuda-mlir", "cupy-cuda12x", "cupy-cuda13x"),
    *("xxhash", "rich"),
)


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Add the command ``env``; its ``run`` default takes the parsed arguments and returns the exit code."""
    parser = subparsers.add_parser("env", help="print the machine, the versions, and what is supported or why not")
    parser.set_defaults(run=show)
    return parser


def show(arguments: argparse.Namespace) -> int:
    """Print the facts, a line each; returns 0."""
    found = facts()
    for key, value in found.items():
        shown = ", ".join(f"{name} {what}" for name, what in value.items()) if isinstance(value, dict) else value
        print(f"{key:10} {shown}")
    for what, why in supported(found).items():
        print(f"{'supported' if not why else 'left out':10} {what}{f': {why}' if why else ''}")
    return 0


_EXTRAS = {
    "prompts of other tokenizers": ("text", ("tokenizers",)),
    "reports in HTML (--html)": ("report", ("jinja2",)),
    "plots": ("report", ("matplotlib",)),
    "running again on a change (--watch)": ("watch", ("watchfiles",)),
    "completion in the shell": ("shell", ("argcomplete",)),
    "tests": ("test", ("pytest", "hypothesis")),
    "tests against the published model code": ("oracle", ("torch", "transformers")),
}
"""What a package of an extra adds -> (extra, its packages)."""


def supported(found: dict[str, Any]) -> dict[str, str]:
    """What this installation can do -> why it cannot, empty where it can; ``found``: of :func:`facts`."""
    gpu = found["gpu"].removeprefix("none: ") if found["gpu"].startswith("none") else ""
    folder = Path(golden.__file__).parent
    stored = "" if (folder / "model" / "config.json").is_file() else "the golden model is not part of this installation"
    tests = "" if (root() / "tests").is_dir() else "tests are in a checkout of the repository alone"
    git = "" if shutil.which("git") and (root() / ".git").exists() else "needs git and a checkout of the repository"
    said = {
        "backend exact, and kernels of your own": "",
        "backend cpu": found["target"].removeprefix("none: ") if found["target"].startswith("none") else "",
        "backend cuda, tests/gpu, evidence of a device": gpu,
        "modules on texts, qsa generate, qsa score": stored,
        "the gate's tests and PTX checks": tests,
        "the gate's speed against a base commit": git,
    }
    for what, (extra, packages) in _EXTRAS.items():
        missing = [name for name in packages if importlib.util.find_spec(name) is None]
        said[what] = f"{', '.join(missing)} missing: pip install 'qsa-parity[{extra}]'" if missing else ""
    return said


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
        "cores": cores(),
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
    if importlib.util.find_spec("numba") is None:
        return 1, "none: No module named 'numba'"
    try:
        import llvmlite.binding
    except ImportError as error:
        return 1, f"none: {error}"
    config: Any = getattr(sys.modules.get("numba"), "config", None)
    if config is not None:
        return config.NUMBA_NUM_THREADS, config.CPU_NAME or llvmlite.binding.get_host_cpu_name()
    # As numba reads them when it is imported: these facts stand in front of every run, and its import takes longer
    # than many a run.
    with contextlib.suppress(ValueError):
        threads = int(os.environ.get("NUMBA_NUM_THREADS", cores()))
        return threads, os.environ.get("NUMBA_CPU_NAME") or llvmlite.binding.get_host_cpu_name()
    raise ValueError(f"NUMBA_NUM_THREADS = {os.environ['NUMBA_NUM_THREADS']!r}: must be an integer")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
    found = {VARIABLES[name]: words.get(getattr(state, name), state.arithmetic) for name in VARIABLES}
    return found | {choice.VARIABLE: choice.compiler_name()}
