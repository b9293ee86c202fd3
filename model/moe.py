"""Mixture of experts over a backend's layers; formulas as ``reference/model/moe.py``."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from qsa.reference.exact.layers.linear import joined
from qsa.reference.model.config import Config


def load(tensors: Mapping[str, Any], layers: Any) -> dict[str, Any]:
    """The weights of one layer in the form of :func:`forward`. Router, shared expert and its gate are one matrix."""
    first = "gate", "shared_expert.gate_proj", "shared_expert.up_proj", "shared_expert_gate"
    return {
        "in": layers.load_linear(joined([tensors[name + ".weight"] for name in first])),
        "shared_down": layers.load_linear(tensors["shared_expert.down_proj.weight"]),
        "gate_up": layers.load_linear(tensors["experts.gate_up_proj"]),
        "down": layers.load_linear(tensors["experts.down_proj"]),
    }


def forward(x: np.ndarray, weights: Mapping[str, Any], config: Config, layers: Any) -> np.ndarray:
    """Run the layer on ``x`` [n, hidden] float32. Returns [n, hidden] float32: the chosen experts' outputs weighted by
    their shares, plus the gated shared expert."""
    count, width = config.num_experts, config.shared_expert_intermediate_size
    projected = layers.linear(x, weights["in"])
    ids, shares = layers.route(projected[:, :count], config.num_experts_per_tok)
    chosen = layers.experts(x, ids, shares, weights["gate_up"], weights["down"])
    shared = layers.swiglu(projected[:, count : count + 2 * width])
    shared = layers.linear(shared, weights["shared_down"])
    return layers.add(chosen, layers.sigmoid_gate(shared, projected[:, count + 2 * width :]))
