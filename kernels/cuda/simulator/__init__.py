"""Runs the CUDA kernels lane by lane on the CPU: the same sources, no GPU, no compiler. See ``launch.py``."""

from ..toolchain.host import Properties
from .launch import configured, launch, launches, load, settings
from .state import SimulationError

__all__ = ["Properties", "SimulationError", "configured", "launch", "launches", "load", "settings"]
