"""One QSA layer in the exact arithmetic, over the five operations; formulas as ``reference/model/qsa.py``.

The draft layer has the same tensors and attends densely to its last cells instead of selecting.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from qsa.reference.exact.layers.linear import joined
from qsa.reference.geometry import step_records
from qsa.reference.index import Index
from qsa.reference.kv import PagedKV
from qsa.reference.layers.rope import rope_table


@dataclass
class State:
    """The cells of one sequence in one layer: ``kv`` and ``index``; ``index`` is None in the draft layer."""

    kv: PagedKV
    index: Index | None


class Rows(NamedTuple):
    """What the QSA layers of one call share: ``steps`` [n, 4] int32, ``table`` [n, n_rot] float32 of the rotation at
    each row's position, ``slots`` [n] int32: the sequence of each row, ``spans``: the slice of each sequence.

    These three arrays lie where the backend computes. ``host``: the steps on the host, from which it is decided what
    can be left out; None where a call is recorded for other steps than today's, so that nothing may be left out.
    """

    steps: np.ndarray
    table: np.ndarray
    slots: np.ndarray
    spans: list
    host: np.ndarray | None

    def placed(self, to_device):
        """The same with its arrays moved by ``to_device``."""
        return self._replace(**{name: to_device(getattr(self, name)) for name in ("steps", "table", "slots")})


def rows_of(starts, counts, geometry, rule):
    """:class:`Rows` of ``counts`` rows from position ``starts`` on, for every sequence."""
    positions = np.concatenate([np.arange(start, start + count) for start, count in zip(starts, counts, strict=True)])
    ends = np.cumsum(counts)
    spans = [slice(int(end) - count, int(end)) for end, count in zip(ends, counts, strict=True)]
    table = rope_table(positions, geometry.n_rot, geometry.rope_base)
    slots = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    steps = step_records(positions, rule, geometry)
    return Rows(steps, table, slots, spans, steps)


def load(tensors, geometry, layers):
    """Weights of one layer as :func:`forward` takes them; all projections of x are one matrix. ``k_idx``, which an
    index holds, stays on the host."""
    first = "q_proj", "k_proj", "v_proj", "indexer.index_qk_proj"
    return {
        "in": layers.load_linear(joined([tensors[name + ".weight"] for name in first])),
        "out": layers.load_linear(tensors["o_proj.weight"]),
        "q": tensors["q_norm.weight"],
        "k": tensors["k_norm.weight"],
        "q_idx": tensors["indexer.q_layernorm.weight"],
        "k_idx": tensors["indexer.k_layernorm.weight"],
    }


def init_state(weights, geometry, to_device, capacity, page_size=4, kv_format="int8", indexer=True):
    """The state of a sequence that has not begun, with room for ``capacity`` cells, placed by ``to_device``."""
    # Rows of scores that are a multiple of 16 bytes: a slot's part of a batch's scores is then aligned.
    blocks = -(-(capacity // geometry.ratio + 1) // 4) * 4
    index = to_device(Index(blocks, weights["k_idx"], geometry)) if indexer else None
    return State(to_device(PagedKV.new(kv_format, capacity, page_size, geometry)), index)


def forward(x, weights, geometry, rows, states, backend, rule="blocks", widest=None, journal=None, together=False):
    """Append the cells of ``x`` [n, hidden] float32 and answer them; ``states``: one per sequence of ``rows``.

    ``backend`` is a module with the five operations and ``layers``. With ``widest``, a row attends to its last cells,
    as many as its step's width and at most ``widest``, without an indexer. A list given as ``journal`` gets the raw
    indexer keys [n, idx_dim] float32, which :func:`replay` takes. ``together``: one selection and one attention for all
    sequences, else one for each; the bytes are the same.
    Returns float32 [n, hidden] and advances the states. Raises ValueError when the cells do not fit, when K or V has
    values that no scale can hold, or when the backend refuses an operation.
    """
    g, n, layers = geometry, len(x), backend.layers
    sizes = 2 * g.n_head * g.head_dim, g.n_head_kv * g.head_dim, g.n_head_kv * g.head_dim, g.idx_heads * g.idx_dim
    projected, ends = layers.linear(x, weights["in"]), np.cumsum([0, *sizes, g.idx_dim]).tolist()
    q, k, v, q_idx, raw = (projected[:, begin:end] for begin, end in pairwise(ends))
    q = q.reshape(n, g.n_head, 2 * g.head_dim)
    q, gate = q[:, :, : g.head_dim], q[:, :, g.head_dim :]
    q = layers.rotate(layers.rms_norm(q, weights["q"], g.eps), rows.table)
    k = layers.rotate(layers.rms_norm(k.reshape(n, g.n_head_kv, g.head_dim), weights["k"], g.eps), rows.table)
    v, raw = _compact(v).reshape(n, g.n_head_kv, g.head_dim), _compact(raw)
    kvs = [state.kv for state in states]
    _carried_out(backend.append_kv(k, v, kvs, rows.steps, rows.slots), "append_kv")
    if widest is None:
        q_idx = layers.rms_norm(q_idx.reshape(n, g.idx_heads, g.idx_dim), weights["q_idx"], g.eps)
        if journal is not None:
            journal.append(raw)
        ids = _select(layers.rotate(q_idx, rows.table), raw, g, rows, states, backend, rule, together)
    else:
        ids = layers.last_cells(rows.steps, widest)
    if together or len(kvs) == 1:
        out = _carried_out(backend.attend(q, kvs, ids, rows.steps, rows.slots), "attend")
    else:
        out = np.empty_like(q)
        for mine, kv in zip(rows.spans, kvs, strict=True):
            _carried_out(backend.attend(q[mine], kv, ids[mine], rows.steps[mine], None, out[mine]), "attend")
    out = layers.sigmoid_gate(out, gate)
    return layers.linear(out.reshape(n, g.n_head * g.head_dim), weights["out"])


def _compact(x):
    """``x`` as what appends takes: C-contiguous."""
    return x if x.flags.c_contiguous else x.copy()


def _carried_out(result, operation):
    """``result``, unless it says that the operation was refused: a model has no other schedule to fall back on."""
    if result is False:
        raise ValueError(f"{operation}: the backend refuses this geometry or K/V format")
    return result


def _select(q_idx, raw, geometry, rows, states, backend, rule, together):
    """Append the raw keys and select: ids [n, max_width and up to 3 more, -1] int32."""
    n, blocks = len(raw), {state.index.max_blocks for state in states}
    # Rows of ids that are a multiple of 16 bytes: a sequence's part is then aligned.
    ids = np.empty_like(rows.steps, shape=(n, -(-geometry.max_width // 4) * 4))
    together = together and len(states) > 1 and len(blocks) == 1
    scores = np.empty_like(q_idx, shape=(n, *blocks)) if together else None
    for mine, state in zip(rows.spans, states, strict=True):
        steps, queries = rows.steps[mine], q_idx[mine]
        _carried_out(backend.append_index(raw[mine], steps, state.index), "append_index")
        if together:
            _carried_out(backend.block_scores(queries, state.index, steps, scores[mine]), "block_scores")
            continue
        if rows.host is not None and rows.host[mine][-1, 2] <= geometry.top_blocks:
            # Every cell is selected: no score can change that.
            own = np.zeros_like(queries, shape=(len(queries), max(1, int(rows.host[mine][-1, 2]))))
        else:
            own = np.empty_like(queries, shape=(len(queries), state.index.max_blocks))
            _carried_out(backend.block_scores(queries, state.index, steps, own), "block_scores")
        _carried_out(backend.select(own, steps, ids[mine], rule=rule, geometry=geometry), "select")
    if together:
        _carried_out(backend.select(scores, rows.steps, ids, rule=rule, geometry=geometry), "select")
    return ids


def replay(raw, steps, state, backend):
    """Append the raw indexer keys of rows of an earlier call to ``state``, whose tail is that from before the call. K/V
    stay as the call wrote them."""
    _carried_out(backend.append_index(raw, steps, state.index), "append_index")
