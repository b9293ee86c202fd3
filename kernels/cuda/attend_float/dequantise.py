"""Cells of a pool as the float ``attend`` reads them: eight dims of one cell to a lane, widened to float32.

A cell has a row in the pool, (page * n_head_kv + KV head) * page_size + position in the page, and each side keeps
``codes`` [rows, bytes] and ``scale`` [rows, groups] (``reference.kv.Side``). Dequantised values are exact in float32: a
code has at most 8 bits, a scale 11. The bytes of a cell that is not selected never reach a result: row 0 is read in its
place, and its values are replaced by 0.
"""

from typing import Any

from ..toolchain.compiler import device_function, float32, int32, int64
from ..toolchain.ptx import (
    half_to_float,
    int_as_float,
    ld_global_u16_nc,
    ld_global_v2_i32_nc,
    ld_global_v4_i32_nc,
    prmt,
)

TWO_23 = 0x4B000000
"""Bits of 2^23: with an integer below 2^23 in the low bytes, the float 2^23 + that integer."""


@device_function
def _byte(word, i, offset):
    """float32 of byte i of ``word``, less ``offset``."""
    return int_as_float(prmt(word, int32(TWO_23), int32(0x7440 + i))) - float32(8388608 + offset)


@device_function
def _eight(low, high, offset, scale):
    return (
        _byte(low, 0, offset) * scale,
        _byte(low, 1, offset) * scale,
        _byte(low, 2, offset) * scale,
        _byte(low, 3, offset) * scale,
        _byte(high, 0, offset) * scale,
        _byte(high, 1, offset) * scale,
        _byte(high, 2, offset) * scale,
        _byte(high, 3, offset) * scale,
    )


@device_function
def _scale(base, row, groups, group):
    """float32 scale of a group of dims; 0 for a cell that is not selected (row -1)."""
    bits = ld_global_u16_nc(base + (int64(max(row, int32(0))) * groups + group) * 2)
    return half_to_float(bits) if row >= 0 else float32(0)


@device_function
def _two_halves(word):
    return half_to_float(int32(word & 0xFFFF)), half_to_float(int32((word >> 16) & 0xFFFF))


def _int8(dim):
    groups = dim // 64

    @device_function
    def load(codes, scale, row, lane):
        low, high = ld_global_v2_i32_nc(codes + (int64(max(row, int32(0))) * dim + lane * 8))
        return low, high, _scale(scale, row, groups, lane >> 3)

    @device_function
    def widen(raw, lane):
        # The top bit turned: codes -128..127 become 0..255.
        turn = int32(-0x7F7F7F80)
        return _eight(int32(raw[0] ^ turn), int32(raw[1] ^ turn), 128, raw[2])

    return load, widen


def _q4_0(dim):
    groups = dim // 32

    @device_function
    def load(codes, scale, row, lane):
        # Of every 32 dims, element j is the low nibble of byte j, element 16 + j the high one.
        at = (lane >> 2) * 16 + (lane & 1) * 8
        low, high = ld_global_v2_i32_nc(codes + (int64(max(row, int32(0))) * (dim // 2) + at))
        return low, high, _scale(scale, row, groups, lane >> 2)

    @device_function
    def widen(raw, lane):
        shift, nibbles = int32((lane & 2) * 2), int32(0x0F0F0F0F)
        return _eight(int32((raw[0] >> shift) & nibbles), int32((raw[1] >> shift) & nibbles), 8, raw[2])

    return load, widen


def _fp16(dim):
    @device_function
    def load(codes, scale, row, lane):
        a, b, c, d = ld_global_v4_i32_nc(codes + (int64(max(row, int32(0))) * (dim * 2) + lane * 16))
        selected = int32(-1) if row >= 0 else int32(0)
        return int32(a & selected), int32(b & selected), int32(c & selected), int32(d & selected)

    @device_function
    def widen(raw, lane):
        x0, x1 = _two_halves(raw[0])
        x2, x3 = _two_halves(raw[1])
        x4, x5 = _two_halves(raw[2])
        x6, x7 = _two_halves(raw[3])
        return x0, x1, x2, x3, x4, x5, x6, x7

    return load, widen


def cells_of(coding: str, dim: int) -> tuple[Any, Any]:
    """Device functions (load, widen) for ``dim`` dims a head; lane l has the dims 8 l to 8 l + 7 of a cell.

    ``load(codes, scale, row, lane)``: what the lane reads of the cell, from the addresses of codes and scales.
    ``widen(raw, lane)``: its eight float32 values.
    """
    return {"int8": _int8, "q4_0": _q4_0, "fp16": _fp16}[coding](dim)
