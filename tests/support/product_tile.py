"""One tile of packed integer products, and its assembly: ``python -m support.product_tile`` prints it."""

import numba
import numpy as np

from qsa.kernels.cpu.products.form import GROUP, HALF_CODE, WIDE
from qsa.kernels.cpu.products.tile import RECORD, pack, tile_4_1


@numba.njit
def four_rows(numbers, records, codes, scale, out):
    """One tile of products of 4 rows. Not cached: numba has no assembly of a cached kernel."""
    for row in range(4):
        pack(numbers[row].ctypes.data, records[row].ctypes.data)
    x = records.ctypes.data
    rows = (x, x + RECORD, x + 2 * RECORD, x + 3 * RECORD)
    tile_4_1(codes.ctypes.data, 0, rows, scale.ctypes.data, 0, out.ctypes.data, 4 * WIDE)


def sums(numbers, codes):
    """float32 [4, 16] of numbers [4, 64] int32 and codes [16, 64] int8, by one tile."""
    unsigned = (codes.astype(np.int16) + HALF_CODE).astype(np.uint8)
    tile = np.ascontiguousarray(unsigned.reshape(WIDE, -1, 4).swapaxes(0, 1))
    records, out = np.zeros((4, RECORD), np.uint8), np.zeros((4, WIDE), np.float32)
    four_rows(numbers, records, tile, np.ones(WIDE, np.float32), out)
    return out


def assembly():
    """The assembly of :func:`four_rows`."""
    sums(np.zeros((4, GROUP), np.int32), np.zeros((WIDE, GROUP), np.int8))
    return next(iter(four_rows.inspect_asm().values()))


if __name__ == "__main__":
    print(assembly())
