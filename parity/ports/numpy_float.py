"""A plain NumPy kernel in float32 with its own storage and index: all that the contract asks of an ordinary kernel.

It declares one thing, that its ties go to the lower index; everything else is the default.
"""

from typing import Any

import numpy as np
from numpy import ndarray as Array

declaration = {"ties": "lowest"}


def cache(capacity: int) -> Array:
    return np.zeros((2, capacity, 2, 256), np.float32)


def append(cache: Array, k: Array, v: Array, positions: Array) -> None:
    cache[:, positions] = k, v


def read(cache: Array, positions: Array) -> Array:
    return cache[:, positions]


def attend(q: Array, kv: Array, ids: Any, steps: Array) -> Array:
    out = np.empty_like(q)
    for row, width in enumerate(steps[:, 3]):
        k, v = kv[:, ids[row][:width]].transpose(0, 2, 1, 3)
        s = q[row].reshape(2, 12, 256) @ k.transpose(0, 2, 1) / 16
        p = np.exp(s - s.max(axis=-1, keepdims=True))
        out[row] = (p @ v / p.sum(axis=-1, keepdims=True)).reshape(24, 256)
    return out


def attend_gated(q: Array, gate: Array, kv: Array, ids: Array, steps: Array) -> Array:
    return attend(q, kv, ids, steps) / (1 + np.exp(-gate))


def keys(raw: Array, weight: Array, rope: Array) -> Array:
    """Indexer keys [n, 128] of raw keys [n * 4, 128]: pooled, then normed, then rotated by ``rope`` [n, 64]."""
    x = raw.reshape(-1, 4, 128).mean(axis=1)
    x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(1e-6)) * weight
    a, b, rest, (cos, sin) = x[:, :32], x[:, 32:64], x[:, 64:], np.split(rope, 2, axis=1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=1)


def index_cache(max_blocks: int, weight: Array, rope: Array, rope0: Array) -> dict[str, Array]:
    return {"raw": np.zeros((max_blocks * 4, 128), np.float32), "weight": weight, "rope": rope}


def index_append(index: dict[str, Array], raw: Array, positions: Array) -> None:
    index["raw"][positions] = raw


def index_read(index: dict[str, Array], blocks: Array) -> Array:
    return keys(**index)[blocks]


def block_scores(q_idx: Array, index: dict[str, Array], steps: Array) -> Array:
    return np.maximum(np.einsum("rhd,bd->rbh", q_idx, keys(**index)), 0).sum(axis=-1)


def select(scores: Array, steps: Array, rule: str) -> list[Array]:
    ids = []
    for row, (_, n_kv, n_bid, width) in zip(scores, steps, strict=True):
        blocks = np.argsort(-row[:n_bid], kind="stable")[: 512 if rule == "blocks" else 513]
        cells = blocks[:, None] * 4 + np.arange(4)
        ids.append(np.concatenate([np.arange(n_bid * 4, n_kv), cells.ravel()])[:width])
    return ids


def indexer(q_idx: Array, raw: Array, weight: Array, rope: Array, steps: Array, rule: str) -> list[Array]:
    index = {"raw": raw[: len(raw) // 4 * 4], "weight": weight, "rope": rope[: len(raw) // 4]}
    return select(block_scores(q_idx, index, steps), steps, rule)
