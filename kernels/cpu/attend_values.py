"""The value pass of exact attention, steps 5 to 7 of design section 4: weights of four bytes times codes."""

import numpy as np

from qsa.reference.exact.attend import NO_CELL

from .common.gather import NUMBERS, Q4_0, TILE, addresses, complement, scales_of, write_out
from .common.jit import kernel
from .common.scalar import (
    ZERO,
    exp2_fraction,
    floor,
    integer_bits,
    power_of_two,
    split_exponent,
    split_fraction,
)
from .products.form import GROUP, WIDE
from .products.values import (
    FOLD,
    LIMBS,
    QUAD_BYTES,
    WEIGHT_BYTES,
    accumulate,
    interleave,
    pack_weights,
    place_of,
)


@kernel
def value_scales(offsets, v_scale):
    """(mu, exponent) [groups, cells] of the V scales, scale = mu * 2^exponent, 0.5 <= |mu| < 1 or 0.

    The exponent is NO_CELL where the scale is 0.
    """
    groups = v_scale.shape[1]
    mu, exponent = np.empty((groups, offsets.size), np.float32), np.empty((groups, offsets.size), np.int32)
    scales_of(v_scale, offsets, mu)
    for group in range(groups):
        row, v = mu[group], exponent[group]
        for c in range(row.size):
            e = split_exponent(row[c])
            v[c] = e if row[c] != ZERO else NO_CELL
            row[c] = split_fraction(row[c])
    return mu, exponent


@kernel
def group_part(exponent, s, top):
    """Step 5 of one part: the largest n + v per head and value group into top [heads, groups].

    exponent [groups, cells] of :func:`value_scales`; s [heads, cells and more]
    """
    heads, groups = top.shape
    for head in range(heads):
        x = s[head]
        for group in range(groups):
            v, highest = exponent[group], np.int32(NO_CELL)
            for c in range(v.size):
                highest = max(highest, np.int32(floor(x[c]) + v[c]))
            # n + v of a cell with a scale is never so low: |n| <= 2^24.
            top[head, group] = highest if highest >= NO_CELL // 2 else NO_CELL


@kernel
def _mass(x, floor_top, r, n):
    """Fill r and n [cells] of exp2(x), and return the sum of the masses p of step 6."""
    for c in range(x.size):
        n[c] = floor(x[c])
        r[c] = exp2_fraction(x[c], n[c])
    total = np.int64(0)
    for c in range(x.size):
        shift = 30 + n[c] - floor_top
        p = integer_bits(np.float64(r[c]) * power_of_two(min(max(shift, -60), 31)))
        total += p if shift >= -1 else 0
    return total


@kernel
def _weights(r, n, mu, exponent, top, weight):
    """Fill weight [cells] uint32 of step 6."""
    for c in range(mu.size):
        shift = 30 + n[c] + exponent[c] - top
        w = integer_bits(np.float64(r[c] * abs(mu[c])) * power_of_two(min(max(shift, -60), 31)))
        weight[c] = np.uint32(w if shift >= -1 else 0)


@kernel
def sum_part(offsets, mu, exponent, v, s, floor_top, group_top, mass, value):
    """Steps 5 to 7 of one part: L into mass [heads] and O into value [heads, dim], both int64."""
    v_codes, _, coding = v
    heads, groups = group_top.shape
    sums = np.zeros((heads, groups, LIMBS, GROUP), np.int32)
    value[:] = 0
    mass[:] = 0
    values, weight_bytes = np.empty((TILE // 4, QUAD_BYTES), np.uint8), np.empty((TILE // 4, WEIGHT_BYTES), np.uint8)
    weight = np.empty(TILE, np.uint32)
    r, n = np.empty((heads, TILE), np.float32), np.empty((heads, TILE), np.int32)
    places, spare = np.empty(TILE, np.int64), np.zeros((TILE, GROUP), np.int8)
    negative = False
    for group in range(groups):
        for c in range(offsets.size):
            negative = negative or mu[group, c] < ZERO
    # Codes are written out where nibbles must be spread, or where a negative scale turns them.
    written = coding == Q4_0 or negative
    # -c is ~c + 1: the sums of complements lack each weight once.
    lacking = np.zeros((heads, groups), np.int64)
    folded = 0
    for start in range(0, offsets.size, TILE):
        stop = min(start + TILE, offsets.size)
        cells, quads, mine = stop - start, (stop - start + 3) // 4, offsets[start:stop]
        if not written:
            addresses(v_codes, mine, places)
        for head in range(heads):
            mass[head] += _mass(s[head, start:stop], floor_top[head], r[head], n[head])
        weight[cells:] = 0
        for group in range(groups):
            mus = mu[group, start:stop]
            if written:
                write_out(v_codes, mine, group, coding, spare)
                complement(mus, spare)
                addresses(spare, NUMBERS[:cells], places)
            for quad in range(quads):
                offset = 0 if written else GROUP * group
                interleave(places[4 * quad :].ctypes.data, offset, values[quad].ctypes.data)
            for head in range(heads):
                _weights(r[head], n[head], mus, exponent[group, start:stop], group_top[head, group], weight)
                for c in range(0, cells, WIDE):
                    pack_weights(weight[c:].ctypes.data, weight_bytes[c // 4].ctypes.data)
                accumulate(weight_bytes.ctypes.data, values.ctypes.data, quads, sums[head, group].ctypes.data)
                if negative:
                    for c in range(cells):
                        lacking[head, group] += np.int64(weight[c]) if mus[c] < ZERO else 0
        folded += cells
        if folded > FOLD - TILE or stop == offsets.size:
            _fold(sums, value)
            folded = 0
    if negative:
        for head in range(heads):
            for d in range(value.shape[1]):
                value[head, d] += lacking[head, d // (value.shape[1] // groups)]


@kernel
def _fold(sums, value):
    """Move sums [heads, groups, LIMBS, GROUP] to value [heads, dim] int64."""
    heads, groups = sums.shape[:2]
    dims = value.shape[1] // groups
    for head in range(heads):
        for group in range(groups):
            limbs = sums[head, group]
            for d in range(dims):
                place = place_of(d)
                total = np.int64(0)
                for limb in range(LIMBS):
                    total += np.int64(limbs[limb, place]) << 8 * limb
                value[head, group * dims + d] += total
    sums[:] = 0
