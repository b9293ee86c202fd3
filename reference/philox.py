"""Philox4x32-10: a counter-based generator, so that any word of any stream can be had without the words before it.

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011); the constants and the
known answers in ``tests/cpu/reference/test_philox.py`` are those of its published library.

Layout of this project, for both functions that take a seed: the key is the 64-bit ``seed`` (low word first), the upper
half of the counter is the 64-bit ``stream``, the lower half the index of a block of four words. Streams therefore never
overlap, and word ``i`` of a stream is word ``i % 4`` of block ``i // 4``.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

ROUNDS = 10
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF
_HALF = np.uint64(32)

# A chunk keeps the eight working arrays of its blocks inside a core's own cache.
_CHUNK = 8192


def _check_u64(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 0 <= value < 2**64:
        raise ValueError(f"{name} = {value!r}: must be an integer from 0 to 2^64 - 1")
    return int(value)


def _rounds(counter: Iterable[Any], key: Sequence[int], out: np.ndarray) -> None:
    """Ten rounds over one chunk. ``counter``: four uint64 arrays or scalars below 2^32; ``out`` uint32 [n, 4]."""
    n = len(out)
    c0, c1, c2, c3 = counter
    k0, k1 = key
    mask = np.uint64(_MASK)
    # Two sets of arrays take turns: a round reads one and writes the other, so that nothing is allocated.
    sets = np.empty((2, 4, n), np.uint64)
    for i in range(ROUNDS):
        x0, low1, x2, low0 = sets[i % 2]
        np.multiply(c0, _M0, out=low0)
        np.multiply(c2, _M1, out=low1)
        np.right_shift(low1, _HALF, out=x0)
        np.right_shift(low0, _HALF, out=x2)
        np.bitwise_xor(x0, c1, out=x0)
        np.bitwise_xor(x2, c3, out=x2)
        np.bitwise_xor(x0, np.uint64(k0), out=x0)
        np.bitwise_xor(x2, np.uint64(k1), out=x2)
        np.bitwise_and(low0, mask, out=low0)
        np.bitwise_and(low1, mask, out=low1)
        c0, c1, c2, c3 = x0, low1, x2, low0
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    for lane, value in enumerate((c0, c1, c2, c3)):
        out[:, lane] = value


def philox4x32(counters: npt.ArrayLike, key: Sequence[int]) -> np.ndarray:
    """The four words of every counter.

    counters  uint32 [n, 4], lowest word first
    key       two integers below 2^32

    Returns uint32 [n, 4]. Raises ValueError on another shape or dtype, or a key word out of range.
    """
    counters = np.asarray(counters)
    if counters.ndim != 2 or counters.shape[1] != 4 or counters.dtype != np.uint32:
        raise ValueError(f"counters: {counters.dtype} {counters.shape}: must be uint32 (n, 4)")
    key = tuple(int(word) for word in key)
    if len(key) != 2 or not all(0 <= word <= _MASK for word in key):
        raise ValueError(f"key = {key}: must be two integers from 0 to 2^32 - 1")
    out = np.empty((len(counters), 4), np.uint32)
    for first in range(0, len(out), _CHUNK):
        chunk = slice(first, first + _CHUNK)
        _rounds(counters[chunk].T.astype(np.uint64), key, out[chunk])
    return out


def _split(value: int) -> tuple[int, int]:
    return value & _MASK, value >> 32


def blocks(seed: int, stream: int, indices: npt.ArrayLike) -> np.ndarray:
    """The four words of each block of ``stream``.

    seed, stream  integers below 2^64
    indices       an integer from 0 to 2^63 - 1, or [n] of them in any order

    Returns uint32 [n, 4]. Raises ValueError on a seed, stream or index out of range.
    """
    key, stream = _split(_check_u64("seed", seed)), _check_u64("stream", stream)
    indices = np.asarray(indices).reshape(-1)
    if indices.size and indices.dtype.kind not in "iu":
        raise ValueError(f"index = {indices[0]!r}: must be an integer")
    if indices.size and not 0 <= indices.min() <= indices.max() < 2**63:
        raise ValueError(f"index = {indices.min()} to {indices.max()}: must be from 0 to 2^63 - 1")
    low, high = (np.uint64(word) for word in _split(stream))
    out = np.empty((indices.size, 4), np.uint32)
    for first in range(0, indices.size, _CHUNK):
        index = indices[first : first + _CHUNK].astype(np.uint64)
        _rounds((index & np.uint64(_MASK), index >> _HALF, low, high), key, out[first : first + _CHUNK])
    return out


def words(seed: int, stream: int, start: int, count: int) -> np.ndarray:
    """Words ``start`` to ``start + count - 1`` of ``stream``.

    seed, stream  integers below 2^64
    start, count  integers, not negative, their sum at most 2^64

    Returns uint32 [count]. Raises ValueError on an argument out of range.
    """
    if start < 0 or count < 0 or start + count > 2**64:
        raise ValueError(f"start = {start}, count = {count}: must not be negative, and their sum at most 2^64")
    first = start // 4
    last = -(-(start + count) // 4)
    whole = blocks(seed, stream, np.arange(first, last, dtype=np.int64)).reshape(-1)
    return whole[start - 4 * first : start - 4 * first + count]
