"""Inputs of selection like those of real models: scores that crowd at the cut, rows that share most of theirs, biased
and nearly equal indexer keys."""

from typing import Any

import numpy as np

from qsa.golden import inputs
from qsa.golden.families import captured
from qsa.golden.recipe import window
from qsa.reference.geometry import REAL

BINS = {"bin4097": 4097, "bin16385": 16385, "bin32768": 32768}
"""Kind of scores -> scores that differ in their last 15 bits alone: one bin of a search by digits, and more than the
candidates for which kernels have room. The cut lies among them."""

SHARED = "shared"
"""Rows that have nine tenths of their scores in common."""

CAPTURED = "captured"
"""Scores of the golden model over its last rows of a text (``golden/families/captured.py``)."""

KINDS = (*BINS, SHARED, CAPTURED)

KEYS = ("bias", "outliers", "near")
"""Kinds of raw indexer keys: one dim that adds to every score; the last rotated pairs 30 times as large; one key and
2^-10 of noise."""

_ABOVE = 100
"""Scores above the bin."""

_BIAS_DIM = 100
"""A dim that is not rotated."""


def scores(recipe: dict[str, Any]) -> dict[str, Any]:
    """The arguments of ``select``, as ``golden.families.select.make_inputs`` gives them, of a kind of :data:`KINDS`."""
    steps, seed, rows = window(recipe), recipe["seed"], recipe["rows"]
    blocks = int(steps[:, 2].max()) + 1
    kind = recipe["scores"]
    if kind == CAPTURED:
        # The last column holds the tail's bonus in some rows.
        given = captured.arrays()["scores"][:, :-1]
        made = np.resize(given, (rows, given.shape[1]))[:, np.arange(blocks) % given.shape[1]]
    elif kind == SHARED:
        made = np.repeat(inputs.bell(seed, "select.shared", 1, blocks), rows, axis=0)
        own = inputs.bell(seed, "select.own", rows, blocks)
        made = np.where(inputs.integers(seed, "select.which", rows, blocks, 10) == 0, own, made)
    else:
        # Below the bin: 0 to 1/2.
        made = np.abs(inputs.uniform(seed, "select.below", rows, blocks))
        for row in range(rows):
            place = inputs.permutation(seed, f"select.place{row}", blocks - 1)
            count = min(BINS[kind], len(place))
            # 1 + j 2^-23: neighbours one ULP apart. The best lies last: a full buffer has lost it.
            crowd = place[:count]
            last = int(crowd.argmax())
            crowd[-1], crowd[last] = crowd[last], crowd[-1]
            made[row, crowd] = 1 + np.arange(count) * 2.0**-23
            made[row, place[count : count + _ABOVE]] += 2
    for row, n_bid in enumerate(steps[:, 2]):
        made[row, n_bid] = np.finfo(np.float32).max
        made[row, n_bid + 1 :] = np.inf
    return {"scores": np.ascontiguousarray(made, np.float32), "steps": steps, "rule": recipe["rule"]}


def keys(kind: str, raw: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(raw keys [n, idx_dim], queries [rows, heads, idx_dim]) changed to a kind of :data:`KEYS`, new arrays."""
    raw, q = raw.copy(), q.copy()
    half = REAL.n_rot // 2
    pairs = [*range(half - 4, half), *range(REAL.n_rot - 4, REAL.n_rot)]
    if kind == "bias":
        raw[:, _BIAS_DIM], q[..., _BIAS_DIM] = 32, 8
    elif kind == "outliers":
        raw[:, pairs] *= np.float32(30)
        q[..., pairs] *= np.float32(30)
    else:
        raw = raw[:1] + raw * np.float32(2.0**-10)
    return raw, q
