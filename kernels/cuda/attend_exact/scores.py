"""Scores of the exact ``attend`` on tensor cores: steps 2 to 5 of design section 4.

A warp computes the dots of each group, the scores, and both kinds of maxima. One product instruction takes 16 cells
(its rows) and 8 columns of query limbs. The three limbs of 12 heads fill 36 of the 40 columns of five such products,
laid out so that one lane receives every limb of a score:

=======  ==========================  ===================================
product  column 2i                   column 2i + 1
=======  ==========================  ===================================
0, 1, 2  head i, limb 0, 1, 2        head 4 + i, the same limb
3        head 8 + i, limb 0          head 8 + i, limb 1
4        head 8 + i, limb 2          nothing
=======  ==========================  ===================================

Lane 4g + i thus holds cells g and g + 8 of a tile for the heads i, 4 + i and 8 + i. A sum over dims has no order, so K
is read straight into the registers in which the instruction wants it, 16 bytes a lane, and only the query is permuted.
No warp waits for another in this file.
"""

from typing import Any

from qsa.reference.exact.attend import NO_CELL

from ..common.scalar import SCORE_LIMIT, rounded_dot
from ..toolchain.compiler import cuda, device_function, float32, int32, int64, libdevice, uint32
from ..toolchain.constants import FULL_WARP
from ..toolchain.ptx import (
    floor_s32,
    ld_global_i32_nc,
    ld_global_v4_i32_nc,
    ld_shared_f32,
    ld_shared_i32,
    ld_shared_v4_f32,
    ld_shared_v4_i32,
    red_shared_max_i32,
    st_shared_f32,
)
from .shared_memory import FACTOR_WORD, HEAD_BYTES, PRODUCTS, TILE


@device_function
def nibbles(word):
    """Signed codes -8..7 in bytes of the low nibbles of ``word``."""
    return int32(((word & 0x0F0F0F0F) + 0x78787878) ^ -0x7F7F7F80)


@device_function
def load_k(raw, pair, base, low_row, high_row, quarter, k_groups):
    """K of 64 dims (two steps) of this lane's two cells, rows of the pool, into the local array ``raw``."""
    if k_groups == 4:
        at = int64(pair * 64 + quarter * 16)
        i = pair * 4
        raw[i], raw[i + 1], raw[i + 2], raw[i + 3] = ld_global_v4_i32_nc(base + int64(low_row) * 256 + at)
        i += 16
        raw[i], raw[i + 1], raw[i + 2], raw[i + 3] = ld_global_v4_i32_nc(base + int64(high_row) * 256 + at)
    else:
        at = int64(pair * 32 + quarter * 4)
        for step in range(2):
            raw[pair * 2 + step] = ld_global_i32_nc(base + int64(low_row) * 128 + (at + step * 16))
            raw[8 + pair * 2 + step] = ld_global_i32_nc(base + int64(high_row) * 128 + (at + step * 16))


@device_function
def k_words(raw, pair, step, k_groups):
    """The four registers in which the product takes K of one 32-dim step."""
    if k_groups == 4:
        i = pair * 4 + step * 2
        return raw[i], raw[i + 16], raw[i + 1], raw[i + 17]
    low, high = raw[pair * 2 + step], raw[8 + pair * 2 + step]
    return nibbles(low), nibbles(high), nibbles(int32(low >> 4)), nibbles(int32(high >> 4))


@device_function
def clamped(t, factor):
    """The score: t * factor within +-2^24; a NaN becomes +2^24."""
    return libdevice.fmaxf(libdevice.fminf(libdevice.fmul_rn(t, factor), float32(SCORE_LIMIT)), float32(-SCORE_LIMIT))


@device_function
def load_tile(raw, k_codes, tile, rows, lane, k_groups):
    """K of this lane's two cells of a tile to ``raw``."""
    cell = int32(tile * TILE + (lane >> 2))
    low = max(ld_shared_i32(int32(rows + cell * 4)), int32(0))
    high = max(ld_shared_i32(int32(rows + cell * 4 + 32)), int32(0))
    for pair in range(4):
        load_k(raw, pair, k_codes, low, high, int32(lane & 3), k_groups)


def make(k_groups: int, v_groups: int, mma_s8: Any, once: bool) -> Any:
    """``score_cells`` for a K of ``k_groups`` scales a cell (4: int8, 8: q4_0) and a V of ``v_groups``; ``once``: no
    warp has more than one tile."""
    per_pair, kinds = k_groups // 4, 1 + v_groups
    dot_registers, v_maxima = per_pair * PRODUCTS * 4, 3 * v_groups
    slots = 16 if v_groups == 4 else 32

    @device_function
    def score_pair(raw, pair, k_codes, low, high, limbs, k_scale, cell, scale, dots, total, lane):
        """The dots of 64 dims, times K's scales, onto ``total``; then the next tile's K of these dims to ``raw``."""
        quarter = int32(lane & 3)
        b = cuda.local.array(4, int32)
        for i in range(dot_registers):
            dots[i] = int32(0)
        for product in range(PRODUCTS):
            at = int32(limbs + ((pair * PRODUCTS + product) * 32 + lane) * 16)
            b[0], b[1], b[2], b[3] = ld_shared_v4_i32(at)
            for half in range(2):
                a0, a1, a2, a3 = k_words(raw, pair, half, k_groups)
                i = (half * (per_pair - 1) * PRODUCTS + product) * 4
                k = 2 * half
                dots[i], dots[i + 1], dots[i + 2], dots[i + 3] = mma_s8(
                    a0, a1, a2, a3, b[k], b[k + 1], dots[i], dots[i + 1], dots[i + 2], dots[i + 3]
                )
        if not once:
            load_k(raw, pair, k_codes, low, high, quarter, k_groups)
        for part in range(per_pair):
            group = pair * per_pair + part
            for side in range(2):
                if k_groups == 4:
                    factor_k = scale[side * 4 + group]
                else:
                    factor_k = ld_shared_f32(int32(k_scale + ((cell + side * 8) * k_groups + group) * 4))
                i = part * PRODUCTS * 4 + side * 2
                for which in range(3):
                    if which < 2:
                        dot = rounded_dot(dots[i + which], dots[i + 4 + which], dots[i + 8 + which])
                    else:
                        dot = rounded_dot(dots[i + 12], dots[i + 13], dots[i + 16])
                    term = libdevice.fmul_rn(dot, factor_k)
                    entry = side * 3 + which
                    total[entry] = term if group == 0 else libdevice.fadd_rn(total[entry], term)

    @device_function
    def fold(held, half, lane, distance):
        """Of ``2 * half`` maxima a lane keeps one half, the lower of two lanes the first, and folds into it what the
        lane ``distance`` off gives of it."""
        upper = (lane & distance) != 0
        for i in range(half):
            keep, give = held[i], held[i + half]
            if upper:
                keep, give = give, keep
            held[i] = max(keep, int32(cuda.shfl_xor_sync(FULL_WARP, give, distance)))

    @device_function
    def score_cells(
        raw, k_codes, count, first, step, limbs, records, maxima, rows, k_scale, exponents, scores, stride, lane
    ):
        """One warp: scores of the tiles first, first + step, ... of ``count`` cells to shared memory, and their maxima.

        ``raw``: K of the first tile, already loaded (:func:`load_tile`).

        Shared addresses: ``records`` of the heads, ``maxima`` in the same form, ``rows`` [cells] rows of the pool or
        -1, ``k_scale`` [cells, k_groups] float32, ``exponents`` [cells, v_groups] int32 (of the V scales), ``scores``
        [12, stride words] float32. A cell that is not selected gets the score NO_CELL.
        """
        g, quarter = int32(lane >> 2), int32(lane & 3)
        tiles = int32((count + TILE - 1) // TILE)
        factor = cuda.local.array(3, float32)
        most = cuda.local.array(3, int32)
        most_v = cuda.local.array(v_maxima, int32)
        for i in range(3):
            factor[i] = ld_shared_f32(int32(records + (quarter + 4 * i) * HEAD_BYTES + FACTOR_WORD * 4))
            most[i] = int32(NO_CELL)
        for i in range(3 * v_groups):
            most_v[i] = int32(NO_CELL)
        dots = cuda.local.array(dot_registers, int32)
        total = cuda.local.array(6, float32)
        scale = cuda.local.array(8, float32)
        if once:
            tiles = min(tiles, int32(first + 1))
        for tile in range(first, tiles, step):
            cell = int32(tile * TILE + g)
            # The next tile's K is fetched into each register as soon as this tile's has been used.
            ahead = int32(min(tile + step, tiles - 1) * TILE + g)
            low = max(ld_shared_i32(int32(rows + ahead * 4)), int32(0))
            high = max(ld_shared_i32(int32(rows + ahead * 4 + 32)), int32(0))
            if k_groups == 4:
                at = int32(k_scale + cell * 16)
                scale[0], scale[1], scale[2], scale[3] = ld_shared_v4_f32(at)
                scale[4], scale[5], scale[6], scale[7] = ld_shared_v4_f32(int32(at + 128))
            # Written out: a loop that a compiler does not unroll would keep K in memory.
            score_pair(raw, 0, k_codes, low, high, limbs, k_scale, cell, scale, dots, total, lane)
            score_pair(raw, 1, k_codes, low, high, limbs, k_scale, cell, scale, dots, total, lane)
            score_pair(raw, 2, k_codes, low, high, limbs, k_scale, cell, scale, dots, total, lane)
            score_pair(raw, 3, k_codes, low, high, limbs, k_scale, cell, scale, dots, total, lane)
            for side in range(2):
                at = int32(cell + side * 8)
                selected = ld_shared_i32(int32(rows + at * 4)) >= 0
                for which in range(3):
                    s = clamped(total[side * 3 + which], factor[which])
                    if not selected:
                        s = float32(NO_CELL)
                    st_shared_f32(int32(scores + ((quarter + 4 * which) * stride + at) * 4), s)
                    total[side * 3 + which] = s
                for part in range(v_groups // 4):
                    v = ld_shared_v4_i32(int32(exponents + (at * v_groups + part * 4) * 4))
                    for which in range(3):
                        n = floor_s32(total[side * 3 + which])
                        most[which] = max(most[which], n)
                        i = which * v_groups + part * 4
                        most_v[i] = max(most_v[i], int32(n + v[0]))
                        most_v[i + 1] = max(most_v[i + 1], int32(n + v[1]))
                        most_v[i + 2] = max(most_v[i + 2], int32(n + v[2]))
                        most_v[i + 3] = max(most_v[i + 3], int32(n + v[3]))
        # Eight lanes hold the same heads: each ends with an eighth of their maxima, over the cells of all eight.
        held = cuda.local.array(slots, int32)
        for i in range(slots):
            held[i] = int32(NO_CELL)
        for which in range(3):
            held[which * kinds] = most[which]
            for group in range(v_groups):
                held[which * kinds + 1 + group] = most_v[which * v_groups + group]
        fold(held, slots // 2, lane, 16)
        fold(held, slots // 4, lane, 8)
        fold(held, slots // 8, lane, 4)
        first_slot = int32(((g >> 2) * 4 + ((g >> 1) & 1) * 2 + (g & 1)) * (slots // 8))
        for i in range(slots // 8):
            slot = int32(first_slot + i)
            which = int32(uint32(slot) // uint32(kinds))
            if which < 3:
                at = int32(maxima + (quarter + 4 * which) * HEAD_BYTES + (slot - which * kinds) * 4)
                red_shared_max_i32(at, held[i])

    return score_cells
