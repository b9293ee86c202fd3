"""Numbers that hold on every CUDA device. Kernels, the host's side and the simulator take them from here."""

WARP = 32
"""Lanes of a warp."""

FULL_WARP = 0xFFFFFFFF
"""Mask of all lanes of a warp."""

MAX_GRID_X = (1 << 31) - 1
"""Thread blocks on the first axis of a grid at most."""

MAX_GRID_YZ = 65535
"""Thread blocks on the second and the third axis of a grid at most."""

STATIC_SHARED = 48 * 1024
"""Bytes of shared memory that a kernel has without an attribute set on it."""

OVERLAPPING = (9, 0)
"""The least compute capability on which a launch may start before the one ahead of it is over."""
