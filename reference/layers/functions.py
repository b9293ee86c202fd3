"""Small functions that every part of the model shares: float64 in, float64 out."""

import numpy as np


def linear(x, weight):
    """x @ weight.T in float64. ``x`` [..., n_in]; ``weight`` [n_out, n_in] of any float dtype; returns [..., n_out].

    No part of the model has a bias. Source: published model code.
    """
    return x @ np.asarray(weight, np.float64).T


def sigmoid(x):
    """1 / (1 + exp(-x)) without overflow at either end."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


def silu(x):
    """x * sigmoid(x)."""
    return x * sigmoid(x)


def softplus(x):
    """log(1 + exp(x)) without overflow.

    The published model code (torch) returns x itself above 20; that differs by less than 2.1e-9 and is not followed.
    """
    return np.logaddexp(0.0, x)


ACTIVATIONS = {"sigmoid": sigmoid, "silu": silu}


def prefixed(prefix, mapping):
    """The same mapping with ``prefix`` put before every name."""
    return {prefix + name: value for name, value in mapping.items()}


def part(mapping, prefix):
    """The entries of ``mapping`` whose names start with ``prefix``, under the rest of their names."""
    return {name[len(prefix) :]: value for name, value in mapping.items() if name.startswith(prefix)}
