"""Timings, of CPU kernels beside NumPy and of CUDA kernels beside the device's limits.

``python -m qsa.parity.bench.NAME`` runs ``cpu``, ``cuda_attend``, ``cuda_index``, ``cuda_layers``, ``cuda_model``,
``operations`` or ``switches``; all but the first need a device.
"""

from .switch_table import Row

__all__ = ["Row"]
