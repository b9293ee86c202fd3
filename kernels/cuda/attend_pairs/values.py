"""Weighted values of one row of two whose cells are partly the same: steps 6 and 7 of design section 4.

As ``attend_exact/values.py``, but that the cells which a row has alone stand some slots off.
"""

from typing import Any

from ..attend_exact.shared_memory import FACTORS_BYTES, STEP
from ..attend_exact.values import load_v, products, weight_rows
from ..common.scalar import transpose_bytes
from ..toolchain.compiler import cuda, device_function, int32
from ..toolchain.ptx import ld_shared_f32
from .layout import PARTS


@device_function
def first_slot(at, common, apart):
    """The slot of cell ``at`` of a row; all in bytes of a word a cell."""
    return int32(at + (apart if at >= common else int32(0)))


@device_function
def load_first(raw, base, count, common, apart, rows, warp, lane):
    """V of a warp's first step to ``raw`` [16]; ``count``, ``common`` and ``apart`` in cells."""
    at = first_slot(min(int32((warp >> 2) * STEP), int32(count - STEP)), common, apart)
    load_v(raw, 0, base, int32(rows + (at + (lane & 3) * 4) * 4), 4)
    load_v(raw, 1, base, int32(rows + (at + (lane & 3) * 4) * 4), 4)


def make(mma_u8: Any) -> Any:
    """``weigh_values`` of int8 V."""
    weighted = products(1, mma_u8)

    @device_function
    def weigh_values(
        raw, base, count, common, apart, warp, powers, stride, scales, slots, factors, rows, acc, lane
    ):
        """One warp: its part of O of one row to the local int32 array ``acc`` [96], as ``attend_exact/values.py`` says.

        ``count`` cells of the row stand at ``powers`` [12, stride words]; of them the first ``common`` in the slots of
        the same numbers, the others ``apart`` slots further on. ``scales`` [4, slots] and ``rows`` [slots].
        """
        g = int32(lane >> 2)
        block, part = int32(warp & 3), int32(warp >> 2)
        for i in range(96):
            acc[i] = int32(0)
        b = cuda.local.array(16, int32)
        a = cuda.local.array(12, int32)
        factor = ld_shared_f32(int32(factors + block * 4 + g * FACTORS_BYTES))
        factor_high = ld_shared_f32(int32(factors + block * 4 + (8 + (g >> 1)) * FACTORS_BYTES))
        quarter, odd = int32(lane & 3), int32(lane & 4)
        row = int32(powers + (g * stride + quarter * 4) * 4)
        row_high = int32(powers + ((8 + (g >> 1)) * stride + quarter * 4 + odd * 4) * 4)
        scale = int32(scales + (block * slots + quarter * 4) * 4)
        at, last = int32(part * STEP * 4), int32((count - STEP) * 4)
        common, apart = int32(common * 4), int32(apart * 4)
        while at <= last:
            there = int32(scale + first_slot(at, common, apart))
            weight_rows(a, int32(row + at), int32(row_high + at), there, factor, factor_high, odd)
            for half in range(2):
                for word in range(2):
                    i = half * 8 + word * 4
                    t0, t1, t2, t3 = transpose_bytes(raw[i], raw[i + 1], raw[i + 2], raw[i + 3])
                    i = word * 8 + half
                    b[i], b[i + 2], b[i + 4], b[i + 6] = t0, t1, t2, t3
            at = int32(at + PARTS * STEP * 4)
            ahead = int32(rows + quarter * 16 + first_slot(min(at, last), common, apart))
            load_v(raw, 0, base, ahead, 4)
            load_v(raw, 1, base, ahead, 4)
            weighted(0, a, b, acc)

    return weigh_values
