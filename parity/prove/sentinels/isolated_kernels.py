"""Sentinels that run in a process of their own: plain float32 attention over own storage, and what ends or fools it.

Only what a foreign backend may use is imported here.
"""

import os
import time
from typing import Any

import numpy as np

from ..plain_kernel import PlainKernel


class Ends(PlainKernel):
    """Ends its process."""

    def attend(self, q: np.ndarray, kv: np.ndarray, ids: np.ndarray, steps: np.ndarray) -> Any:
        """Never returns."""
        os._exit(3)


class Slow(PlainKernel):
    """Answers after 10 seconds: later than it may, but a judge without a limit is not held up for long."""

    def attend(self, q: np.ndarray, kv: np.ndarray, ids: np.ndarray, steps: np.ndarray) -> Any:
        """The right answer, late."""
        time.sleep(10)
        return super().attend(q, kv, ids, steps)


class Changes(PlainKernel):
    """Overwrites its query, and makes the comparison in its own process see nothing."""

    def attend(self, q: np.ndarray, kv: np.ndarray, ids: np.ndarray, steps: np.ndarray) -> Any:
        """The right answer, and another query."""
        from ...compare.input_changes import Given

        Given.check = lambda *arguments, **keywords: None  # type: ignore[method-assign]
        out = super().attend(q, kv, ids, steps)
        q[...] = 0
        return out


class Refuses(PlainKernel):
    """Has no answer."""

    def attend(self, q: np.ndarray, kv: np.ndarray, ids: np.ndarray, steps: np.ndarray) -> Any:
        """Refuses."""
        raise NotImplementedError("not today")


class Raises(PlainKernel):
    """Fails."""

    def attend(self, q: np.ndarray, kv: np.ndarray, ids: np.ndarray, steps: np.ndarray) -> Any:
        """Raises an error."""
        raise ArithmeticError("on purpose")
