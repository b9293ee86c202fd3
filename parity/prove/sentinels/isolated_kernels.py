"""Sentinels that run in a process of their own: plain float32 attention over own storage, and what ends or fools it.

Only what a foreign backend may use is imported here.
"""

import os
import time
from typing import Any

import numpy as np


class Right:
    """Attention in plain NumPy over K and V that it keeps itself."""

    def cache(self, capacity: int) -> np.ndarray:
        """Storage for K and V."""
        return np.zeros((2, capacity, 2, 256), np.float32)

    def append(self, cache: np.ndarray, k: np.ndarray, v: np.ndarray, positions: np.ndarray) -> None:
        """Keep them as they are."""
        cache[0, positions], cache[1, positions] = k, v

    def read(self, cache: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What is kept."""
        return cache[0, positions], cache[1, positions]

    def attend(self, q: np.ndarray, kv: np.ndarray, ids: np.ndarray, steps: np.ndarray) -> Any:
        """Attention of every row over its cells."""
        out = np.empty(q.shape, np.float32)
        for row, width in enumerate(steps[:, 3]):
            k, v = kv[:, ids[row, :width]].transpose(0, 2, 1, 3)
            s = q[row].reshape(2, 12, 256) @ k.transpose(0, 2, 1) / np.float32(16)
            p = np.exp(s - s.max(-1, keepdims=True))
            out[row] = (p @ v / p.sum(-1, keepdims=True)).reshape(24, 256)
        return out


class Ends(Right):
    """Ends its process."""

    def attend(self, q: np.ndarray, kv: np.ndarray, ids: np.ndarray, steps: np.ndarray) -> Any:
        """Never returns."""
        os._exit(3)


class Slow(Right):
    """Answers after 10 seconds: later than it may, but a judge without a limit is not held up for long."""

    def attend(self, q: np.ndarray, kv: np.ndarray, ids: np.ndarray, steps: np.ndarray) -> Any:
        """The right answer, late."""
        time.sleep(10)
        return super().attend(q, kv, ids, steps)


class Changes(Right):
    """Overwrites its query, and makes the comparison in its own process see nothing."""

    def attend(self, q: np.ndarray, kv: np.ndarray, ids: np.ndarray, steps: np.ndarray) -> Any:
        """The right answer, and another query."""
        from ...compare.input_changes import Given

        Given.check = lambda *arguments, **keywords: None  # type: ignore[method-assign]
        out = super().attend(q, kv, ids, steps)
        q[...] = 0
        return out


class Refuses(Right):
    """Has no answer."""

    def attend(self, q: np.ndarray, kv: np.ndarray, ids: np.ndarray, steps: np.ndarray) -> Any:
        """Refuses."""
        raise NotImplementedError("not today")


class Raises(Right):
    """Fails."""

    def attend(self, q: np.ndarray, kv: np.ndarray, ids: np.ndarray, steps: np.ndarray) -> Any:
        """Raises an error."""
        raise ArithmeticError("on purpose")
