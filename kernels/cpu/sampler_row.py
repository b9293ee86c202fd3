"""One row of the sampler: from its logits to the list of ids and masses, and the draw from masses.

Source: ``reference/exact/sampler.py``, whose steps are used here. A row is read once: the greatest key of every stretch
of 512 tokens gives a lower bound of the k-th greatest key, and only the stretches that reach it are looked at again.
What they hold is settled by the radix search of ``select``, which ties cannot slow down. NaN and infinities show in the
same pass, as keys beyond those of finite numbers.
"""

import numpy as np

from qsa.reference.exact import sampler as exact

from .common.jit import kernel
from .common.scalar import LOG2_E, SCORE_LIMIT, ZERO, exp2_fraction, floor, power_of_two, rint
from .select import threshold

STRETCH = 512
FEW = 256
LARGEST = np.float32(exact.LARGEST)
MASS_BITS = exact.MASS_BITS
LEAST_POSSIBLE = np.uint32(0x00800000)
"""Key of the least finite float32; that of -inf is one less, and a negative NaN's lower still."""
INFINITE = np.uint32(0xFF800000)
"""Key of +inf; a positive NaN's is above."""
SIGN, ALL_BITS = np.uint32(0x80000000), np.uint32(0xFFFFFFFF)

LOW_SHARE = np.uint64((1 << exact.TOP_P_BITS) - 1)
SHARE_SHIFT = np.uint64(exact.TOP_P_BITS)
LOW_U = np.uint64((1 << exact.U_BITS) - 1)
U_SHIFT = np.uint64(exact.U_BITS)
KEEPS_ALL = 1 << exact.TOP_P_BITS


@kernel
def _key(bits):
    """uint32 key of a float's bits, int32: -inf to +inf in order, -0 as +0, NaN beyond both ends."""
    bits = np.int32(0) if bits == np.int32(-0x80000000) else bits
    return np.uint32(bits ^ ((bits >> 31) | np.int32(-0x80000000)))


@kernel
def _value(key):
    """The float32 of a key."""
    return np.uint32(key ^ SIGN if key & SIGN else key ^ ALL_BITS).view(np.float32)


@kernel
def _clamped(x):
    x = x if x < LARGEST else LARGEST
    return x if x > -LARGEST else -LARGEST


@kernel
def _known(tokens, vocab):
    """Whether all of ``tokens`` are of the vocabulary."""
    known = True
    for token in tokens:
        known = known and 0 <= token < vocab
    return known


@kernel
def _penalise(row, tokens, repeat, frequency, presence):
    """Step 2 on ``row`` [vocab] float32 in place."""
    count = np.zeros(row.size, np.int32)
    for token in tokens:
        count[token] += 1
    for token in tokens:
        x = row[token]
        if count[token] and abs(x) <= LARGEST:
            y = _clamped(x * repeat if x <= ZERO else x / repeat)
            off = _clamped(_clamped(np.float32(count[token]) * frequency) + presence)
            row[token] = _clamped(y - off)
        count[token] = 0


@kernel
def _survey(bits, tops):
    """(least, greatest) key of ``bits`` [vocab] int32; tops [stretches] gets every stretch's greatest."""
    least, greatest = ALL_BITS, np.uint32(0)
    for stretch in range(tops.size):
        low, top = ALL_BITS, np.uint32(0)
        part = bits[stretch * STRETCH : (stretch + 1) * STRETCH]
        for i in range(part.size):
            key = _key(part[i])
            low, top = min(low, key), max(top, key)
        tops[stretch] = top
        least, greatest = min(least, low), max(greatest, top)
    return least, greatest


@kernel
def _gather(bits, tops, bound):
    """(keys, ids) of the tokens whose keys reach ``bound``, ids ascending."""
    room = 0
    for stretch in range(tops.size):
        room += STRETCH if tops[stretch] >= bound else 0
    keys, ids, n = np.empty(room, np.uint32), np.empty(room, np.int32), 0
    for stretch in range(tops.size):
        if tops[stretch] >= bound:
            for i in range(stretch * STRETCH, min((stretch + 1) * STRETCH, bits.size)):
                key = _key(bits[i])
                if key >= bound:
                    keys[n], ids[n] = key, i
                    n += 1
    return keys[:n], ids[:n]


@kernel
def _largest(bits, tops, k):
    """(values float32, ids int32) of the ``k`` greatest, descending, ties to the lower id, -inf left out."""
    bound = LEAST_POSSIBLE
    if tops.size > k:
        bound = max(bound, threshold(tops, k)[0])
    keys, ids = _gather(bits, tops, bound)
    k = min(k, ids.size)
    # A few are sorted as they are; of many the sort sees only those that stay.
    limit, equal = threshold(keys, k) if ids.size > FEW else (np.uint32(0), 0)
    # One word for both orders: the greater key first, then the lower id.
    words, n = np.empty(k if ids.size > FEW else ids.size, np.uint64), 0
    for i in range(ids.size):
        if keys[i] > limit or (keys[i] == limit and equal > 0):
            equal -= keys[i] == limit
            words[n] = np.uint64(ALL_BITS ^ keys[i]) << np.uint64(32) | np.uint64(ids[i])
            n += 1
    words.sort()
    values, chosen = np.empty(k, np.float32), np.empty(k, np.int32)
    for i in range(k):
        values[i] = _value(np.uint32(ALL_BITS ^ np.uint32(words[i] >> np.uint64(32))))
        chosen[i] = np.int32(words[i] & np.uint64(0xFFFFFFFF))
    return values, chosen


@kernel
def _log2_units(x, first, scale):
    s = (x - first) * scale
    return s if s > -SCORE_LIMIT else -SCORE_LIMIT


@kernel
def _mass(s):
    n = floor(s)
    if n < -MASS_BITS - 1:
        return np.uint64(0)
    return np.uint64(rint(np.float64(exp2_fraction(s, n)) * power_of_two(np.int64(MASS_BITS + n))))


@kernel
def _cut(values, top_p, min_keep, least):
    """How many of the list steps 5 and 6 keep."""
    kept = values.size
    if top_p < KEEPS_ALL:
        total = np.uint64(0)
        for i in range(kept):
            total += _mass(_log2_units(values[i], values[0], LOG2_E))
        share = np.uint64(top_p)
        needed = (total >> SHARE_SHIFT) * share + (((total & LOW_SHARE) * share + LOW_SHARE) >> SHARE_SHIFT)
        reach, shortest = np.uint64(0), 0
        while shortest == 0 or reach < needed:
            reach += _mass(_log2_units(values[shortest], values[0], LOG2_E))
            shortest += 1
        kept = min(kept, max(shortest, min_keep))
    n = 0
    while n < kept and _log2_units(values[n], values[0], LOG2_E) >= least:
        n += 1
    return n


@kernel
def draw(masses, u):
    """Index of the first mass whose cumulative sum, times 2^24, exceeds ``u`` times the sum; ``u`` uint64, 24 bits."""
    total = np.uint64(0)
    for mass in masses:
        total += mass
    limit = (total >> U_SHIFT) * u + (((total & LOW_U) * u) >> U_SHIFT)
    reach, i = masses[0], 0
    while reach <= limit:
        i += 1
        reach += masses[i]
    return i


@kernel
def row_list(row, words, tokens):
    """(count or error code, ids int32 [count], masses uint64 [count]) of one row; ``words`` are its options."""
    none, no_masses = np.empty(0, np.int32), np.empty(0, np.uint64)
    limit, top_p, min_keep, last_n = words[0], words[1], words[2], words[3]
    reals = words[4:].view(np.float32)
    least, scale, repeat, frequency, presence = reals[0], reals[1], reals[2], reals[3], reals[4]
    if last_n >= 0:
        tokens = tokens[max(0, tokens.size - last_n) :]
    known = _known(tokens, row.size)
    if known and tokens.size and (repeat != np.float32(1) or frequency != ZERO or presence != ZERO):
        row = row.copy()
        _penalise(row, tokens, repeat, frequency, presence)
    bits = row.view(np.int32)
    tops = np.empty((row.size + STRETCH - 1) // STRETCH, np.uint32)
    lowest, greatest = _survey(bits, tops)
    if lowest < LEAST_POSSIBLE - np.uint32(1) or greatest >= INFINITE:
        return exact.NOT_FINITE, none, no_masses
    if greatest < LEAST_POSSIBLE:
        return exact.IMPOSSIBLE, none, no_masses
    if not known:
        return exact.UNKNOWN_TOKEN, none, no_masses
    values, ids = _largest(bits, tops, min(np.int64(limit), row.size) if limit else row.size)
    count = _cut(values, top_p, min_keep, least)
    masses = np.empty(count, np.uint64)
    for i in range(count):
        masses[i] = _mass(_log2_units(values[i], values[0], scale))
    return count, ids[:count], masses
