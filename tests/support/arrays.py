"""Random arrays for tests, and how results are compared: as bits, or by their relative error."""

import numpy as np


def generator(seed):
    """A Philox generator, whose numbers are the same under every version of NumPy."""
    return np.random.Generator(np.random.Philox(seed))


def normal(rng, *shape):
    """Normal numbers [*shape] float32."""
    return rng.standard_normal(shape).astype(np.float32)


def bits(x):
    """Float32 ``x`` as uint32, so that NaN and -0 are compared as bits; other dtypes as they are."""
    return x.view(np.uint32) if x.dtype == np.float32 else x


def same_bytes(a, b):
    """Whether two float32 arrays hold the same bits throughout."""
    return a.dtype == b.dtype == np.float32 and np.array_equal(a.view(np.uint32), b.view(np.uint32))


def relative_error(got, want):
    """Norm of the difference over the norm of ``want``."""
    return np.linalg.norm(got.astype(np.float64) - want) / np.linalg.norm(want)
