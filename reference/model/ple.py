"""PLE: hashed token n-grams, added to the residual streams. Source: published model code.

The hash constants follow from the configuration alone. Checkpoints also store them; :func:`check_buffers` holds the
stored ones to the derived ones.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..layers.conv import causal_conv, history
from ..layers.functions import linear, sigmoid, silu
from ..layers.norm import group_norm
from .config import Config

MASK = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15


def splitmix64(state: int) -> int:
    """One output of the splitmix64 generator whose counter is ``state`` before the step; unsigned 64-bit."""
    z = (state + GAMMA) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


@dataclass(frozen=True)
class Hash:
    """Hash constants of one PLE layer.

    ``multipliers`` [ngram_size]: one per position of the n-gram, newest first, odd, and small enough that a token id
    times a multiplier stays below 2^63. ``sizes`` [heads]: the prime that each head reduces by; ``offsets`` [heads]:
    the first table row of each head. ``rows``: rows of the table, padded.
    """

    multipliers: tuple
    sizes: tuple
    offsets: tuple
    rows: int


def _of_ple(config: Config) -> tuple[int, int]:
    """``ple_embed_dim`` and ``eos_token_id``. Raises ValueError when the configuration has no end-of-text id."""
    if config.ple_embed_dim is None or config.eos_token_id is None:
        raise ValueError("config: eos_token_id: missing: PLE needs it")
    return config.ple_embed_dim, config.eos_token_id


@lru_cache(maxsize=16)
def hash_constants(config: Config, index: int) -> Hash:
    """:class:`Hash` of the PLE layer at index ``index`` (from 0) of ``config.ple_layer_ids``.

    Head h has the (index · heads + h)-th prime at or above the base, so that no two heads of a model share one.
    """
    half = max(1, (2**63 - 1) // config.vocab_size // 2)
    start = config.seed + 10007 * index
    multipliers = tuple(
        2 * (splitmix64((start + GAMMA * (position + 1)) & MASK) % half) + 1 for position in range(config.ngram_size)
    )
    primes: list[int] = []
    number = config.ngram_vocab_size_base
    while len(primes) < (index + 1) * config.ngram_heads:
        if _is_prime(number):
            primes.append(number)
        number += 1
    sizes = primes[index * config.ngram_heads :]
    offsets = [sum(sizes[:head]) for head in range(len(sizes))]
    unit = config.make_ngram_vocab_size_divisible_by
    return Hash(multipliers, tuple(sizes), tuple(offsets), -(-sum(sizes) // unit) * unit)


def shapes(config: Config, index: int) -> dict[str, tuple[int, ...]]:
    """Tensor names and shapes of the PLE layer at index ``index`` of ``config.ple_layer_ids``."""
    wide, (embed, _) = config.hc_count * config.hidden_size, _of_ple(config)
    return {
        "key_proj.weight": (wide, embed),
        "value_proj.weight": (config.hidden_size, embed),
        "norm_key.weight": (wide,),
        "norm_query.weight": (wide,),
        "norm_conv.weight": (wide,),
        "conv1d.weight": (wide, 1, config.ple_conv_kernel_size),
        "ple_embedding.ngram_embedding.weight": (hash_constants(config, index).rows, embed // config.ngram_heads),
    }


def buffers(config: Config, index: int) -> dict[str, np.ndarray]:
    """The integer tensors that a checkpoint stores beside the weights, as derived: name → int64 array."""
    hash_ = hash_constants(config, index)
    return {
        "ple_embedding.layer_multipliers": np.array(hash_.multipliers, np.int64),
        "ple_embedding.ngram_heads_vocab_sizes": np.array(hash_.sizes, np.int64),
        "ple_embedding.ngram_heads_offsets": np.array(hash_.offsets, np.int64),
    }


def check_buffers(weights: Mapping[str, Any], config: Config, index: int) -> None:
    """Raises ValueError when a stored integer tensor differs from the derived one."""
    for name, derived in buffers(config, index).items():
        if not np.array_equal(weights[name], derived):
            raise ValueError(f"{name}: stored {weights[name].tolist()}, but the configuration gives {derived.tolist()}")


@dataclass
class State:
    """What a sequence leaves behind: ``tokens`` [ngram_size - 1] int64, the last ids, and ``past``, the last inputs of
    the convolution [(kernel - 1) · dilation, hc_count · hidden]. The dilation is ngram_size."""

    tokens: np.ndarray
    past: np.ndarray


def init_state(config: Config) -> State:
    """The state of a sequence that has not begun: missing tokens count as end of text."""
    tokens = np.full(config.ngram_size - 1, _of_ple(config)[1], np.int64)
    return State(tokens, history(config.hc_count * config.hidden_size, config.ple_conv_kernel_size, config.ngram_size))


def ngram_rows(ids: np.ndarray, before: np.ndarray, config: Config, hash_: Hash) -> np.ndarray:
    """Table rows of every token's n-grams. ``ids`` [n] int64; ``before`` [ngram_size - 1] int64: the ids before them.

    Returns [n, heads] int64; the heads of the 2-grams come first. Walking back from a token, the first end of text
    and everything older read as end of text; the token's own id cuts nothing.
    """
    (_, eos), n = _of_ple(config), len(ids)
    tokens = np.concatenate([before, ids])
    mixed = ids * hash_.multipliers[0]
    cut = np.zeros(n, bool)
    of_ngrams = np.empty((n, config.ngram_size - 1, 1), np.int64)
    for back in range(1, config.ngram_size):
        older = tokens[len(before) - back :][:n]
        cut = cut | (older == eos)
        mixed = mixed ^ (np.where(cut, eos, older) * hash_.multipliers[back])
        of_ngrams[:, back - 1, 0] = mixed
    sizes, offsets = _of_heads(hash_, config.heads_per_ngram)
    return (of_ngrams % sizes + offsets).reshape(n, -1)


@lru_cache(maxsize=16)
def _of_heads(hash_: Hash, heads: int) -> tuple[np.ndarray, np.ndarray]:
    """``sizes`` and ``offsets`` of a Hash as arrays [ngram_size - 1, heads]."""
    return np.array(hash_.sizes).reshape(-1, heads), np.array(hash_.offsets).reshape(-1, heads)


def signed_root(s: np.ndarray) -> np.ndarray:
    """sign(s) · sqrt(max(|s|, 1e-6)); 0 stays 0."""
    return np.sign(s) * np.sqrt(np.maximum(np.abs(s), 1e-6))


def forward(
    streams: np.ndarray, ids: np.ndarray, weights: Mapping[str, Any], config: Config, index: int, state: State
) -> np.ndarray:
    """What PLE adds to the streams. ``streams`` [n, hc_count, hidden] float64; ``ids`` [n] int64.

    Returns [n, hc_count, hidden] and advances ``state``. Per stream, the n-gram embedding gives a key that gates a
    value, the gate being sigmoid(signed_root(s)) of s = key · query / sqrt(hidden); to the gated value
    comes the silu of its causal convolution, normed first.
    """
    rows = ngram_rows(ids, state.tokens, config, hash_constants(config, index))
    state.tokens = np.concatenate([state.tokens, ids])[len(ids) :]
    table = weights["ple_embedding.ngram_embedding.weight"]
    embedding = np.asarray(table[rows], np.float64).reshape(len(ids), _of_ple(config)[0])
    eps = config.rms_norm_eps
    key = group_norm(
        linear(embedding, weights["key_proj.weight"]).reshape(streams.shape), weights["norm_key.weight"], eps
    )
    query = group_norm(streams, weights["norm_query.weight"], eps)
    s = np.sum(key * query, axis=-1) / np.sqrt(config.hidden_size)
    gated = sigmoid(signed_root(s))[:, :, None] * linear(embedding, weights["value_proj.weight"])[:, None, :]
    normed = group_norm(gated, weights["norm_conv.weight"], eps).reshape(len(ids), -1)
    mixed, state.past = causal_conv(normed, weights["conv1d.weight"], state.past, config.ngram_size)
    return gated + silu(mixed).reshape(streams.shape)
