"""Rows of float32 as fixed-point numbers, and as the records of limbs that tiles of products take."""

import numpy as np

from qsa.reference.exact.scalar import QUERY_BITS

from ..common.jit import kernel
from ..common.scalar import integer_bits, power_of_two
from .form import GROUP
from .tile import RECORD, pack

INFINITY_BITS = 0x7F800000


@kernel
def fixed_row(x, xi):
    """Fill xi [padded] int32 with rint(x * 2^(22 - e)) of x [dim] float32, then zeros.

    Returns (e, finite): the least e with max|x| < 2^e; 0 and zeros for a row of zeros or one that is not finite. The
    largest magnitude is found among the bits, where NaN and inf are the largest and nothing branches.
    """
    bits = x.view(np.int32)
    top = np.int32(0)
    for i in range(bits.size):
        top = max(top, np.int32(bits[i] & 0x7FFFFFFF))
    if top == 0 or top >= INFINITY_BITS:
        xi[:] = 0
        return 0, top == 0
    e = (np.float64(np.int32(top).view(np.float32)).view(np.int64) >> 52) - 1022
    factor = power_of_two(QUERY_BITS - e)
    for i in range(x.size):
        xi[i] = np.int32(integer_bits(np.float64(x[i]) * factor))
    xi[x.size :] = 0
    return e, True


@kernel
def records_of(x, numbers, records):
    """Fill ``records`` [groups, RECORD] uint8 from x [dim] float32; ``numbers`` [64 * groups] int32 is scratch.

    Returns (e, finite) as :func:`fixed_row`.
    """
    e, finite = fixed_row(x, numbers)
    source, target = numbers.ctypes.data, records.ctypes.data
    for group in range(len(records)):
        pack(source + 4 * GROUP * group, target + RECORD * group)
    return e, finite


@kernel
def all_records(x, groups):
    """(records [rows, groups, RECORD] uint8, e [rows] int64, finite [rows] bool) of x [rows, in] float32."""
    records, numbers = np.empty((len(x), groups, RECORD), np.uint8), np.empty(groups * GROUP, np.int32)
    e, finite = np.empty(len(x), np.int64), np.empty(len(x), np.bool_)
    for row in range(len(x)):
        e[row], finite[row] = records_of(x[row], numbers, records[row])
    return records, e, finite
