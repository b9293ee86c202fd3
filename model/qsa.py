"""One QSA layer over the five operations of a backend; formulas as ``reference/model/qsa.py``.

The draft layer has the same tensors and attends densely to its last cells instead of selecting.

Two rules serve backends with a device:

- Alignment. Rows of block scores and rows of selected ids are padded to a multiple of 16 bytes. The part of one
  sequence in an array of several sequences then begins at an aligned address, which vector loads need.
- Recording. A call may be recorded in a graph and replayed for other positions (``engine/programs/graphs.py``). Which
  launches are recorded must not depend on the positions at that time, so :class:`Rows` then has no ``host_steps``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from qsa.reference.exact.layers.linear import joined
from qsa.reference.geometry import Geometry, step_records
from qsa.reference.index import Index
from qsa.reference.kv import PagedKV
from qsa.reference.layers.rope import rope_table

from .independent import together

ALIGNED = 4
"""Values of 4 bytes in the 16 bytes to which rows of scores and ids are padded."""


@dataclass
class State:
    """The cells of one sequence in one layer: ``kv`` (a PagedKV) and ``index`` (an Index, None in the draft layer), or
    the backend's containers of these."""

    kv: Any
    index: Any


class Rows(NamedTuple):
    """What the QSA layers of one call share; n rows, those of one sequence consecutive.

    steps       [n, 4] int32, step records
    table       [n, n_rot] float32, cos and sin of the rotation at each row's position
    slots       [n] int32, index of each row's sequence in the call
    spans       slice of the rows of every sequence
    host_steps  the step records on the host, which tell what need not be computed; None in a recorded call, in which
                everything is computed
    bounds      None, or the backend's ``RowBounds``, read where it computes: the first rows of every sequence that the
                recurrences take; the others have position -1, and what comes of them is unset

    ``steps``, ``table`` and ``slots`` are on the side where the backend computes.
    """

    steps: np.ndarray
    table: np.ndarray
    slots: np.ndarray
    spans: list[slice]
    host_steps: np.ndarray | None
    bounds: Any = None

    def placed(self, to_device: Callable[[Any], Any]) -> "Rows":
        """The same with its arrays moved by ``to_device``."""
        return self._replace(**{name: to_device(getattr(self, name)) for name in ("steps", "table", "slots")})


def rows_of(starts: Sequence[int], counts: Sequence[int], geometry: Geometry, rule: str) -> Rows:
    """:class:`Rows` on the host; sequence i has ``counts[i]`` rows, which begin at position ``starts[i]``."""
    parts = [_records(start, start + count, geometry, rule) for start, count in zip(starts, counts, strict=True)]
    spans, end = [], 0
    for count in counts:
        spans.append(slice(end, end + count))
        end += count
    slots = np.empty(end, np.int32)
    for slot, span in enumerate(spans):
        slots[span] = slot
    # A copy in any case: the arrays that are kept are nobody's to change.
    if len(parts) == 1:
        steps, table = (array.copy() for array in parts[0])
    else:
        steps, table = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Rows(steps, table, slots, spans, steps)


def keep_rows(start: int, count: int, geometry: Geometry, rule: str) -> None:
    """Make what :func:`rows_of` will want for ``count`` positions from ``start`` on, at most :data:`KEPT`, unless it is
    kept already: while a device is busy it costs nothing."""
    for position in (start, start + count - 1):
        first = position // KEPT * KEPT
        if first + KEPT < 1 << 31:
            _kept(first, geometry, rule)


KEPT = 64
"""Positions whose records are made together, and kept: a window asks for the few that follow those of the last one."""


def _records(start: int, end: int, geometry: Geometry, rule: str) -> tuple[np.ndarray, np.ndarray]:
    """Step records [n, 4] and rotations [n, n_rot] of the positions ``start`` to ``end`` - 1; read only."""
    first = start // KEPT * KEPT
    if end > first + KEPT or first + KEPT >= 1 << 31:
        return _made(start, end, geometry, rule)
    steps, table = _kept(first, geometry, rule)
    return steps[start - first : end - first], table[start - first : end - first]


def _made(start: int, end: int, geometry: Geometry, rule: str) -> tuple[np.ndarray, np.ndarray]:
    positions = np.arange(start, end)
    return step_records(positions, rule, geometry), rope_table(positions, geometry.n_rot, geometry.rope_base)


@lru_cache(maxsize=256)
def _kept(first: int, geometry: Geometry, rule: str) -> tuple[np.ndarray, np.ndarray]:
    """:func:`_made` of the :data:`KEPT` positions from ``first`` on."""
    return _made(first, first + KEPT, geometry, rule)


def load(tensors: Mapping[str, Any], geometry: Geometry, layers: Any) -> dict[str, Any]:
    """The weights of one layer in the form of :func:`forward`. All projections of x are joined in one matrix. ``k_idx``
    stays on the host, where an Index is made with it."""
    first = "q_proj", "k_proj", "v_proj", "indexer.index_qk_proj"
    return {
        "in": layers.load_linear(joined([tensors[name + ".weight"] for name in first])),
        "out": layers.load_linear(tensors["o_proj.weight"]),
        "q": tensors["q_norm.weight"],
        "k": tensors["k_norm.weight"],
        "q_idx": tensors["indexer.q_layernorm.weight"],
        "k_idx": tensors["indexer.k_layernorm.weight"],
    }


def _aligned(count: int) -> int:
    """``count`` rounded up to whole groups of 16 bytes."""
    return -(-count // ALIGNED) * ALIGNED


def init_state(
    weights: Mapping[str, Any],
    geometry: Geometry,
    to_device: Callable[[Any], Any],
    capacity: int,
    page_size: int = 4,
    kv_format: str = "int8",
    indexer: bool = True,
    index_format: str = "fp32",
) -> State:
    """The initial state of a sequence of at most ``capacity`` cells, moved by ``to_device``, its index of the format
    ``index_format``; without ``indexer`` it has no index."""
    # The number of blocks is the length of a row of scores.
    blocks = _aligned(capacity // geometry.ratio + 1)
    index = to_device(Index(blocks, weights["k_idx"], geometry, format=index_format)) if indexer else None
    return State(to_device(PagedKV.new(kv_format, capacity, page_size, geometry)), index)


def forward(
    x: np.ndarray,
    weights: Mapping[str, Any],
    geometry: Geometry,
    rows: Rows,
    states: Sequence[State],
    backend: Any,
    rule: str = "blocks",
    dense_width: int | None = None,
    journal: list | None = None,
    batched: bool = False,
) -> np.ndarray:
    """Append the cells of ``x`` [n, hidden] float32 and attend; returns [n, hidden] float32 and advances the states.

    states       one for every sequence of ``rows``
    backend      a module with the five operations and ``layers``
    dense_width  None to select cells. Otherwise a row attends to its last cells without an indexer: as many as the
                 width in its step record, which is at most ``dense_width``
    journal      None, or a list to which the raw indexer keys [n, idx_dim] float32 are appended, for :func:`replay`
    batched      whether one selection and one attention serve all sequences; the bytes are the same

    Raises ValueError when the cells do not fit, when K or V has values that no scale can represent, and when the
    backend refuses an operation.
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
    _checked(backend.append_kv(k, v, kvs, rows.steps, rows.slots), "append_kv")
    if dense_width is None:
        q_idx = layers.rms_norm(q_idx.reshape(n, g.idx_heads, g.idx_dim), weights["q_idx"], g.eps)
        if journal is not None:
            journal.append(raw)
        ids = _select(layers.rotate(q_idx, rows.table), raw, g, rows, states, backend, rule, batched)
    else:
        ids = layers.last_cells(rows.steps, dense_width)
    if batched or len(kvs) == 1:
        out = _checked(backend.attend(q, kvs, ids, rows.steps, rows.slots), "attend")
    else:
        out = np.empty_like(q)
        for span, kv in zip(rows.spans, kvs, strict=True):
            _checked(backend.attend(q[span], kv, ids[span], rows.steps[span], None, out[span]), "attend")
    out = layers.sigmoid_gate(out, gate)
    return layers.linear(out.reshape(n, g.n_head * g.head_dim), weights["out"])


def _compact(x: np.ndarray) -> np.ndarray:
    """``x`` in C order, as the append operations require."""
    return x if x.flags.c_contiguous else x.copy()


def _checked(result: Any, operation: str) -> Any:
    """``result`` of an operation. Raises ValueError when it is False, the sign of a refusal: a model has no other
    schedule to use."""
    if result is False:
        raise ValueError(f"{operation}: the backend refuses this geometry or K/V format")
    return result


def _select(
    q_idx: np.ndarray,
    raw: np.ndarray,
    geometry: Geometry,
    rows: Rows,
    states: Sequence[State],
    backend: Any,
    rule: str,
    batched: bool,
) -> np.ndarray:
    """Append the raw indexer keys and select cells: ids [n, max_width rounded up to 16 bytes] int32, -1 after the
    last."""
    n, blocks = len(raw), {state.index.max_blocks for state in states}
    ids = np.empty_like(rows.steps, shape=(n, _aligned(geometry.max_width)))

    def append(span: slice, state: State) -> None:
        _checked(backend.append_index(raw[span], rows.steps[span], state.index), "append_index")

    if batched and len(states) > 1 and len(blocks) == 1:
        scores = np.empty_like(q_idx, shape=(n, *blocks))

        def score(span: slice, state: State) -> None:
            append(span, state)
            _checked(backend.block_scores(q_idx[span], state.index, rows.steps[span], scores[span]), "block_scores")

        together(backend, [partial(score, *each) for each in zip(rows.spans, states, strict=True)])
        _checked(backend.select(scores, rows.steps, ids, rule=rule, geometry=geometry), "select")
        return ids
    for span, state in zip(rows.spans, states, strict=True):
        steps, queries = rows.steps[span], q_idx[span]
        append(span, state)
        if rows.host_steps is not None and rows.host_steps[span][-1, 2] <= geometry.top_blocks:
            # All cells are selected whatever their scores, so the scores need not be computed.
            own = np.zeros_like(queries, shape=(len(queries), max(1, int(rows.host_steps[span][-1, 2]))))
        else:
            own = np.empty_like(queries, shape=(len(queries), state.index.max_blocks))
            _checked(backend.block_scores(queries, state.index, steps, own), "block_scores")
        _checked(backend.select(own, steps, ids[span], rule=rule, geometry=geometry), "select")
    return ids


def replay(raw: np.ndarray, steps: np.ndarray, state: State, backend: Any) -> None:
    """Append the raw indexer keys of rows of an earlier call to ``state``, whose tail was restored to that before the
    call. K/V stay as the call wrote them."""
    _checked(backend.append_index(raw, steps, state.index), "append_index")
