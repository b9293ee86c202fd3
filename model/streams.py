"""Residual streams over a backend's layers; formulas as ``reference/model/streams.py``."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qsa.reference.exact.layers.linear import joined
from qsa.reference.model.config import Config


def load(tensors: Mapping[str, Any], config: Config, layers: Any) -> dict[str, Any]:
    """The weights of one mix in the form of :func:`mix`. One matrix gives the low-rank outputs and then the
    injection's."""
    down, inject = (tensors.get(name + ".weight") for name in ("input_mix_weight_down", "block_inject_weight"))
    return {
        "norm": tensors["hc_norm.weight"].reshape(config.hc_count, config.hidden_size),
        "down": layers.load_linear(down if inject is None else joined([down, inject])),
        "up": layers.load_linear(tensors["input_mix_weight_up.weight"]),
    }


def mix(streams: np.ndarray, weights: Mapping[str, Any], config: Config, layers: Any) -> tuple[np.ndarray, np.ndarray]:
    """Mix the streams [n, hc_count, hidden] float32 into the input of a block.

    Returns ``x`` [n, hidden] and the injection's logits [n, hc_count], or [n, 0] of a mix without injection.
    """
    normed = layers.rms_norm(streams, weights["norm"], config.rms_norm_eps)
    low = layers.linear(normed.reshape(len(normed), -1), weights["down"])
    rank = config.hc_lowrank
    share = layers.linear(layers.scaled_silu(low[:, :rank], config.hc_count), weights["up"])
    return layers.mix_streams(normed, share.reshape(normed.shape)), low[:, rank:]


def through(
    streams: np.ndarray,
    weights: Mapping[str, Any],
    config: Config,
    layers: Any,
    block: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """The streams [n, hc_count, hidden] after ``block``, a function from [n, hidden] to [n, hidden]."""
    x, share = mix(streams, weights, config, layers)
    return layers.inject(streams, share, block(x))
