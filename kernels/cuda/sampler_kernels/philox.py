"""The uniform numbers of the sampler on the device: Philox4x32-10 with the layout of ``reference/philox.py``."""

from ..toolchain.compiler import device_function, int32, uint32, uint64

M0, M1 = 0xD2511F53, 0xCD9E8D57
W0, W1 = 0x9E3779B9, 0xBB67AE85


@device_function
def uniform(seed, position, purpose):
    """int32 u times 2^24 of ``reference.sampler.uniform``; ``seed`` int64, the bits of the unsigned one."""
    k0, k1 = uint32(seed), uint32(seed >> 32)
    c0, c1, c2, c3 = uint32(position), uint32(position >> 32), uint32(purpose), uint32(0)
    for _ in range(10):
        p0 = uint64(uint64(c0) * uint64(M0))
        p1 = uint64(uint64(c2) * uint64(M1))
        c0, c1 = uint32(uint32(p1 >> uint64(32)) ^ c1 ^ k0), uint32(p1)
        c2, c3 = uint32(uint32(p0 >> uint64(32)) ^ c3 ^ k1), uint32(p0)
        k0, k1 = uint32(k0 + uint32(W0)), uint32(k1 + uint32(W1))
    return int32(c0 >> uint32(8))
