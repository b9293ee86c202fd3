"""Rotary position embedding of the first dims of a vector, in neox pairs. Source: published model code.

For text the three position axes of the published interleaved form carry the same number, so the plain form is exact.
"""

import numpy as np
import numpy.typing as npt


def cos_sin(positions: npt.ArrayLike, n_rot: int, base: float) -> np.ndarray:
    """Cosines and sines in float64. ``positions`` [n] integers; returns [n, n_rot]: cosines, then sines.

    Column i of either half belongs to the angle position · base^(-2i / n_rot).
    Raises ValueError when ``n_rot`` is odd or below 2.
    """
    if n_rot < 2 or n_rot % 2:
        raise ValueError(f"n_rot = {n_rot}: must be even and at least 2")
    frequency = 1.0 / base ** (np.arange(0, n_rot, 2, dtype=np.float64) / n_rot)
    angle = np.asarray(positions, np.float64)[:, None] * frequency
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=1)


def rope_table(positions: npt.ArrayLike, n_rot: int, base: float, mscale: float = 1.0) -> np.ndarray:
    """The table that kernels read: :func:`cos_sin` times ``mscale``, rounded once to float32. Returns [n, n_rot].

    ``mscale`` is 1 for the published model; position-scaled (YaRN) caches multiply every rotated dim by it.
    """
    return (cos_sin(positions, n_rot, base) * mscale).astype(np.float32)


def rotate(x: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Rotate the first dims of each vector. ``x`` [n, ..., dim] float64; ``table`` [n, n_rot], a row per row of x.

    Dim i < n_rot/2 pairs with dim i + n_rot/2; dims from n_rot on pass through.
    """
    half = table.shape[1] // 2
    shape = (len(x),) + (1,) * (x.ndim - 2) + (half,)
    cos, sin = (np.asarray(side, np.float64).reshape(shape) for side in (table[:, :half], table[:, half:]))
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)
