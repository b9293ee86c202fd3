"""Canonical bytes and hashes of arrays: equal values give equal hashes on every machine.

Canonical bytes are little-endian and in C order; -0 is written as +0, and every NaN as the one quiet NaN of its dtype
(float16 0x7e00, float32 0x7fc00000, float64 0x7ff8000000000000). The hash is xxh3_128 over the dtype's name, the shape
and those bytes: ``float32 [2, 3]\\n`` and then 24 bytes. Source: design section 9.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import ArrayLike

_KINDS = "biuf"

_CHUNK = 1 << 20
"""Elements made canonical at a time, so that a large array is never copied whole."""


def _pieces(array: np.ndarray) -> Iterator[bytes]:
    """The canonical bytes of a C-ordered array, piece by piece."""
    flat = array.reshape(-1)
    little = array.dtype.newbyteorder("<")
    for first in range(0, flat.size, _CHUNK):
        piece = flat[first : first + _CHUNK]
        if array.dtype.kind == "f":
            # Adding +0 turns -0 into +0 and changes nothing else; NaNs are replaced, as addition may keep a payload.
            with np.errstate(invalid="ignore"):
                piece = np.where(np.isnan(piece), np.array(np.nan, array.dtype), piece + array.dtype.type(0))
        yield piece.astype(little, copy=False).tobytes()


def _ordered(array: ArrayLike) -> np.ndarray:
    array = np.asarray(array)
    if array.dtype.kind not in _KINDS or array.dtype.itemsize > 8:
        raise ValueError(f"dtype {array.dtype}: must be bool, an integer, float16, float32 or float64")
    return np.asarray(array, order="C")


def canonical_bytes(array: ArrayLike) -> bytes:
    """The canonical bytes of ``array``; see the top of this file.

    Raises ValueError on a dtype other than bool, integers, float16, float32 and float64.
    """
    return b"".join(_pieces(_ordered(array)))


def _hash(array: ArrayLike, hasher: Any) -> str:
    array = _ordered(array)
    hasher.update(f"{array.dtype.name} {list(array.shape)}\n".encode())
    for piece in _pieces(array):
        hasher.update(piece)
    return hasher.hexdigest()


def digest(array: ArrayLike) -> str:
    """The hash of ``array``: 32 hexadecimal digits. Raises ValueError as :func:`canonical_bytes` does."""
    return _hash(array, xxhash.xxh3_128())


def block_digests(array: ArrayLike, axes: int = 1) -> list[str]:
    """Short hashes of the blocks of ``array`` that its first ``axes`` axes count, so that a mismatch names a block.

    Returns one string for each index of the first axis: the hashes of its blocks in C order with spaces between them,
    each the first 8 digits of the block's xxh3_64. They only locate; equality is :func:`digest`'s to say.

    Raises ValueError when the array has fewer axes, or ``axes`` is not 1 or more, and as :func:`canonical_bytes` does.
    """
    array = _ordered(array)
    if not 1 <= axes <= array.ndim:
        raise ValueError(f"axes = {axes}: must be from 1 to the array's {array.ndim}")
    blocks = array.reshape(array.shape[0], int(np.prod(array.shape[1:axes])), *array.shape[axes:])
    return [" ".join(_hash(block, xxhash.xxh3_64())[:8] for block in row) for row in blocks]


def differing_blocks(
    expected: Sequence[str], got: Sequence[str], shape: Sequence[int], axes: int = 1
) -> list[tuple[int, ...]]:
    """Coordinates of the blocks in which two results of :func:`block_digests` differ.

    expected, got  as ``block_digests`` gives them for arrays of ``shape`` with these ``axes``

    Returns a list of tuples of ``axes`` indices, ascending. Raises ValueError when the two do not have as many hashes
    as the shape has blocks.
    """
    a, b = (" ".join(rows).split() for rows in (expected, got))
    blocks = int(np.prod(shape[:axes]))
    if not len(a) == len(b) == blocks:
        raise ValueError(f"blocks: {len(a)} and {len(b)} hashes: the shape {list(shape)} has {blocks}")
    differ = [number for number in range(blocks) if a[number] != b[number]]
    return [tuple(int(x) for x in np.unravel_index(number, shape[:axes])) for number in differ]


def statistics(array: ArrayLike) -> dict[str, Any]:
    """Small facts about ``array`` for a reader of the record; equality never depends on them.

    Returns a dict: ``min``, ``max``, ``mean``, ``rms`` over the finite elements (float, or int where the dtype is an
    integer; None without finite elements), ``zeros`` and ``nonfinite`` (counts), and ``first``, up to 4 leading
    elements (a non-finite one as a string). Floats have 9 significant digits.
    """
    array = _ordered(array)
    flat = array.reshape(-1)
    finite = flat[np.isfinite(flat)]

    def plain(value: Any) -> int | float | str:
        if array.dtype.kind != "f":
            return int(value)
        return float(f"{float(value):.9g}") + 0.0 if np.isfinite(value) else str(value)

    def real(value: Any) -> float:
        return float(f"{float(value):.9g}")

    wide = finite.astype(np.float64)
    some = finite.size > 0
    return {
        "min": plain(finite.min()) if some else None,
        "max": plain(finite.max()) if some else None,
        "mean": real(wide.mean()) if some else None,
        "rms": real(np.sqrt((wide * wide).mean())) if some else None,
        "zeros": int((finite == 0).sum()),
        "nonfinite": int(flat.size - finite.size),
        "first": [plain(value) for value in flat[:4]],
    }
