"""Powers of the tensor-core form: a warp turns two heads' scores of a chunk into weights 2^(score - reference).

The reference of a head is an integer above every score of its piece so far, so that a change of it scales what was
summed before by a power of two, which rounds nothing. Half of a warp has a head, four cells a lane.
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
    ld_shared_v4_f32,
    ld_shared_v4_i32,
    st_shared_f32,
    st_shared_i32,
    st_shared_v2_f32,
)
from ..chunk import EMPTY
from .cells import power_place
from .layout import NO_TOP, PART_BYTES, POWER_ROW, SCORE_ROW, WEIGHERS


@device_function
def power_of_two(k):
    """2^k for k <= 0; 0 below -126."""
    return int_as_float(int32(max(int32(k + 127), int32(0)) << 23))


@device_function
def largest_of_half(x):
    """Largest of 16 lanes' int32 x, in each of them."""
    for distance in (8, 4, 2, 1):
        x = max(x, int32(cuda.shfl_xor_sync(FULL_WARP, x, distance)))
    return int32(x)


@device_function
def score_of(t, factor, row):
    """The score in log2 units, EMPTY where no cell is selected."""
    s = libdevice.fmaxf(libdevice.fminf(t * factor, float32(SCORE_LIMIT)), float32(-SCORE_LIMIT))
    return s if row >= 0 else float32(EMPTY)


@device_function
def weigh(parts, powers, rows, factors, poison, fades, tops, masses, warp, lane, top, mass, fresh, last):
    """Powers of a chunk, whose cells' rows stand at ``rows``: of head ``warp`` in lanes 0 to 15, in the others of the
    one WEIGHERS after it. Returns (reference, the lane's sum of powers) of the piece so far, which begins where
    ``fresh`` and ends where ``last``: then both go to ``tops`` and ``masses``."""
    head, lane = int32(warp + (lane >> 4) * WEIGHERS), int32(lane & 15)
    at = int32(parts + head * (SCORE_ROW * 4) + lane * 16)
    s0, s1, s2, s3 = ld_shared_v4_f32(at)
    a0, a1, a2, a3 = ld_shared_v4_f32(int32(at + PART_BYTES))
    b0, b1, b2, b3 = ld_shared_v4_f32(int32(at + 2 * PART_BYTES))
    c0, c1, c2, c3 = ld_shared_v4_f32(int32(at + 3 * PART_BYTES))
    factor = ld_shared_f32(int32(factors + head * 4))
    row0, row1, row2, row3 = ld_shared_v4_i32(int32(rows + lane * 16))
    s0, s1 = score_of(s0 + a0 + b0 + c0, factor, row0), score_of(s1 + a1 + b1 + c1, factor, row1)
    s2, s3 = score_of(s2 + a2 + b2 + c2, factor, row2), score_of(s3 + a3 + b3 + c3, factor, row3)
    largest = max(max(s0, s1), max(s2, s3))
    here = int32(floor_s32(largest) + 1) if largest > float32(EMPTY) else int32(NO_TOP)
    before = int32(NO_TOP) if fresh else top
    top = max(before, largest_of_half(here))
    fade = power_of_two(int32(before - top))
    # Not selected: 2^(EMPTY - reference) is 0, but where nothing is.
    above = float32(top)
    p0, p1 = ex2_approx(s0 - above) if row0 >= 0 else float32(0), ex2_approx(s1 - above) if row1 >= 0 else float32(0)
    p2, p3 = ex2_approx(s2 - above) if row2 >= 0 else float32(0), ex2_approx(s3 - above) if row3 >= 0 else float32(0)
    here_mass = (p0 + p1) + (p2 + p3)
    mass = here_mass if fresh else mass * fade + here_mass
    at = int32(powers + head * POWER_ROW + power_place(int32(4 * lane)) * 4)
    st_shared_v2_f32(at, p0, p1)
    st_shared_v2_f32(int32(at + 16), p2, p3)
    if lane == 0:
        st_shared_f32(int32(fades + head * 4), fade)
    if last:
        total = mass
        for distance in (8, 4, 2, 1):
            total += cuda.shfl_xor_sync(FULL_WARP, total, distance)
        if lane == 0:
            if top > NO_TOP and ld_shared_i32(int32(poison + head * 4)) != 0:
                total = int_as_float(int32(NAN_BITS))
            st_shared_i32(int32(tops + head * 4), top)
            st_shared_f32(int32(masses + head * 4), total)
    return top, mass
