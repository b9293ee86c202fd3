"""Records of runs on a device: the sections and their steps, child processes, the readers of their reports."""

from .process import Entry, Finished
from .run import Step

__all__ = ["Entry", "Finished", "Step"]
