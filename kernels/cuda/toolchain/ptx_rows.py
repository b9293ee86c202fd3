"""How a kernel file declares the builds whose PTX is checked: a function ``ptx_rows()`` that yields :class:`PtxRow`.

``ptxcheck.registry`` finds the files and collects their rows. Importing this module needs nothing.
"""

from dataclasses import dataclass, field
from typing import Any

F1, F2, F3 = "float32[::1]", "float32[:, ::1]", "float32[:, :, ::1]"
I1, I2 = "int32[::1]", "int32[:, ::1]"
H1, H2 = "int16[::1]", "int16[:, ::1]"
"""numba's names of C-contiguous arrays of one to three axes."""

TENSOR_CORE = ("mma.sync.aligned.m16n8k32",)
"""What the PTX of a kernel holds that multiplies on 8-bit integer tensor cores."""


@dataclass(frozen=True)
class PtxRow:
    """A kernel built for one geometry.

    name       its own among all rows
    kernel     the compiler's kernel object
    signature  numba's; a Python integer is int64 at a launch
    exact      no fused, approximate or flushing float instruction, and no float64
    hot        no stack and no spills, but on the targets that ``spilled`` names
    spilled    target, a compute capability -> bytes of stack and of spills (stores and loads) a lane at most: what
               ptxas 12.9 reports, so that a kernel that comes to spill more, or on another target, fails its test
    expect     texts that its PTX holds
    minimum    the least compute capability; (7, 5) where there is a form without tensor cores
    """

    name: str
    kernel: Any
    signature: str
    exact: bool = True
    hot: bool = True
    spilled: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    expect: tuple[str, ...] = ()
    minimum: tuple[int, int] = (7, 5)


def signature_of(*types: str) -> str:
    """numba's signature of a kernel with arguments of ``types``."""
    return f"void({', '.join(types)})"


def integers(count: int) -> str:
    """Signature of a kernel whose ``count`` arguments are addresses, strides and sizes alone."""
    return signature_of(*["int64"] * count)
