"""Kernels of the operations, of layers and of the sampler, and what a backend is.

``cpu`` and ``cuda`` hold the kernels, ``backend`` the protocols, ``ops`` the table of operations and the choice of a
backend by name, ``switches`` the environment variables.
"""

from .backend import Backend, DeviceSampler, Layers, Operations, Sampler
from .ops import BACKENDS, OPERATIONS, Operation, load_backend
from .switches import Switches

__all__ = [
    "BACKENDS",
    "OPERATIONS",
    "Backend",
    "DeviceSampler",
    "Layers",
    "Operation",
    "Operations",
    "Sampler",
    "Switches",
    "load_backend",
]
