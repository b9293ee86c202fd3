"""Scores of the exact ``attend`` of few rows: steps 2 to 5 of design section 4, and the fractions of step 6.

A warp scores its own tiles of 16 cells. A lane holds cells g and g + 8 for one head. What is stored of a score s is r
and n of exp2(s): both are known before the maxima are.
"""

from typing import Any

from qsa.reference.exact.attend import NO_CELL

from ..attend_exact.scores import clamped, k_words, load_k
from ..attend_exact.shared_memory import FACTOR_WORD, HEAD_BYTES, TILE
from ..common.scalar import exp2_fraction, rounded_dot
from ..toolchain.compiler import cuda, device_function, float32, int32, libdevice
from ..toolchain.constants import FULL_WARP
from ..toolchain.ptx import (
    floor_s32,
    ld_shared_f32,
    ld_shared_i32,
    ld_shared_v4_f32,
    ld_shared_v4_i32,
    mma_s8,
    red_shared_max_i32,
    st_shared_f32,
    st_shared_i32,
)
from .layout import PRODUCTS

KINDS = 5
"""Maxima of a head: of n, and of n + v of each of four groups."""


@device_function
def fold(held, half, lane, distance):
    """Of ``2 * half`` maxima a lane keeps one half, the lower of two lanes the first, and folds into it what the lane
    ``distance`` off gives of it."""
    upper = (lane & distance) != 0
    for i in range(half):
        keep, give = held[i], held[i + half]
        if upper:
            keep, give = give, keep
        held[i] = max(keep, int32(cuda.shfl_xor_sync(FULL_WARP, give, distance)))


def make(warps: int, turns: int) -> Any:
    """``score_cells`` for blocks of ``warps``, which have ``turns`` tiles each at most."""
    dot_registers = 4 * PRODUCTS

    @device_function
    def score_pair(raw, pair, limbs, scale, total, lane):
        """The dots of 64 dims, times K's scales, onto ``total`` [2]."""
        a = cuda.local.array(8, int32)
        for half in range(2):
            i = half * 4
            a[i], a[i + 1], a[i + 2], a[i + 3] = k_words(raw, pair, half, 4)
        b = cuda.local.array(4, int32)
        dots = cuda.local.array(dot_registers, int32)
        for product in range(PRODUCTS):
            at = int32(limbs + ((pair * PRODUCTS + product) * 32 + lane) * 16)
            b[0], b[1], b[2], b[3] = ld_shared_v4_i32(at)
            i = product * 4
            zero = int32(0)
            dots[i], dots[i + 1], dots[i + 2], dots[i + 3] = mma_s8(
                a[0], a[1], a[2], a[3], b[0], b[1], zero, zero, zero, zero
            )
            dots[i], dots[i + 1], dots[i + 2], dots[i + 3] = mma_s8(
                a[4], a[5], a[6], a[7], b[2], b[3], dots[i], dots[i + 1], dots[i + 2], dots[i + 3]
            )
        for side in range(2):
            dot = rounded_dot(dots[2 * side], dots[2 * side + 1], dots[4 + 2 * side])
            term = libdevice.fmul_rn(dot, scale[side * 4 + pair])
            total[side] = term if pair == 0 else libdevice.fadd_rn(total[side], term)

    @device_function
    def score_cells(
        raw, k_codes, warp, room, limbs, records, maxima, rows, k_scale, exponents, powers, floors, stride, lane
    ):
        """One warp: r and n of the scores of its tiles to shared memory, and their maxima. ``raw``: K of its first
        tile, already loaded. A cell that is not selected has the score NO_CELL."""
        g, quarter = int32(lane >> 2), int32(lane & 3)
        held = cuda.local.array(8, int32)
        for i in range(8):
            held[i] = int32(NO_CELL)
        factor = ld_shared_f32(int32(records + quarter * HEAD_BYTES + FACTOR_WORD * 4))
        total = cuda.local.array(2, float32)
        scale = cuda.local.array(8, float32)
        tiles = int32(room // TILE)
        first = int32(warps - 1 - warp)
        for tile in range(first, tiles if turns > 1 else min(tiles, int32(first + 1)), int32(warps)):
            cell = int32(tile * TILE + g)
            at = int32(k_scale + cell * 16)
            scale[0], scale[1], scale[2], scale[3] = ld_shared_v4_f32(at)
            scale[4], scale[5], scale[6], scale[7] = ld_shared_v4_f32(int32(at + 128))
            ahead = int32(min(int32(tile + warps), int32(tiles - 1)) * TILE + g)
            low = high = int32(0)
            if turns > 1:
                low = max(ld_shared_i32(int32(rows + ahead * 4)), int32(0))
                high = max(ld_shared_i32(int32(rows + ahead * 4 + 32)), int32(0))
            # Written out: a loop that a compiler does not unroll would keep K in memory.
            score_pair(raw, 0, limbs, scale, total, lane)
            if turns > 1:
                load_k(raw, 0, k_codes, low, high, quarter, 4)
            score_pair(raw, 1, limbs, scale, total, lane)
            if turns > 1:
                load_k(raw, 1, k_codes, low, high, quarter, 4)
            score_pair(raw, 2, limbs, scale, total, lane)
            if turns > 1:
                load_k(raw, 2, k_codes, low, high, quarter, 4)
            score_pair(raw, 3, limbs, scale, total, lane)
            if turns > 1:
                load_k(raw, 3, k_codes, low, high, quarter, 4)
            for side in range(2):
                at = int32(cell + side * 8)
                selected = ld_shared_i32(int32(rows + at * 4)) >= 0
                v = ld_shared_v4_i32(int32(exponents + at * 16))
                s = clamped(total[side], factor)
                if not selected:
                    s = float32(NO_CELL)
                n = floor_s32(s)
                to = int32((quarter * stride + at) * 4)
                st_shared_i32(int32(floors + to), n)
                held[0] = max(held[0], n)
                held[1] = max(held[1], int32(n + v[0]))
                held[2] = max(held[2], int32(n + v[1]))
                held[3] = max(held[3], int32(n + v[2]))
                held[4] = max(held[4], int32(n + v[3]))
                st_shared_f32(int32(powers + to), exp2_fraction(libdevice.fadd_rn(s, -libdevice.floorf(s))))
        # Eight lanes hold the same head: each ends with one of its maxima, over the cells of all eight.
        fold(held, 4, lane, 16)
        fold(held, 2, lane, 8)
        fold(held, 1, lane, 4)
        kind = int32((g >> 2) * 4 + ((g >> 1) & 1) * 2 + (g & 1))
        if kind < KINDS:
            red_shared_max_i32(int32(maxima + quarter * HEAD_BYTES + kind * 4), held[0])

    return score_cells
