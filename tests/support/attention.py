"""Attention problems for tests: K/V in a format behind any page table, and a row's cells."""

import numpy as np

from qsa.reference import append_kv
from qsa.reference.geometry import REAL, Geometry
from qsa.reference.kv import PagedKV

SMALL = Geometry(n_head=4, n_head_kv=2, head_dim=64, n_rot=16, idx_heads=2, idx_dim=32, budget=32)
"""A geometry of a tenth of the real one's work: 2 KV heads, groups of 64 and 32 dims, a rotation of 64."""


def fill(rng, n, fmt, page_size=4, geometry=REAL, shuffle=True, spread=1.0):
    """(PagedKV of ``n`` cells, K, V): normal K, V with magnitudes spread by a log-normal factor of ``spread``."""
    shape = (n, geometry.n_head_kv, geometry.head_dim)
    k = rng.standard_normal(shape).astype(np.float32)
    v = (rng.standard_normal(shape) * np.exp(spread * rng.standard_normal((*shape[:2], 1)))).astype(np.float32)
    return store(k, v, fmt, page_size, geometry, rng if shuffle else None), k, v


def store(k, v, fmt, page_size=4, geometry=REAL, rng=None):
    """K and V [n, n_head_kv, head_dim] in a new PagedKV; the page table is shuffled by ``rng`` when given."""
    n = len(k)
    pages = max(1, -(-n // page_size))
    table = np.arange(pages) if rng is None else rng.permutation(pages)
    kv = PagedKV.new(fmt, n, page_size, geometry, table)
    steps = np.zeros((n, 4), np.int32)
    steps[:, 0] = np.arange(n)
    append_kv(k, v, kv, steps)
    return kv


def record(width, n_kv=None):
    """A step record [1, 4] with ``width`` chosen freely: attention reads nothing else."""
    n_kv = width if n_kv is None else n_kv
    return np.array([[n_kv - 1, n_kv, n_kv // 4, width]], np.int32)
