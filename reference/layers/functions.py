"""Small functions that every part of the model shares: float64 in, float64 out."""

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Value = TypeVar("Value")


def linear(x: np.ndarray, weight: npt.ArrayLike) -> np.ndarray:
    """x @ weight.T in float64. ``x`` [..., n_in]; ``weight`` [n_out, n_in] of any float dtype; returns [..., n_out].

    No part of the model has a bias. Source: published model code.
    """
    return x @ np.asarray(weight, np.float64).T


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)) without overflow at either end; x float64 of any shape."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


def silu(x: np.ndarray) -> np.ndarray:
    """x * sigmoid(x); x float64 of any shape."""
    return x * sigmoid(x)


def softplus(x: np.ndarray) -> np.ndarray:
    """log(1 + exp(x)) without overflow; x float64 of any shape.

    The published model code (torch) returns x itself above 20; that differs by less than 2.1e-9 and is not followed.
    """
    return np.logaddexp(0.0, x)


ACTIVATIONS = {"sigmoid": sigmoid, "silu": silu}


def prefixed(prefix: str, mapping: Mapping[str, Value]) -> dict[str, Value]:
    """The same mapping with ``prefix`` put before every name."""
    return {prefix + name: value for name, value in mapping.items()}


def part(mapping: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    """The entries of ``mapping`` whose names start with ``prefix``, under the rest of their names."""
    return {name[len(prefix) :]: value for name, value in mapping.items() if name.startswith(prefix)}
