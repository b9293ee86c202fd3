"""A right float32 kernel as somebody else would write it: own storage, own index, nothing of this project imported.

Cheats and sentinels are made of it (``cheats.py``, ``sentinels/``). Its functions are those of docs/contract.md.
"""

from typing import Any

import numpy as np


class PlainKernel:
    """Attention, selection, scores and pooled keys in plain NumPy, float32 throughout, of the real geometry."""

    def cache(self, capacity: int) -> np.ndarray:
        """Storage for K and V of ``capacity`` cells: float32 (2, capacity, 2, 256)."""
        return np.zeros((2, capacity, 2, 256), np.float32)

    def append(self, cache: np.ndarray, k: np.ndarray, v: np.ndarray, positions: np.ndarray) -> None:
        """Keep float32 (rows, 2, 256) ``k`` and ``v`` as they are."""
        cache[0, positions], cache[1, positions] = k, v

    def read(self, cache: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """K and V that are kept, float32 (rows, 2, 256) each."""
        return cache[0, positions], cache[1, positions]

    def attend(self, q: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray) -> Any:
        """Attention of every row of ``q``, float32 (rows, 24, 256), over its cells."""
        out = np.empty(q.shape, np.float32)
        for row, width in enumerate(steps[:, 3]):
            k, v = kv[:, ids[row, :width]].transpose(0, 2, 1, 3)
            s = q[row].reshape(2, 12, 256) @ k.transpose(0, 2, 1) / np.float32(16)
            p = np.exp(s - s.max(-1, keepdims=True))
            out[row] = (p @ v / p.sum(-1, keepdims=True)).reshape(24, 256)
        return out

    def index_cache(self, max_blocks: int, weight: np.ndarray, rope: np.ndarray, rope0: np.ndarray) -> dict[str, Any]:
        """An index of ``max_blocks`` pooled keys."""
        return {"keys": np.zeros((max_blocks, 128), np.float32), "weight": weight.copy(), "rope": rope.copy()}

    def index_append(self, index: dict[str, Any], raw: np.ndarray, positions: np.ndarray) -> None:
        """Pool the keys of whole blocks, from position 0 on: mean, norm, rotation by half."""
        blocks = len(raw) // 4
        x = raw[: blocks * 4].reshape(blocks, 4, 128).mean(1)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-6)) * index["weight"]
        cos, sin = np.split(index["rope"][:blocks], 2, axis=1)
        a, b = x[:, :32].copy(), x[:, 32:64].copy()
        x[:, :32], x[:, 32:64] = a * cos - b * sin, b * cos + a * sin
        index["keys"][:blocks] = x

    def index_read(self, index: dict[str, Any], blocks: np.ndarray) -> np.ndarray:
        """Pooled keys, float32 (blocks, 128)."""
        return index["keys"][blocks]

    def block_scores(self, q_idx: np.ndarray, index: dict[str, Any], steps: np.ndarray) -> Any:
        """Scores of every block, the sum over heads of relu(q · k)."""
        dots = np.einsum("rhd,bd->rbh", q_idx, index["keys"])
        return np.maximum(dots, 0).sum(-1)

    def select(self, scores: np.ndarray, steps: np.ndarray, rule: str) -> Any:
        """Cells of the best blocks of every row, the tail first."""
        ids = []
        for row, (_, n_kv, n_bid, width) in zip(scores, steps.tolist(), strict=True):
            blocks = np.argsort(-row[:n_bid], kind="stable")[: 512 if rule == "blocks" else 513]
            cells = (blocks[:, None] * 4 + np.arange(4)).ravel()
            ids.append(np.concatenate([np.arange(n_bid * 4, n_kv), cells])[:width])
        return ids
