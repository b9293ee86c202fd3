"""The simulator's arithmetic instructions, with the names and arguments of ``toolchain/ptx.py``."""

from functools import cache
from typing import Any

import numpy as np

from .numbers import ALL_BITS, bits, from_bits, int32
from .state import requires

_f32 = np.float32

float_as_int, int_as_float = bits, from_bits


def _bytes(x, signed):
    return [b - 256 if signed and b > 127 else b for b in (int(x) & ALL_BITS).to_bytes(4, "little")]


def dp4a_s8(a: Any, b: Any, c: Any) -> Any:
    """c plus the product of the signed bytes of a and b."""
    return int32(c + sum(x * y for x, y in zip(_bytes(a, True), _bytes(b, True), strict=True)))


def dp4a_u8s8(a: Any, b: Any, c: Any) -> Any:
    """c plus the product of the unsigned bytes of a and the signed ones of b."""
    return int32(c + sum(x * y for x, y in zip(_bytes(a, False), _bytes(b, True), strict=True)))


@cache
def _shifts(selector):
    """For each of four nibbles of a prmt's selector the shift of its byte, and whether its sign is replicated."""
    return [(8 * (selector >> 4 * i & 7), selector >> 4 * i & 8) for i in range(4)]


def join_four(a: Any, b: Any, c: Any, d: Any) -> Any:
    """The int64 sum of four int32 digits to the base 256, the lowest first."""
    return a + (b << 8) + (c << 16) + (d << 24)


def prmt(a: Any, b: Any, selector: Any) -> Any:
    """Bytes of a (0 to 3) and b (4 to 7) by the selector's nibbles; bit 3 of a nibble replicates the byte's sign."""
    pool, result, at = (a & ALL_BITS) | (b & ALL_BITS) << 32, 0, 0
    for shift, sign in _shifts(selector):
        byte = pool >> shift & 255
        result |= (-(byte >> 7) & 255 if sign else byte) << at
        at += 8
    return int32(result)


def _rounded(round_, low, high):
    def convert(x):
        x = _f32(x)
        if x != x:
            return 0
        return int(min(max(float(round_(x)), low), high))

    return convert


rint_u32 = _rounded(np.rint, 0, ALL_BITS)
rint_s32 = _rounded(np.rint, -(1 << 31), (1 << 31) - 1)
floor_s32 = _rounded(np.floor, -(1 << 31), (1 << 31) - 1)
trunc_s32 = _rounded(np.trunc, -(1 << 31), (1 << 31) - 1)


def half_to_float(x: Any) -> Any:
    """float32 of the half in the low 16 bits."""
    return _f32(np.uint16(int(x) & 0xFFFF).view(np.float16))


def float_to_half(x: Any) -> Any:
    """Bits of ``x`` rounded to a half."""
    return int(np.float16(_f32(x)).view(np.uint16))


def floats_to_halves(a: Any, b: Any) -> Any:
    """Bits of ``a`` and ``b`` rounded to halves, ``a`` in the low 16 bits."""
    requires((8, 0), "cvt.rn.f16x2.f32")
    return int32(float_to_half(a) | float_to_half(b) << 16)


def sub_halves(a: Any, b: Any) -> Any:
    """a - b of the two halves in each."""
    x, y = (np.array([int(v) & ALL_BITS], np.uint32).view(np.float16) for v in (a, b))
    return int32(int((x - y).view(np.uint32)[0]))


def ex2_approx(x: Any) -> Any:
    """2^x."""
    return np.exp2(_f32(x))
