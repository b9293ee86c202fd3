"""Checks that the operations share: an error names the argument, its value and what is allowed, and nothing is written.

The forms in ``kernels/cpu`` use them too. A caller may give wider types than the operations ask for (float64 for
float32, int64 for int32), but none that would change a number without a word.
"""

from typing import Any

import numpy as np

FIELDS = ("pos", "n_kv", "n_bid", "width")
"""The four numbers of a step record."""

LEAST = np.array((-1, 0, 0, 0), np.int32)
"""The least value of each."""


def check_array(name: str, x: Any) -> np.ndarray:
    """``x``. Raises ValueError unless it is a NumPy array."""
    if not isinstance(x, np.ndarray):
        raise ValueError(f"{name}: {type(x).__name__}: must be a NumPy array")
    return x


def check_floats(name: str, x: Any) -> np.ndarray:
    """``x``. Raises ValueError unless it is a NumPy array of real numbers that float64 holds."""
    if not np.can_cast(check_array(name, x).dtype, np.float64, "same_kind"):
        raise ValueError(f"{name}: {x.dtype}: must be float32")
    return x


def check_integers(name: str, x: Any) -> np.ndarray:
    """``x``. Raises ValueError unless it is a NumPy array of integers."""
    if check_array(name, x).dtype.kind not in "iu":
        raise ValueError(f"{name}: {x.dtype}: must be int32")
    return x


def check_output(name: str, x: Any, dtype: np.dtype) -> np.ndarray:
    """``x``, to which a result of ``dtype`` is written. Raises ValueError unless it is an array of that kind of numbers
    that may be written."""
    same = check_integers if dtype.kind in "iu" else check_floats
    if same(name, x).dtype.kind in "biu" and dtype.kind == "f":
        raise ValueError(f"{name}: {x.dtype}: must be {dtype}")
    return check_writable(name, x)


def check_writable(name: str, x: np.ndarray) -> np.ndarray:
    """``x``. Raises ValueError when the array may not be written."""
    if not x.flags.writeable:
        raise ValueError(f"{name}: read-only: must be an array that may be written")
    return x


def check_steps(steps: Any, rows: int) -> None:
    """Raises ValueError unless ``steps`` is [rows, 4] int32 without a negative count; ``pos`` may be -1."""
    check_array("steps", steps)
    if steps.shape != (rows, 4) or steps.dtype != np.int32:
        raise ValueError(f"steps: {steps.dtype} {steps.shape}: must be int32 ({rows}, 4)")
    bad = np.argwhere(steps < LEAST)
    if bad.size:
        row, column = bad[0]
        name, least = FIELDS[column], LEAST[column]
        raise ValueError(f"steps: row {row}: {name} = {steps[row, column]}: must be at least {least}")
