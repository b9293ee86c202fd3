"""The number types in which a kernel keeps its values: their NumPy dtypes, and how they round.

Source: IEEE 754 for float32 and fp16; bf16 is float32 with 8 bits of significand; fp8 as the OCP 8-bit formats E4M3
(no infinity, 448 at most) and E5M2.
"""

from typing import Literal, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

TypeName = Literal["float32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2"]


class NumberType(NamedTuple):
    """``dtype`` of NumPy or ml_dtypes, ``precision`` in bits of significand (the hidden one included)."""

    dtype: np.dtype
    precision: int


NUMBER_TYPES: dict[str, NumberType] = {
    "float32": NumberType(np.dtype(np.float32), 24),
    "fp16": NumberType(np.dtype(np.float16), 11),
    "bf16": NumberType(np.dtype(ml_dtypes.bfloat16), 8),
    "fp8_e4m3": NumberType(np.dtype(ml_dtypes.float8_e4m3fn), 4),
    "fp8_e5m2": NumberType(np.dtype(ml_dtypes.float8_e5m2), 3),
}


def unit(name: str) -> float:
    """The largest relative error of one rounding to the type, of a normal number: 2^-precision."""
    return 2.0 ** -NUMBER_TYPES[name].precision


def stored(x: npt.ArrayLike, name: str) -> np.ndarray:
    """``x`` in the dtype of the type, rounded to nearest even."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(x, np.float32).astype(NUMBER_TYPES[name].dtype)


def rounded(x: npt.ArrayLike, name: str) -> np.ndarray:
    """``x`` rounded to the type, as float32."""
    x = np.asarray(x, np.float32)
    return x if name == "float32" else stored(x, name).astype(np.float32)
