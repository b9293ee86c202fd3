"""PLE in the exact arithmetic; formulas as ``reference/ple.py``, whose hash is integer and so is exact as it stands."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..ple import hash_constants, ngram_rows
from .linear import joined


@dataclass
class State:
    """``tokens`` [ngram_size - 1] int64, the last ids, and ``past`` [(kernel - 1) * ngram_size, hc_count * hidden]
    float32, the last inputs of the convolution; advanced in place."""

    tokens: np.ndarray
    past: np.ndarray

    def copy(self):
        """A state of its own."""
        return State(self.tokens.copy(), self.past.copy())


class Inputs(NamedTuple):
    """What the history of one call is made of, rows of all its sequences: ``ids`` [n] int64 and ``conv`` [n, hc_count *
    hidden] float32, the convolution's inputs. Enough for :func:`replay`."""

    ids: np.ndarray
    conv: np.ndarray


def init_state(config):
    """The state of a sequence that has not begun: missing tokens count as end of text."""
    past = (config.ple_conv_kernel_size - 1) * config.ngram_size, config.hc_count * config.hidden_size
    return State(np.full(config.ngram_size - 1, config.eos_token_id, np.int64), np.zeros(past, np.float32))


def load(tensors, config, layers):
    """Weights of one layer as :func:`forward` takes them; key and value are one matrix."""
    shape = config.hc_count, config.hidden_size
    return {
        "in": layers.load_linear(joined([tensors["key_proj.weight"], tensors["value_proj.weight"]])),
        "table": tensors["ple_embedding.ngram_embedding.weight"],
        "conv1d.weight": tensors["conv1d.weight"],
        **{name: tensors[f"norm_{name}.weight"].reshape(shape) for name in ("key", "query", "conv")},
    }


def _remember(tokens, ids):
    tokens[:] = np.concatenate([tokens, ids])[len(ids) :]


def forward(streams, ids, weights, config, index, spans, layers, journal=None):
    """The streams with what PLE adds. ``streams`` [n, hc_count, hidden] float32; ``ids`` [n] int64.

    ``spans``: (slice of the rows, :class:`State`) of every sequence in the call. A list given as ``journal`` gets the
    call's :class:`Inputs`. Returns float32 [n, hc_count, hidden] and advances the states.
    """
    n, eps, hash_ = len(ids), config.rms_norm_eps, hash_constants(config, index)
    rows = np.concatenate([ngram_rows(ids[mine], state.tokens, config, hash_) for mine, state in spans])
    for mine, state in spans:
        _remember(state.tokens, ids[mine])
    embedding = layers.embed(rows, weights["table"]).reshape(n, config.ple_embed_dim)
    projected = layers.linear(embedding, weights["in"])
    wide = config.hc_count * config.hidden_size
    key = layers.rms_norm(projected[:, :wide].reshape(streams.shape), weights["key"], eps)
    query = layers.rms_norm(streams, weights["query"], eps)
    gated = layers.ngram_gate(key, query, projected[:, wide:])
    normed = layers.rms_norm(gated, weights["conv"], eps).reshape(n, wide)
    if journal is not None:
        journal.append(Inputs(ids, normed))
    mixed = np.concatenate(
        [
            layers.causal_conv(normed[mine], weights["conv1d.weight"], state.past, config.ngram_size)
            for mine, state in spans
        ]
    )
    return layers.add_gated(streams, gated, mixed.reshape(streams.shape))


def replay(inputs, rows, weights, config, state, layers):
    """Advance ``state`` by ``rows`` (a slice) of an earlier call, from its :class:`Inputs` alone: the bytes are those
    that :func:`forward` leaves."""
    _remember(state.tokens, inputs.ids[rows])
    layers.causal_conv(inputs.conv[rows], weights["conv1d.weight"], state.past, config.ngram_size)
