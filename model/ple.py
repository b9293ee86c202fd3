"""PLE over a backend's layers; formulas as ``reference/model/ple.py``, whose integer hash is exact already."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qsa.reference.exact.layers.linear import joined
from qsa.reference.model.config import Config
from qsa.reference.model.ple import Hash, hash_constants, ngram_rows


@dataclass
class State:
    """The state of one layer and sequence, advanced in place.

    tokens  [ngram_size - 1] int64, the last ids; always on the host
    past    [(kernel - 1) * ngram_size, hc_count * hidden] float32, the last inputs of the convolution
    """

    tokens: np.ndarray
    past: np.ndarray

    def remember(self, ids: np.ndarray) -> None:
        """Advance ``tokens`` by ``ids`` [n] int64."""
        self.tokens[:] = np.concatenate([self.tokens, ids])[len(ids) :]


def init_state(config: Config, to_device: Callable[[Any], Any]) -> State:
    """The initial state of a sequence: missing tokens count as end of text. ``past`` is moved by ``to_device``."""
    past = (config.ple_conv_kernel_size - 1) * config.ngram_size, config.hc_count * config.hidden_size
    tokens = np.full(config.ngram_size - 1, config.eos_token_id, np.int64)
    return State(tokens, to_device(np.zeros(past, np.float32)))


def load(tensors: Mapping[str, Any], config: Config, layers: Any) -> dict[str, Any]:
    """The weights of one layer in the form of :func:`forward`. Key and value projections are one matrix."""
    shape = config.hc_count, config.hidden_size
    return {
        "in": layers.load_linear(joined([tensors["key_proj.weight"], tensors["value_proj.weight"]])),
        "table": layers.load_table(tensors["ple_embedding.ngram_embedding.weight"]),
        "conv1d.weight": tensors["conv1d.weight"],
        **{name: tensors[f"norm_{name}.weight"].reshape(shape) for name in ("key", "query", "conv")},
    }


def table_rows(ids: np.ndarray, spans: Sequence[tuple[slice, State]], config: Config, index: int) -> np.ndarray:
    """Rows [n, heads] int64 of the table that the tokens ``ids`` [n] look up; ``spans`` as in :func:`forward`.

    It runs on the host and reads the states' tokens without changing them.
    """
    hash_ = hash_constants(config, index)
    if len(ids) == 1:
        return _rows_of_one(int(ids[0]), spans[0][1].tokens.tolist(), config, hash_)
    return np.concatenate([ngram_rows(ids[span], state.tokens, config, hash_) for span, state in spans])


def _rows_of_one(token: int, before: list[int], config: Config, hash_: Hash) -> np.ndarray:
    """``ngram_rows`` of a single token in Python's integers: a few of them take less time than any array.

    A device waits for it between two windows of one row.
    """
    eos = config.eos_token_id
    assert eos is not None, "a configuration with PLE has an end of text"
    rows, mixed, cut, head = [], token * hash_.multipliers[0], False, 0
    for back in range(1, config.ngram_size):
        cut = cut or before[-back] == eos
        mixed ^= (eos if cut else before[-back]) * hash_.multipliers[back]
        for _ in range(config.heads_per_ngram):
            rows.append(mixed % hash_.sizes[head] + hash_.offsets[head])
            head += 1
    return np.array([rows], np.int64)


def forward(
    streams: np.ndarray,
    rows: np.ndarray,
    weights: Mapping[str, Any],
    config: Config,
    spans: Sequence[tuple[slice, State]],
    layers: Any,
    journal: list | None = None,
    bounds: Any = None,
) -> np.ndarray:
    """Add PLE's output to the streams.

    streams  [n, hc_count, hidden] float32
    rows     [n, heads] int64 of :func:`table_rows`, on the side (host or device) where the table is
    spans    (slice of the rows, :class:`State`) of every sequence in the call
    journal  None, or a list to which the convolution's inputs [n, hc_count * hidden] float32 are appended, for
             :func:`replay`
    bounds   None, or the rows that are in use, as ``qsa.Rows`` has them

    Returns float32 [n, hc_count, hidden] and advances the convolution's past inputs. The tokens are advanced by
    :meth:`State.remember`.
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
    row_spans, pasts = [span for span, _ in spans] if bounds is None else bounds, [state.past for _, state in spans]
    mixed = layers.causal_conv(normed, weights["conv1d.weight"], pasts, config.ngram_size, spans=row_spans)
    return layers.add_gated(streams, gated, mixed.reshape(streams.shape))


def replay(
    conv: np.ndarray, rows: slice, weights: Mapping[str, Any], config: Config, state: State, layers: Any
) -> None:
    """Advance ``state`` by ``rows`` of an earlier call, from the convolution's inputs ``conv``. The resulting bytes are
    those that :func:`forward` leaves."""
    layers.causal_conv(conv[rows], weights["conv1d.weight"], state.past, config.ngram_size)


def replay_kept(
    conv: np.ndarray, bounds: Any, weights: Mapping[str, Any], config: Config, states: Sequence[State], layers: Any
) -> None:
    """:func:`replay` of several sequences at once, as ``deltanet.replay_kept``."""
    pasts = [state.past for state in states]
    layers.causal_conv(conv, weights["conv1d.weight"], pasts, config.ngram_size, spans=bounds)
