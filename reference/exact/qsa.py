"""One QSA layer in the exact arithmetic, over the five operations; formulas as ``reference/qsa.py``.

The draft layer has the same tensors and attends densely to its last cells instead of selecting.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..geometry import step_records
from ..index import Index
from ..kv import PagedKV
from ..rope import rope_table
from .linear import joined


@dataclass
class State:
    """The cells of one sequence in one layer: ``kv`` and ``index``; ``index`` is None in the draft layer."""

    kv: PagedKV
    index: Index | None


class Rows(NamedTuple):
    """What the QSA layers of one call share: ``steps`` [n, 4] int32, ``table`` [n, n_rot] float32 of the rotation at
    each row's position, ``slots`` [n] int32: the sequence of each row, ``spans``: the slice of each sequence."""

    steps: np.ndarray
    table: np.ndarray
    slots: np.ndarray
    spans: list


def rows_of(starts, counts, geometry, rule):
    """:class:`Rows` of ``counts`` rows from position ``starts`` on, for every sequence."""
    positions = np.concatenate([np.arange(start, start + count) for start, count in zip(starts, counts, strict=True)])
    ends = np.cumsum(counts)
    spans = [slice(int(end) - count, int(end)) for end, count in zip(ends, counts, strict=True)]
    table = rope_table(positions, geometry.n_rot, geometry.rope_base)
    slots = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    return Rows(step_records(positions, rule, geometry), table, slots, spans)


def load(tensors, geometry, layers):
    """Weights of one layer as :func:`forward` takes them; all projections of x are one matrix."""
    first = "q_proj", "k_proj", "v_proj", "indexer.index_qk_proj"
    return {
        "in": layers.load_linear(joined([tensors[name + ".weight"] for name in first])),
        "out": layers.load_linear(tensors["o_proj.weight"]),
        "q": tensors["q_norm.weight"],
        "k": tensors["k_norm.weight"],
        "q_idx": tensors["indexer.q_layernorm.weight"],
        "k_idx": tensors["indexer.k_layernorm.weight"],
    }


def init_state(weights, geometry, capacity, page_size=4, kv_format="int8", indexer=True):
    """The state of a sequence that has not begun, with room for ``capacity`` cells."""
    blocks = capacity // geometry.ratio + 1
    index = Index(blocks, weights["k_idx"], geometry) if indexer else None
    return State(PagedKV.new(kv_format, capacity, page_size, geometry), index)


def forward(x, weights, geometry, rows, states, backend, rule="blocks", window=None, journal=None):
    """Append the cells of ``x`` [n, hidden] float32 and answer them; ``states``: one per sequence of ``rows``.

    ``backend`` is a module with the five operations and ``layers``. With ``window``, a number or one for every row, a
    row attends to its last ``window`` cells, densely and without an indexer. A list given as ``journal`` gets the raw
    indexer keys [n, idx_dim] float32, which :func:`replay` takes.
    Returns float32 [n, hidden] and advances the states. Raises ValueError when the cells do not fit, when K or V has
    values that no scale can hold, or when the backend refuses an operation.
    """
    g, n, layers = geometry, len(x), backend.layers
    sizes = 2 * g.n_head * g.head_dim, g.n_head_kv * g.head_dim, g.n_head_kv * g.head_dim, g.idx_heads * g.idx_dim
    q, k, v, q_idx, raw = np.split(layers.linear(x, weights["in"]), np.cumsum(sizes), axis=1)
    q, gate = np.split(q.reshape(n, g.n_head, 2 * g.head_dim), 2, axis=-1)
    q = layers.rotate(layers.rms_norm(q, weights["q"], g.eps), rows.table)
    k = layers.rotate(layers.rms_norm(k.reshape(n, g.n_head_kv, g.head_dim), weights["k"], g.eps), rows.table)
    kvs = [state.kv for state in states]
    _carried_out(backend.append_kv(k, v.reshape(n, g.n_head_kv, g.head_dim), kvs, rows.steps, rows.slots), "append_kv")
    if window is None:
        q_idx = layers.rms_norm(q_idx.reshape(n, g.idx_heads, g.idx_dim), weights["q_idx"], g.eps)
        if journal is not None:
            journal.append(raw)
        steps, ids = rows.steps, _select(layers.rotate(q_idx, rows.table), raw, g, rows, states, backend, rule)
    else:
        steps, ids = last_cells(rows.steps, window)
    out = _carried_out(backend.attend(q, kvs, ids, steps, rows.slots), "attend")
    out = layers.sigmoid_gate(out, gate)
    return layers.linear(out.reshape(n, g.n_head * g.head_dim), weights["out"])


def _carried_out(result, operation):
    """``result``, unless it says that the operation was refused: a model has no other schedule to fall back on."""
    if result is False:
        raise ValueError(f"{operation}: the backend refuses this geometry or K/V format")
    return result


def _select(q_idx, raw, geometry, rows, states, backend, rule):
    """Append the raw keys and select: ids [n, max_width] int32."""
    ids = np.empty((len(raw), geometry.max_width), np.int32)
    for mine, state in zip(rows.spans, states, strict=True):
        steps = rows.steps[mine]
        _carried_out(backend.append_index(raw[mine], steps, state.index), "append_index")
        if steps[-1, 2] <= geometry.top_blocks:
            # Every cell is selected: no score can change that.
            scores = np.zeros((len(steps), steps[-1, 2]), np.float32)
        else:
            scores = backend.block_scores(q_idx[mine], state.index, steps)
        backend.select(scores, steps, ids[mine], rule=rule, geometry=geometry)
    return ids


def last_cells(steps, window):
    """Steps and ids [n, widest] int32 under which every row selects its last ``window`` cells, itself among them;
    ``window``: a number or [n]."""
    first = np.maximum(steps[:, 1] - window, 0)
    width = steps[:, 1] - first
    ids = first[:, None] + np.arange(width.max(initial=0), dtype=np.int32)
    ids = np.where(ids < steps[:, 1:2], ids, -1).astype(np.int32)
    return np.column_stack([steps[:, :3], width]).astype(np.int32), ids


def replay(raw, steps, state, backend):
    """Append the raw indexer keys of rows of an earlier call to ``state``, whose tail is that from before the call. K/V
    stay as the call wrote them."""
    _carried_out(backend.append_index(raw, steps, state.index), "append_index")
