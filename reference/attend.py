"""``attend``, float64: grouped-query attention over the selected cells."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .append_kv import slots_of
from .arguments import check_floats, check_integers, check_output, check_steps
from .formats import rotate
from .kv import Cells, PagedKV, read_kv


def softmax_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float | None = None) -> np.ndarray:
    """Softmax attention of one row over ``n`` cells, every cell selected.

    q [n_head, dim]; k, v [n, n_head_kv, dim]; ``scale`` on the scores, 1/sqrt(dim) unless given. Query head h reads KV
    head h // (n_head // n_head_kv). Returns float64 [n_head, dim], zeros when n is 0. Source: published model code.
    """
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    n_head, dim = q.shape
    if not len(k):
        return np.zeros((n_head, dim))
    grouped = q.reshape(k.shape[1], -1, dim)
    # A query that is not finite makes NaN of its head.
    with np.errstate(invalid="ignore"):
        scores = np.einsum("gjd,ngd->gjn", grouped, k, optimize=True) * (dim**-0.5 if scale is None else scale)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    out = np.einsum("gjn,ngd->gjd", weights, v, optimize=True) / weights.sum(axis=-1, keepdims=True)
    return out.reshape(n_head, dim)


def check_attend(
    q: np.ndarray,
    kv: PagedKV | Sequence[PagedKV],
    ids: np.ndarray,
    steps: np.ndarray,
    slots: np.ndarray | None,
    out: np.ndarray | None,
    dtype: npt.DTypeLike,
) -> tuple[list[PagedKV], np.ndarray, np.ndarray]:
    """(slots' PagedKV, slot of every row, output).

    Raises ValueError on mismatched shapes or ids too narrow, IndexError on an id beyond the capacity and on an entry of
    a page table outside its pool.
    """
    if check_floats("q", q).ndim != 3:
        raise ValueError(f"q: shape {q.shape}: must be [rows, n_head, head_dim]")
    rows = len(q)
    check_steps(steps, rows)
    kvs, slots = slots_of(rows, kv, slots)
    for index, slot in enumerate(kvs):
        slot.check_table(f"kv[{index}].")
        g = slot.pool.geometry
        if q.shape != (rows, g.n_head, g.head_dim):
            raise ValueError(f"q: shape {q.shape}: must be [rows, {g.n_head}, {g.head_dim}]")
    if check_integers("ids", ids).ndim != 2 or len(ids) != rows or ids.shape[1] < steps[:, 3].max(initial=0):
        raise ValueError(f"ids: shape {ids.shape}: must be [{rows}, {steps[:, 3].max(initial=0)} or more]")
    _check_ids(ids, steps[:, 3], kvs, slots)
    if out is None:
        out = np.empty(q.shape, dtype)
    if check_output("out", out, np.dtype(dtype)).shape != q.shape:
        raise ValueError(f"out: shape {out.shape}: must be that of q, {q.shape}")
    return kvs, slots, out


def _check_ids(ids: np.ndarray, widths: np.ndarray, kvs: Sequence[PagedKV], slots: np.ndarray) -> None:
    """Raises IndexError when one of a row's first ``width`` ids is below -1 or beyond the capacity of its slot."""
    capacity = np.array([kv.capacity for kv in kvs], np.int64)[slots][:, None]
    bad = ((ids < -1) | (ids >= capacity)) & (np.arange(ids.shape[1]) < widths[:, None])
    for row in np.flatnonzero(bad.any(axis=1)):
        kvs[slots[row]].locate(ids[row, : widths[row]])


def selected_cells(kv: PagedKV, ids: np.ndarray, width: int) -> Cells:
    """A row's first ``width`` ids as Cells, without those of -1 and those whose page is not resident.

    Raises IndexError on an id beyond the capacity.
    """
    ids = np.asarray(ids[:width])
    page, _ = kv.locate(ids)
    return read_kv(kv, ids[page >= 0])


def attend(
    q: np.ndarray,
    kv: PagedKV | Sequence[PagedKV],
    ids: np.ndarray,
    steps: np.ndarray,
    slots: np.ndarray | None = None,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Attention of every row over its selected cells, on the values that ``kv`` holds.

    q      [rows, n_head, head_dim], normed and rotated by position
    kv     a PagedKV of any format, or a list of them with ``slots`` [rows] int32 naming each row's
    ids    [rows, cap] int32: the first ``width`` of each row are its cells; -1, and cells whose page is not resident,
           are not selected
    steps  [rows, 4] int32

    Returns float64 [rows, n_head, head_dim] (or ``out``); a row that selects nothing gives 0. Raises ValueError on
    mismatched shapes, IndexError on an id beyond the capacity and on an entry of a page table outside its pool; nothing
    is written then. Source: published model code; design section 4.
    """
    kvs, slots, out = check_attend(q, kv, ids, steps, slots, out, np.float64)
    for row, width in enumerate(steps[:, 3].tolist()):
        own = kvs[slots[row]]
        k, v = selected_cells(own, ids[row], width).values()
        # A rotated side meets a rotated query (the rotation is orthonormal), and a rotated V is rotated back.
        turned = q[row].astype(np.float64)
        turned = rotate(turned) if own.pool.k.coding == "q4_0" else turned
        result = softmax_attention(turned, k, v)
        out[row] = rotate(result) if own.pool.v.coding == "q4_0" else result
    return out
