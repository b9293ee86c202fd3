"""A plain float32 kernel of somebody else's: own storage, own index, nothing imported from here."""

import numpy as np


class FloatKernel:
    """Attention, selection, scores and pooled keys in plain NumPy, float32 throughout."""

    def cache(self, capacity):
        return np.zeros((2, capacity, 2, 256), np.float32)

    def append(self, cache, k, v, positions):
        cache[0, positions], cache[1, positions] = k, v

    def read(self, cache, positions):
        return cache[0, positions], cache[1, positions]

    def attend(self, q, kv, ids, steps):
        out = np.empty(q.shape, np.float32)
        for row, width in enumerate(steps[:, 3]):
            k, v = kv[:, ids[row, :width]].transpose(0, 2, 1, 3)
            s = q[row].reshape(2, 12, 256) @ k.transpose(0, 2, 1) / np.float32(16)
            p = np.exp(s - s.max(-1, keepdims=True))
            out[row] = (p @ v / p.sum(-1, keepdims=True)).reshape(24, 256)
        return out

    def index_cache(self, max_blocks, weight, rope, rope0):
        return {"keys": np.zeros((max_blocks, 128), np.float32), "weight": weight.copy(), "rope": rope.copy()}

    def index_append(self, index, raw, positions):
        blocks = len(raw) // 4
        x = raw[: blocks * 4].reshape(blocks, 4, 128).mean(1)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-6)) * index["weight"]
        cos, sin = np.split(index["rope"][:blocks], 2, axis=1)
        a, b = x[:, :32].copy(), x[:, 32:64].copy()
        x[:, :32], x[:, 32:64] = a * cos - b * sin, b * cos + a * sin
        index["keys"][:blocks] = x

    def index_read(self, index, blocks):
        return index["keys"][blocks]

    def block_scores(self, q_idx, index, steps):
        dots = np.einsum("rhd,bd->rbh", q_idx, index["keys"])
        return np.maximum(dots, 0).sum(-1)

    def select(self, scores, steps, rule):
        ids = []
        for row, (_, n_kv, n_bid, width) in zip(scores, steps.tolist(), strict=True):
            blocks = np.argsort(-row[:n_bid], kind="stable")[: 512 if rule == "blocks" else 513]
            cells = (blocks[:, None] * 4 + np.arange(4)).ravel()
            ids.append(np.concatenate([np.arange(n_bid * 4, n_kv), cells])[:width])
        return ids


class Staged(FloatKernel):
    """A float kernel that shows its stages, with a factor on one of them."""

    def __init__(self, **wrong):
        self.wrong = {"scores": 1, "weights": 1, "output": 1, **wrong}

    def stages(self, q, kv, ids):
        k, v = kv[:, ids].transpose(0, 2, 1, 3)
        s = q.reshape(2, 12, 256) @ k.transpose(0, 2, 1) / np.float32(16)
        s[0, 3] *= np.float32(self.wrong["scores"])
        p = np.exp(s - s.max(-1, keepdims=True))
        p[0, 3, 5] *= np.float32(self.wrong["weights"])
        out = (p @ v / p.sum(-1, keepdims=True)).reshape(24, 256)
        out[3] *= np.float32(self.wrong["output"])
        return {"cells": ids, "scores": s.reshape(24, -1), "weights": p.reshape(24, -1), "output": out}

    def attend(self, q, kv, ids, steps):
        return np.stack([self.stages(q[r], kv, ids[r, :n])["output"] for r, n in enumerate(steps[:, 3])])

    def attend_stages(self, q, kv, ids, steps, row):
        return self.stages(q[row], kv, ids[row, : steps[row, 3]])
