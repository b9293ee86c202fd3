"""The uniform numbers of the sampler: Philox4x32-10 with the layout of ``reference/philox.py``, one block at a time."""

import numpy as np

from .jit import kernel

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_MASK, _HALF, _BYTE = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(8)


@kernel
def uniform(seed, position, purpose):
    """u times 2^24, uint64, of ``reference.sampler.uniform``; ``seed`` uint64, the others not negative."""
    k0, k1 = seed & _MASK, seed >> _HALF
    c0, c1 = np.uint64(position) & _MASK, np.uint64(position) >> _HALF
    c2, c3 = np.uint64(purpose), np.uint64(0)
    for _ in range(10):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ k0, p1 & _MASK, (p0 >> _HALF) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0 >> _BYTE
