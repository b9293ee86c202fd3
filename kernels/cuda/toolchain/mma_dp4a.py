"""The matrix products of the exact ``attend`` where there are no tensor cores for them (before sm_80): dp4a.

Same registers in, same registers out as ``ptx.mma_s8`` and ``ptx.mma_u8``, so the kernel's other files do not know
which one they use: a lane collects the words of its two rows and two columns from the lanes that hold them.
"""

from .compiler import cuda, device_function
from .constants import FULL_WARP
from .ptx import dp4a_s8, dp4a_u8s8


def _make(dot):
    @device_function
    def mma(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3):
        lane = cuda.laneid
        row, column = lane & ~3, (lane & 3) * 8
        for i in range(4):
            low, high = cuda.shfl_sync(FULL_WARP, a0, row + i), cuda.shfl_sync(FULL_WARP, a1, row + i)
            left, right = cuda.shfl_sync(FULL_WARP, b0, column + i), cuda.shfl_sync(FULL_WARP, b0, column + 4 + i)
            c0, c1 = dot(low, left, c0), dot(low, right, c1)
            c2, c3 = dot(high, left, c2), dot(high, right, c3)
            low, high = cuda.shfl_sync(FULL_WARP, a2, row + i), cuda.shfl_sync(FULL_WARP, a3, row + i)
            left, right = cuda.shfl_sync(FULL_WARP, b1, column + i), cuda.shfl_sync(FULL_WARP, b1, column + 4 + i)
            c0, c1 = dot(low, left, c0), dot(low, right, c1)
            c2, c3 = dot(high, left, c2), dot(high, right, c3)
        return c0, c1, c2, c3

    return mma


mma_s8_by_dp4a, mma_u8_by_dp4a = _make(dp4a_s8), _make(dp4a_u8s8)
