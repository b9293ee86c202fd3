"""Scores of the tensor-core form: a warp takes 32 cells of a chunk and 64 dims, and leaves its part of their scores.

Of a product 16 cells are the rows and the parts of the queries the columns, so lane 4g + i has cells g and g + 8 of a
tile for the heads i, 4 + i and 8 + i with all their parts. Integer codes: dots of a group are exact integers, rounded
once and scaled. fp16: products of halves are exact; two of them are added by the tensor cores, which cut off, and the
rest in float32, rounded.
"""

from typing import Any

from ...attend_exact.scores import nibbles
from ...common.scalar import rounded_dot
from ...toolchain.compiler import cuda, device_function, float32, int32
from ...toolchain.ptx import ld_shared_f32, ldmatrix_x4, mma_f16, mma_s8, st_shared_f32
from .layout import CHUNK, CODE_BYTES, PART_BYTES, QUARTERS, SCALES, SCORE_ROW


@device_function
def put(part, cell, t, x0, x1, x2):
    """The parts of one cell's scores of the lane's three heads."""
    at = int32(part + (t * SCORE_ROW + cell) * 4)
    st_shared_f32(at, x0)
    st_shared_f32(int32(at + 4 * SCORE_ROW * 4), x1)
    st_shared_f32(int32(at + 8 * SCORE_ROW * 4), x2)


@device_function
def bytes_times(acc, q, step, a0, a1, a2, a3):
    """The products of 32 dims onto the local ``acc`` [20]."""
    for product in range(5):
        n = product * 4
        acc[n], acc[n + 1], acc[n + 2], acc[n + 3] = mma_s8(
            a0, a1, a2, a3, q[n + step * 2], q[n + step * 2 + 1], acc[n], acc[n + 1], acc[n + 2], acc[n + 3]
        )


@device_function
def dots(acc, at):
    """float32 dots of the lane's three heads; ``at`` 0: cell g, 2: cell g + 8."""
    return (
        rounded_dot(acc[at], acc[4 + at], acc[8 + at]),
        rounded_dot(acc[1 + at], acc[5 + at], acc[9 + at]),
        rounded_dot(acc[12 + at], acc[13 + at], acc[16 + at]),
    )


@device_function
def load_tiles(a, row, first_piece, turn, up, steps, row_bytes):
    """K of two tiles of 16 cells, ``steps`` of 32 bytes each, to the local ``a`` [2 * steps * 4]: all loads before the
    first product."""
    for tile in range(2):
        for step in range(steps):
            n = (tile * steps + step) * 4
            at = int32(row + tile * 16 * row_bytes + ((first_piece + step * 2 + up) ^ turn) * 16)
            a[n], a[n + 1], a[n + 2], a[n + 3] = ldmatrix_x4(at)


def _fp16() -> Any:
    @device_function
    def tile_parts(a, at, q, scale, part, cell, t):
        total, acc = cuda.local.array(12, float32), cuda.local.array(12, float32)
        for i in range(12):
            total[i] = float32(0)
        for step in range(4):
            k = at + step * 4
            for product in range(3):
                n, b = product * 4, product * 8 + step * 2
                if step % 2 == 0:
                    for i in range(4):
                        acc[n + i] = float32(0)
                acc[n], acc[n + 1], acc[n + 2], acc[n + 3] = mma_f16(
                    a[k], a[k + 1], a[k + 2], a[k + 3], q[b], q[b + 1], acc[n], acc[n + 1], acc[n + 2], acc[n + 3]
                )
                if step % 2 == 1:
                    for i in range(4):
                        total[n + i] += acc[n + i]
        put(part, cell, t, total[0] + total[4], total[1] + total[5], total[8] + total[9])
        put(part, int32(cell + 8), t, total[2] + total[6], total[3] + total[7], total[10] + total[11])

    return tile_parts


def _int8() -> Any:
    @device_function
    def tile_parts(a, at, q, scale, part, cell, t):
        acc = cuda.local.array(20, int32)
        for i in range(20):
            acc[i] = int32(0)
        bytes_times(acc, q, 0, a[at], a[at + 1], a[at + 2], a[at + 3])
        bytes_times(acc, q, 1, a[at + 4], a[at + 5], a[at + 6], a[at + 7])
        k, k_next = ld_shared_f32(scale), ld_shared_f32(int32(scale + 32))
        x0, x1, x2 = dots(acc, 0)
        put(part, cell, t, x0 * k, x1 * k, x2 * k)
        x0, x1, x2 = dots(acc, 2)
        put(part, int32(cell + 8), t, x0 * k_next, x1 * k_next, x2 * k_next)

    return tile_parts


def _q4_0() -> Any:
    @device_function
    def tile_parts(a, at, q, scale, part, cell, t):
        acc, other = cuda.local.array(20, int32), cuda.local.array(20, int32)
        for i in range(20):
            acc[i], other[i] = int32(0), int32(0)
        # Two groups: of each the low nibbles are 16 dims and the high ones the 16 after them.
        r0, r1, r2, r3 = a[at], a[at + 1], a[at + 2], a[at + 3]
        bytes_times(acc, q, 0, nibbles(r0), nibbles(r1), nibbles(int32(r0 >> 4)), nibbles(int32(r1 >> 4)))
        bytes_times(other, q, 1, nibbles(r2), nibbles(r3), nibbles(int32(r2 >> 4)), nibbles(int32(r3 >> 4)))
        k, l_ = ld_shared_f32(scale), ld_shared_f32(int32(scale + CHUNK * 4))
        x0, x1, x2 = dots(acc, 0)
        y0, y1, y2 = dots(other, 0)
        put(part, cell, t, x0 * k + y0 * l_, x1 * k + y1 * l_, x2 * k + y2 * l_)
        k, l_ = ld_shared_f32(int32(scale + 32)), ld_shared_f32(int32(scale + (CHUNK * 4 + 32)))
        x0, x1, x2 = dots(acc, 2)
        y0, y1, y2 = dots(other, 2)
        put(part, int32(cell + 8), t, x0 * k + y0 * l_, x1 * k + y1 * l_, x2 * k + y2 * l_)

    return tile_parts


def make(coding: str) -> Any:
    """``score(q, ring, scales, parts, quarter, half, lane)``: the warp's parts of a chunk's scores to shared memory.

    ``q``: registers of the query; ``ring``, ``scales``: the chunk's K and its scales; ``parts``: where parts go.
    """
    tile_parts = {"int8": _int8, "q4_0": _q4_0, "fp16": _fp16}[coding]()
    row_bytes, groups = CODE_BYTES[coding], SCALES[coding] // QUARTERS
    # Loads of 32 bytes of a cell that a quarter's 64 dims take.
    steps = row_bytes // (QUARTERS * 32)
    words, second = 8 * steps, 4 * steps

    @device_function
    def score(q, ring, scales, parts, quarter, half, lane):
        g, t = int32(lane >> 2), int32(lane & 3)
        a = cuda.local.array(words, int32)
        row = int32(ring + (half * 32 + (lane & 15)) * row_bytes)
        load_tiles(a, row, int32(quarter * (2 * steps)), int32(lane & 7), int32(lane >> 4), steps, row_bytes)
        part, cell = int32(parts + quarter * PART_BYTES), int32(half * 32 + g)
        scale = int32(scales + (quarter * (groups * CHUNK) + cell) * 4)
        tile_parts(a, 0, q, scale, part, cell, t)
        tile_parts(a, second, q, int32(scale + 64), part, int32(cell + 16), t)

    return score
