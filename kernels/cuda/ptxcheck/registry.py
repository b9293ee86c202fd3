"""The builds of all CUDA kernels whose PTX is checked: every kernel file declares its own in ``ptx_rows()``."""

import importlib
from pathlib import Path

from ..toolchain.ptx_rows import PtxRow

ROOT = Path(__file__).parents[1]
_LEFT_OUT = ("ptxcheck", "simulator", "toolchain")
"""Folders that hold no kernels: what they say of ``@kernel`` is text."""


def kernel_modules() -> tuple[str, ...]:
    """Dotted names, below ``kernels/cuda``, of the files that define a kernel, in alphabetical order."""
    names = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[0] not in _LEFT_OUT and "@kernel(" in path.read_text(encoding="utf-8"):
            names.append(".".join(parts))
    return tuple(names)


def registered() -> list[tuple[str, PtxRow]]:
    """(module, row) of every row. Needs numba-cuda; raises ImportError without it, AttributeError naming a kernel file
    that declares no rows."""
    package = __package__.rpartition(".")[0]
    found = []
    for name in kernel_modules():
        found += [(name, row) for row in importlib.import_module(f"{package}.{name}").ptx_rows()]
    return found
