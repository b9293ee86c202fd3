"""Weights and weighted values of the exact ``attend`` of few rows: steps 6 and 7 of design section 4.

A product takes 32 cells, 8 columns of dims and 16 rows of weight bytes: rows 2i and 2i + 8 have limbs 0 and 1 of head
i, rows 2i + 1 and 2i + 9 limbs 2 and 3. A lane of even g computes the weights of cells 0 to 15 of head g / 2, its
neighbour of odd g those of cells 16 to 31, and they give each other two limbs. A warp owns 64 dims of V and every
``parts``-th step of 32 cells. A lane's sums of two limbs make one int32: it holds those of 258 cells.
"""

from typing import Any

from qsa.reference.exact.attend import NO_CELL

from ..attend_exact.shared_memory import DIM, HEAD_BYTES, STEP
from ..attend_exact.values import BIAS, EMPTY, REACH, load_v, mass, weight
from ..common.scalar import pow2, transpose_bytes
from ..toolchain.compiler import cuda, device_function, float32, int32, int64
from ..toolchain.constants import FULL_WARP
from ..toolchain.ptx import (
    float_as_int,
    int_as_float,
    ld_shared_i32,
    ld_shared_v2_i32,
    ld_shared_v4_f32,
    ld_shared_v4_i32,
    mma_u8,
    st_shared_i32,
    st_shared_i64,
    st_shared_v4_i32,
)
from .layout import BOX_STRIDE, HEADS, MOST_BLOCKS

LANE_CELLS = 258
"""Cells of which two limbs' sums fit an int32: 65,535 * 127 a cell."""


@device_function
def power(r, n, shift):
    """r * 2^(n + shift); 0 where that is below the normal numbers."""
    k = int32(n + shift)
    value = int_as_float(int32(float_as_int(r) + (k << 23)))
    return value if k > -127 else float32(0)


@device_function
def turned(raw, b):
    """V of 32 cells and 8 dims, of ``raw`` as loaded, into ``b`` [16] as the products take it."""
    for half in range(2):
        for word in range(2):
            i = half * 8 + word * 4
            t0, t1, t2, t3 = transpose_bytes(raw[i], raw[i + 1], raw[i + 2], raw[i + 3])
            i = word * 8 + half
            b[i], b[i + 2], b[i + 4], b[i + 6] = t0, t1, t2, t3


@device_function
def fold_maxima(box, records, active, warp, lane):
    """Fold the maxima of all ``active`` blocks for the lane's head and the warp's group. Returns what is added to n for
    a power, and 2^(30 + top - M_j - BIAS), or 0 where no cell can matter. The first warps of the groups store the
    maxima to the records."""
    block, head = int32(warp & 3), int32(lane >> 3)
    of_group = (lane & 4) != 0
    word = int32(head * 8 + (int32(1 + block) if of_group else int32(0)))
    value = int32(NO_CELL)
    for i in range(MOST_BLOCKS // 4):
        sender = int32((lane & 3) + 4 * i)
        if sender < active:
            value = max(value, ld_shared_i32(int32(box + sender * BOX_STRIDE + word * 4)))
    value = max(value, int32(cuda.shfl_xor_sync(FULL_WARP, value, 1)))
    value = max(value, int32(cuda.shfl_xor_sync(FULL_WARP, value, 2)))
    other = int32(cuda.shfl_xor_sync(FULL_WARP, value, 4))
    top, most = int32(other if of_group else value), int32(value if of_group else other)
    shift = int32(BIAS - top) if top != NO_CELL else int32(EMPTY * 4)
    factor = float32(0)
    if most > EMPTY and int32(top - most) <= REACH:
        factor = pow2(int32(30 + top - most - BIAS))
    if warp < 4 and lane & 7 == 0:
        record = int32(records + head * HEAD_BYTES)
        st_shared_i32(int32(record + 4 + block * 4), most)
        if block == 0:
            st_shared_i32(record, top)
    return shift, factor


def make(parts: int) -> tuple[Any, Any]:
    """(weigh_values, add_parts) for blocks of ``parts`` times four warps."""

    @device_function
    def weigh_values(
        raw, b, base, room, warp, powers, floors, stride, scales, rows, shift, factor, staged, masses, lane
    ):
        """One warp: its part of O and, of one warp in four, of the masses, to shared memory.

        ``b``: V of the warp's first step, as :func:`turned` leaves it; ``raw``: V of its second, loaded from ``base``.
        ``staged``: int32 [parts, heads, 2 halves, 256 dims], four dims of a lane's 16 in an order of its own
        (``add_parts``); ``masses``: int64 [parts, heads].
        """
        g, quarter = int32(lane >> 2), int32(lane & 3)
        block, part = int32(warp & 3), int32(warp >> 2)
        odd = (lane & 4) != 0
        acc = cuda.local.array(32, int32)
        for i in range(32):
            acc[i] = int32(0)
        mass_of = int64(0)
        own = int32((quarter * 4 + (lane & 4) * 4) * 4)
        score = int32((g >> 1) * stride * 4 + own)
        scale = int32(scales + block * room * 4 + own)
        at, last = int32(part * STEP * 4), int32((room - STEP) * 4)
        ahead = int32(at + parts * STEP * 4)
        while at <= last:
            m0, m1, m2, m3 = ld_shared_v4_f32(int32(scale + at))
            here = int32(score + at)
            r0, r1, r2, r3 = ld_shared_v4_f32(int32(powers + here))
            n0, n1, n2, n3 = ld_shared_v4_i32(int32(floors + here))
            p0, p1, p2, p3 = power(r0, n0, shift), power(r1, n1, shift), power(r2, n2, shift), power(r3, n3, shift)
            w0, w1 = weight(p0, m0, factor), weight(p1, m1, factor)
            w2, w3 = weight(p2, m2, factor), weight(p3, m3, factor)
            if block == 0:
                mass_of += (mass(p0) + mass(p1)) + (mass(p2) + mass(p3))
            l0, l1, l2, l3 = transpose_bytes(w0, w1, w2, w3)
            other0 = cuda.shfl_xor_sync(FULL_WARP, l0 if odd else l2, 4)
            other1 = cuda.shfl_xor_sync(FULL_WARP, l1 if odd else l3, 4)
            a0, a1 = other0 if odd else l0, other1 if odd else l1
            a2, a3 = l2 if odd else other0, l3 if odd else other1
            for column in range(8):
                i = column * 4
                acc[i], acc[i + 1], acc[i + 2], acc[i + 3] = mma_u8(
                    a0, a1, a2, a3, b[2 * column], b[2 * column + 1], acc[i], acc[i + 1], acc[i + 2], acc[i + 3]
                )
            at, ahead = ahead, int32(ahead + parts * STEP * 4)
            if at <= last:
                turned(raw, b)
                if ahead <= last:
                    load_v(raw, 0, base, int32(rows + quarter * 16 + ahead), 4)
                    load_v(raw, 1, base, int32(rows + quarter * 16 + ahead), 4)
        half, head = int32(g & 1), int32(g >> 1)
        to = int32(staged + ((((part * HEADS + head) * 2 + half) * DIM) + block * 64 + quarter * 16) * 4)
        for j in range(4):
            # Dims of a lane: 8 columns for each of two sides.
            i = (j & 1) * 16 + (j >> 1)
            st_shared_v4_i32(
                int32(to + (j ^ quarter ^ half) * 16),
                int32(acc[i] + acc[i + 2] * 256),
                int32(acc[i + 4] + acc[i + 6] * 256),
                int32(acc[i + 8] + acc[i + 10] * 256),
                int32(acc[i + 12] + acc[i + 14] * 256),
            )
        if block == 0:
            for distance in (1, 2, 4):
                mass_of += cuda.shfl_xor_sync(FULL_WARP, mass_of, distance)
            if lane & 7 == 0:
                st_shared_i64(int32(masses + (part * HEADS + head) * 8), mass_of)

    @device_function
    def add_parts(staged, pair, narrow):
        """The two sums of a pair of dims over the warps that share them."""
        head, dim = int32(pair >> 7), int32((pair & 127) * 2)
        low = int32(staged + (head * (2 * DIM) + (dim ^ (((dim >> 4) & 3) << 2))) * 4)
        high = int32(staged + (head * (2 * DIM) + DIM + (dim ^ ((((dim >> 4) & 3) ^ 1) << 2))) * 4)
        x, y = ld_shared_v2_i32(low)
        u, v = ld_shared_v2_i32(high)
        if narrow:
            for part in range(1, parts):
                there = part * HEADS * (2 * DIM * 4)
                x1, y1 = ld_shared_v2_i32(int32(low + there))
                u1, v1 = ld_shared_v2_i32(int32(high + there))
                x, y, u, v = int32(x + x1), int32(y + y1), int32(u + u1), int32(v + v1)
            return int64(x) + int64(u) * 65536, int64(y) + int64(v) * 65536
        x_of, y_of = int64(x) + int64(u) * 65536, int64(y) + int64(v) * 65536
        for part in range(1, parts):
            there = part * HEADS * (2 * DIM * 4)
            x1, y1 = ld_shared_v2_i32(int32(low + there))
            u1, v1 = ld_shared_v2_i32(int32(high + there))
            x_of += int64(x1) + int64(u1) * 65536
            y_of += int64(y1) + int64(v1) * 65536
        return x_of, y_of

    return weigh_values, add_parts
