"""One bad element of a result: its coordinate, both values, their bits and the distance between them."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np


class Element(NamedTuple):
    """One bad element: coordinate, both values as text, both bit patterns in hex, ULP distance (None where there is
    none: a NaN, another dtype)."""

    coordinate: tuple[int, ...]
    expected: str
    got: str
    expected_bits: str
    got_bits: str
    ulp: int | None


def bit_patterns(array: np.ndarray) -> np.ndarray:
    """The bit patterns of an array."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def ulp_distance(a: Any, b: Any) -> int | None:
    """Number of representable steps between two scalars of one float dtype; +0 and -0 are 0 apart; None at a NaN."""
    if np.isnan(a) or np.isnan(b):
        return None

    def position(x: Any) -> int:
        bits = int(bit_patterns(np.asarray(x)[None])[0])
        half = 1 << (8 * x.dtype.itemsize - 1)
        return half - bits if bits >= half else bits

    return abs(position(a) - position(b))


def bits_text(x: Any) -> str:
    """The bits of a scalar in hex, as ``0x3f800000``."""
    return f"0x{int(bit_patterns(np.asarray(x)[None])[0]):0{2 * x.dtype.itemsize}x}"


def element(expected: np.ndarray, got: np.ndarray, coordinate: Iterable[Any]) -> Element:
    """The :class:`Element` at ``coordinate``; bits and ULP of ``expected`` are those of ``got``'s dtype."""
    coordinate = tuple(coordinate)
    a, b = expected[coordinate], got[coordinate]
    with np.errstate(over="ignore"):
        near = got.dtype.type(a)
    ulp = ulp_distance(near, b) if got.dtype.kind == "f" else None
    return Element(tuple(int(x) for x in coordinate), f"{a:.9g}", f"{b:.9g}", bits_text(near), bits_text(b), ulp)
