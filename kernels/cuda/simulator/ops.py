"""What the simulator puts in the place of numba's ``cuda`` and ``libdevice``."""

import math
import operator
import sys
from typing import Any

import numpy as np

from ..toolchain.constants import FULL_WARP, WARP
from . import warp
from .arrays import GlobalArray, LocalArray, SharedArray
from .memory import DYNAMIC
from .numbers import ALL_BITS, bits, converter, from_bits, int32
from .state import State, fault, kernel_frame
from .sync import barrier, poll, warp_operation

_f32 = np.float32


def _shuffle(operation):
    return staticmethod(lambda mask, value, argument: warp_operation(operation, mask, (value, argument)))


def _vote(operation):
    return staticmethod(lambda mask, value: warp_operation(operation, mask, value))


def _update(array, index, change):
    """Read, change and write one element at once; the old value."""
    if isinstance(array, GlobalArray):
        old = array[index]
        array[index] = change(old)
        poll()
        return old
    address = array.address_of(index)
    array.memory.writing(address, array.form.size, atomic=True)
    old = array.convert(array.form.unpack_from(array.memory.data, address)[0])
    array.form.pack_into(array.memory.data, address, array.convert(change(old)))
    State.progress += 1
    return old


class _Atomic:
    @staticmethod
    def add(array, index, value):
        return _update(array, index, lambda old: old + value)

    @staticmethod
    def max(array, index, value):
        return _update(array, index, lambda old: max(old, value))

    @staticmethod
    def min(array, index, value):
        return _update(array, index, lambda old: min(old, value))

    @staticmethod
    def or_(array, index, value):
        return _update(array, index, lambda old: old | value)

    @staticmethod
    def and_(array, index, value):
        return _update(array, index, lambda old: old & value)

    @staticmethod
    def xor(array, index, value):
        return _update(array, index, lambda old: old ^ value)

    @staticmethod
    def exch(array, index, value):
        return _update(array, index, lambda _: value)

    @staticmethod
    def inc(array, index, limit):
        return _update(array, index, lambda old: 0 if old >= limit else old + 1)

    @staticmethod
    def cas(array, index, expected, value):
        return _update(array, index, lambda old: value if old == expected else old)


class _Shared:
    @staticmethod
    def array(shape, dtype):
        convert, memory = converter(dtype), State.lane.block.memory
        if shape == 0:
            return SharedArray(memory, 0, convert, DYNAMIC, memory.end - DYNAMIC)
        frame = kernel_frame(sys._getframe())
        nbytes = int(np.prod(shape)) * convert.size
        start, end = memory.static((frame.f_code, frame.f_lasti), nbytes)
        return SharedArray(memory, shape, convert, start, end - start)


class _Local:
    @staticmethod
    def array(shape, dtype):
        return LocalArray(shape, converter(dtype))


def _clz(x, bits=32):
    return bits - (int(x) & (1 << bits) - 1).bit_length()


def _popc(x):
    if x < 0 and not isinstance(x, warp.Votes):
        fault("overflow", f"popc of {x}: numba counts 32 or 64 bits, as it typed the value; convert to uint32")
    return (int(x) & ALL_BITS if x < 0 else int(x)).bit_count()


class Cuda:
    """The names of ``numba.cuda`` that kernels use."""

    shared, local, atomic, warpsize = _Shared, _Local, _Atomic, WARP
    shfl_xor_sync, shfl_up_sync = _shuffle(warp.shfl_xor), _shuffle(warp.shfl_up)
    shfl_down_sync, shfl_sync = _shuffle(warp.shfl_down), _shuffle(warp.shfl)
    ballot_sync, any_sync, all_sync = (
        _vote(warp.ballot),
        _vote(warp.vote_any),
        _vote(warp.vote_all),
    )
    match_any_sync = _vote(warp.match_any)
    threadfence = threadfence_block = threadfence_system = staticmethod(lambda: None)
    popc = staticmethod(_popc)
    clz = staticmethod(_clz)
    ffs = staticmethod(lambda x: (int(x) & -int(x)).bit_length())
    brev = staticmethod(lambda x: int(f"{int(x) & ALL_BITS:032b}"[::-1], 2))
    selp = staticmethod(lambda condition, a, b: a if condition else b)
    fma = staticmethod(lambda a, b, c: _f32(np.float64(a) * np.float64(b) + np.float64(c)))
    nanosleep = staticmethod(lambda _: poll())

    threadIdx = property(lambda self: State.lane.thread)
    blockIdx = property(lambda self: State.lane.block.index)
    blockDim = property(lambda self: State.lane.block.size)
    gridDim = property(lambda self: State.lane.block.grid)
    laneid = property(lambda self: State.lane.index % WARP)

    @staticmethod
    def _all():
        return len(State.lane.block.lanes)

    def syncthreads(self) -> None:
        barrier(0, self._all())

    def syncthreads_count(self, value: Any) -> Any:
        return barrier(0, self._all(), combine=lambda values: sum(map(bool, values)), value=value)

    def syncthreads_and(self, value: Any) -> Any:
        return barrier(0, self._all(), combine=lambda values: int(all(values)), value=value)

    def syncthreads_or(self, value: Any) -> Any:
        return barrier(0, self._all(), combine=lambda values: int(any(values)), value=value)

    @staticmethod
    def syncwarp(mask: int = FULL_WARP) -> None:
        warp_operation(warp.syncwarp, mask, None)

    @staticmethod
    def lanemask_lt() -> Any:
        return (1 << State.lane.index % WARP) - 1

    def grid(self, axes: Any) -> Any:
        index, size, thread = self.blockIdx, self.blockDim, self.threadIdx
        position = (index.x * size.x + thread.x, index.y * size.y + thread.y, index.z * size.z + thread.z)
        return position[0] if axes == 1 else position[:axes]

    def gridsize(self, axes: Any) -> Any:
        size, grid = self.blockDim, self.gridDim
        total = (grid.x * size.x, grid.y * size.y, grid.z * size.z)
        return total[0] if axes == 1 else total[:axes]


def _rounded(operation):
    """A function of two float32 that rounds once; others are made float32 before."""

    def function(a, b):
        if a.__class__ is _f32 and b.__class__ is _f32:
            return operation(a, b)
        return operation(_f32(a), _f32(b))

    return staticmethod(function)


class Libdevice:
    """The functions of libdevice that kernels use, on float32; each rounds once."""

    fadd_rn, fsub_rn = _rounded(operator.add), _rounded(operator.sub)
    fmul_rn, fdiv_rn = _rounded(operator.mul), _rounded(operator.truediv)
    fsqrt_rn = staticmethod(lambda a: np.sqrt(_f32(a)))
    fmaf_rn = fmaf = staticmethod(Cuda.fma)
    floorf = staticmethod(lambda a: np.floor(_f32(a)))
    ceilf = staticmethod(lambda a: np.ceil(_f32(a)))
    truncf = staticmethod(lambda a: np.trunc(_f32(a)))
    rintf = staticmethod(lambda a: np.rint(_f32(a)))
    fabsf = staticmethod(lambda a: np.abs(_f32(a)))
    fmaxf = staticmethod(lambda a, b: np.fmax(_f32(a), _f32(b)))
    fminf = staticmethod(lambda a, b: np.fmin(_f32(a), _f32(b)))
    exp2f = staticmethod(lambda a: np.exp2(_f32(a)))
    expf = staticmethod(lambda a: np.exp(_f32(a)))
    logf = staticmethod(lambda a: np.log(_f32(a)))
    log2f = staticmethod(lambda a: np.log2(_f32(a)))
    rsqrtf = staticmethod(lambda a: _f32(1) / np.sqrt(_f32(a)))
    isnanf = staticmethod(lambda a: int(math.isnan(a)))
    float_as_int = staticmethod(bits)
    int_as_float = staticmethod(from_bits)
    mulhi = staticmethod(lambda a, b: int32(int(a) * int(b) >> 32))
    popc = staticmethod(_popc)
    clz = staticmethod(_clz)

    def __getattr__(self, name):
        raise AttributeError(f"libdevice.{name}: the simulator does not have it yet (simulator/ops.py)")


cuda, libdevice = Cuda(), Libdevice()
