"""What the lanes of the float ``attend`` do together: sums over the lanes of a cell, the rotation, a cell's row.

Eight dims of a head or cell to a lane, so ``lanes`` = head_dim / 8 lanes of a warp, or all of it, hold one.
"""

from typing import Any

from ..toolchain.compiler import cuda, device_function, float32, int32, int64
from ..toolchain.constants import FULL_WARP
from ..toolchain.ptx import ld_global_i32_nc, ld_shared_v4_f32


@device_function
def eight_of(address):
    """Eight floats of shared memory."""
    a, b, c, d = ld_shared_v4_f32(address)
    e, f, g, h = ld_shared_v4_f32(int32(address + 16))
    return a, b, c, d, e, f, g, h


@device_function
def dot(x, low, high):
    low = x[0] * low[0] + x[1] * low[1] + x[2] * low[2] + x[3] * low[3]
    return low + (x[4] * high[0] + x[5] * high[1] + x[6] * high[2] + x[7] * high[3])


@device_function
def _exchange(upper, x, y, stride):
    """Lanes without the bit ``stride`` get the sum of both lanes' x, those with it (``upper``) that of both's y."""
    kept, sent = (y, x) if upper else (x, y)
    return kept + cuda.shfl_xor_sync(FULL_WARP, sent, stride)


@device_function
def weighted(w, v0, v1, v2, v3, v4, v5, v6, v7):
    low = w[0] * v0 + w[1] * v1 + w[2] * v2 + w[3] * v3
    return low + (w[4] * v4 + w[5] * v5 + w[6] * v6 + w[7] * v7)


def rotation(lanes: int) -> Any:
    """``rotate(x, lane)``: the rotation of 8 * ``lanes`` dims, eight to a lane in the local array ``x``, in place.

    The reference's butterflies in its order, so its bits (``reference.formats.rotate``).
    """
    factor = (8 * lanes) ** -0.5
    strides = tuple(1 << i for i in range(lanes.bit_length() - 1))

    @device_function
    def rotate(x, lane):
        for i in range(0, 8, 2):
            x[i], x[i + 1] = x[i] + x[i + 1], x[i] - x[i + 1]
        for i in (0, 1, 4, 5):
            x[i], x[i + 2] = x[i] + x[i + 2], x[i] - x[i + 2]
        for i in range(4):
            x[i], x[i + 4] = x[i] + x[i + 4], x[i] - x[i + 4]
        for stride in strides:
            for i in range(8):
                other = cuda.shfl_xor_sync(FULL_WARP, x[i], stride)
                x[i] = other - x[i] if lane & stride else x[i] + other
        for i in range(8):
            x[i] = x[i] * float32(factor)

    return rotate


def sums_together(lanes: int) -> Any:
    """``reduce(lane, s0..s7)``: eight sums over ``lanes`` lanes; lane l is given that of number l // (lanes / 8)."""
    first, second, third = lanes // 2, lanes // 4, lanes // 8
    rest = tuple(third >> i for i in range(1, third.bit_length()))

    @device_function
    def reduce(lane, s0, s1, s2, s3, s4, s5, s6, s7):
        upper = lane & first != 0
        s0, s1 = _exchange(upper, s0, s4, first), _exchange(upper, s1, s5, first)
        s2, s3 = _exchange(upper, s2, s6, first), _exchange(upper, s3, s7, first)
        upper = lane & second != 0
        s0, s1 = _exchange(upper, s0, s2, second), _exchange(upper, s1, s3, second)
        total = _exchange(lane & third != 0, s0, s1, third)
        for stride in rest:
            total += cuda.shfl_xor_sync(FULL_WARP, total, stride)
        return total

    return reduce


@device_function
def row_of(cell, table, capacity, page_size, n_head_kv, g):
    """Row of a cell in the pool; -1 where the cell is none or its page not resident."""
    if cell < 0 or cell >= capacity:
        return int32(-1)
    if page_size & (page_size - 1) == 0:
        # A 64-bit division takes as long as the load behind it.
        page, offset = int32(cell >> (31 - cuda.clz(page_size))), int32(cell & (page_size - 1))
    else:
        page, offset = int32(cell // page_size), int32(cell % page_size)
    physical = ld_global_i32_nc(table + int64(page) * 4)
    if physical < 0:
        return int32(-1)
    return int32((physical * n_head_kv + g) * page_size + offset)
