"""Scores of two rows whose cells are partly the same: steps 2 to 5 of design section 4, as ``attend_exact/scores.py``.

K of a tile stays in registers while the limbs of one row or both go by. Slots hold the cells that both rows select,
then those of the first row alone, then those of the second alone; a cell that a row does not select is never multiplied
with its query, and has no part in its maxima.
"""

from typing import Any

from qsa.reference.exact.attend import NO_CELL

from ..attend_exact.scores import clamped, keeper, load_k
from ..attend_exact.shared_memory import FACTOR_WORD, HEAD_BYTES, PRODUCTS, RECORDS_OFFSET, TILE
from ..common.scalar import rounded_dot
from ..toolchain.compiler import cuda, device_function, float32, int32, libdevice
from ..toolchain.ptx import (
    floor_s32,
    half_to_float,
    ld_shared_f32,
    ld_shared_i32,
    ld_shared_v2_i32,
    ld_shared_v4_i32,
    st_shared_f32,
)
from .layout import ROW_BYTES, WARPS


@device_function
def take_k(held, raw, pair, k_codes, low, high, nothing, lane):
    """K of 64 dims in the order of the products to ``held`` [8]; then the next tile's K of these dims to ``raw``.

    ``nothing`` is 0, which the compiler does not know: without it ptxas copies K once for every product.
    """
    for step in range(2):
        i = pair * 4 + step * 2
        held[4 * step] = int32(raw[i] ^ nothing)
        held[4 * step + 1] = int32(raw[i + 16] ^ nothing)
        held[4 * step + 2] = int32(raw[i + 1] ^ nothing)
        held[4 * step + 3] = int32(raw[i + 17] ^ nothing)
    load_k(raw, pair, k_codes, low, high, int32(lane & 3), 4)


@device_function
def half_scale(words, side, pair):
    """The K scale of a cell's 64 dims, of its words."""
    word = words[side * 2 + (pair >> 1)]
    return half_to_float(int32(word >> 16) if pair & 1 else word)


@device_function
def finish(total, rows, exponents, cell, records, powers, stride, column, most, most_v, lane):
    """Scores of the lane's two cells of a tile, from the sums ``total`` [6], to column ``column`` of ``powers``; their
    maxima into ``most`` [3] and ``most_v`` [12]."""
    quarter = int32(lane & 3)
    for side in range(2):
        at = int32(cell + side * 8)
        selected = ld_shared_i32(int32(rows + at * 4)) >= 0
        v = ld_shared_v4_i32(int32(exponents + at * 16))
        for which in range(3):
            head = int32(quarter + 4 * which)
            s = clamped(total[side * 3 + which], ld_shared_f32(int32(records + head * HEAD_BYTES + FACTOR_WORD * 4)))
            if not selected:
                s = float32(NO_CELL)
            st_shared_f32(int32(powers + (head * stride + column + side * 8) * 4), s)
            n = floor_s32(s)
            most[which] = max(most[which], n)
            for group in range(4):
                most_v[which * 4 + group] = max(most_v[which * 4 + group], int32(n + v[group]))


def make(mma_s8: Any) -> Any:
    """``score_cells`` of int8 K and V."""
    store_maxima = keeper(4)

    @device_function
    def score_row(held, pair, limbs, scale, dots, total, lane):
        """The dots of 64 dims with one row's limbs, times K's scales, onto ``total`` [6]."""
        b = cuda.local.array(4, int32)
        for i in range(PRODUCTS * 4):
            dots[i] = int32(0)
        for product in range(PRODUCTS):
            at = int32(limbs + ((pair * PRODUCTS + product) * 32 + lane) * 16)
            b[0], b[1], b[2], b[3] = ld_shared_v4_i32(at)
            i = product * 4
            for step in range(2):
                k = 4 * step
                dots[i], dots[i + 1], dots[i + 2], dots[i + 3] = mma_s8(
                    held[k],
                    held[k + 1],
                    held[k + 2],
                    held[k + 3],
                    b[2 * step],
                    b[2 * step + 1],
                    dots[i],
                    dots[i + 1],
                    dots[i + 2],
                    dots[i + 3],
                )
        for side in range(2):
            i = side * 2
            for which in range(3):
                if which < 2:
                    dot = rounded_dot(dots[i + which], dots[i + 4 + which], dots[i + 8 + which])
                else:
                    dot = rounded_dot(dots[i + 12], dots[i + 13], dots[i + 16])
                term = libdevice.fmul_rn(dot, scale[side])
                entry = side * 3 + which
                total[entry] = term if pair == 0 else libdevice.fadd_rn(total[entry], term)

    @device_function
    def score_one(raw, pair, k_codes, low, high, limbs, words, dots, total, nothing, lane):
        """64 dims of a tile of one row's own."""
        held = cuda.local.array(8, int32)
        scale = cuda.local.array(2, float32)
        scale[0], scale[1] = half_scale(words, 0, pair), half_scale(words, 1, pair)
        take_k(held, raw, pair, k_codes, low, high, nothing, lane)
        score_row(held, pair, limbs, scale, dots, total, lane)

    @device_function
    def score_both(raw, pair, k_codes, low, high, limbs, words, dots, total, other, nothing, lane):
        """64 dims of a tile that both rows have."""
        held = cuda.local.array(8, int32)
        scale = cuda.local.array(2, float32)
        scale[0], scale[1] = half_scale(words, 0, pair), half_scale(words, 1, pair)
        take_k(held, raw, pair, k_codes, low, high, nothing, lane)
        score_row(held, pair, limbs, scale, dots, total, lane)
        score_row(held, pair, int32(limbs + ROW_BYTES), scale, dots, other, lane)

    @device_function
    def ahead_rows(tile, tiles, rows, lane):
        """Rows of the pool of the lane's two cells of the warp's next tile."""
        at = int32(rows + (min(int32(tile + WARPS), int32(tiles - 1)) * TILE + (lane >> 2)) * 4)
        return max(ld_shared_i32(at), int32(0)), max(ld_shared_i32(int32(at + 32)), int32(0))

    @device_function
    def load_words(words, k_scale, cell):
        """The K scales of the lane's two cells, two to a word."""
        words[0], words[1] = ld_shared_v2_i32(int32(k_scale + cell * 8))
        words[2], words[3] = ld_shared_v2_i32(int32(k_scale + cell * 8 + 64))

    @device_function
    def score_cells(
        raw, k_codes, common, first_end, slots, base, maxima, rows, k_scale, exponents, places, nothing, warp, lane
    ):
        """One warp: scores of every ``WARPS``-th tile of the slots from its own on, and their maxima.

        ``raw``: K of its first tile, already loaded. Slots 0 to common - 1 are both rows', those up to ``first_end``
        the first row's, those up to ``slots`` the second's. ``places`` [8]: of each row the address of its powers, the
        words between two heads, its cells, and how far its own cells stand off. Shared addresses: ``base`` of the rows'
        own memory, with the maxima ``maxima`` bytes further on; ``rows``, ``k_scale``, ``exponents`` of the slots.
        """
        most, other_most = cuda.local.array(3, int32), cuda.local.array(3, int32)
        most_v, other_most_v = cuda.local.array(12, int32), cuda.local.array(12, int32)
        for i in range(3):
            most[i], other_most[i] = int32(NO_CELL), int32(NO_CELL)
        for i in range(12):
            most_v[i], other_most_v[i] = int32(NO_CELL), int32(NO_CELL)
        dots = cuda.local.array(20, int32)
        total, other = cuda.local.array(6, float32), cuda.local.array(6, float32)
        words = cuda.local.array(4, int32)
        g, tiles = int32(lane >> 2), int32(slots // TILE)
        records, limbs = int32(base + RECORDS_OFFSET), int32(base + ROW_BYTES)
        tile = warp
        while tile * TILE < common:
            cell = int32(tile * TILE + g)
            low, high = ahead_rows(tile, tiles, rows, lane)
            load_words(words, k_scale, cell)
            # Written out: a loop that a compiler does not unroll would keep K in memory.
            score_both(raw, 0, k_codes, low, high, base, words, dots, total, other, nothing, lane)
            score_both(raw, 1, k_codes, low, high, base, words, dots, total, other, nothing, lane)
            score_both(raw, 2, k_codes, low, high, base, words, dots, total, other, nothing, lane)
            score_both(raw, 3, k_codes, low, high, base, words, dots, total, other, nothing, lane)
            finish(total, rows, exponents, cell, records, places[0], places[1], cell, most, most_v, lane)
            there = int32(records + ROW_BYTES)
            finish(other, rows, exponents, cell, there, places[4], places[5], cell, other_most, other_most_v, lane)
            tile = int32(tile + WARPS)
        while tile * TILE < first_end:
            cell = int32(tile * TILE + g)
            low, high = ahead_rows(tile, tiles, rows, lane)
            load_words(words, k_scale, cell)
            score_one(raw, 0, k_codes, low, high, base, words, dots, total, nothing, lane)
            score_one(raw, 1, k_codes, low, high, base, words, dots, total, nothing, lane)
            score_one(raw, 2, k_codes, low, high, base, words, dots, total, nothing, lane)
            score_one(raw, 3, k_codes, low, high, base, words, dots, total, nothing, lane)
            finish(total, rows, exponents, cell, records, places[0], places[1], cell, most, most_v, lane)
            tile = int32(tile + WARPS)
        while tile < tiles:
            cell = int32(tile * TILE + g)
            low, high = ahead_rows(tile, tiles, rows, lane)
            load_words(words, k_scale, cell)
            score_one(raw, 0, k_codes, low, high, limbs, words, dots, total, nothing, lane)
            score_one(raw, 1, k_codes, low, high, limbs, words, dots, total, nothing, lane)
            score_one(raw, 2, k_codes, low, high, limbs, words, dots, total, nothing, lane)
            score_one(raw, 3, k_codes, low, high, limbs, words, dots, total, nothing, lane)
            column, there = int32(cell - places[7]), int32(records + ROW_BYTES)
            finish(total, rows, exponents, cell, there, places[4], places[5], column, other_most, other_most_v, lane)
            tile = int32(tile + WARPS)
        store_maxima(most, most_v, int32(base + maxima), lane)
        store_maxima(other_most, other_most_v, int32(base + maxima + ROW_BYTES), lane)

    return score_cells
