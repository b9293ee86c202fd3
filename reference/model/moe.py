"""Mixture of experts with a shared expert. Source: published model code; ties: design section 6."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..layers.functions import linear, sigmoid, silu
from .config import Config


def shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Tensor names and shapes. The experts are stacked; in ``gate_up_proj`` the gate's rows come before the up rows."""
    hidden, width, shared = config.hidden_size, config.moe_intermediate_size, config.shared_expert_intermediate_size
    return {
        "gate.weight": (config.num_experts, hidden),
        "experts.gate_up_proj": (config.num_experts, 2 * width, hidden),
        "experts.down_proj": (config.num_experts, hidden, width),
        "shared_expert.gate_proj.weight": (shared, hidden),
        "shared_expert.up_proj.weight": (shared, hidden),
        "shared_expert.down_proj.weight": (hidden, shared),
        "shared_expert_gate.weight": (1, hidden),
    }


def route(logits: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """The experts of each row and their shares. ``logits`` [n, num_experts] float64.

    Returns ``ids`` [n, top] int64, best first, ties to the lower id, and ``shares`` [n, top] float64: the softmax over
    all experts, renormalised to sum 1 over the chosen ones.
    """
    mass = np.exp(logits - logits.max(axis=1, keepdims=True))
    mass /= mass.sum(axis=1, keepdims=True)
    ids = np.argsort(-mass, axis=1, kind="stable")[:, :top]
    chosen = np.take_along_axis(mass, ids, axis=1)
    return ids, chosen / chosen.sum(axis=1, keepdims=True)


def forward(x: np.ndarray, weights: Mapping[str, Any], config: Config) -> np.ndarray:
    """``x`` [n, hidden] float64; returns [n, hidden]: the chosen experts by share, plus the gated shared expert.

    An expert is down(silu(gate(x)) · up(x)). Experts are added in ascending id, whatever their rank.
    """
    ids, shares = route(linear(x, weights["gate.weight"]), config.num_experts_per_tok)
    y = np.zeros_like(x)
    for expert in np.unique(ids):
        rows, rank = np.nonzero(ids == expert)
        gate, up = np.split(linear(x[rows], weights["experts.gate_up_proj"][expert]), 2, axis=1)
        y[rows] += shares[rows, rank, None] * linear(silu(gate) * up, weights["experts.down_proj"][expert])
    gate = silu(linear(x, weights["shared_expert.gate_proj.weight"]))
    up = linear(x, weights["shared_expert.up_proj.weight"])
    shared = linear(gate * up, weights["shared_expert.down_proj.weight"])
    return y + sigmoid(linear(x, weights["shared_expert_gate.weight"])) * shared
