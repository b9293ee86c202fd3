"""Keys, the map and the layout of shared memory of the schedule ``bounded``.

The *map* has a bit for each block of a row. Ranks of the marked ones are sums over the map's words; up to 65,536 blocks
a word is a bin of the search, beyond several are.
"""

from ..common.scalar import pow2
from ..toolchain.compiler import cuda, device_function, float32, int32, int64, libdevice, uint32
from ..toolchain.ptx import (
    float_as_int,
    int_as_float,
    ld_global_f32_nc,
    ld_shared_i32,
    ld_shared_v2_i32,
    red_shared_add_i32,
    red_shared_or_i32,
)
from .radix_search import CHOSEN_OFFSET, MOST_BEST

BITS = 11
BINS = 1 << BITS

TIES = 128
"""Members of a bin that are compared with one another at most."""

NO_KEY, NAN_KEY = -(1 << 31), -(1 << 31) + 1
"""The key of no element, and that of a NaN, which is below that of -inf."""

LARGEST = 0x7F7FFFFF
"""Key of the largest finite float32."""

LEAST_NUMBER = -LARGEST - 1
"""Key of the lowest."""

# Offsets in shared memory, in bytes: bins, a word for each warp three times, the state and the chosen where
# radix_search has them, then the counter of ties, extremes of members, ties.
TOTALS_OFFSET = 4 * BINS
LEAST_OFFSET = TOTALS_OFFSET + 128
MOST_OFFSET = LEAST_OFFSET + 128
COUNTER_OFFSET = CHOSEN_OFFSET + 4 * MOST_BEST
EXTREMES_OFFSET = COUNTER_OFFSET + 8
TIES_OFFSET = EXTREMES_OFFSET + 8
SEARCH_END = TIES_OFFSET + 8 * TIES


@device_function
def order_key(score):
    """int32 whose order is the preference: NaN, then -inf to +inf, -0 equal to +0."""
    bits = float_as_int(libdevice.fadd_rn(score, float32(0)))
    key = int32(bits ^ ((bits >> 31) & 0x7FFFFFFF))
    return key if score == score else int32(NAN_KEY)


@device_function
def score_of(key):
    """The score of a key; a NaN of that of a NaN."""
    return int_as_float(int32(key ^ ((key >> 31) & 0x7FFFFFFF)))


@device_function
def is_finite(bound, most):
    """Whether both keys are those of finite scores."""
    return bound >= LEAST_NUMBER and most <= LARGEST


@device_function
def is_chosen(key, index, last_key, last_index):
    """Whether (key, index) is the last choice or better."""
    return key > last_key or (key == last_key and index <= last_index)


@device_function
def listed_element(source, position):
    """(index, key) of an element of a list in shared memory, of (index, score)."""
    index, bits = ld_shared_v2_i32(int32(source + position * 8))
    return index, order_key(int_as_float(bits))


@device_function
def stored_element(source, position):
    """(index, key) of an element of scores in global memory."""
    return position, order_key(ld_global_f32_nc(source + int64(position) * 4))


@device_function
def scale_of(low, most):
    """Factor that takes the distance of a score from ``low`` to a bin; that of the key ``most`` is below BINS."""
    span_bits = float_as_int(libdevice.fsub_rn(score_of(most), low))
    # The span is below 2^(exponent); beyond the largest float it is inf, whose exponent is 129.
    return pow2(min(int32(BITS + 126 - (span_bits >> 23)), int32(127)))


@device_function
def map_shift(count):
    """Bits of an index of a row of ``count`` blocks that tell the blocks of one bin apart, 5 or more."""
    return max(int32(5), int32(32 - BITS - cuda.clz(int32(count - 1))))


@device_function
def mark(map_, shift, index, shared):
    """Set the bit of ``index`` in the map, and count it in its bin where that has several words of the map."""
    bit = int32(uint32(uint32(1) << uint32(index & 31)))
    red_shared_or_i32(int32(map_ + (index >> 5) * 4), bit)
    if shift > 5:
        red_shared_add_i32(int32(shared + (index >> shift) * 4), int32(1))


@device_function
def rank_of(map_, shift, index, shared):
    """How many marked indices are below ``index``, the bins being sums over the bins below."""
    bin_, own = int32(index >> shift), int32(index >> 5)
    rank, word = ld_shared_i32(int32(shared + bin_ * 4)), int32(bin_ << int32(shift - 5))
    while word < own:
        rank = int32(rank + cuda.popc(uint32(ld_shared_i32(int32(map_ + word * 4)))))
        word = int32(word + 1)
    below = uint32(uint32(uint32(1) << uint32(index & 31)) - uint32(1))
    return int32(rank + cuda.popc(uint32(uint32(ld_shared_i32(int32(map_ + own * 4))) & below)))
