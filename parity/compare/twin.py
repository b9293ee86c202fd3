"""Typed twins: plain NumPy kernels that round where a backend says that it rounds, and the bounds made of them.

The error of a twin against float64 measures how hard the inputs are for these number types. A kernel may sum in another
order and so be off by more than its twin; four times the twin's error, and four roundings of the output type, is its
bound, row by row.
"""

from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from qsa.reference.attend import selected_cells
from qsa.reference.formats import rotate
from qsa.reference.index import Index
from qsa.reference.key_codes import NOT_FINITE, encode
from qsa.reference.kv import PagedKV

from ..contract.number_types import rounded, unit
from ..contract.storage import OwnKV
from .comparison import relative_error
from .remembered import remembered

FACTOR = 4
"""Errors of a twin that a kernel may have: another order of sums, and roundings that fall less well."""


class StageTypes(Protocol):
    """Names of number types by stage (``contract.declaration.Types``)."""

    @property
    def scores(self) -> str: ...
    @property
    def weights(self) -> str: ...
    @property
    def output(self) -> str: ...


def slack(name: str) -> float:
    """Four roundings to a type, which any width has: weight, value sum, mass, quotient. Over one cell a twin is without
    error, and a bound of a multiple of 0 would be none."""
    return 4 * unit(name)


def paged(kv: PagedKV | OwnKV) -> PagedKV:
    """The values that truth is made of: our pool, or what the backend's own storage read back."""
    return kv.paged if isinstance(kv, OwnKV) else kv


def attention(w: Any, types: StageTypes) -> np.ndarray:
    """float32 [rows, n_head, head_dim] by a plain kernel: every sum one term after the other in float32, which is the
    least exact order that an honest kernel has, rounded where ``types`` says. ``w`` has the arguments of ``attend`` as
    attributes ``q``, ``kv``, ``ids``, ``steps``; q has values of its type already."""
    out = np.empty(w.q.shape, np.float32)
    kv = paged(w.kv)
    for row, width in enumerate(w.steps[:, 3].tolist()):
        k, v = (x.astype(np.float32) for x in selected_cells(kv, w.ids[row], width).values())
        if not len(k):
            # A row that selects nothing gives 0.
            out[row] = 0
            continue
        q = rotate(w.q[row]) if kv.pool.k.coding == "q4_0" else w.q[row]
        result = in_order(q, k, v, types)[-1]
        out[row] = rotate(result) if kv.pool.v.coding == "q4_0" else result
    return rounded(out, types.output)


def in_order(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, types: StageTypes
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """One row of a plain kernel, ``q`` [n_head, dim] over ``k`` and ``v`` [n, n_head_kv, dim]: (scores [kv heads, heads
    of each, 1, n], exponentials and weights [n, kv heads, heads of each, 1], result [n_head, dim]), all float32."""
    n_head, dim = q.shape
    factor = np.float32(dim**-0.5)
    # [dim, kv heads, heads of each, 1] and [dim, kv heads, 1, n]
    q = np.ascontiguousarray(q.reshape(k.shape[1], -1, dim).transpose(2, 0, 1))[..., None]
    k = np.ascontiguousarray(k.transpose(2, 1, 0))[:, :, None]
    s = q[0] * k[0]
    for each in range(1, dim):
        s += q[each] * k[each]
    s = rounded(rounded(s, types.scores) * factor, types.scores)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    # [n, kv heads, heads of each, 1]
    p = np.ascontiguousarray(p.transpose(2, 0, 1))[..., None]
    weights = rounded(p, types.weights)
    mass, value = p[0].copy(), weights[0] * v[0][:, None]
    for cell in range(1, len(p)):
        mass += p[cell]
        value += weights[cell] * v[cell][:, None]
    return s, p, weights, (value / mass).reshape(n_head, dim)


@remembered
def _twin(q: np.ndarray, kv: PagedKV, ids: np.ndarray, steps: np.ndarray, types: StageTypes) -> np.ndarray:
    # A query that is not finite makes NaN of its head, in the twin as in truth.
    with np.errstate(invalid="ignore", over="ignore"):
        return attention(SimpleNamespace(q=q, kv=kv, ids=ids, steps=steps), types)


def attention_bound(w: Any, expected: np.ndarray, types: StageTypes) -> tuple[np.ndarray, str]:
    """(bounds [rows, 1], reason) on the relative error of a kernel, given its float64 result ``expected``
    [rows, n_head, head_dim]: every row has a bound for its heads."""
    twin = _twin(w.q, paged(w.kv), w.ids, w.steps, types)
    own = relative_error(expected, twin).max(axis=1, keepdims=True)
    reason = f"{FACTOR} x the error of a plain {types_text(types)} kernel (sums in order) on the same row"
    reason += f", {own.max():.2g} at most, and {slack(types.output):.2g}: four roundings of the output"
    return FACTOR * own + slack(types.output), reason


def types_text(types: StageTypes) -> str:
    """The types of attention in words: ``float32``, or every stage that is narrower."""
    stages = {name: getattr(types, name) for name in ("scores", "weights", "output")}
    narrow = [f"{name} {kind}" for name, kind in stages.items() if kind != "float32"]
    return f"float32 ({', '.join(narrow)})" if narrow else "float32"


def pooled_keys(raw: np.ndarray, index: Index, name: str = "float32") -> np.ndarray:
    """float32 pooled keys [blocks, idx_dim] of raw keys [blocks * ratio, idx_dim] as plain NumPy makes them, rounded to
    the type ``name``: how hard these keys are."""
    g = index.geometry
    x = raw.reshape(-1, g.ratio, g.idx_dim).mean(axis=1, dtype=np.float32)
    x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True, dtype=np.float32) + np.float32(g.eps)) * index.weight
    half = g.n_rot // 2
    a, b, (cos, sin) = x[:, :half].copy(), x[:, half : g.n_rot].copy(), np.split(index.rope[: len(x)], 2, axis=1)
    x[:, :half], x[:, half : g.n_rot] = a * cos - b * sin, b * cos + a * sin
    return rounded(x, name)


def score_scale(q: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """float64 [blocks]: the sum of |key x query| of every score of ``q`` [heads, dim] and ``keys`` [blocks, dim], to
    which its error is relative; the smallest normal float32 where that sum is 0."""
    sums = (np.abs(keys.astype(np.float64)) @ np.abs(q.astype(np.float64)).T).sum(axis=1)
    return np.maximum(sums, np.finfo(np.float32).tiny)


def scores(q: np.ndarray, keys: np.ndarray, name: str = "float32") -> np.ndarray:
    """float32 [blocks] block scores of one row by plain NumPy, rounded to the type ``name``; relu keeps a NaN."""
    dots = keys.astype(np.float32) @ q.astype(np.float32).T
    return rounded(np.where(dots <= 0, np.float32(0), dots).sum(axis=1, dtype=np.float32), name)


def score_bound(q: np.ndarray, keys: np.ndarray, name: str) -> tuple[float, str]:
    """(bound, reason) on the error of the scores of one row, relative to :func:`score_scale`."""
    keys64 = keys.astype(np.float64)
    truth = np.maximum(keys64 @ q.astype(np.float64).T, 0).sum(axis=1)
    own = float((np.abs(scores(q, keys, name) - truth) / score_scale(q, keys)).max(initial=0))
    # A sum of products in float32 has at least these roundings: product, a few sums, heads; then one to the type.
    least = 8 * 2.0**-24 + 2 * unit(name)
    reason = f"{FACTOR} x the error of plain {name} on the same row ({own:.2g} of the sum of |key x query|), and "
    return FACTOR * own + least, reason + f"{least:.2g}: eight roundings of float32 and two of {name}"


def encoding_bound(keys: np.ndarray) -> np.ndarray:
    """[keys] bound on the relative error of encoding ``keys`` [keys, dim] float64: half a unit in every dim, of the
    exponent that a key a little larger has, since float32 may round it up to that."""
    _, e = encode(keys * (1 + 2.0**-16))
    norm = np.linalg.norm(keys, axis=-1)
    half = np.ldexp(np.sqrt(keys.shape[-1]), np.where(e == NOT_FINITE, 0, e).astype(np.int32) - 16)
    return np.where(norm > 0, half / np.where(norm > 0, norm, 1), 0)


def query_bound(q: np.ndarray, keys: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """[keys] bound on what encoding the query ``q`` [heads, dim] changes in the scores of ``keys`` [keys, dim],
    relative to ``scale`` [keys]: half a unit of each head in every dim."""
    _, e = encode(q)
    half = np.ldexp(1.0, np.where(e == NOT_FINITE, 0, e).astype(np.int32) - 16).sum()
    return half * np.abs(keys).sum(axis=-1) / scale
