"""Powers of the tensor-core form: a warp turns a head's scores of a chunk into weights 2^(score - reference).

The reference of a head is an integer above every score of its piece so far, so that a change of it scales what was
summed before by a power of two, which rounds nothing. Warps 0 to 3 have two heads, the others one: two warps of a
multiprocessor's quarter have three.
"""

from ...common.scalar import NAN_BITS, SCORE_LIMIT
from ...toolchain.compiler import cuda, device_function, float32, int32, libdevice
from ...toolchain.constants import FULL_WARP
from ...toolchain.ptx import (
    ex2_approx,
    floor_s32,
    int_as_float,
    ld_shared_f32,
    ld_shared_i32,
    ld_shared_v2_f32,
    ld_shared_v2_i32,
    redux_max,
    st_shared_f32,
    st_shared_i32,
    st_shared_v2_f32,
)
from ..chunk import EMPTY
from .cells import power_place
from .layout import NO_TOP, PART_BYTES, POWER_ROW, QUARTERS, SCORE_ROW


@device_function
def power_of_two(k):
    """2^k for k <= 0; 0 below -126."""
    return int_as_float(int32(max(int32(k + 127), int32(0)) << 23))


@device_function
def weigh(parts, powers, rows, factors, poison, fades, tops, masses, head, lane, top, mass, fresh, last):
    """A head's powers of a chunk, whose cells' rows stand at ``rows``; (reference, the lane's sum of powers) of the
    piece so far, which begins where ``fresh`` and ends where ``last``: then both go to ``tops`` and ``masses``."""
    s0, s1 = ld_shared_v2_f32(int32(parts + head * (SCORE_ROW * 4) + lane * 8))
    for quarter in range(1, QUARTERS):
        more0, more1 = ld_shared_v2_f32(int32(parts + quarter * PART_BYTES + head * (SCORE_ROW * 4) + lane * 8))
        s0 += more0
        s1 += more1
    factor = ld_shared_f32(int32(factors + head * 4))
    row0, row1 = ld_shared_v2_i32(int32(rows + lane * 8))
    s0 = libdevice.fmaxf(libdevice.fminf(s0 * factor, float32(SCORE_LIMIT)), float32(-SCORE_LIMIT))
    s1 = libdevice.fmaxf(libdevice.fminf(s1 * factor, float32(SCORE_LIMIT)), float32(-SCORE_LIMIT))
    s0 = s0 if row0 >= 0 else float32(EMPTY)
    s1 = s1 if row1 >= 0 else float32(EMPTY)
    largest = max(s0, s1)
    here = int32(floor_s32(largest) + 1) if largest > float32(EMPTY) else int32(NO_TOP)
    before = int32(NO_TOP) if fresh else top
    top = max(before, int32(redux_max(here)))
    fade = power_of_two(int32(before - top))
    p0 = ex2_approx(s0 - float32(top)) if row0 >= 0 else float32(0)
    p1 = ex2_approx(s1 - float32(top)) if row1 >= 0 else float32(0)
    mass = p0 + p1 if fresh else mass * fade + (p0 + p1)
    st_shared_v2_f32(int32(powers + head * POWER_ROW + power_place(int32(2 * lane)) * 4), p0, p1)
    if lane == 0:
        st_shared_f32(int32(fades + head * 4), fade)
    if last:
        total = mass
        for distance in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(FULL_WARP, total, distance)
        if lane == 0:
            if top > NO_TOP and ld_shared_i32(int32(poison + head * 4)) != 0:
                total = int_as_float(int32(NAN_BITS))
            st_shared_i32(int32(tops + head * 4), top)
            st_shared_f32(int32(masses + head * 4), total)
    return top, mass
