"""The simulator's numbers: numba's typed constructors, and bits.

Integers are Python's: without bounds between the typed constructors, which wrap, as numba widens to 64 bits between
them. Floats are NumPy's scalars, rounded once per operation.
"""

import struct
from types import SimpleNamespace
from typing import Any

import numpy as np

from .state import fault

_f32 = np.float32

ALL_BITS = 0xFFFFFFFF
"""A 32-bit word of ones."""


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


def float32(x: Any) -> Any:
    """A float32. Beyond 2^53 NumPy would round a Python integer twice."""
    if x.__class__ is int and not -(1 << 53) <= x <= 1 << 53:
        return (np.int64 if x < 1 << 63 else np.uint64)(x).astype(_f32)
    return _f32(x)


def float64(x: Any) -> Any:
    """A float64."""
    return np.float64(x)


def float16(x: Any) -> Any:
    """A float16."""
    return np.float16(x)


def boolean(x: Any) -> Any:
    """A truth value."""
    return bool(x)


_type: Any
for _type, _letter, _size in ((float16, "e", 2), (float32, "f", 4), (float64, "d", 8), (boolean, "?", 1)):
    _type.letter, _type.size = _letter, _size

types = SimpleNamespace(
    **{t.__name__: t for t in (int8, uint8, int16, uint16, int32, uint32, int64, uint64)},
    **{t.__name__: t for t in (float16, float32, float64, boolean)},
    intp=int64,
)
_BY_DTYPE = {np.dtype(name): convert for name, convert in vars(types).items() if name not in ("intp", "boolean")}


def converter(dtype: Any) -> Any:
    """The constructor of a dtype, numba's or NumPy's."""
    return dtype if hasattr(dtype, "letter") else _BY_DTYPE[np.dtype(dtype)]


def bits(x: Any) -> Any:
    """int32 bits of a float32."""
    return struct.unpack("<i", struct.pack("<f", x))[0] if x == x else int(_f32(x).view(np.int32))


_UINT, _FLOAT = struct.Struct("<I"), struct.Struct("<f")
_EXPONENT = 0x7F800000


def from_bits(x: Any) -> Any:
    """float32 of int32 bits."""
    x = int(x) & ALL_BITS
    if x & _EXPONENT == _EXPONENT:
        # On the way through a Python float a NaN could change its bits.
        return np.uint32(x).view(_f32)
    return _f32(_FLOAT.unpack(_UINT.pack(x))[0])
