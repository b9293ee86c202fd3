"""Router and experts, as ``reference/exact/layers/experts.py``. A work item is one expert for up to four rows."""

import numpy as np

from ..common.jit import kernel
from ..common.scalar import NAN, exp, one_nan
from ..common.threads import share
from ..products.form import WIDE
from ..products.records import all_records
from .gates import swiglu_row
from .linear import ALONE, COLUMNS, ROWS, LoadedLinear, few_outputs


@kernel
def _route(logits, ids, shares):
    """ids, shares [rows, top]: of equal logits the lower id comes first; a NaN is below every number."""
    top = ids.shape[1]
    for row in range(len(logits)):
        x, best, share = logits[row], ids[row], shares[row]
        count = 0
        for expert in range(x.size):
            if count == top and not (x[expert] > x[best[top - 1]] or (x[best[top - 1]] != x[best[top - 1]])):
                continue
            if count == top and x[expert] != x[expert]:
                continue
            index = count if count < top else top - 1
            while index and (
                x[expert] > x[best[index - 1]] or (x[best[index - 1]] != x[best[index - 1]] and x[expert] == x[expert])
            ):
                best[index] = best[index - 1]
                index -= 1
            best[index] = expert
            count = min(count + 1, top)
        total = np.float32(0)
        for rank in range(top):
            share[rank] = exp(x[best[rank]] - x[best[0]])
            total = total + share[rank]
        for rank in range(top):
            share[rank] = one_nan(share[rank] / total)


@kernel
def _tiles(order, ids):
    """Where the tiles of ``order`` begin, and its end: int64. A tile has up to ROWS shares of one expert.

    order  [rows * top] int64, the numbers of all shares, those of one expert one after the other
    """
    begins, count = np.empty(order.size + 1, np.int64), 0
    for i in range(order.size):
        before = begins[count - 1] if count else 0
        if i == 0 or i - before == ROWS or ids[order[i]] != ids[order[before]]:
            begins[count] = i
            count += 1
    begins[count] = order.size
    return begins[: count + 1]


@kernel
def _experts(begin, stop, begins, order, fixed, ids, gate_up, down, parts):
    """Work items ``begin`` to ``stop``, each the outputs of one tile, into parts [rows * top, hidden]."""
    records, e, finite = fixed
    columns, numbers = np.empty((ROWS * COLUMNS, WIDE), np.float32), np.arange(ROWS)
    for tile in range(begin, stop):
        mine = order[begins[tile] : begins[tile + 1]]
        count, expert = mine.size, ids[mine[0]]
        rows = np.empty(count, np.int64)
        for i in range(count):
            rows[i] = mine[i] // (ids.size // len(e))
        codes, scale = gate_up[0][expert], gate_up[1][expert]
        both, hidden = np.empty((count, gate_up[2]), np.float32), np.empty((count, gate_up[2] // 2), np.float32)
        few_outputs(records, rows, e, codes, scale, np.int64(0), len(codes), columns, both)
        for i in range(count):
            swiglu_row(both[i], hidden[i])
        codes, scale = down[0][expert], down[1][expert]
        hidden_records, hidden_e, whole = all_records(hidden, scale.shape[1])
        outputs = np.empty((count, down[2]), np.float32)
        few_outputs(hidden_records, numbers[:count], hidden_e, codes, scale, np.int64(0), len(codes), columns, outputs)
        for i in range(count):
            keep = finite[rows[i]] and whole[i]
            for d in range(down[2]):
                parts[mine[i], d] = outputs[i, d] if keep else NAN


@kernel
def _added(shares, parts, out):
    """out [rows, hidden] = the parts [rows * top, hidden] by share, added in rank order."""
    rows, top = shares.shape
    for row in range(rows):
        y = out[row]
        for rank in range(top):
            share, part = shares[row, rank], parts[row * top + rank]
            if rank == 0:
                for d in range(y.size):
                    y[d] = share * part[d]
            else:
                for d in range(y.size):
                    y[d] = y[d] + share * part[d]
        for d in range(y.size):
            y[d] = one_nan(y[d])


def route(logits: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """The experts of each row: ids [rows, top] int64, best first, and their shares [rows, top] float32.

    logits  [rows, num_experts] float32; of equal logits the lower id comes first
    top     experts of a row
    """
    logits = np.ascontiguousarray(logits, np.float32)
    ids, shares = np.empty((len(logits), top), np.int64), np.empty((len(logits), top), np.float32)
    _route(logits, ids, shares)
    return ids, shares


def experts(
    x: np.ndarray, ids: np.ndarray, shares: np.ndarray, gate_up: LoadedLinear, down: LoadedLinear
) -> np.ndarray:
    """The chosen experts' outputs by share, added in rank order: float32 [rows, hidden].

    x        [rows, hidden] float32
    ids      [rows, top] int64; shares [rows, top] float32
    gate_up  from ``load_linear``: [num_experts, 2 * width, hidden], the gate's rows first
    down     from ``load_linear``: [num_experts, hidden, width]
    """
    x = np.ascontiguousarray(x, np.float32)
    out = np.empty(x.shape, np.float32)
    # Rows of one expert one after the other: they are computed together.
    order = np.argsort(ids, axis=None, kind="stable")
    begins, parts = _tiles(order, ids.ravel()), np.empty((ids.size, x.shape[1]), np.float32)
    alone = order.size * (gate_up.codes[0].size + down.codes[0].size) < ALONE
    fixed = all_records(x, gate_up.scale.shape[2])
    share(alone, begins.size - 1, _experts, begins, order, fixed, ids.ravel(), gate_up[:3], down[:3], parts)
    _added(shares, parts, out)
    return out
