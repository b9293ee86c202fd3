"""Inputs from raw words of Philox by integer formulas of our own: the same bits on every machine and library version.

Nothing here calls a mathematical function of a library: a value is an exact integer function of generator words, then
scaled by a power of two, or by one rounded float32 product where the docstring says so.

Everything is addressed by (seed, stream name, item): an item is one cell, row or block, and its values depend on
nothing else. Cells scattered over a context of a million are made without the million. A stream's number is the xxh3_64
of its name; it is the upper half of Philox's counter and the seed is the key, so streams of one seed never overlap.

``items`` is a count n (items 0 to n - 1) or an array [n] of item numbers, not negative, in any order.
"""

from functools import lru_cache

import numpy as np
import xxhash

from qsa.reference.philox import blocks

BELL_DEVIATION = (4 / 3) ** 0.5
"""Standard deviation of :func:`bell` at scale 1, to 1e-9: four uniform 16-bit pieces have sqrt(4 * (2^32 - 1) / 12),
about 37837.2, and 2^15 = 32768 of it is 1."""


def stream_number(name: str) -> int:
    """The 64-bit stream number of a name."""
    return xxhash.xxh3_64_intdigest(name.encode())


def item_words(seed: int, name: str, items: int | np.ndarray, size: int) -> np.ndarray:
    """Words uint32 [n, size] of ``items``: item i holds the first ``size`` words of ceil(size / 4) blocks of its own.

    Raises ValueError on a seed out of range, a negative item or a size below 1.
    """
    if size < 1:
        raise ValueError(f"size = {size}: must be at least 1")
    numbers = np.arange(int(items), dtype=np.int64) if np.ndim(items) == 0 else np.asarray(items).reshape(-1)
    if numbers.size and numbers.min() < 0:
        raise ValueError(f"item = {numbers.min()}: must not be negative")
    if numbers.size * size > KEPT_WORDS:
        return _words(seed, name, numbers, size)
    return _kept_words(seed, name, numbers.astype(np.int64).tobytes(), size)


KEPT_WORDS = 1 << 18
"""Words up to which a result is kept: a case is made again for every kernel under it."""


@lru_cache(maxsize=96)
def _kept_words(seed: int, name: str, numbers: bytes, size: int) -> np.ndarray:
    words = _words(seed, name, np.frombuffer(numbers, np.int64), size)
    words.flags.writeable = False
    return words


def _words(seed: int, name: str, numbers: np.ndarray, size: int) -> np.ndarray:
    each = -(-size // 4)
    index = numbers[:, None] * each + np.arange(each)
    return blocks(seed, stream_number(name), index.reshape(-1)).reshape(numbers.size, 4 * each)[:, :size]


def _halves(words: np.ndarray) -> np.ndarray:
    """The 16-bit pieces int64 [n, 2 * size] of words [n, size], the lower one first."""
    return np.stack([words & 0xFFFF, words >> 16], axis=-1).reshape(len(words), 2 * words.shape[1]).astype(np.int64)


def _power_of_two(scale: float) -> np.float32:
    if not scale > 0 or np.frexp(scale)[0] != 0.5:
        raise ValueError(f"scale = {scale}: must be a power of two")
    return np.float32(scale)


def uniform(seed: int, name: str, items: int | np.ndarray, size: int, scale: float = 1.0) -> np.ndarray:
    """float32 [n, size] from -scale/2 up to scale/2: ((word >> 8) / 2^24 - 0.5) * scale, the product rounded once."""
    whole = (item_words(seed, name, items, size) >> 8).astype(np.int64) - (1 << 23)
    return whole.astype(np.float32) * np.float32(2.0**-24) * np.float32(scale)


def bell(seed: int, name: str, items: int | np.ndarray, size: int, scale: float = 1.0) -> np.ndarray:
    """float32 [n, size], bell-shaped: (sum of four 16-bit pieces - 131070) / 2^15 * scale, exact.

    Mean 0, standard deviation :data:`BELL_DEVIATION` * scale (1.1547), all within 4 * scale. Raises ValueError unless
    ``scale`` is a power of two.
    """
    pieces = _halves(item_words(seed, name, items, 2 * size)).reshape(-1, size, 4)
    return (pieces.sum(axis=-1) - 2 * 0xFFFF).astype(np.float32) * np.float32(2.0**-15) * _power_of_two(scale)


def int8_codes(seed: int, name: str, items: int | np.ndarray, size: int) -> np.ndarray:
    """int8 [n, size] from -127 to 127: (piece * 255 >> 16) - 127 of 16-bit pieces; equally likely within 0.4 %."""
    pieces = _halves(item_words(seed, name, items, -(-size // 2)))[:, :size]
    return ((pieces * 255 >> 16) - 127).astype(np.int8)


def q4_codes(seed: int, name: str, items: int | np.ndarray, size: int) -> np.ndarray:
    """int8 [n, size] from -8 to 7, all equally likely: the 4-bit pieces of the words, the lowest first, less 8."""
    words = item_words(seed, name, items, -(-size // 8))
    pieces = words[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15
    return pieces.reshape(len(words), 8 * words.shape[1])[:, :size].astype(np.int8) - 8


def fp16_scales(
    seed: int, name: str, items: int | np.ndarray, size: int, low: int = -8, high: int = -5, signed: bool = False
) -> np.ndarray:
    """float16 [n, size] in [2^low, 2^high): a uniform exponent and 10 uniform bits of mantissa; normal numbers.

    With ``signed`` half of them are negative. Raises ValueError unless -14 <= low < high <= 16.
    """
    if not -14 <= low < high <= 16:
        raise ValueError(f"low = {low}, high = {high}: must be -14 <= low < high <= 16")
    words = item_words(seed, name, items, size)
    exponent = ((words >> 16) * np.uint32(high - low) >> 16) + np.uint32(low + 15)
    sign = words >> 10 & 1 if signed else np.zeros_like(words)
    return (sign << 15 | exponent << 10 | words & 0x3FF).astype(np.uint16).view(np.float16)


def integers(seed: int, name: str, items: int | np.ndarray, size: int, below: int) -> np.ndarray:
    """int64 [n, size] from 0 to below - 1: word * below >> 32. Raises ValueError unless 1 <= below <= 2^31."""
    if not 1 <= below <= 2**31:
        raise ValueError(f"below = {below}: must be from 1 to 2^31")
    return item_words(seed, name, items, size).astype(np.int64) * below >> 32


def permutation(seed: int, name: str, n: int) -> np.ndarray:
    """A permutation int64 [n] of 0 to n - 1: sorted by one word each, equal words by number."""
    return np.argsort(item_words(seed, name, n, 1)[:, 0], kind="stable")


def choice(seed: int, name: str, n: int, count: int) -> np.ndarray:
    """``count`` distinct numbers of 0 to n - 1, int64 [count] ascending: the first of :func:`permutation`.

    Raises ValueError when count is above n.
    """
    if count > n:
        raise ValueError(f"count = {count}: only {n} numbers to choose from")
    return np.sort(permutation(seed, name, n)[:count])
