"""What wrong kernels of encoded keys (index format ``int16``) are made of: every one takes this format alone, so that a
case of it must find it."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from qsa.reference.index import Index
from qsa.reference.key_codes import CODE_BITS, NOT_FINITE, encode

from ..mutant import Change, mutant
from .changes import but

BOTH = ("exact", "float")


def coded(
    operation: str, name: str, kind: str, arithmetics: tuple[str, ...] = BOTH, others: Iterable[Any] = ()
) -> Callable[[Change], Change]:
    """Enters the decorated change as one of encoded keys."""
    name = f"{operation}: int16: {name.removeprefix(f'{operation}: ')}"
    return mutant(operation, name, kind, arithmetics, index_formats=("int16",), others=others)


def with_arrays(a: Any, **arrays: Any) -> Any:
    """The arguments with arrays of the index replaced."""
    index = copy.copy(a.index)
    vars(index).update(arrays)
    return but(a, index=index)


def exponents_of(index: Index) -> np.ndarray:
    """int16 [blocks]: the exponents of the pooled keys."""
    assert index.pooled_exponent is not None
    return index.pooled_exponent


def without_low(codes: np.ndarray) -> np.ndarray:
    """Codes without their low limbs."""
    return ((codes.astype(np.int32) + 128) >> 8 << 8).astype(np.int32)


def coded_to(largest: float, held: float | None = None, rint: Any = np.rint) -> Any:
    """An encoding whose exponent is the least that keeps codes up to ``largest``; codes are held at ``held``."""

    def encoded(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        codes, e = encode(x)
        finite = e != NOT_FINITE
        e = np.where(finite, e, 0).astype(np.int64)
        values = np.where(finite[..., None], x, 0).astype(np.float64)
        for _ in range(2):
            fits = np.abs(values).max(axis=-1) <= largest * np.ldexp(1.0, e - 1 - CODE_BITS)
            e = np.where(fits & values.any(axis=-1), e - 1, e)
        codes = rint(np.ldexp(values, CODE_BITS - e[..., None]))
        codes = np.clip(codes, -(held or largest), held or largest)
        return codes.astype(np.int64), np.where(finite, e, NOT_FINITE)

    return encoded


def half_away(x: np.ndarray) -> np.ndarray:
    """Rounded to an integer, ties away from 0."""
    return np.trunc(x + np.copysign(0.5, x))
