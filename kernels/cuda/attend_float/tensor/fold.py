"""How the partials of a row's pieces become one: a reference exponent, a sum of powers, values for each head.

Reference exponents are integers, so every factor is a power of two and rounds nothing. A row has two runs of pieces;
those of a run are added one after the other in ascending order, and then the runs. A block that has a run folds it as
the merge does, by the same operations on the same numbers, so the bits do not depend on who folds.
"""

from ...toolchain.compiler import device_function, int32, libdevice
from .powers import power_of_two


@device_function
def factors_of(top, more):
    """(new reference, factor of what was folded before, factor of the piece whose reference is ``more``)."""
    both = max(top, more)
    return both, power_of_two(int32(top - both)), power_of_two(int32(more - both))


@device_function
def folded(x, keep, y, take):
    """x * keep + y * take, each rounded by itself."""
    return libdevice.fadd_rn(libdevice.fmul_rn(x, keep), libdevice.fmul_rn(y, take))


@device_function
def run_of(pieces):
    """Pieces of the first run."""
    return int32((pieces + 1) >> 1)
