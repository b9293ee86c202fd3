"""Gated DeltaNet: linear attention with a decaying state. Source: published model code (its recurrent form)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..layers.conv import causal_conv, history
from ..layers.functions import linear, sigmoid, silu, softplus
from ..layers.norm import gated_norm, l2_norm
from .config import Config


def shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Tensor names and shapes. ``in_proj_qkv`` gives all queries, then all keys, then all values."""
    hidden, heads = config.hidden_size, config.linear_num_value_heads
    wide = heads * config.linear_value_head_dim
    qkv = qkv_width(config)
    return {
        "in_proj_qkv.weight": (qkv, hidden),
        "in_proj_z.weight": (wide, hidden),
        "in_proj_a.weight": (heads, hidden),
        "in_proj_b.weight": (heads, hidden),
        "conv1d.weight": (qkv, 1, config.linear_conv_kernel_dim),
        "A_log": (heads,),
        "dt_bias": (heads,),
        "norm.weight": (config.linear_value_head_dim,),
        "out_proj.weight": (hidden, wide),
    }


def qkv_width(config: Config) -> int:
    """Channels of the short convolution: queries, keys and values together."""
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    return 2 * keys + config.linear_num_value_heads * config.linear_value_head_dim


@dataclass
class State:
    """What a sequence leaves behind: ``memory`` [value heads, key dim, value dim] float64 and ``past``, the last
    kernel - 1 inputs of the short convolution [kernel - 1, channels]."""

    memory: np.ndarray
    past: np.ndarray


def init_state(config: Config) -> State:
    """The state of a sequence that has not begun: zeros."""
    memory = np.zeros((config.linear_num_value_heads, config.linear_key_head_dim, config.linear_value_head_dim))
    return State(memory, history(qkv_width(config), config.linear_conv_kernel_dim))


def delta_rule(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, decay: np.ndarray, beta: np.ndarray, memory: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The gated delta rule, row by row.

    ``q``, ``k`` [n, heads, key dim]; ``v`` [n, heads, value dim]; ``decay`` (a factor, 0 to 1) and ``beta`` [n, heads];
    ``memory`` [heads, key dim, value dim]; all float64. Per row: memory is multiplied by decay, then corrected along k
    towards v by the share beta, then read with q. Returns ``out`` [n, heads, value dim] and the memory afterwards.
    """
    out = np.empty_like(v)
    for row in range(len(q)):
        memory = memory * decay[row][:, None, None]
        recalled = np.einsum("hkv,hk->hv", memory, k[row])
        correction = beta[row][:, None] * (v[row] - recalled)
        memory = memory + k[row][:, :, None] * correction[:, None, :]
        out[row] = np.einsum("hkv,hk->hv", memory, q[row])
    return out, memory


def forward(x: np.ndarray, weights: Mapping[str, Any], config: Config, state: State) -> np.ndarray:
    """``x`` [n, hidden] float64, the rows after those in ``state``; returns [n, hidden] and advances ``state``."""
    n, key_heads, heads = len(x), config.linear_num_key_heads, config.linear_num_value_heads
    key_dim, value_dim = config.linear_key_head_dim, config.linear_value_head_dim
    qkv, state.past = causal_conv(linear(x, weights["in_proj_qkv.weight"]), weights["conv1d.weight"], state.past)
    q, k, v = np.split(silu(qkv), [key_heads * key_dim, 2 * key_heads * key_dim], axis=1)
    # Key head j serves the consecutive value heads j · repeat to (j + 1) · repeat - 1.
    repeat = heads // key_heads
    q, k = (np.repeat(l2_norm(a.reshape(n, key_heads, key_dim)), repeat, axis=1) for a in (q, k))
    step = softplus(linear(x, weights["in_proj_a.weight"]) + np.asarray(weights["dt_bias"], np.float64))
    decay = np.exp(-np.exp(np.asarray(weights["A_log"], np.float64)) * step)
    beta = sigmoid(linear(x, weights["in_proj_b.weight"]))
    v = v.reshape(n, heads, value_dim)
    out, state.memory = delta_rule(q / np.sqrt(key_dim), k, v, decay, beta, state.memory)
    z = linear(x, weights["in_proj_z.weight"]).reshape(n, heads, value_dim)
    out = gated_norm(out, z, weights["norm.weight"], config.rms_norm_eps, config.output_gate_type)
    return linear(out.reshape(n, -1), weights["out_proj.weight"])
