"""What the simulator puts in the place of numba's ``cuda``, ``types`` and ``libdevice``.

Integers are Python's: without bounds between the typed constructors, which wrap, as numba widens to 64 bits between
them. Floats are NumPy's scalars, rounded once per operation.
"""

import math
import operator
import struct
import sys
from types import SimpleNamespace

import numpy as np

from .simulate_memory import DYNAMIC, GlobalArray, LocalArray, SharedArray
from .simulate_state import FULL, WARP, State, fault, kernel_frame
from .simulate_sync import barrier, meet, poll, warp_operation

_f32 = np.float32


def _integer(name, letter, bits, signed):
    low = -(1 << bits - 1) if signed else 0
    high, mask = low + (1 << bits) - 1, (1 << bits) - 1

    def convert(x):
        if x.__class__ is not int:
            if isinstance(x, (float, np.floating)) and not low - 1 < x < high + 1:
                fault("overflow", f"conversion of {x} to {name}")
            x = int(x)
        return x if low <= x <= high else ((x - low) & mask) + low

    convert.__name__, convert.letter, convert.size = name, letter, bits // 8
    return convert


int8, uint8 = _integer("int8", "b", 8, True), _integer("uint8", "B", 8, False)
int16, uint16 = _integer("int16", "h", 16, True), _integer("uint16", "H", 16, False)
int32, uint32 = _integer("int32", "i", 32, True), _integer("uint32", "I", 32, False)
int64, uint64 = _integer("int64", "q", 64, True), _integer("uint64", "Q", 64, False)


def float32(x):
    """A float32. Beyond 2^53 NumPy would round a Python integer twice."""
    if x.__class__ is int and not -(1 << 53) <= x <= 1 << 53:
        return (np.int64 if x < 1 << 63 else np.uint64)(x).astype(_f32)
    return _f32(x)


def float64(x):
    """A float64."""
    return np.float64(x)


def float16(x):
    """A float16."""
    return np.float16(x)


def boolean(x):
    """A truth value."""
    return bool(x)


for _type, _letter, _size in ((float16, "e", 2), (float32, "f", 4), (float64, "d", 8), (boolean, "?", 1)):
    _type.letter, _type.size = _letter, _size

types = SimpleNamespace(
    **{t.__name__: t for t in (int8, uint8, int16, uint16, int32, uint32, int64, uint64)},
    **{t.__name__: t for t in (float16, float32, float64, boolean)},
    intp=int64,
)
_BY_DTYPE = {np.dtype(name): convert for name, convert in vars(types).items() if name not in ("intp", "boolean")}


def _convert(dtype):
    return dtype if hasattr(dtype, "letter") else _BY_DTYPE[np.dtype(dtype)]


# Warp operations: functions of the lanes, in order, and of what each brought.


def _take(lanes, values, source):
    by_lane = [None] * WARP
    for lane, value in zip(lanes, values, strict=True):
        by_lane[lane.index % WARP] = value
    results = []
    for lane, (_, argument) in zip(lanes, values, strict=True):
        wanted = source(lane.index % WARP, argument)
        brought = by_lane[wanted] if 0 <= wanted < WARP else None
        if brought is None:
            fault("divergence", f"shuffle from lane {wanted}, which takes no part", lane)
        results.append(brought[0])
    return results


def shfl_xor(lanes, values):
    """Value of lane ^ argument."""
    return _take(lanes, values, lambda i, d: i ^ d)


def shfl_up(lanes, values):
    """Value of lane - argument, the own one below lane 0."""
    return _take(lanes, values, lambda i, d: i - d if i >= d else i)


def shfl_down(lanes, values):
    """Value of lane + argument, the own one beyond lane 31."""
    return _take(lanes, values, lambda i, d: i + d if i + d < WARP else i)


def shfl(lanes, values):
    """Value of lane argument % 32."""
    return _take(lanes, values, lambda i, d: d % WARP)


class Votes(int):
    """A mask of lanes, surely an int32; arithmetic makes it an integer of any width."""


def ballot(lanes, values):
    """Mask of the lanes whose value is true, an int32 as in numba: lane 31 is its sign."""
    mask = sum(1 << lane.index % WARP for lane, value in zip(lanes, values, strict=True) if value)
    return [Votes(int32(mask))] * len(lanes)


def vote_any(lanes, values):
    """Whether any value is true."""
    return [any(values)] * len(lanes)


def vote_all(lanes, values):
    """Whether all values are true."""
    return [all(values)] * len(lanes)


def match_any(lanes, values):
    """Mask of the lanes with the own value, an int32 as in numba."""
    masks = {}
    for lane, value in zip(lanes, values, strict=True):
        masks[value] = masks.get(value, 0) | 1 << lane.index % WARP
    return [Votes(int32(masks[value])) for value in values]


def syncwarp(lanes, _):
    """Orders the memory of the warp's lanes."""
    clocks = [(lane.seen, lane.index, lane.clock) for lane in lanes]
    for lane in lanes:
        lane.clock += 1
    meet(lanes, clocks)
    return [None] * len(lanes)


def _shuffle(operation):
    return staticmethod(lambda mask, value, argument: warp_operation(operation, mask, (value, int(argument))))


def _vote(operation):
    return staticmethod(lambda mask, value: warp_operation(operation, mask, value))


def _update(array, index, change):
    """Read, change and write one element at once; the old value."""
    if isinstance(array, GlobalArray):
        old = array[index]
        array[index] = change(old)
        poll()
        return old
    place = array.place(index)
    array.memory.writing(place, array.form.size, atomic=True)
    old = array.convert(array.form.unpack_from(array.memory.data, place)[0])
    array.form.pack_into(array.memory.data, place, array.convert(change(old)))
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
        convert, memory = _convert(dtype), State.lane.block.memory
        if shape == 0:
            return SharedArray(memory, 0, convert, DYNAMIC, memory.end - DYNAMIC)
        frame = kernel_frame(sys._getframe())
        nbytes = int(np.prod(shape)) * convert.size
        start, end = memory.static((frame.f_code, frame.f_lasti), nbytes)
        return SharedArray(memory, shape, convert, start, end - start)


class _Local:
    @staticmethod
    def array(shape, dtype):
        return LocalArray(shape, _convert(dtype))


def _clz(x, bits=32):
    return bits - (int(x) & (1 << bits) - 1).bit_length()


def _popc(x):
    if x < 0 and not isinstance(x, Votes):
        fault("overflow", f"popc of {x}: numba counts 32 or 64 bits, as it typed the value; convert to uint32")
    return (int(x) & FULL if x < 0 else int(x)).bit_count()


class Cuda:
    """The names of ``numba.cuda`` that kernels use."""

    shared, local, atomic, warpsize = _Shared, _Local, _Atomic, WARP
    shfl_xor_sync, shfl_up_sync = _shuffle(shfl_xor), _shuffle(shfl_up)
    shfl_down_sync, shfl_sync = _shuffle(shfl_down), _shuffle(shfl)
    ballot_sync, any_sync, all_sync = _vote(ballot), _vote(vote_any), _vote(vote_all)
    match_any_sync = _vote(match_any)
    threadfence = threadfence_block = threadfence_system = staticmethod(lambda: None)
    popc = staticmethod(_popc)
    clz = staticmethod(_clz)
    ffs = staticmethod(lambda x: (int(x) & -int(x)).bit_length())
    brev = staticmethod(lambda x: int(f"{int(x) & FULL:032b}"[::-1], 2))
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

    def syncthreads(self):
        barrier(0, self._all())

    def syncthreads_count(self, value):
        return barrier(0, self._all(), combine=lambda values: sum(map(bool, values)), value=value)

    def syncthreads_and(self, value):
        return barrier(0, self._all(), combine=lambda values: int(all(values)), value=value)

    def syncthreads_or(self, value):
        return barrier(0, self._all(), combine=lambda values: int(any(values)), value=value)

    @staticmethod
    def syncwarp(mask=FULL):
        warp_operation(syncwarp, mask, None)

    @staticmethod
    def lanemask_lt():
        return (1 << State.lane.index % WARP) - 1

    def grid(self, axes):
        index, size, thread = self.blockIdx, self.blockDim, self.threadIdx
        place = (index.x * size.x + thread.x, index.y * size.y + thread.y, index.z * size.z + thread.z)
        return place[0] if axes == 1 else place[:axes]

    def gridsize(self, axes):
        size, grid = self.blockDim, self.gridDim
        total = (grid.x * size.x, grid.y * size.y, grid.z * size.z)
        return total[0] if axes == 1 else total[:axes]


def bits(x):
    """int32 bits of a float32."""
    return struct.unpack("<i", struct.pack("<f", x))[0] if x == x else int(_f32(x).view(np.int32))


_UINT, _FLOAT = struct.Struct("<I"), struct.Struct("<f")
_EXPONENT = 0x7F800000


def from_bits(x):
    """float32 of int32 bits."""
    x = int(x) & FULL
    if x & _EXPONENT == _EXPONENT:
        # On the way through a Python float a NaN could change its bits.
        return np.uint32(x).view(_f32)
    return _f32(_FLOAT.unpack(_UINT.pack(x))[0])


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
        raise AttributeError(f"libdevice.{name}: the simulator does not have it yet (simulate_ops.py)")


cuda, libdevice = Cuda(), Libdevice()
