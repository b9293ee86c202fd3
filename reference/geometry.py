"""Sizes of one QSA layer: heads, dims, rope, indexer, selection budget.

Source: the published configuration of Qwen3.8-Flash-Next (`qwen4_exp`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RULES = ("blocks", "cells")


@dataclass(frozen=True)
class Geometry:
    """Sizes of one QSA layer. The defaults are the real ones; tests use smaller ones of the same shape.

    ``n_head`` query heads share ``n_head_kv`` KV heads of ``head_dim`` dims (query head h reads KV head h // group).
    The first ``n_rot`` dims of every head, and of every indexer head, are rotated in neox pairs (i, i + n_rot/2). The
    indexer has ``idx_heads`` query heads and one key of ``idx_dim`` dims per block of ``ratio`` cells. ``budget`` is in
    cells.

    Raises ValueError when the sizes contradict each other.
    """

    n_head: int = 24
    n_head_kv: int = 2
    head_dim: int = 256
    n_rot: int = 64
    rope_base: float = 1e7
    idx_heads: int = 4
    idx_dim: int = 128
    ratio: int = 4
    budget: int = 2048
    eps: float = 1e-6

    def __post_init__(self) -> None:
        for name in ("n_head", "n_head_kv", "head_dim", "n_rot", "idx_heads", "idx_dim", "ratio", "budget"):
            value = getattr(self, name)
            if not isinstance(value, (int, np.integer)) or value < 1:
                raise ValueError(f"{name} = {value!r}: a positive integer is required")
        if self.n_head % self.n_head_kv:
            raise ValueError(f"n_head = {self.n_head}: must be a multiple of n_head_kv = {self.n_head_kv}")
        if self.n_rot % 2 or self.n_rot > min(self.head_dim, self.idx_dim):
            raise ValueError(f"n_rot = {self.n_rot}: must be even and at most head_dim and idx_dim")
        if self.budget % self.ratio:
            raise ValueError(f"budget = {self.budget}: must be a multiple of ratio = {self.ratio}")

    @property
    def group(self) -> int:
        """Query heads per KV head (12)."""
        return self.n_head // self.n_head_kv

    @property
    def top_blocks(self) -> int:
        """Blocks that the rule ``blocks`` selects at most (512)."""
        return self.budget // self.ratio

    @property
    def max_width(self) -> int:
        """Cells that a row selects at most under either rule (2,051)."""
        return self.budget + self.ratio - 1

    def width(self, n_kv: int, rule: str = "blocks") -> int:
        """Cells a row with ``n_kv`` visible cells selects under ``rule``.

        ``blocks``: every cell of min(top_blocks, n_kv // ratio) blocks, plus the tail. ``cells``: min(n_kv, max_width).
        """
        return int(self.widths(np.asarray(n_kv), rule))

    def widths(self, n_kv: np.ndarray, rule: str = "blocks") -> np.ndarray:
        """:meth:`width` of every row; ``n_kv`` [rows] integers."""
        if rule not in RULES:
            raise ValueError(f"rule = {rule!r}: allowed are {', '.join(RULES)}")
        if rule == "cells":
            return np.minimum(n_kv, self.max_width)
        return np.minimum(self.top_blocks, n_kv // self.ratio) * self.ratio + n_kv % self.ratio


REAL = Geometry()


def step_records(positions: Sequence[int] | np.ndarray, rule: str = "blocks", geometry: Geometry = REAL) -> np.ndarray:
    """Step records [rows, 4] int32 (pos, n_kv, n_bid, width) of rows at ``positions``.

    A position of -1 makes the record of an unused row: nothing is read or selected for it.
    Raises ValueError on a position below -1 or too large for int32.
    """
    at = np.asarray(positions, np.int64).reshape(-1)
    for pos in at[(at < -1) | (at >= 2**31 - 1)]:
        raise ValueError(f"position = {pos}: must be from -1 to 2^31 - 2")
    steps = np.zeros((len(at), 4), np.int32)
    n_kv = at + 1
    steps[:, 0], steps[:, 1], steps[:, 2] = at, n_kv, n_kv // geometry.ratio
    steps[:, 3] = geometry.widths(n_kv, rule)
    return steps
