"""The outputs of the exact ``attend``, from its sums: step 8 of design section 4.

The sums of a block, [12 heads, 256 dims] int64, come in ``SUM_PAIRS`` pairs of dims. A pair has two indices. Its lane
index says which lane holds it. Its exchange index says where it stands among the pairs that blocks send each other: for
int8 V both are the same, so that a warp writes 512 bytes at once; for q4_0 V, whose outputs are rotated head by head,
exchange indices go by heads and dims.
"""

from ..common.scalar import NAN_BITS, scaled
from ..toolchain.compiler import cuda, device_function, float32, int32, int64, libdevice, uint32
from ..toolchain.constants import FULL_WARP
from ..toolchain.ptx import (
    int_as_float,
    ld_shared_i32,
    ld_shared_i64,
    ld_shared_v2_i64,
    ld_shared_v4_f32,
    st_global_f32,
    st_global_v4_f32,
    st_shared_f32,
    st_shared_v4_f32,
)
from .query import rotate_lanes
from .shared_memory import DIM, HEAD_BYTES, POISON_WORD, SUM_PAIRS, UNITS, WARP_PAIRS


@device_function
def poisoned(value, record, mass_of):
    """``value`` with -0 made +0, or the one NaN where the head's query is not finite and something is selected."""
    if mass_of > 0 and ld_shared_i32(int32(record + POISON_WORD * 4)) != 0:
        return int_as_float(int32(NAN_BITS))
    return libdevice.fadd_rn(value, float32(0))


@device_function
def output(total, record, mass_of, of, v_groups):
    """Step 8: float32(O) * 2^(M_j - top) / float32(L), 0 where nothing is selected; poisoned unless still to be
    rotated."""
    result = float32(0)
    if mass_of > 0:
        k = int32(ld_shared_i32(int32(record + 4 + of * 4)) - ld_shared_i32(record))
        # Below 2^-240 every sum rounds to 0, above 2^17 is only the largest scale.
        k = max(k, int32(-240))
        result = libdevice.fdiv_rn(scaled(float32(total), k), float32(mass_of))
        if v_groups == 4:
            result = poisoned(result, record, mass_of)
    return result


@device_function
def add_parts(staged, pair, parts):
    """The two sums of a pair over the warps that share its dims, from the staging of values.py."""
    x, y = ld_shared_v2_i64(int32(staged + pair * 16))
    for other in range(1, parts):
        a, b = ld_shared_v2_i64(int32(staged + (other * SUM_PAIRS + pair) * 16))
        x += a
        y += b
    return x, y


@device_function
def sum_senders(x):
    """Sum over the two lanes that share the senders of a pair."""
    x += cuda.shfl_xor_sync(FULL_WARP, x, WARP_PAIRS)
    return x


@device_function
def dims_of_lane_index(pair, v_groups):
    """(head, first dim) of the pair of that lane index: ``values.store_sums`` says which lane holds it."""
    lane, half = int32(pair & 31), int32((pair >> 5) & 1)
    piece = int32(pair >> 6)
    block = int32(uint32(piece) // uint32(UNITS))
    unit = int32(piece - block * UNITS)
    quarter, g = int32(lane & 3), int32(lane >> 2)
    head, high, low = g, int32(unit >> 1), int32(unit & 1)
    if unit >= 4:
        head, high, low = int32(8 + (g >> 1)), int32(unit - 4), int32(g & 1)
    if v_groups == 4:
        dim = block * 64 + quarter * 16 + high * 8 + low * 4
    else:
        dim = block * 64 + low * 32 + high * 16 + quarter * 4
    return head, int32(dim + half * 2)


@device_function
def exchange_index(pair, v_groups):
    """Exchange index of the pair of lane index ``pair``."""
    if v_groups == 4:
        return pair
    head, dim = dims_of_lane_index(pair, v_groups)
    return int32(head * (DIM // 2) + (dim >> 1))


@device_function
def dims_of_exchange_index(index, v_groups):
    """(head, first dim) of the pair of exchange index ``index``."""
    if v_groups == 4:
        return dims_of_lane_index(index, v_groups)
    return int32(index >> 7), int32((index & 127) * 2)


@device_function
def share_of_outputs(active, v_groups):
    """Pairs of each block's share of the outputs; whole heads for q4_0 V."""
    owned = 1 if v_groups == 4 else DIM // 2
    return int32(uint32(SUM_PAIRS + active * owned - 1) // uint32(active * owned) * owned)


@device_function
def reciprocal(own):
    """What :func:`owner_of` multiplies by: 2^21 / ``own``, rounded up."""
    return int32(uint32((1 << 21) + own - 1) // uint32(own))


@device_function
def owner_of(index, share_of):
    """index // own. Rounding up adds less than index / 2^21 <= 1536 / 2^21 < 1 / own to the quotient, as ``own`` is at
    most 768 (two blocks or more), and the product stays below 2^31, as it is at least 12 (132 blocks or fewer)."""
    return int32((index * share_of) >> 21)


@device_function
def put_four(sums, head, dim, results, outputs, records, totals, v_groups):
    """Outputs of four dims from ``dim`` on, of sums over all cells: to the global ``results`` or, q4_0, to the shared
    ``outputs``, there to be rotated."""
    record, mass_of = int32(records + head * HEAD_BYTES), ld_shared_i64(int32(totals + head * 8))
    of = int32(dim // (DIM // v_groups))
    result = cuda.local.array(4, float32)
    for i in range(4):
        result[i] = output(sums[i], record, mass_of, of, v_groups)
    at = int32((head * DIM + dim) * 4)
    if v_groups == 4:
        st_global_v4_f32(results + int64(at), result[0], result[1], result[2], result[3])
    else:
        st_shared_v4_f32(int32(outputs + at), result[0], result[1], result[2], result[3])


@device_function
def put_one(total, mass_of, head, dim, results, outputs, records, v_groups):
    """The output of one dim, as :func:`put_four`."""
    value = output(total, int32(records + head * HEAD_BYTES), mass_of, int32(dim // (DIM // v_groups)), v_groups)
    at = int32((head * DIM + dim) * 4)
    if v_groups == 4:
        st_global_f32(results + int64(at), value)
    else:
        st_shared_f32(int32(outputs + at), value)


@device_function
def rotate_outputs(begin, end, outputs, results, records, totals, warp, warps, lane):
    """The heads begin to end - 1 of the shared ``outputs``, rotated back, to the global ``results``; a warp a head."""
    x = cuda.local.array(8, float32)
    for head in range(int32(begin + warp), end, warps):
        at = int32(outputs + head * (DIM * 4) + lane * 32)
        x[0], x[1], x[2], x[3] = ld_shared_v4_f32(at)
        x[4], x[5], x[6], x[7] = ld_shared_v4_f32(int32(at + 16))
        rotate_lanes(x, lane)
        record, mass_of = int32(records + head * HEAD_BYTES), ld_shared_i64(int32(totals + head * 8))
        for i in range(8):
            x[i] = poisoned(x[i], record, mass_of)
        to = results + int64(head * DIM + lane * 8) * 4
        st_global_v4_f32(to, x[0], x[1], x[2], x[3])
        st_global_v4_f32(to + 16, x[4], x[5], x[6], x[7])
