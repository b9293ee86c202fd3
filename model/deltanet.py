"""Gated DeltaNet over a backend's layers; formulas as ``reference/model/deltanet.py``."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from qsa.reference.exact.layers.linear import joined
from qsa.reference.model.config import Config
from qsa.reference.model.deltanet import qkv_width


@dataclass
class State:
    """The state of one layer and sequence, float32, advanced in place.

    memory  [value heads, key dim, value dim]
    past    [kernel - 1, channels], the last inputs of the short convolution
    """

    memory: np.ndarray
    past: np.ndarray


class Inputs(NamedTuple):
    """The inputs of the two recurrences of one call, which :func:`replay` needs; rows of all its sequences, float32.

    conv         [n, channels], inputs of the short convolution
    k            [n, key heads, key dim]; v: [n, value heads, value dim]; both of the delta rule
    decay, beta  [n, value heads], of the delta rule
    """

    conv: np.ndarray
    k: np.ndarray
    v: np.ndarray
    decay: np.ndarray
    beta: np.ndarray


def init_state(config: Config, to_device: Callable[[Any], Any]) -> State:
    """The initial state of a sequence: zeros, moved by ``to_device``."""
    shape = config.linear_num_value_heads, config.linear_key_head_dim, config.linear_value_head_dim
    past = (config.linear_conv_kernel_dim - 1, qkv_width(config))
    return State(to_device(np.zeros(shape, np.float32)), to_device(np.zeros(past, np.float32)))


def load(tensors: Mapping[str, Any], layers: Any) -> dict[str, Any]:
    """The weights of one layer in the form of :func:`forward`. The projections of x are joined in one matrix."""
    return {
        "in": layers.load_linear(joined([tensors[f"in_proj_{name}.weight"] for name in ("qkv", "z", "b", "a")])),
        "out": layers.load_linear(tensors["out_proj.weight"]),
        **{name: tensors[name] for name in ("conv1d.weight", "rate", "dt_bias", "norm.weight")},
    }


def forward(
    x: np.ndarray,
    weights: Mapping[str, Any],
    config: Config,
    spans: Sequence[tuple[slice, State]],
    layers: Any,
    journal: list | None = None,
    bounds: Any = None,
) -> np.ndarray:
    """Run the layer on ``x`` [n, hidden] float32; returns [n, hidden] float32 and advances the states.

    spans    (slice of the rows, :class:`State`) of every sequence in the call
    journal  None, or a list to which the call's :class:`Inputs` are appended
    bounds   None, or the rows that are in use, as ``qsa.Rows`` has them
    """
    n, key_heads, heads = len(x), config.linear_num_key_heads, config.linear_num_value_heads
    key_dim, value_dim = config.linear_key_head_dim, config.linear_value_head_dim
    keys, wide, qkv = key_heads * key_dim, heads * value_dim, qkv_width(config)
    projected = layers.linear(x, weights["in"])
    rows, states = [span for span, _ in spans] if bounds is None else bounds, [state for _, state in spans]
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


def replay(inputs: Inputs, rows: slice, weights: Mapping[str, Any], state: State, layers: Any) -> None:
    """Advance ``state`` by ``rows`` of an earlier call, from its :class:`Inputs`. The resulting bytes are those that
    :func:`forward` leaves."""
    conv, k, v, decay, beta = (x[rows] for x in inputs)
    layers.causal_conv(conv, weights["conv1d.weight"], state.past)
    # The memory does not depend on the query, so the key is passed in its place and the result is dropped.
    layers.delta_rule(k, k, v, decay, beta, state.memory)


def replay_kept(inputs: Inputs, bounds: Any, weights: Mapping[str, Any], states: Sequence[State], layers: Any) -> None:
    """:func:`replay` of several sequences at once: ``bounds``, which the device reads (``RowBounds`` of the backend),
    say which rows of the call each of ``states`` keeps."""
    conv, k, v, decay, beta = inputs
    layers.causal_conv(conv, weights["conv1d.weight"], [state.past for state in states], spans=bounds)
    layers.delta_rule(k, k, v, decay, beta, [state.memory for state in states], spans=bounds)
