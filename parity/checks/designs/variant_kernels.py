"""Plain float32 kernels of attention with a small fault, one for every kind of relation (``relations.py``).

Where the fault does not show on some inputs, a relation that holds there proves nothing.
"""

from collections.abc import Callable

import numpy as np

from qsa.reference.attend import selected_cells
from qsa.reference.formats import rotate
from qsa.reference.geometry import REAL

from ...compare.twin import paged
from .. import attend_inputs as data


def swapped(x: np.ndarray) -> np.ndarray:
    """``x`` [rows, heads, dim] with the groups of query heads in reverse order."""
    return x.reshape(len(x), REAL.n_head_kv, -1, x.shape[-1])[:, ::-1].reshape(x.shape)


def variant(relation: str, w: data.AttendInputs) -> np.ndarray:
    """Where a plain float32 kernel breaks the relation that has one small fault of its kind: bool [rows, heads], of two
    rows at most."""
    kv, seen = paged(w.kv), []
    for row in range(min(2, len(w.q))):
        k, v = (x.astype(np.float32) for x in selected_cells(kv, w.ids[row], w.steps[row, 3]).values())
        q = rotate(w.q[row]) if kv.pool.k.coding == "q4_0" else w.q[row]
        one, other = _VARIANTS[relation if relation in _VARIANTS else "order"](q, k, v)
        seen.append((one != other).any(axis=-1))
    return np.array(seen)


def _softmax(q: np.ndarray, k: np.ndarray, v: np.ndarray, halves: bool = False) -> np.ndarray:
    """float32 [heads, dim]; with ``halves`` the sums of the first and the second half of the cells are added last."""
    s = q.reshape(k.shape[1], -1, q.shape[-1]) @ k.transpose(1, 2, 0) * np.float32(q.shape[-1] ** -0.5)
    p = np.exp(s - s.max(axis=-1, keepdims=True, initial=0))
    cut = len(k) // 2 if halves else 0
    parts = [(p[..., at] @ v[at].transpose(1, 0, 2), p[..., at].sum(-1)) for at in (slice(cut), slice(cut, None))]
    return ((parts[0][0] + parts[1][0]) / (parts[0][1] + parts[1][1])[..., None]).reshape(q.shape)


def _other_order(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return _softmax(q, k, v), _softmax(q, k, v, halves=True)


def _absolute(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # A number is added whose size does not go with V's.
    small = np.float32(2.0**-20)
    return np.float32(8) * (_softmax(q, k, v) + small), _softmax(q, k, 8 * v) + small


def _upward(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # Outputs are rounded upward.
    grid = np.float32(2.0**20)
    return -np.ceil(_softmax(q, k, v) * grid), np.ceil(_softmax(q, k, -v) * grid)


def _cut_off(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # The query's last bits are cut off, as a shift of a negative integer cuts them.
    grid = np.float32(2.0**12)
    return _softmax(np.floor(q * grid) / grid, k, v), _softmax(np.floor(-q * grid) / grid, -k, v)


def _second_head(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # The last KV head is summed in another order.
    def kernel(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        out, other = _softmax(q, k, v), _softmax(q, k, v, halves=True)
        last = len(q) - len(q) // k.shape[1]
        return np.concatenate([out[:last], other[last:]])[None]

    back = kernel(swapped(q[None])[0], k[:, ::-1], v[:, ::-1])
    return kernel(q, k, v)[0], swapped(back)[0]


_VARIANTS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
    "order": _other_order,
    "value_scale": _absolute,
    "value_sign": _upward,
    "signs": _cut_off,
    "heads": _second_head,
}
