"""PLE in the exact arithmetic; formulas as ``reference/model/ple.py``, whose integer hash is exact already."""

from dataclasses import dataclass

import numpy as np

from qsa.reference.exact.layers.linear import joined
from qsa.reference.model.ple import hash_constants, ngram_rows


@dataclass
class State:
    """``tokens`` [ngram_size - 1] int64, the last ids, always on the host, and ``past`` [(kernel - 1) * ngram_size,
    hc_count * hidden] float32, the last inputs of the convolution; advanced in place."""

    tokens: np.ndarray
    past: np.ndarray

    def remember(self, ids):
        """Advance ``tokens`` by ``ids`` [n] int64."""
        self.tokens[:] = np.concatenate([self.tokens, ids])[len(ids) :]


def init_state(config, to_device):
    """The state of a sequence that has not begun: missing tokens count as end of text. ``past`` is placed by
    ``to_device``."""
    past = (config.ple_conv_kernel_size - 1) * config.ngram_size, config.hc_count * config.hidden_size
    tokens = np.full(config.ngram_size - 1, config.eos_token_id, np.int64)
    return State(tokens, to_device(np.zeros(past, np.float32)))


def load(tensors, config, layers):
    """Weights of one layer as :func:`forward` takes them; key and value are one matrix."""
    shape = config.hc_count, config.hidden_size
    return {
        "in": layers.load_linear(joined([tensors["key_proj.weight"], tensors["value_proj.weight"]])),
        "table": layers.load_table(tensors["ple_embedding.ngram_embedding.weight"]),
        "conv1d.weight": tensors["conv1d.weight"],
        **{name: tensors[f"norm_{name}.weight"].reshape(shape) for name in ("key", "query", "conv")},
    }


def table_rows(ids, spans, config, index):
    """Rows [n, heads] int64 of the table that the tokens ``ids`` [n] look up; ``spans`` as in :func:`forward`. On the
    host, from the states' tokens, which stay as they are."""
    hash_ = hash_constants(config, index)
    return np.concatenate([ngram_rows(ids[mine], state.tokens, config, hash_) for mine, state in spans])


def forward(streams, rows, weights, config, spans, layers, journal=None):
    """The streams with what PLE adds. ``streams`` [n, hc_count, hidden] float32; ``rows`` [n, heads] int64 of
    :func:`table_rows`, where the table lies.

    ``spans``: (slice of the rows, :class:`State`) of every sequence in the call. A list given as ``journal`` gets the
    convolution's inputs [n, hc_count * hidden] float32, which :func:`replay` takes. Returns float32 [n, hc_count,
    hidden] and advances the convolutions' histories; the tokens are for :meth:`State.remember`.
    """
    n, eps = len(streams), config.rms_norm_eps
    embedding = layers.embed(rows, weights["table"]).reshape(n, config.ple_embed_dim)
    projected = layers.linear(embedding, weights["in"])
    wide = config.hc_count * config.hidden_size
    key = layers.rms_norm(projected[:, :wide].reshape(streams.shape), weights["key"], eps)
    query = layers.rms_norm(streams, weights["query"], eps)
    gated = layers.ngram_gate(key, query, projected[:, wide:])
    normed = layers.rms_norm(gated, weights["conv"], eps).reshape(n, wide)
    if journal is not None:
        journal.append(normed)
    mine, pasts = [mine for mine, _ in spans], [state.past for _, state in spans]
    mixed = layers.causal_conv(normed, weights["conv1d.weight"], pasts, config.ngram_size, spans=mine)
    return layers.add_gated(streams, gated, mixed.reshape(streams.shape))


def replay(conv, rows, weights, config, state, layers):
    """Advance ``state`` by ``rows`` (a slice) of an earlier call, from its convolution's inputs alone: the bytes are
    those that :func:`forward` leaves."""
    layers.causal_conv(conv[rows], weights["conv1d.weight"], state.past, config.ngram_size)
