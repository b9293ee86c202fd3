"""Own storage in its plainest form: cells in the order in which they were appended."""

import numpy as np

from qsa.reference.geometry import REAL
from qsa.reference.kv import PagedKV, Pool

from ..contract import rounded


class OwnCells:
    """K and V as own storage keeps them: float32 values that the type ``kind`` has."""

    def __init__(self, capacity: int, kind: str) -> None:
        self.capacity, self.kind = capacity, kind
        self.positions = np.zeros(0, np.int64)
        self.k = self.v = np.zeros((0, REAL.n_head_kv, REAL.head_dim), np.float32)

    def append(self, k: np.ndarray, v: np.ndarray, positions: np.ndarray) -> None:
        """Add cells: k, v [n, kv heads, dim] float32 at ``positions`` [n]; a cell that is there is written over."""
        kept = ~np.isin(self.positions, positions)
        self.positions = np.concatenate([self.positions[kept], positions])
        self.k, self.v = (
            np.concatenate([old[kept], rounded(new, self.kind)]) for old, new in ((self.k, k), (self.v, v))
        )

    def read(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(K, V) float32 [n, kv heads, dim] at ``positions``."""
        order = np.argsort(self.positions, kind="stable")
        at = order[np.searchsorted(self.positions, positions, sorter=order)]
        return self.k[at], self.v[at]

    def paged(self) -> PagedKV:
        """The stored cells in a pool of format f64."""
        table = np.full(self.capacity, -1, np.int32)
        table[self.positions] = np.arange(len(self.positions))
        paged = PagedKV(Pool("f64", max(1, len(self.positions)), 1), table)
        n = len(self.positions)
        paged.pool.k.codes[:n, :, 0], paged.pool.v.codes[:n, :, 0] = self.k, self.v
        return paged
