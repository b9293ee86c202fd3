"""Residual streams (hyper-connections). Source: published model code.

A row carries ``hc_count`` residual streams instead of one. Before a block its input is mixed from all of them; after
the block its output is added to each one with a weight of its own. The last mix, without injection, feeds the head.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..layers.functions import linear, sigmoid, silu
from ..layers.norm import group_norm
from .config import Config


def shapes(config: Config, inject: bool = True) -> dict[str, tuple[int, ...]]:
    """Tensor names and shapes of one mix. Only the last mix of the model (and of the draft layer) has no injection."""
    wide = config.hc_count * config.hidden_size
    names = {
        "hc_norm.weight": (wide,),
        "input_mix_weight_down.weight": (config.hc_lowrank, wide),
        "input_mix_weight_up.weight": (wide, config.hc_lowrank),
    }
    if inject:
        names["block_inject_weight.weight"] = (config.hc_count, wide)
    return names


def start(embedding: np.ndarray, config: Config) -> np.ndarray:
    """The streams before the first layer: copies of ``embedding`` [n, hidden]. Returns [n, hc_count, hidden]."""
    return np.repeat(embedding[:, None, :], config.hc_count, axis=1)


def mix(streams: np.ndarray, weights: Mapping[str, Any], config: Config) -> tuple[np.ndarray, np.ndarray]:
    """The input of a block. ``streams`` [n, hc_count, hidden] float64.

    Returns ``x`` [n, hidden] and the normed streams [n, hc_count · hidden].

    x = mean over the streams of sigmoid(up(silu(down(normed) / hc_count))) · normed.
    """
    normed = group_norm(streams, weights["hc_norm.weight"], config.rms_norm_eps)
    flat = normed.reshape(len(normed), -1)
    low = silu(linear(flat, weights["input_mix_weight_down.weight"]) / config.hc_count)
    share = sigmoid(linear(low, weights["input_mix_weight_up.weight"])).reshape(normed.shape)
    return (share * normed).mean(axis=1), flat


def through(
    streams: np.ndarray, weights: Mapping[str, Any], config: Config, block: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Streams after ``block``: a function from [n, hidden] to [n, hidden]. Returns [n, hc_count, hidden].

    Stream c gains 2 · sigmoid(inject_c(normed) / hc_count) · block(mix(streams)).
    """
    x, flat = mix(streams, weights, config)
    inject = 2.0 * sigmoid(linear(flat, weights["block_inject_weight.weight"]) / config.hc_count)
    return streams + inject[:, :, None] * block(x)[:, None, :]
