"""The arrays as the simulator's kernels see them: global, shared and local."""

import ctypes
import math
import struct
from typing import Any

import numpy as np

from .state import State, early, fault


def _bytes_of(array):
    """The memory of ``array`` from its first byte to its last, gaps included, as bytes; strides ascend."""
    if array.flags.c_contiguous:
        return memoryview(array.reshape(-1).view(np.uint8))
    if min(array.strides) < 0:
        return None
    span = sum(stride * (n - 1) for stride, n in zip(array.strides, array.shape, strict=True)) + array.itemsize
    return memoryview(np.frombuffer((ctypes.c_ubyte * span).from_address(array.ctypes.data), np.uint8))


class GlobalArray:
    """A registered NumPy array as a kernel sees it: bounds and negative indices are checked, stores must fit the dtype.

    ``address`` is that of its first byte, far from every other array's, so that arithmetic gone wrong hits nothing.
    """

    def __init__(self, array: Any, address: Any) -> None:
        self.array, self.address = array, address
        self.shape, self.ndim, self.size, self.dtype = array.shape, array.ndim, array.size, array.dtype
        self.strides = array.strides
        self.kind = array.dtype.kind
        if self.kind in "iu":
            info = np.iinfo(array.dtype)
            self.low, self.high = int(info.min), int(info.max)
        self.contiguous = array.flags.c_contiguous
        self.data = _bytes_of(array) if array.size else None

    def __len__(self):
        return self.shape[0]

    def holds(self, offset: Any, size: Any) -> Any:
        """Whether ``size`` bytes at ``offset`` are the array's own, none of them in a gap between its rows."""
        if self.contiguous:
            return 0 <= offset <= self.array.nbytes - size
        if offset < 0:
            return False
        axes = sorted(zip(self.strides, self.shape, strict=True), reverse=True)
        whole = self.array.itemsize
        if axes[-1][0] == whole:
            whole *= axes.pop()[1]
        for stride, n in axes:
            if n > 1:
                index, offset = divmod(offset, stride)
                if index >= n:
                    return False
        return offset + size <= whole

    def _checked(self, index):
        if State.lane is not None and State.lane.early:
            early("a global array")
        index = index if type(index) is tuple else (index,)
        if len(index) > self.ndim:
            fault("bounds", f"{len(index)} indices into {self.ndim} axes")
        for i, n in zip(index, self.shape, strict=False):
            if not 0 <= i < n:
                fault("bounds", f"index {tuple(map(int, index))} into a global array of shape {self.shape}")
        return index

    def __getitem__(self, index: Any) -> Any:
        index = self._checked(index)
        value = self.array[index]
        if len(index) < self.ndim:
            offset = sum(i * stride for i, stride in zip(index, self.strides, strict=False))
            return GlobalArray(value, self.address + offset)
        return int(value) if self.kind in "iu" else value

    def __setitem__(self, index, value):
        index = self._checked(index)
        if len(index) < self.ndim:
            fault("bounds", f"store to {len(index)} of {self.ndim} indices")
        if self.kind in "iu":
            value = int(value)
            if not self.low <= value <= self.high:
                fault("overflow", f"store of {value} into {self.dtype}")
        self.array[index] = value
        State.progress += 1


class _Flat:
    """Row-major indexing of a small array."""

    def __init__(self, shape):
        self.shape = (shape,) if shape.__class__ is int else tuple(shape)
        self.ndim, self.size = len(self.shape), math.prod(self.shape)

    def __len__(self):
        return self.shape[0]

    def _offset(self, index, what):
        index = index if type(index) is tuple else (index,)
        if len(index) != self.ndim:
            fault("bounds", f"{len(index)} indices into {self.ndim} axes")
        offset = 0
        for i, n in zip(index, self.shape, strict=True):
            if not 0 <= i < n:
                fault("bounds", f"index {tuple(map(int, index))} into a {what} array of shape {self.shape}")
            offset = offset * n + i
        return offset


class LocalArray(_Flat):
    """An array of one lane's own. Kernels keep their registers in such arrays, so one plain index takes a short way."""

    def __init__(self, shape: Any, convert: Any) -> None:
        super().__init__(shape)
        self.convert, self.values = convert, [None] * self.size
        self.plain = self.size if self.ndim == 1 else 0

    def __getitem__(self, index: Any) -> Any:
        if index.__class__ is int and 0 <= index < self.plain:
            value = self.values[index]
        else:
            value = self.values[self._offset(index, "local")]
        if value is None:
            fault("unwritten", f"read of element {index} of a local array")
        return value

    def __setitem__(self, index, value):
        offset = index if index.__class__ is int and 0 <= index < self.plain else self._offset(index, "local")
        self.values[offset] = self.convert(value)


class SharedArray(_Flat):
    """An array in shared memory; a shape of 0 is all of the dynamic part."""

    def __init__(self, memory: Any, shape: Any, convert: Any, address: Any, nbytes: Any) -> None:
        self.form = struct.Struct("<" + convert.letter)
        super().__init__(nbytes // self.form.size if shape == 0 else shape)
        self.memory, self.convert, self.address = memory, convert, address

    def address_of(self, index: Any) -> Any:
        """Address of the element at ``index``."""
        return self.address + self.form.size * self._offset(index, "shared")

    def __getitem__(self, index: Any) -> Any:
        address = self.address_of(index)
        self.memory.reading(address, self.form.size)
        return self.convert(self.form.unpack_from(self.memory.data, address)[0])

    def __setitem__(self, index, value):
        address = self.address_of(index)
        self.memory.writing(address, self.form.size)
        self.form.pack_into(self.memory.data, address, self.convert(value))
        State.progress += 1
