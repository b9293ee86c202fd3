"""Plain float32 kernels over our pools, as mutants of the float arithmetic are made of them.

Attention goes through NumPy's matrix product; nothing here is exact. What a call gives is kept as in
``right_kernels.py``.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from qsa.reference.append_kv import slots_of
from qsa.reference.attend import selected_cells
from qsa.reference.block_scores import TAIL_BONUS
from qsa.reference.formats import rotate
from qsa.reference.kv import PagedKV

from ..compare.remembered import remembered
from . import right_kernels

LIMIT = np.float32(2.0**24)
"""Scores are clamped here, so that an infinite one is no NaN."""


@remembered
def plain_attend(q: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray, slots: Any) -> np.ndarray:
    """float32 [rows, heads, dim]; arguments as ``reference.attend``."""
    kvs, slots = slots_of(len(q), kv, slots)
    out = np.zeros(q.shape, np.float32)
    for row, width in enumerate(steps[:, 3].tolist()):
        out[row] = attend_row(q[row], kvs[slots[row]], ids[row], width)
    return out


def attend_row(q: np.ndarray, kv: PagedKV, ids: np.ndarray, width: int) -> np.ndarray:
    """float32 [heads, dim] of one row over its first ``width`` ids."""
    k, v = (x.astype(np.float32) for x in selected_cells(kv, ids, width).values())
    if not len(k):
        return np.zeros(q.shape, np.float32)
    q = rotate(q) if kv.pool.k.coding == "q4_0" else q
    out = softmax(q, k, v)
    out = rotate(out) if kv.pool.v.coding == "q4_0" else out
    out[~np.isfinite(q).all(axis=-1)] = np.nan
    return out


def softmax(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """float32 [heads, dim] of q [heads, dim] over k and v [n, kv heads, dim]."""
    grouped = q.reshape(k.shape[1], -1, q.shape[-1])
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        s = grouped @ k.transpose(1, 2, 0) * np.float32(q.shape[-1] ** -0.5)
        s = np.fmax(np.fmin(s, LIMIT), -LIMIT)
        p = np.exp(s - s.max(axis=-1, keepdims=True))
        out = p @ v.transpose(1, 0, 2) / p.sum(axis=-1, keepdims=True)
    return out.reshape(q.shape)


def attend(a: Any) -> np.ndarray:
    """float32 [rows, heads, dim]."""
    return plain_attend(a.q, a.kv, a.ids, a.steps, a.slots).copy()


@remembered
def _scores(q: np.ndarray, index: Any, steps: np.ndarray) -> np.ndarray:
    out = np.full((len(q), index.max_blocks), -np.inf, np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for row, (_, n_kv, n_bid, _) in enumerate(steps.tolist()):
            if not n_kv:
                continue
            # Encoded keys are decoded; the query stays float32.
            keys = np.concatenate([index.pooled_values(slice(n_bid)), index.dead_values()[None]])
            dots = keys.astype(np.float32) @ q[row].T
            score = np.where(dots <= 0, np.float32(0), dots).sum(axis=1, dtype=np.float32)
            if n_kv % index.geometry.ratio:
                score[n_bid] += np.float32(TAIL_BONUS)
            out[row, : n_bid + 1] = score
    return out


def block_scores(a: Any) -> np.ndarray:
    """float32 [rows, max_blocks]."""
    return _scores(a.q_idx, a.index, a.steps).copy()


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    **right_kernels.OPERATIONS,
    "attend": attend,
    "block_scores": block_scores,
}
