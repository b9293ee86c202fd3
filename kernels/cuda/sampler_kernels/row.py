"""One row of the sampler on the device: penalties of a logit, masses, and the end of the chain in one warp.

Source: ``reference/exact/sampler.py``, whose steps are used here. The list has at most 64 tokens, so a warp holds it,
two neighbours a lane: cuts and draw are counts of lanes, and sums of masses are scans in 64-bit integers.
"""

from qsa.reference.exact import sampler as exact

from ..common.scalar import LOG2_E, SCORE_LIMIT, exp2
from ..toolchain.compiler import cuda, device_function, float32, int32, int64, libdevice, uint32
from ..toolchain.constants import FULL_WARP
from ..toolchain.ptx import float_as_int, int_as_float, ld_global_i32, ld_shared_i32, st_global_i32, st_global_i64
from .philox import uniform

MOST_KEPT = 64
"""Tokens that a list holds at most: two a lane of a warp."""

LARGEST = float(exact.LARGEST)
KEY_OF_NOTHING = 0x007FFFFF
"""Key of -inf: a token that is not possible."""

NOT_FINITE, POSSIBLE, UNKNOWN = 1, 2, 4
"""What a slice of a row found, as bits of its status: a NaN or +inf; a finite logit; an unknown token."""

# Words of an option row, as ``exact.Constants`` orders them.
TOP_P, MIN_KEEP, LAST_N, LEAST, SCALE, REPEAT, FREQUENCY, PRESENCE = range(1, exact.WORDS)


@device_function
def real(options, word):
    """The float32 at ``word`` of the option row at the address ``options``."""
    return int_as_float(ld_global_i32(options + word * 4))


@device_function
def _clamped(x):
    x = x if x < float32(LARGEST) else float32(LARGEST)
    return x if x > float32(-LARGEST) else float32(-LARGEST)


@device_function
def penalised(x, count, repeat, frequency, presence):
    """A finite logit of a token that occurs ``count`` times."""
    y = libdevice.fmul_rn(x, repeat) if x <= float32(0) else libdevice.fdiv_rn(x, repeat)
    off = _clamped(libdevice.fadd_rn(_clamped(libdevice.fmul_rn(float32(count), frequency)), presence))
    return _clamped(libdevice.fsub_rn(_clamped(y), off))


@device_function
def _value(key):
    """The float32 of a key; -0 became +0."""
    return int_as_float(int32(uint32(key ^ (uint32(0x80000000) if int32(key) < 0 else uint32(0xFFFFFFFF)))))


@device_function
def _log2_units(x, first, scale):
    s = libdevice.fmul_rn(libdevice.fsub_rn(x, first), scale)
    return s if s > float32(-SCORE_LIMIT) else float32(-SCORE_LIMIT)


@device_function
def _mass(s):
    """rint(r * 2^(40 + n)) of (r, n) = exp2(s), int64: the 24 bits of r shifted, ties to even."""
    r, n = exp2(s)
    bits = float_as_int(r)
    mantissa = int64((bits & 0x7FFFFF) | 0x800000)
    shift = int32(int32(bits >> 23) - 150 + exact.MASS_BITS + n)
    if shift >= 0:
        return int64(mantissa << int64(shift))
    # Shifted by 25 even the largest mantissa is less than a half.
    down = int64(min(int32(-shift), int32(25)))
    whole = int64(mantissa >> down)
    rest = int64(mantissa - (whole << down))
    half = int64(int64(1) << (down - 1))
    return int64(whole + 1) if rest > half or (rest == half and whole & 1 == 1) else whole


@device_function
def _scan(x):
    """Sum of int64 ``x`` over this lane and those below it."""
    lane = int32(cuda.threadIdx.x & 31)
    for i in range(5):
        below = int64(cuda.shfl_up_sync(FULL_WARP, x, 1 << i))
        if lane >= 1 << i:
            x = int64(x + below)
    return x


@device_function
def _both(first, second):
    """In how many lanes each of two conditions holds, added."""
    return int32(cuda.popc(cuda.ballot_sync(FULL_WARP, first)) + cuda.popc(cuda.ballot_sync(FULL_WARP, second)))


@device_function
def finish(keys, listed, status, options, seed, position, purpose, row, out):
    """Steps 4 to 7 by one warp, and the row's results.

    ``keys`` shared address of ``listed`` keys, descending; the ids of the same ranks lie ``MOST_KEPT`` words behind.
    ``status`` the row's; ``out`` (tokens, ids, masses, counts) addresses.
    """
    tokens, ids, masses, counts = out
    lane = int32(cuda.threadIdx.x & 31)
    a, b = int32(2 * lane), int32(2 * lane + 1)
    key_a, key_b = uint32(KEY_OF_NOTHING), uint32(KEY_OF_NOTHING)
    if a < listed:
        key_a = uint32(ld_shared_i32(int32(keys + a * 4)))
    if b < listed:
        key_b = uint32(ld_shared_i32(int32(keys + b * 4)))
    code = int32(0)
    if status & NOT_FINITE:
        code = int32(exact.NOT_FINITE)
    elif status & POSSIBLE == 0:
        code = int32(exact.IMPOSSIBLE)
    elif status & UNKNOWN:
        code = int32(exact.UNKNOWN_TOKEN)
    if code != 0:
        if lane == 0:
            st_global_i32(tokens + int64(row) * 4, code)
            st_global_i32(counts + int64(row) * 4, code)
        return
    kept = _both(key_a > uint32(KEY_OF_NOTHING), key_b > uint32(KEY_OF_NOTHING))
    x_a, x_b = _value(key_a), _value(key_b)
    first = _value(uint32(ld_shared_i32(keys)))
    s_a, s_b = _log2_units(x_a, first, float32(LOG2_E)), _log2_units(x_b, first, float32(LOG2_E))
    share = ld_global_i32(options + TOP_P * 4)
    if share < 1 << exact.TOP_P_BITS:
        mass_a = _mass(s_a) if a < kept else int64(0)
        mass_b = _mass(s_b) if b < kept else int64(0)
        upto = _scan(int64(mass_a + mass_b))
        total = int64(cuda.shfl_sync(FULL_WARP, upto, 31))
        low = int64(total & ((1 << exact.TOP_P_BITS) - 1))
        needed = int64((low * share + ((1 << exact.TOP_P_BITS) - 1)) >> exact.TOP_P_BITS)
        needed = int64(needed + (total >> exact.TOP_P_BITS) * share)
        shortest = int32(_both(upto - mass_b < needed, upto < needed) + 1)
        kept = min(kept, max(shortest, ld_global_i32(options + MIN_KEEP * 4)))
    least = real(options, LEAST)
    kept = _both(a < kept and s_a >= least, b < kept and s_b >= least)
    scale = real(options, SCALE)
    mass_a = _mass(_log2_units(x_a, first, scale)) if a < kept else int64(0)
    mass_b = _mass(_log2_units(x_b, first, scale)) if b < kept else int64(0)
    upto = _scan(int64(mass_a + mass_b))
    total = int64(cuda.shfl_sync(FULL_WARP, upto, 31))
    u = int64(uniform(seed, position, purpose))
    limit = int64((total >> exact.U_BITS) * u + (((total & ((1 << exact.U_BITS) - 1)) * u) >> exact.U_BITS))
    rank = _both(upto - mass_b <= limit, upto <= limit)
    at = int64(row) * MOST_KEPT
    labels = int32(keys + MOST_KEPT * 4)
    if a < kept:
        st_global_i32(ids + (at + a) * 4, ld_shared_i32(int32(labels + a * 4)))
        st_global_i64(masses + (at + a) * 8, mass_a)
    if b < kept:
        st_global_i32(ids + (at + b) * 4, ld_shared_i32(int32(labels + b * 4)))
        st_global_i64(masses + (at + b) * 8, mass_b)
    if lane == 0:
        st_global_i32(tokens + int64(row) * 4, ld_shared_i32(int32(labels + rank * 4)))
        st_global_i32(counts + int64(row) * 4, kept)
