"""Values of the tensor-core form: a warp adds a chunk's weighted V of 32 dims for all heads.

Of a product 16 heads are the rows, 16 cells the inner dimension and 8 dims the columns. A weight, power times scale of
V, is the sum of two halves: 11 bits, and 2^11 times the 11 bits after them, which keeps those from being subnormal. V's
codes are exact as halves. The products of 32 cells are added by the tensor cores, which cut off: the small halves
first; the rest is added in float32, rounded. Weights are scaled by a power of two, so that none is beyond 2^15.

Lane 4g + t has heads g and 8 + g in each of four tiles of 8 dims. Tiles of integer codes: the even and the odd ones of
16 dims, so that a lane has four dims side by side.
"""

from typing import Any

from ...common.scalar import pow2
from ...toolchain.compiler import cuda, device_function, float32, int32
from ...toolchain.ptx import (
    float_as_int,
    floats_to_halves,
    half_to_float,
    ld_shared_f32,
    ld_shared_v2_f32,
    ld_shared_v4_f32,
    ldmatrix_x4_trans,
    mma_f16,
    prmt,
    redux_max,
    sub_halves,
)
from .layout import CHUNK, CODE_BYTES, POWER_ROW

WEIGHT_BITS = 15
"""Weights are below 2^WEIGHT_BITS as halves."""

LOW = 2048.0
"""What the second halves are multiplied by."""

HALF_1024 = 0x64646464
"""In the high byte of a half: 1024, and a unit is its last bit."""


@device_function
def even_codes(word, offset):
    """Bytes 0 and 2, unsigned, less ``offset``'s halves over 1024."""
    return sub_halves(prmt(word, int32(HALF_1024), int32(0x4240)), int32(offset))


@device_function
def odd_codes(word, offset):
    """Bytes 1 and 3 in the same way."""
    return sub_halves(prmt(word, int32(HALF_1024), int32(0x4341)), int32(offset))


@device_function
def halves(a, i, x0, x1):
    """Two weights as first halves to ``a[i]`` and second ones to ``a[i + 8]``."""
    high = floats_to_halves(x0, x1)
    a[i] = high
    low0 = (x0 - half_to_float(high)) * float32(LOW)
    a[i + 8] = floats_to_halves(low0, (x1 - half_to_float(int32(high >> 16))) * float32(LOW))


@device_function
def add_tile(acc, n, a, b0, b1, b2, b3, down):
    """Products of 32 cells with 8 dims onto the tile from ``acc[n]`` on."""
    z = float32(0)
    c0, c1, c2, c3 = mma_f16(a[8], a[9], a[10], a[11], b0, b1, z, z, z, z)
    c0, c1, c2, c3 = mma_f16(a[12], a[13], a[14], a[15], b2, b3, c0, c1, c2, c3)
    s = float32(1 / LOW)
    c0, c1, c2, c3 = mma_f16(a[0], a[1], a[2], a[3], b0, b1, c0 * s, c1 * s, c2 * s, c3 * s)
    c0, c1, c2, c3 = mma_f16(a[4], a[5], a[6], a[7], b2, b3, c0, c1, c2, c3)
    acc[n] += c0 * down
    acc[n + 1] += c1 * down
    acc[n + 2] += c2 * down
    acc[n + 3] += c3 * down


@device_function
def _int8(acc, a, row, piece, turn, down):
    offset, top = int32(0x64806480), int32(-0x7F7F7F80)
    for u in range(2):
        r0, r1, r2, r3 = ldmatrix_x4_trans(int32(row + ((piece + u) ^ turn) * 16))
        r0, r1, r2, r3 = int32(r0 ^ top), int32(r1 ^ top), int32(r2 ^ top), int32(r3 ^ top)
        b0, b1, b2, b3 = even_codes(r0, offset), even_codes(r1, offset), even_codes(r2, offset), even_codes(r3, offset)
        add_tile(acc, 8 * u, a, b0, b1, b2, b3, down)
        b0, b1, b2, b3 = odd_codes(r0, offset), odd_codes(r1, offset), odd_codes(r2, offset), odd_codes(r3, offset)
        add_tile(acc, 8 * u + 4, a, b0, b1, b2, b3, down)


@device_function
def _q4_0(acc, a, row, piece, turn, down):
    offset, mask = int32(0x64086408), int32(0x0F0F0F0F)
    w0, w1, w2, w3 = ldmatrix_x4_trans(int32(row + (piece ^ turn) * 16))
    for u in range(2):
        r0, r1 = int32((w0 >> (4 * u)) & mask), int32((w1 >> (4 * u)) & mask)
        r2, r3 = int32((w2 >> (4 * u)) & mask), int32((w3 >> (4 * u)) & mask)
        b0, b1, b2, b3 = even_codes(r0, offset), even_codes(r1, offset), even_codes(r2, offset), even_codes(r3, offset)
        add_tile(acc, 8 * u, a, b0, b1, b2, b3, down)
        b0, b1, b2, b3 = odd_codes(r0, offset), odd_codes(r1, offset), odd_codes(r2, offset), odd_codes(r3, offset)
        add_tile(acc, 8 * u + 4, a, b0, b1, b2, b3, down)


@device_function
def _fp16(acc, a, row, piece, turn, down):
    for u in range(4):
        b0, b1, b2, b3 = ldmatrix_x4_trans(int32(row + ((piece + u) ^ turn) * 16))
        add_tile(acc, 4 * u, a, b0, b1, b2, b3, down)


@device_function
def _weights_scaled(a, i, power, scale, up):
    """Weights of 16 cells to ``a[i]`` to ``a[i + 3]`` and their second halves: powers of head g and, eight rows on, of
    head 8 + g; scales of V."""
    v0, v1, v2, v3 = ld_shared_v4_f32(scale)
    v0, v1, v2, v3 = v0 * up, v1 * up, v2 * up, v3 * up
    p0, p1, p2, p3 = ld_shared_v4_f32(power)
    halves(a, i, p0 * v0, p1 * v1)
    halves(a, i + 2, p2 * v2, p3 * v3)
    p0, p1, p2, p3 = ld_shared_v4_f32(int32(power + 8 * POWER_ROW))
    halves(a, i + 1, p0 * v0, p1 * v1)
    halves(a, i + 3, p2 * v2, p3 * v3)


@device_function
def _weights_plain(a, i, power, scale, up):
    p0, p1, p2, p3 = ld_shared_v4_f32(power)
    halves(a, i, p0 * up, p1 * up)
    halves(a, i + 2, p2 * up, p3 * up)
    p0, p1, p2, p3 = ld_shared_v4_f32(int32(power + 8 * POWER_ROW))
    halves(a, i + 1, p0 * up, p1 * up)
    halves(a, i + 3, p2 * up, p3 * up)


@device_function
def _range_scaled(scale, lane):
    """(up, down): the power of two that takes weights to halves and the one back, by the largest scale of V."""
    v0, v1 = ld_shared_v2_f32(int32(scale + lane * 8))
    largest = max(int32(float_as_int(v0) & 0x7FFFFFFF), int32(float_as_int(v1) & 0x7FFFFFFF))
    largest = int32(redux_max(largest))
    e = int32((largest >> 23) - 126) if largest > 0 else int32(0)
    return pow2(int32(WEIGHT_BITS - e)), pow2(int32(e - WEIGHT_BITS))


@device_function
def _range_plain(scale, lane):
    return float32(2.0**WEIGHT_BITS), float32(2.0**-WEIGHT_BITS)


def make(coding: str) -> Any:
    """(range_of, add).

    ``add(acc, ring, scale, powers, fades, quarter, half, lane, fresh, up, down)``: a chunk's weighted V onto the local
    ``acc`` [16], which begins anew where ``fresh``. ``ring``: the chunk's V; ``scale``: those of its scales that the
    warp's dims have, which ``range_of(scales, quarter, half, lane)`` gives with ``up`` and ``down``, the power of two
    that takes weights to halves and the one back.
    """
    row_bytes = CODE_BYTES[coding]
    products = {"int8": _int8, "q4_0": _q4_0, "fp16": _fp16}[coding]
    ranges, weights = (_range_plain, _weights_plain) if coding == "fp16" else (_range_scaled, _weights_scaled)
    # The first of the warp's pieces of 16 bytes, and which of a cell's scales is that of its 32 dims.
    pieces = row_bytes // (16 * 8)
    by_quarter, by_half = (1, 0) if coding == "int8" else (2, 1)

    @device_function
    def add_half(acc, part, power, scale, t, up, down, row, piece, turn):
        """Half of the chunk's cells."""
        a = cuda.local.array(16, int32)
        at = int32(part * 128)
        weights(a, 0, int32(power + at), int32(scale + t * 16 + at), up)
        weights(a, 4, int32(power + at + 64), int32(scale + t * 16 + at + 64), up)
        products(acc, a, int32(row + part * (32 * row_bytes)), piece, turn, down)

    @device_function
    def range_of(scales, quarter, half, lane):
        scale = int32(scales + (quarter * by_quarter + half * by_half) * (CHUNK * 4))
        up, down = ranges(scale, lane)
        return scale, up, down

    @device_function
    def add(acc, ring, scale, powers, fades, quarter, half, lane, fresh, up, down):
        g, t = int32(lane >> 2), int32(lane & 3)
        low, high = ld_shared_f32(int32(fades + g * 4)), ld_shared_f32(int32(fades + g * 4 + 32))
        for i in range(0, 16, 4):
            acc[i] = float32(0) if fresh else acc[i] * low
            acc[i + 1] = float32(0) if fresh else acc[i + 1] * low
            acc[i + 2] = float32(0) if fresh else acc[i + 2] * high
            acc[i + 3] = float32(0) if fresh else acc[i + 3] * high
        piece, turn = int32((quarter * 2 + half) * pieces), int32(lane & 7)
        power = int32(powers + g * POWER_ROW + t * 16)
        row = int32(ring + lane * row_bytes)
        add_half(acc, 0, power, scale, t, up, down, row, piece, turn)
        add_half(acc, 1, power, scale, t, up, down, row, piece, turn)

    return range_of, add
