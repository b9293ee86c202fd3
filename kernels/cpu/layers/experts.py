"""Router and experts, as ``reference/exact/layers/experts.py``. A work item is one expert of one row."""

import numba
import numpy as np

from ..jit import kernel
from ..scalar import NAN, exp, one_nan
from .gates import swiglu_row
from .linear import ALONE, LoadedLinear, fixed_row, fixed_rows, outputs


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
def _expert(item, order, fixed, ids, gate_up, down, parts):
    """The output of one expert of one row into parts [rows, top, hidden]."""
    row, rank = order[item] // ids.shape[1], order[item] % ids.shape[1]
    xi, e, finite = fixed
    result = parts[row, rank]
    if not finite[row]:
        result[:] = NAN
        return
    expert = ids[row, rank]
    codes, scale = gate_up[0][expert], gate_up[1][expert]
    both = np.empty(len(codes), np.float32)
    outputs(xi[row], e[row], codes, scale, 0, both.size, both)
    hidden = np.empty(both.size // 2, np.float32)
    swiglu_row(both, hidden)
    codes, scale = down[0][expert], down[1][expert]
    hidden_xi = np.empty(codes.shape[1], np.int32)
    hidden_e, whole = fixed_row(hidden, hidden_xi)
    if whole:
        outputs(hidden_xi, hidden_e, codes, scale, 0, result.size, result)
    else:
        result[:] = NAN


@kernel(parallel=True)
def _experts_all(items, order, fixed, ids, gate_up, down, parts):
    for item in numba.prange(items):
        _expert(np.int64(item), order, fixed, ids, gate_up, down, parts)


@kernel
def _experts(x, order, ids, shares, gate_up, down, out):
    rows, top = ids.shape
    fixed = fixed_rows(x, gate_up[0].shape[2])
    parts = np.empty((rows, top, x.shape[1]), np.float32)
    each = gate_up[0].shape[1] * gate_up[0].shape[2] + down[0].shape[1] * down[0].shape[2]
    if order.size * each < ALONE:
        for item in range(order.size):
            _expert(item, order, fixed, ids, gate_up, down, parts)
    else:
        _experts_all(order.size, order, fixed, ids, gate_up, down, parts)
    for row in range(rows):
        y = out[row]
        for rank in range(top):
            share, part = shares[row, rank], parts[row, rank]
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
    # Rows of one expert one after the other: its weights are then still in a cache.
    order = np.argsort(ids, axis=None, kind="stable")
    _experts(x, order, ids, shares, gate_up[:2], down[:2], out)
    return out
