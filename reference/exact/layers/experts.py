"""Router and experts, exact. Ties go to the lower id (design section 6)."""

import numpy as np

from ..scalar import exp, one_nan
from .gates import swiglu
from .linear import QuantisedLinear, linear


def route(logits: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """The experts of each row and their shares. ``logits`` [rows, num_experts] float32.

    ids: logit descending, ties to the lower id, -0 equal to +0. shares: exp(logit - best logit), divided by the sum of
    the chosen ones, which are added in rank order; the sum over all experts would cancel. A NaN is
    never preferred; a row of NaN has the first ids and shares of NaN.
    Returns ``ids`` [rows, top] int64 and ``shares`` [rows, top] float32, best first.
    """
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :top]
    chosen = np.take_along_axis(logits, ids, axis=1)
    with np.errstate(invalid="ignore"):
        mass = exp(chosen - chosen[:, :1])
    total = mass[:, 0]
    for rank in range(1, top):
        total = total + mass[:, rank]
    return ids, one_nan(mass / total[:, None])


def experts(
    x: np.ndarray, ids: np.ndarray, shares: np.ndarray, gate_up: QuantisedLinear, down: QuantisedLinear
) -> np.ndarray:
    """The chosen experts' outputs by share: share_0 * y_0 + share_1 * y_1 + ..., in rank order, products rounded.

    x        [rows, hidden] float32
    ids      [rows, top] int64; shares [rows, top] float32
    gate_up  QuantisedLinear [num_experts, 2 * width, hidden], the gate's rows first
    down     QuantisedLinear [num_experts, hidden, width]

    Returns float32 [rows, hidden]; expert(x) = down(silu(gate(x)) * up(x)).
    """
    parts = np.empty((ids.shape[1], *x.shape), np.float32)
    for expert in np.unique(ids):
        rows, ranks = np.nonzero(ids == expert)
        parts[ranks, rows] = linear(swiglu(linear(x[rows], gate_up.part(expert))), down.part(expert))
    with np.errstate(over="ignore", invalid="ignore"):
        total = shares[:, 0, None] * parts[0]
        for rank in range(1, len(parts)):
            total = total + shares[:, rank, None] * parts[rank]
    return one_nan(total)
