"""Inputs of attention like those of real models: biased keys, outliers, sinks, large values, near duplicates.

Sizes are those that are reported of trained models; the numbers are made here, from ``golden/inputs.py``. Every kind
changes bell-shaped queries, K and V in place of its own dims; ``captured`` puts those of the golden model in their
place (``golden/families/captured.py``).
"""

from collections.abc import Callable

import numpy as np

from qsa.golden.families import captured
from qsa.reference.geometry import REAL

Values = tuple[np.ndarray, np.ndarray, np.ndarray]
"""q [rows, n_head, head_dim], k and v [n, n_head_kv, head_dim], all float32."""

Change = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], Values]
"""A kind's function of q, k, v and ids [rows, cap], the place of every selected cell in k and v."""

BIAS_DIM, OTHER_DIM = 60, 200
"""Two dims in scale groups of their own, for int8 as for q4_0."""

SINK_DIM = 61

_ROOT = REAL.head_dim**0.5


def _bias(nats: float) -> Change:
    """One K dim adds ``nats`` to the score of every cell: nothing for the softmax, much for the sums."""
    size = np.float32((nats * _ROOT) ** 0.5)

    def change(q: np.ndarray, k: np.ndarray, v: np.ndarray, ids: np.ndarray) -> Values:
        q[..., BIAS_DIM], k[..., BIAS_DIM] = size, size
        return q, k, v

    return change


def _cancel(nats: float) -> Change:
    """Two dims in different scale groups add and take away ``nats``, but for a tenth of noise in the keys."""
    size = np.float32((nats * _ROOT) ** 0.5)

    def change(q: np.ndarray, k: np.ndarray, v: np.ndarray, ids: np.ndarray) -> Values:
        for dim, sign in ((BIAS_DIM, 1), (OTHER_DIM, -1)):
            k[..., dim] = size + k[..., dim] / 16
            q[..., dim] = sign * size
        return q, k, v

    return change


def _rope(times: float) -> Change:
    """The last four rotated pairs of q and K, which turn slowest, are ``times`` as large as the other dims."""
    half = REAL.n_rot // 2
    dims = [*range(half - 4, half), *range(REAL.n_rot - 4, REAL.n_rot)]

    def change(q: np.ndarray, k: np.ndarray, v: np.ndarray, ids: np.ndarray) -> Values:
        q[..., dims] *= np.float32(times)
        k[..., dims] *= np.float32(times)
        return q, k, v

    return change


def _sink(share: float, middle: bool) -> Change:
    """One cell, the first or a middle one, takes ``share`` of the mass in every row and head; its V is 1/64."""

    def change(q: np.ndarray, k: np.ndarray, v: np.ndarray, ids: np.ndarray) -> Values:
        cell = len(k) // 2 if middle else 0
        k[..., SINK_DIM] = 0
        v[cell] *= np.float32(2.0**-6)
        keys = k.astype(np.float64)
        for row, own in enumerate(ids):
            chosen = own[own >= 0]
            grouped = q[row].astype(np.float64).reshape(REAL.n_head_kv, REAL.group, -1)
            s = np.einsum("gjd,ngd->gjn", grouped, keys[chosen]).reshape(REAL.n_head, -1) / _ROOT
            sink = s[:, chosen == cell][:, 0]
            rest = np.where(chosen == cell, -np.inf, s)
            mass = rest.max(axis=1) + np.log(np.exp(rest - rest.max(axis=1, keepdims=True)).sum(axis=1))
            # logit(share) = score of the sink - log of the others' mass
            q[row, :, SINK_DIM] = np.log(share / (1 - share)) + mass - sink
        k[cell, :, SINK_DIM] = np.float32(_ROOT)
        return q, k, v

    return change


def _large_channel(q: np.ndarray, k: np.ndarray, v: np.ndarray, ids: np.ndarray) -> Values:
    """One channel of V is 1,000 times as large."""
    v[..., 7] *= np.float32(1000)
    return q, k, v


def _large_cell(q: np.ndarray, k: np.ndarray, v: np.ndarray, ids: np.ndarray) -> Values:
    """V of one cell is 1,000 times as large."""
    v[min(5, len(v) - 1)] *= np.float32(1000)
    return q, k, v


def _near(q: np.ndarray, k: np.ndarray, v: np.ndarray, ids: np.ndarray) -> Values:
    """All keys are one key and 2^-10 of noise."""
    return q, k[:1] + k * np.float32(2.0**-10), v


def _captured(q: np.ndarray, k: np.ndarray, v: np.ndarray, ids: np.ndarray) -> Values:
    """What a trained model had: its first cells, and its last queries there. The golden model has two query heads for a
    KV head, so those of a row here come from half as many rows there as it has heads."""
    given = captured.arrays()
    cells = np.arange(len(k)) % len(given["k"])
    heads = np.arange(REAL.n_head)
    group, within = heads // REAL.group, heads % REAL.group
    per = given["q"].shape[1] // REAL.n_head_kv
    for row in range(len(q)):
        rows = (row * (REAL.group // per) + within // per) % len(given["q"])
        q[row] = given["q"][rows, group * per + within % per]
    return q, given["k"][cells].astype(np.float32), given["v"][cells].astype(np.float32)


CAPTURED = "captured"

CELLS = captured.CELLS - REAL.ratio
"""Context of a case of :data:`CAPTURED`, its tail apart: more cells would be the same ones again."""

KINDS: dict[str, Change] = {
    **{f"bias{nats}": _bias(nats) for nats in (30, 100, 300)},
    "cancel": _cancel(300),
    **{f"rope{times}": _rope(times) for times in (10, 30)},
    **{f"sink{share}": _sink(share / 100, False) for share in (5, 47, 95)},
    **{f"middle{share}": _sink(share / 100, True) for share in (5, 47, 95)},
    "vchannel": _large_channel,
    "vcell": _large_cell,
    "near": _near,
    CAPTURED: _captured,
}
"""Kind -> its change of bell-shaped values."""


def changed(kind: str, q: np.ndarray, k: np.ndarray, v: np.ndarray, ids: np.ndarray, cells: np.ndarray) -> Values:
    """q, k and v of ``kind``, new arrays. ``ids`` [rows, cap] are cells, or -1; ``cells`` [n] those of k and v."""
    places = np.where(ids >= 0, np.searchsorted(cells, np.maximum(ids, 0)), -1)
    return KINDS[kind](q.copy(), k.copy(), v.copy(), places)
