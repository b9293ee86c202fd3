"""What a warp's sums of values are, and where they go: four tiles of eight dims, of head g and of head 8 + g."""

from typing import Any

from ...toolchain.compiler import device_function, int32, int64
from ...toolchain.ptx import st_global_v2_f32, st_global_v4_f32


@device_function
def _four_dims(to, x, at, t):
    """Integer codes: an even and an odd tile are sixteen dims, of which a lane has four side by side."""
    base = to + t * 16
    st_global_v4_f32(base, x[at], x[4 + at], x[at + 1], x[5 + at])
    st_global_v4_f32(base + 64, x[8 + at], x[12 + at], x[9 + at], x[13 + at])


@device_function
def _two_dims(to, x, at, t):
    base = to + t * 8
    st_global_v2_f32(base, x[at], x[at + 1])
    st_global_v2_f32(base + 32, x[4 + at], x[5 + at])
    st_global_v2_f32(base + 64, x[8 + at], x[9 + at])
    st_global_v2_f32(base + 96, x[12 + at], x[13 + at])


def make(coding: str, group: int) -> Any:
    """``put(to, x, lane)``: the lane's sums ``x`` [16] to the global address ``to``, of the warp's first dim of head 0;
    the heads follow each other, ``group`` of them."""
    of_head = _two_dims if coding == "fp16" else _four_dims

    @device_function
    def put(to, x, lane):
        g, t = int32(lane >> 2), int32(lane & 3)
        if g < group:
            of_head(to + int64(g * 1024), x, 0, t)
        if g + 8 < group:
            of_head(to + int64((g + 8) * 1024), x, 2, t)

    return put
