"""One QSA layer: indexer, selection, attention over the selected cells, output gate. Source: published model code.

The layer is two steps: :func:`append` puts the keys and values of new cells into the state, :func:`query` answers rows
from it. A row at position p sees the cells 0 to p alone, however many the state already holds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..attend import softmax_attention
from ..geometry import Geometry, step_records
from ..layers.functions import linear, sigmoid
from ..layers.norm import rms_norm
from ..layers.rope import cos_sin, rotate
from ..select import select


def shapes(geometry: Geometry, hidden: int) -> dict[str, tuple[int, ...]]:
    """Tensor names and shapes. ``q_proj`` gives, head by head, the head's query and then its gate; ``index_qk_proj``
    gives the indexer's query heads and then its one raw key."""
    g = geometry
    return {
        "q_proj.weight": (g.n_head * 2 * g.head_dim, hidden),
        "k_proj.weight": (g.n_head_kv * g.head_dim, hidden),
        "v_proj.weight": (g.n_head_kv * g.head_dim, hidden),
        "o_proj.weight": (hidden, g.n_head * g.head_dim),
        "q_norm.weight": (g.head_dim,),
        "k_norm.weight": (g.head_dim,),
        "indexer.index_qk_proj.weight": ((g.idx_heads + 1) * g.idx_dim, hidden),
        "indexer.q_layernorm.weight": (g.idx_dim,),
        "indexer.k_layernorm.weight": (g.idx_dim,),
    }


@dataclass
class State:
    """The cells of one sequence, float64.

    ``k`` (normed, rotated), ``v`` [n, n_head_kv, head_dim]; ``pooled`` [n // ratio, idx_dim]: the key of every complete
    block; ``raw`` [n % ratio, idx_dim]: the raw indexer keys of the tail, which the block's pooled key will need.
    """

    k: np.ndarray
    v: np.ndarray
    pooled: np.ndarray
    raw: np.ndarray


def init_state(geometry: Geometry) -> State:
    """The state of a sequence that has not begun: no cells."""
    g = geometry
    kv, index = (0, g.n_head_kv, g.head_dim), (0, g.idx_dim)
    return State(np.empty(kv), np.empty(kv), np.empty(index), np.empty(index))


def append(x: np.ndarray, weights: Mapping[str, Any], geometry: Geometry, state: State) -> None:
    """Append the cells of ``x`` [n, hidden] float64 at the next positions; advances ``state``.

    The raw keys of a complete block are pooled (mean), then normed, then rotated at the block's first position.
    """
    g, n = geometry, len(x)
    table = cos_sin(np.arange(len(state.k), len(state.k) + n), g.n_rot, g.rope_base)
    k = linear(x, weights["k_proj.weight"]).reshape(n, g.n_head_kv, g.head_dim)
    k = rotate(rms_norm(k, weights["k_norm.weight"], g.eps), table)
    v = linear(x, weights["v_proj.weight"]).reshape(n, g.n_head_kv, g.head_dim)
    state.k, state.v = np.concatenate([state.k, k]), np.concatenate([state.v, v])

    _, key_weight = _index_weights(weights, g)
    raw = np.concatenate([state.raw, linear(x, key_weight)])
    n_new, first = len(raw) // g.ratio, len(state.pooled)
    pooled = raw[: n_new * g.ratio].reshape(n_new, g.ratio, g.idx_dim).mean(axis=1)
    pooled = rms_norm(pooled, weights["indexer.k_layernorm.weight"], g.eps)
    pooled = rotate(pooled, cos_sin(np.arange(first, first + n_new) * g.ratio, g.n_rot, g.rope_base))
    state.pooled = np.concatenate([state.pooled, pooled])
    state.raw = raw[n_new * g.ratio :].copy()


def query(
    x: np.ndarray,
    positions: Sequence[int] | np.ndarray,
    weights: Mapping[str, Any],
    geometry: Geometry,
    state: State,
    rule: str = "blocks",
) -> tuple[np.ndarray, np.ndarray]:
    """Answer the rows ``x`` [n, hidden] float64 at ``positions`` [n], whose own cells the state already holds.

    Returns ``y`` [n, hidden] float64 and ``selected`` [n, cells in the state] bool.
    Raises ValueError on a position without a cell.
    """
    g, n = geometry, len(x)
    steps = step_records(positions, rule, g)
    if steps[:, 0].min() < 0 or steps[:, 0].max() >= len(state.k):
        raise ValueError(f"positions from {min(positions)} to {max(positions)}: the state holds {len(state.k)} cells")
    table = cos_sin(positions, g.n_rot, g.rope_base)
    q, gate = np.split(linear(x, weights["q_proj.weight"]).reshape(n, g.n_head, 2 * g.head_dim), 2, axis=-1)
    q = rotate(rms_norm(q, weights["q_norm.weight"], g.eps), table)

    query_weight, _ = _index_weights(weights, g)
    q_idx = linear(x, query_weight).reshape(n, g.idx_heads, g.idx_dim)
    q_idx = rotate(rms_norm(q_idx, weights["indexer.q_layernorm.weight"], g.eps), table)

    out = np.empty((n, g.n_head, g.head_dim))
    selected = np.zeros((n, len(state.k)), bool)
    for row in range(n):
        scores = score_blocks(q_idx[row], state.pooled[: steps[row, 2]])
        cells = select(scores[None], steps[row : row + 1], rule=rule, geometry=g)[0, : steps[row, 3]]
        selected[row, cells] = True
        out[row] = softmax_attention(q[row], state.k[cells], state.v[cells])
    return linear((out * sigmoid(gate)).reshape(n, -1), weights["o_proj.weight"]), selected


def score_blocks(q_idx: np.ndarray, pooled: np.ndarray) -> np.ndarray:
    """Sum over the indexer heads of relu(head · key). ``q_idx`` [idx_heads, idx_dim]; ``pooled`` [blocks, idx_dim].

    Returns [blocks] float64. The published code divides by sqrt(idx_dim) as well, which changes no order.
    """
    return np.maximum(q_idx @ pooled.T, 0.0).sum(axis=0)


def _index_weights(weights: Mapping[str, Any], geometry: Geometry) -> list[np.ndarray]:
    """The two parts of ``index_qk_proj``: query heads [idx_heads · idx_dim, hidden], raw key [idx_dim, hidden]."""
    return np.split(weights["indexer.index_qk_proj.weight"], [geometry.idx_heads * geometry.idx_dim])


def forward(
    x: np.ndarray, weights: Mapping[str, Any], geometry: Geometry, state: State, rule: str = "blocks"
) -> tuple[np.ndarray, np.ndarray]:
    """Append the cells of ``x`` [n, hidden] float64 and answer them. Returns as :func:`query`; advances ``state``."""
    first = len(state.k)
    append(x, weights, geometry, state)
    return query(x, np.arange(first, first + len(x)), weights, geometry, state, rule)
