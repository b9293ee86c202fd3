"""The plain float32 kernel of somebody else's, and one that shows its stages."""

import numpy as np

from qsa.parity.prove.plain_kernel import PlainKernel as FloatKernel

__all__ = ["FloatKernel", "Staged"]


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
