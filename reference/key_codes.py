"""Keys of 16 bits: vectors as signed 16-bit integers with one power of two, the index format ``int16``.

Source: design section 4, "Keys of 16 bits". ``append_index`` encodes pooled keys and the dead key so, ``block_scores``
its queries. The functions work on the last axis.
"""

import numpy as np
import numpy.typing as npt

CODE_BITS = 15
"""A value is code * 2^(e - 15)."""

LARGEST_CODE = 127 * 256 + 127
"""The largest integer of two signed 8-bit limbs; no code is larger in magnitude."""

NOT_FINITE = 32767
"""Exponent of a vector with a NaN or an infinity; its codes are 0."""


def encode(x: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """(codes int16 [..., dim], exponents int16 [...]) of float32 or float64 ``x`` [..., dim].

    e is the least integer with max|x| <= 32,639 * 2^(e - 15), 0 for a vector of zeros; codes = rint(x * 2^(15 - e)),
    ties to even. A vector that is not finite has codes 0 and the exponent :data:`NOT_FINITE`.
    """
    x = np.asarray(x, np.float64)
    largest = np.abs(x).max(axis=-1)
    finite = np.isfinite(largest)
    fraction, e = np.frexp(np.where(finite, largest, 0))
    e = e + (fraction * 2**CODE_BITS > LARGEST_CODE)
    codes = np.rint(np.ldexp(np.where(finite[..., None], x, 0), CODE_BITS - e[..., None]))
    return codes.astype(np.int16), np.where(finite, e, NOT_FINITE).astype(np.int16)


def decode(codes: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """float64 values [..., dim] of int16 ``codes`` [..., dim] and int16 ``exponents`` [...]; NaN where not finite."""
    e = np.where(exponents == NOT_FINITE, 0, exponents).astype(np.int32)
    values = np.ldexp(codes.astype(np.float64), e[..., None] - CODE_BITS)
    return np.where((exponents == NOT_FINITE)[..., None], np.nan, values)
