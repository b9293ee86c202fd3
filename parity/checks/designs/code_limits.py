"""Keys and queries at the limits of their 16-bit codes (index format ``int16``), which random data hardly meets.

Source: design section 4, "Keys of 16 bits". The largest code is 32,639, every code is a low limb from -128 to 127 and a
high one, and a dot of two vectors of largest codes is just below 2^37.
"""

import numpy as np

from qsa.golden import inputs
from qsa.reference import exact
from qsa.reference.geometry import REAL, step_records
from qsa.reference.index import Index
from qsa.reference.key_codes import CODE_BITS, LARGEST_CODE

LARGEST = (LARGEST_CODE, LARGEST_CODE + 0.5, LARGEST_CODE + 1, 2.0**CODE_BITS - 1, 2.0**CODE_BITS - 0.5)
"""Largest magnitudes of a vector, in units of its codes: the last that keeps its exponent, and those that need the next
one though 15 bits would hold them."""

KINDS = 5 + len(LARGEST)


def _vector(kind: int, ordinary: np.ndarray) -> np.ndarray:
    """float64 [dim] in units of codes: one of :data:`KINDS` kinds. ``ordinary`` has magnitudes up to 4."""
    dim = len(ordinary)
    if kind == 0:
        return np.full(dim, float(LARGEST_CODE))
    if kind == 1:
        # Low limbs of -128.
        return np.where(np.arange(dim) % 2, -1.0, 1.0) * (LARGEST_CODE - 255)
    if kind == 2:
        # Halves, of even and odd codes and of both signs: ties.
        return np.where(np.arange(dim) % 3, 1.0, -1.0) * (np.arange(dim) + 16384.5)
    values = np.rint(ordinary * 2048)
    if kind == 3:
        # Sums of which a float32 holds no more than the upper half.
        return np.asarray(values + 24576)
    if kind == 4:
        values[0] = -LARGEST_CODE
        values[1:4] = 0.5, -0.5, 1.5
    else:
        values[kind % dim] = LARGEST[kind - 5]
    return values


def vectors(kinds: np.ndarray, ordinary: np.ndarray) -> np.ndarray:
    """float32 [n, dim]: vector ``kinds[i]`` (modulo the number of kinds) in sizes from 2^-3 to 2^3; ``ordinary``
    [n, dim] float32 fills those that are not at a limit throughout."""
    found = np.stack([_vector(int(kind) % KINDS, one) for kind, one in zip(kinds, ordinary, strict=True)])
    sizes = np.ldexp(1.0, kinds * 5 % 7 - 3 - CODE_BITS)
    return (found * sizes[:, None]).astype(np.float32)


FIRST = REAL.n_rot
"""The first dim that is not rotated."""

DIMS = 2 * len(LARGEST)
"""Dims of :func:`weight`: those of the first append, then those after a rewind."""


def weight(seed: int) -> np.ndarray:
    """float32 [dim]: factors of the norm by which a raw key that is 1 in dim FIRST + i and 0 elsewhere gets the
    magnitude ``LARGEST[i % 5]`` there, or the nearest that a float32 factor gives."""
    found = 1 + inputs.uniform(seed, "cycle.weight", 1, REAL.idx_dim)[0]
    index = Index(DIMS + 1, np.ones(REAL.idx_dim, np.float32))
    raw = np.repeat(_one_hot(np.arange(DIMS)), REAL.ratio, axis=0)
    exact.append_index(raw, step_records(np.arange(len(raw))), index)
    plain = index.pooled[np.arange(DIMS), FIRST + np.arange(DIMS)].astype(np.float64)
    target = np.ldexp(np.resize(LARGEST, DIMS), 2 - CODE_BITS)
    found[FIRST : FIRST + DIMS] = target / plain
    return found


def _one_hot(numbers: np.ndarray) -> np.ndarray:
    raw = np.zeros((len(numbers), REAL.idx_dim), np.float32)
    raw[np.arange(len(numbers)), FIRST + numbers] = 1
    return raw


def raw_keys(rows: int, again: bool) -> np.ndarray:
    """float32 [rows, dim] raw keys of whole blocks from position 0, one limit a block; ``again``: others."""
    blocks = np.arange(rows) // REAL.ratio
    return _one_hot(blocks % len(LARGEST) + (len(LARGEST) if again else 0))
