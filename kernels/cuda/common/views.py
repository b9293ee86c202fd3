"""Device arrays as the layers' kernels take them: an address and the strides of its rows, so that views cost no copy.

A kernel's arguments are integers alone. One build of it serves every layout and every number, and a launch need not
wrap an array.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..toolchain.compiler import address, array_module
from ..toolchain.host import DeviceArray

THREADS = 256
PER_THREAD = 4
"""Elements of one thread in the kernels that go element by element."""


class View(NamedTuple):
    """A device array [rows, middle, n] of 4-byte elements; ``row`` and ``step`` are the strides in bytes of its first
    two axes. Neighbours on the last axis lie side by side."""

    address: int
    rows: int
    middle: int
    n: int
    row: int
    step: int

    @property
    def layout(self) -> tuple[int, int, int]:
        """(address, row, step): what a kernel needs to find an element."""
        return self.address, self.row, self.step

    def stretched(self, middle: int) -> tuple[int, int, int]:
        """(address, row, step) where the middle axis counts ``middle``, of which a view with one has all alike."""
        return self.address, self.row, self.step if self.middle == middle else 0


def check_float(name: str, x: Any) -> None:
    """Raises ValueError unless ``x`` is a float32 array of the device."""
    if not isinstance(x, array_module().ndarray) or x.dtype != np.float32:
        kind = getattr(x, "dtype", None)
        raise ValueError(f"{name}: {type(x).__name__} {kind}: must be a device array of float32")


def empty(shape: Sequence[int]) -> DeviceArray:
    """A new C-contiguous float32 array of the device; its values are unset."""
    return array_module().empty(shape, np.float32)


def view(name: str, x: DeviceArray) -> View:
    """:class:`View` of ``x`` float32 on the device: [n], [rows, n], [rows, middle, n] with any strides of all but the
    last axis, or C-contiguous of any shape, then [rows, 1, all the rest].

    Raises ValueError on another dtype, and on another layout: the caller knows best where a copy belongs.
    """
    check_float(name, x)
    shape, strides = x.shape, x.strides
    # The strides of an array without elements say nothing, and differ between NumPy and CuPy.
    together = bool(shape) and (not x.size or strides[-1] == 4 or shape[-1] == 1)
    if len(shape) == 2 and together:
        return View(address(x), shape[0], 1, shape[1], strides[0], 0)
    if len(shape) == 3 and together:
        return View(address(x), shape[0], shape[1], shape[2], strides[0], strides[1])
    if not x.flags.c_contiguous or not shape:
        raise ValueError(f"{name}: shape {shape}, strides {strides}: the last axis must be contiguous")
    rows = shape[0] if len(shape) > 1 else 1
    n = x.size // max(rows, 1)
    return View(address(x), rows, 1, n, 4 * n, 0)


def check_shape(name: str, x: DeviceArray, shape: Sequence[int]) -> None:
    """Raises ValueError unless ``x`` has ``shape``."""
    if tuple(x.shape) != tuple(shape):
        raise ValueError(f"{name}: shape {tuple(x.shape)}: must be {tuple(shape)}")


def float_bits(value: float) -> int:
    """The bits of float32(``value``) as an integer: a Python float would reach the kernel as a float64."""
    return int(np.float32(value).view(np.int32))


def element_grid(rows: int, middle: int, n: int) -> tuple[tuple[int, int, int], int]:
    """(grid, threads) of :data:`PER_THREAD` elements a thread over [rows, middle, n]: rows are the grid's first axis,
    which alone takes more than 65,535."""
    threads = min(THREADS, -(-n // (32 * PER_THREAD)) * 32)
    return (rows, middle, -(-n // (threads * PER_THREAD))), threads


def single_grid(rows: int, n: int) -> tuple[tuple[int, int], int]:
    """(grid, threads) of an element a thread over [rows, n], for kernels that read many values for each: lanes then
    wait for all of them together, where several elements of a thread would wait one after another."""
    threads = min(THREADS, -(-n // 32) * 32)
    return (rows, -(-n // threads)), threads
