"""The suite: parity modules, one comparison helper, one report, the command line ``qsa``.

The cases and their results are in ``qsa.parity.suite``: it imports the engine and its kernels, which this file leaves
alone.
"""

from .backend import Backend
from .contract import Declaration, UnsupportedError

Unsupported = UnsupportedError
"""Short for a backend's own code: ``raise Unsupported("why")``."""

__all__ = ["Backend", "Declaration", "Unsupported", "UnsupportedError"]
