"""Fused calls: attention with its output gate, and indexer and attention in one call, held to float64 truth."""

from typing import Any

import numpy as np

from qsa.golden import inputs
from qsa.golden.recipe import window
from qsa.reference.append_index import append_index
from qsa.reference.geometry import REAL
from qsa.reference.index import Index
from qsa.reference.select import rank_blocks

from ..backend import Backend
from ..compare.comparison import Comparison, error
from ..compare.twin import slack
from ..contract import unit
from . import attend_inputs as data


def gated(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """``attend_gated`` against float64 attention times sigmoid(gate)."""
    w = data.for_backend(backend, recipe)
    gate = inputs.bell(recipe["seed"], "accuracy.gate", len(w.q), REAL.n_head * REAL.head_dim, 2.0)
    gate = backend.rounded("query", gate.reshape(w.q.shape))
    got = backend.attend_gated(w.q, gate, w.kv, w.ids, w.steps)
    attention = data.truth(w)
    expected = attention / (1 + np.exp(-gate.astype(np.float64)))
    bound, reason = data.float_bound(w, attention, backend.declaration.types)
    # Relative errors are norms: the gate shrinks some dims, and so may shrink the norm more than the error.
    ratio = np.linalg.norm(attention, axis=-1) / np.maximum(np.linalg.norm(expected, axis=-1), np.finfo(float).tiny)
    bound = bound * np.maximum(1, ratio) + 2 * unit(backend.declaration.types.output)
    reason += ", times the factor by which the gate shrinks the output, and two roundings of the gated output"
    return [error("attend_gated", expected, got, bound, reason)]


def sparse_attention(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """``sparse_attention`` against float64 over the cells that a float64 indexer selects.

    The raw keys are made so that no rounding can change the selection: the keys of the blocks that the rows attend to
    point along the indexer's queries, all others against them.
    """
    w = data.for_backend(backend, recipe)
    seed, n = recipe["seed"], int(w.steps[:, 1].max())
    steps = window({key: recipe[key] for key in ("context", "tail", "rows", "rule")})
    q_idx = inputs.bell(seed, "accuracy.q_idx", 1, REAL.idx_heads * REAL.idx_dim).reshape(1, REAL.idx_heads, -1)
    # One direction for all heads and rows: a key along it has four positive dots, one against it none.
    q_idx = np.abs(q_idx[:, :1]) + np.abs(q_idx) / 8
    q_idx = backend.rounded("index_query", np.repeat(q_idx, len(w.q), axis=0).astype(np.float32))
    weight = np.ones(REAL.idx_dim, np.float32)
    index = Index(n // REAL.ratio + 1, weight, dtype=np.float64)
    blocks = n // REAL.ratio
    wanted = np.zeros(blocks, bool)
    chosen = np.unique(w.ids[w.ids >= 0] // REAL.ratio)
    chosen = chosen[chosen < int(steps[:, 2].min())][: REAL.top_blocks]
    wanted[chosen] = True
    raw = _raw_keys(q_idx[0].sum(axis=0), wanted, index, n, seed)
    raw = backend.rounded("raw_keys", raw)
    append_index(raw, window({"context": n, "tail": 0, "rows": n, "rule": recipe["rule"]}), index)
    ids = _selected(q_idx, index, steps)
    cells = np.unique(ids[ids >= 0]).astype(np.int64)
    k, v = (
        inputs.bell(seed, f"parity.{side}", cells, REAL.n_head_kv * REAL.head_dim).reshape(-1, REAL.n_head_kv, 256)
        for side in "kv"
    )
    format = "f64" if recipe["format"] == data.OWN else recipe["format"]
    kv: Any = data.poisoned_kv(format, 4, cells, k, v, data.sparse_table(cells, 4, n, "shuffled", seed))
    if recipe["format"] == data.OWN:
        kv = backend.own_kv(k, v, cells, n)
    w = w._replace(kv=kv, ids=ids, steps=steps, cells=cells, k=k, v=v)
    got = backend.sparse_attention(w.q, q_idx, raw, index, w.kv, steps, recipe["rule"])
    expected = data.truth(w)
    bound, reason = data.float_bound(w, expected, backend.declaration.types)
    bound = bound + slack(backend.declaration.types.output)
    return [data.held(backend, "sparse_attention", w, expected, got, bound, reason)]


def _raw_keys(direction: np.ndarray, wanted: np.ndarray, index: Index, n: int, seed: int) -> np.ndarray:
    """float32 [n, idx_dim] raw keys whose block's key, pooled, normed and rotated, points along ``direction`` where
    ``wanted``, against it elsewhere, with a little noise of its own. The shares of a block's four cells sum to 4, and
    those of no other four cells do: keys that are pooled a cell late point either way."""
    half = REAL.n_rot // 2
    unit_vector = direction / np.linalg.norm(direction)
    raw = inputs.bell(seed, "accuracy.raw", n, REAL.idx_dim, 2.0**-6).astype(np.float64)
    cancelling = inputs.bell(seed, "accuracy.raw.cancelling", len(wanted), 1, 4.0).astype(np.float64)
    for block, along in enumerate(wanted):
        cos, sin = np.split(index.rope[block].astype(np.float64), 2)
        key = unit_vector.astype(np.float64).copy() * (1 if along else -1)
        a, b = key[:half].copy(), key[half : REAL.n_rot].copy()
        key[:half], key[half : REAL.n_rot] = a * cos + b * sin, b * cos - a * sin
        shares = 1 + np.array([[3], [-1], [-1], [-1]]) * cancelling[block]
        raw[block * REAL.ratio : (block + 1) * REAL.ratio] += shares * key
    return raw.astype(np.float32)


def _selected(q_idx: np.ndarray, index: Index, steps: np.ndarray) -> np.ndarray:
    """int32 [rows, 2051]: the cells of the rule ``blocks`` by float64 scores.

    Raises ValueError where the cut lies nearer than a tenth of the best score: then rounding could move it."""
    ids = np.full((len(steps), REAL.max_width), -1, np.int32)
    for row, (_, n_kv, n_bid, width) in enumerate(steps.tolist()):
        keys = index.pooled[:n_bid]
        scores = np.maximum(keys @ q_idx[row].astype(np.float64).T, 0).sum(axis=1)
        order = rank_blocks(scores)
        taken = order[: REAL.top_blocks]
        if n_bid > REAL.top_blocks and scores[taken[-1]] - scores[order[REAL.top_blocks]] < scores[taken[0]] / 10:
            raise ValueError(f"row {row}: the cut at block {taken[-1]} is too near: a fault of the inputs")
        cells = (np.sort(taken)[:, None] * REAL.ratio + np.arange(REAL.ratio)).ravel()
        ids[row, :width] = np.sort(np.concatenate([cells, np.arange(n_bid * REAL.ratio, n_kv)]))
    return ids
