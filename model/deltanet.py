"""Gated DeltaNet in the exact arithmetic; formulas as ``reference/model/deltanet.py``."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from qsa.reference.exact.layers.linear import joined
from qsa.reference.model.deltanet import qkv_width


@dataclass
class State:
    """``memory`` [value heads, key dim, value dim] and ``past`` [kernel - 1, channels], the last inputs of the short
    convolution; float32, advanced in place."""

    memory: np.ndarray
    past: np.ndarray


class Inputs(NamedTuple):
    """What the two recurrences of one call read, rows of all its sequences: enough for :func:`replay`.

    ``conv`` [n, channels] before the short convolution; ``k`` [n, key heads, key dim], ``v`` [n, value heads, value
    dim], ``decay`` and ``beta`` [n, value heads] of the delta rule. float32.
    """

    conv: np.ndarray
    k: np.ndarray
    v: np.ndarray
    decay: np.ndarray
    beta: np.ndarray


def init_state(config, to_device):
    """The state of a sequence that has not begun: zeros, placed by ``to_device``."""
    shape = config.linear_num_value_heads, config.linear_key_head_dim, config.linear_value_head_dim
    past = (config.linear_conv_kernel_dim - 1, qkv_width(config))
    return State(to_device(np.zeros(shape, np.float32)), to_device(np.zeros(past, np.float32)))


def load(tensors, layers):
    """Weights of one layer as :func:`forward` takes them; the projections of x are one matrix."""
    return {
        "in": layers.load_linear(joined([tensors[f"in_proj_{name}.weight"] for name in ("qkv", "z", "b", "a")])),
        "out": layers.load_linear(tensors["out_proj.weight"]),
        **{name: tensors[name] for name in ("conv1d.weight", "rate", "dt_bias", "norm.weight")},
    }


def forward(x, weights, config, spans, layers, journal=None):
    """``x`` [n, hidden] float32; returns [n, hidden] and advances the states.

    ``spans``: (slice of the rows, :class:`State`) of every sequence in the call. A list given as ``journal`` gets the
    call's :class:`Inputs`.
    """
    n, key_heads, heads = len(x), config.linear_num_key_heads, config.linear_num_value_heads
    key_dim, value_dim = config.linear_key_head_dim, config.linear_value_head_dim
    keys, wide, qkv = key_heads * key_dim, heads * value_dim, qkv_width(config)
    projected = layers.linear(x, weights["in"])
    rows, states = [mine for mine, _ in spans], [state for _, state in spans]
    pasts, memories = [state.past for state in states], [state.memory for state in states]
    mixed = layers.causal_conv(projected[:, :qkv], weights["conv1d.weight"], pasts, spans=rows)
    mixed = layers.silu(mixed)
    q = layers.l2_norm(mixed[:, :keys].reshape(n, key_heads, key_dim), np.float32(key_dim**-0.5))
    k = layers.l2_norm(mixed[:, keys : 2 * keys].reshape(n, key_heads, key_dim), np.float32(1))
    v = mixed[:, 2 * keys :].reshape(n, heads, value_dim)
    z = projected[:, qkv : qkv + wide].reshape(n, heads, value_dim)
    b, a = projected[:, qkv + wide : qkv + wide + heads], projected[:, qkv + wide + heads :]
    decay, beta = layers.decay_beta(a, b, weights["dt_bias"], weights["rate"])
    if journal is not None:
        journal.append(Inputs(projected[:, :qkv], k, v, decay, beta))
    out = layers.delta_rule(q, k, v, decay, beta, memories, spans=rows)
    out = layers.gated_norm(out, z, weights["norm.weight"], config.rms_norm_eps, config.output_gate_type)
    return layers.linear(out.reshape(n, wide), weights["out"])


def replay(inputs, rows, weights, state, layers):
    """Advance ``state`` by ``rows`` (a slice) of an earlier call, from its :class:`Inputs` alone: the bytes are those
    that :func:`forward` leaves."""
    conv, k, v, decay, beta = (x[rows] for x in inputs)
    layers.causal_conv(conv, weights["conv1d.weight"], state.past)
    # The memory does not depend on the query: the key stands in for it, and the answer is dropped.
    layers.delta_rule(k, k, v, decay, beta, state.memory)
