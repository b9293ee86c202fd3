"""Weights and weighted values of the exact ``attend`` on tensor cores: steps 6 and 7 of design section 4.

Once the maxima are known every score s becomes one float32, its *power*
r * 2^(n - top + BIAS) with (r, n) = exp2(s) and top the head's largest n: mass and weights are then roundings of the
power times constants, since scaling by powers of two is exact, and float32 holds the power of every cell that can
reach a byte of the output (see ``BIAS``).

A product takes 32 cells (its inner dimension), 16 rows of weight bytes and 8 columns of dims. Four limbs of 12 heads
fill the rows of three products; lane 4g + i holds, for its cells, limbs 0 to 3 of head g (products 0 and 1) and two
limbs of head 8 + g / 2 (product 2), so the lane that computes a weight also feeds it to the product, and no weight
passes through memory. A warp owns 64 dims of V and every ``parts``-th step of 32 cells. No warp waits for another in
this file.
"""

from typing import Any

from qsa.reference.exact.attend import NO_CELL

from ..common.scalar import exp2_fraction, pow2, transpose_bytes
from ..toolchain.compiler import cuda, device_function, float32, int32, int64, libdevice
from ..toolchain.constants import FULL_WARP
from ..toolchain.ptx import (
    float_as_int,
    floor_s32,
    int_as_float,
    join_four,
    ld_global_u16_nc,
    ld_global_v2_i32_nc,
    ld_shared_f32,
    ld_shared_i32,
    ld_shared_v4_f32,
    ld_shared_v4_i32,
    prmt,
    rint_u32,
    st_shared_f32,
    st_shared_v2_i64,
    st_shared_v4_f32,
)
from .scores import nibbles
from .shared_memory import FACTORS_BYTES, HEAD_BYTES, STEP, UNITS

BIAS = 100
"""Exponent added to every power. A weight matters while n + v is at least M_j - 32, an output while M_j - top is at
least -176 (below, O * 2^(M_j - top) / L rounds to 0), and v lies in -23..16: the power, at least 2^(-176 - 32 - 16 +
BIAS), and its product with a scale stay normal, and the product with the largest scale stays finite, for a BIAS of 98
to 110."""

REACH = 176
EMPTY = -(1 << 27)
"""Below every maximum over at least one cell."""


@device_function
def store_factors(records, factors, head, group):
    """2^(30 + top - M_j - BIAS) of one head and V group to shared memory; 0 where no cell can matter."""
    top = ld_shared_i32(int32(records + head * HEAD_BYTES))
    most = ld_shared_i32(int32(records + head * HEAD_BYTES + 4 + group * 4))
    factor = float32(0)
    if most > EMPTY and top - most <= REACH:
        factor = pow2(int32(30 + top - most - BIAS))
    st_shared_f32(int32(factors + head * FACTORS_BYTES + group * 4), factor)


@device_function
def power(s, shift):
    """r * 2^(n + shift) of a score; 0 where that is below the normal numbers."""
    floor = libdevice.floorf(s)
    r = exp2_fraction(libdevice.fadd_rn(s, -floor))
    k = int32(floor_s32(s) + shift)
    value = int_as_float(int32(float_as_int(r) + (k << 23)))
    return value if k > -127 else float32(0)


@device_function
def mass(p):
    """rint(r * 2^(30 + n - top)) of a power."""
    return int64(rint_u32(libdevice.fmul_rn(p, pow2(int32(30 - BIAS)))))


@device_function
def store_powers(scores, count, records, head, lane):
    """One warp turns a head's scores [count] in shared memory into powers. Returns the lane's part of the mass.

    ``count`` is rounded up to a multiple of 4; the scores there must be set.
    """
    top = ld_shared_i32(int32(records + head * HEAD_BYTES))
    shift = int32(BIAS - top)
    if top == NO_CELL:
        shift = int32(EMPTY * 4)
    total = int64(0)
    for cell in range(int32(lane * 4), count, int32(128)):
        at = int32(scores + cell * 4)
        s0, s1, s2, s3 = ld_shared_v4_f32(at)
        p0, p1, p2, p3 = power(s0, shift), power(s1, shift), power(s2, shift), power(s3, shift)
        st_shared_v4_f32(at, p0, p1, p2, p3)
        total += (mass(p0) + mass(p1)) + (mass(p2) + mass(p3))
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(FULL_WARP, total, distance)
    return total


@device_function
def weight(p, scale, factor):
    """rint((r * mu) * 2^(30 + n + v - M_j)): the product of power and |V scale| carries the one rounding."""
    return int32(rint_u32(libdevice.fmul_rn(libdevice.fmul_rn(p, scale), factor)))


@device_function
def limbs_of(powers, scales, factor):
    """Four limb words of the weights of four consecutive cells; shared addresses of their powers and |V scales|."""
    p0, p1, p2, p3 = ld_shared_v4_f32(powers)
    m0, m1, m2, m3 = ld_shared_v4_f32(scales)
    w0, w1, w2, w3 = weight(p0, m0, factor), weight(p1, m1, factor), weight(p2, m2, factor), weight(p3, m3, factor)
    return transpose_bytes(w0, w1, w2, w3)


@device_function
def weight_rows(a, row, row_high, scale, factor, factor_high, odd):
    """The registers of three products, ``a`` [12], for 32 cells and one V group; shared addresses of the lane's
    powers and |V scales|."""
    a[0], a[1], a[4], a[5] = limbs_of(row, scale, factor)
    a[2], a[3], a[6], a[7] = limbs_of(int32(row + 64), int32(scale + 64), factor)
    # Lanes of even g compute cells 0 to 15 of head 8 + g / 2, of odd g cells 16 to 31; each needs two limbs of both.
    l0, l1, l2, l3 = limbs_of(row_high, int32(scale + odd * 16), factor_high)
    other0 = cuda.shfl_xor_sync(FULL_WARP, l0 if odd else l2, 4)
    other1 = cuda.shfl_xor_sync(FULL_WARP, l1 if odd else l3, 4)
    a[8] = other0 if odd else l0
    a[9] = other1 if odd else l1
    a[10] = l2 if odd else other0
    a[11] = l3 if odd else other1


@device_function
def load_v(raw, half, base, rows, v_groups):
    """V of 4 cells, of the 8 whose rows stand at the shared address ``rows`` and 16 later, and 8 dims from the global
    address ``base``, of row 0, on to a ``half`` of ``raw`` [16]."""
    row = cuda.local.array(4, int32)
    row[0], row[1], row[2], row[3] = ld_shared_v4_i32(int32(rows + half * 64))
    for i in range(4):
        at = half * 8 + i
        r = int64(max(row[i], int32(0)))
        if v_groups == 4:
            raw[at], raw[at + 4] = ld_global_v2_i32_nc(base + r * 256)
        else:
            raw[at] = ld_global_u16_nc(base + r * 128)
            raw[at + 4] = ld_global_u16_nc(base + r * 128 + 16)


@device_function
def unpack_v(raw, signs, block):
    """q4_0: ``raw`` from nibbles of two groups to signed codes, times the sign of the cell's scale in the group."""
    sign, to_top = cuda.local.array(4, int32), int32(1 << (30 - 2 * block))
    for half in range(2):
        at = int32(signs + half * 64)
        sign[0], sign[1], sign[2], sign[3] = ld_shared_v4_i32(at)
        for i in range(4):
            at = half * 8 + i
            both = int32(raw[at] | (raw[at + 4] << 16))
            two = int32(sign[i] * to_top)
            # A byte of -1 where the group's scale is negative (the permutation repeats a byte's sign): ~x + 1 is -x.
            negative = prmt(two, int32(two * 2), int32(0xBBFF))
            for part in range(2):
                x = nibbles(int32(both >> (4 * part)))
                flipped = int32(x ^ negative)
                ones = int32(negative & 0x01010101)
                # Bytes are added without a carry between them.
                raw[at + 4 * part] = int32(((flipped & 0x7F7F7F7F) + ones) ^ (flipped & -0x7F7F7F80))


@device_function
def lane_base(v_codes, warp, lane, v_groups):
    """Address of this lane's dims in row 0 of V."""
    block, g = int32(warp & 3), int32(lane >> 2)
    return v_codes + int64(block * 64 + g * 8 if v_groups == 4 else block * 32 + g * 2)


@device_function
def store_piece(total, unit, staged, warp, lane):
    """Store the four sums of a piece to the staging."""
    at = int32(staged + ((warp * UNITS + unit) * 64 + lane) * 16)
    st_shared_v2_i64(at, total[0], total[1])
    st_shared_v2_i64(int32(at + 512), total[2], total[3])


def make(v_groups: int, parts: int, mma_u8: Any) -> tuple[Any, Any]:
    """(weigh_values, store_sums) for a V of ``v_groups`` scales a cell (4: int8, 8: q4_0), 4 * ``parts`` warps."""
    groups = v_groups // 4
    two_factors = 2 * groups

    @device_function
    def weighted(i, a, b, acc):
        """The products of the ``i``-th of a warp's V groups: weights ``a`` [12] and codes ``b`` [16] onto ``acc``."""
        for column in range(8):
            if ((column >> 1) & 1) * (groups - 1) == i:
                for product in range(3):
                    n = (column * 3 + product) * 4
                    k = product * 4
                    acc[n], acc[n + 1], acc[n + 2], acc[n + 3] = mma_u8(
                        a[k],
                        a[k + 1],
                        a[k + 2],
                        a[k + 3],
                        b[2 * column],
                        b[2 * column + 1],
                        acc[n],
                        acc[n + 1],
                        acc[n + 2],
                        acc[n + 3],
                    )

    @device_function
    def weigh_values(raw, base, count, warp, powers, stride, scales, signs, room, factors, rows, acc, lane):
        """One warp: its part of O to the local int32 array ``acc`` [96], limb by limb as the products leave it.

        ``raw``: V of the warp's first step, already loaded (:func:`load_v`) from ``base`` (:func:`lane_base`).

        Shared addresses: ``powers`` [12, stride words], ``scales`` [v_groups, room] the |V scales|, ``signs`` [room]
        bit j set where V scale j is negative (q4_0), ``factors`` and ``rows``.
        """
        g = int32(lane >> 2)
        block, part = int32(warp & 3), int32(warp >> 2)
        for i in range(96):
            acc[i] = int32(0)
        b = cuda.local.array(16, int32)
        a = cuda.local.array(12, int32)
        factor = cuda.local.array(two_factors, float32)
        for i in range(groups):
            at = int32(factors + (block * groups + i) * 4)
            factor[2 * i] = ld_shared_f32(int32(at + g * FACTORS_BYTES))
            factor[2 * i + 1] = ld_shared_f32(int32(at + (8 + (g >> 1)) * FACTORS_BYTES))
        quarter, odd = int32(lane & 3), int32(lane & 4)
        row = int32(powers + (g * stride + quarter * 4) * 4)
        row_high = int32(powers + ((8 + (g >> 1)) * stride + quarter * 4 + odd * 4) * 4)
        scale = int32(scales + (block * groups * room + quarter * 4) * 4)
        at, last = int32(part * STEP * 4), int32((count - STEP) * 4)
        while at <= last:
            if v_groups == 8:
                unpack_v(raw, int32(signs + quarter * 16 + at), block)
            weight_rows(a, int32(row + at), int32(row_high + at), int32(scale + at), factor[0], factor[1], odd)
            for half in range(2):
                for word in range(2):
                    i = half * 8 + word * 4
                    t0, t1, t2, t3 = transpose_bytes(raw[i], raw[i + 1], raw[i + 2], raw[i + 3])
                    i = word * 8 + half
                    b[i], b[i + 2], b[i + 4], b[i + 6] = t0, t1, t2, t3
            ahead = int32(at + parts * STEP * 4)
            ahead_rows = int32(rows + quarter * 16 + min(ahead, last))
            load_v(raw, 0, base, ahead_rows, v_groups)
            if groups == 1:
                load_v(raw, 1, base, ahead_rows, v_groups)
            weighted(0, a, b, acc)
            if groups == 2:
                # Not before: twice the weights would not fit the registers.
                high = int32(scale + room * 4 + at)
                weight_rows(a, int32(row + at), int32(row_high + at), high, factor[2], factor[3], odd)
                load_v(raw, 1, base, ahead_rows, v_groups)
                weighted(1, a, b, acc)
            at = ahead

    @device_function
    def of_head_g(acc, unit, staged, warp, lane):
        """Piece ``unit`` < 4: four limbs of the lane's own."""
        total = cuda.local.array(4, int64)
        for i in range(4):
            if v_groups == 4:
                column, side = 4 * (unit & 1) + i, unit >> 1
            else:
                column, side = 4 * (unit >> 1) + 2 * (unit & 1) + (i & 1), i >> 1
            k = column * 12 + side
            total[i] = join_four(acc[k], acc[k + 2], acc[k + 4], acc[k + 6])
        store_piece(total, unit, staged, warp, lane)

    @device_function
    def of_higher_head(acc, unit, staged, warp, lane):
        """Piece ``unit`` 4 or 5: two limbs of this lane's and two of its neighbour's. Of two columns a lane of even g
        keeps the one and gives the other, a lane of odd g the other way round."""
        total = cuda.local.array(4, int64)
        odd = (lane >> 2) & 1
        for i in range(4):
            if v_groups == 4:
                column, side = i, unit - 4
                there = 4 + i
            else:
                column, side = 4 * (unit - 4) + (i & 1), i >> 1
                there = column + 2
            k, n = column * 12 + 8 + side, there * 12 + 8 + side
            low, high = acc[k], acc[k + 2]
            other_low = cuda.shfl_xor_sync(FULL_WARP, low if odd else acc[n], 4)
            other_high = cuda.shfl_xor_sync(FULL_WARP, high if odd else acc[n + 2], 4)
            # An even lane holds the low limbs of both columns, an odd one the high limbs.
            total[i] = join_four(
                other_low if odd else low,
                other_high if odd else high,
                acc[n] if odd else other_low,
                acc[n + 2] if odd else other_high,
            )
        store_piece(total, unit, staged, warp, lane)

    @device_function
    def store_sums(acc, staged, warp, lane):
        """The warp's part of O, of ``acc`` as :func:`weigh_values` leaves it, to shared memory from ``staged`` on:
        int64 [warps, UNITS, 2, 32 lanes, 2], piece after piece of 4 dims in two halves. ``acc`` is given up piece by
        piece, so that no more registers are needed than it takes."""
        of_head_g(acc, 0, staged, warp, lane)
        of_head_g(acc, 1, staged, warp, lane)
        of_head_g(acc, 2, staged, warp, lane)
        of_head_g(acc, 3, staged, warp, lane)
        of_higher_head(acc, 4, staged, warp, lane)
        of_higher_head(acc, 5, staged, warp, lane)

    return weigh_values, store_sums
