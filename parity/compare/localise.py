"""Where a failing ``attend`` of the exact arithmetic first went wrong.

A backend may define ``attend_stages(q, kv, ids, steps, row)``, which gives a dict with any of the arrays of
``reference/exact/attend.py`` for that row (:data:`STAGES`); the first that differs is the stage. A backend without it
shows only which row, head and value groups are wrong, and which simple mistakes its output is consistent with. That is
a hint, and the text says so.
"""

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from qsa.reference.attend import selected_cells, softmax_attention
from qsa.reference.formats import GROUP, rotate
from qsa.reference.kv import read_kv

# `qsa.reference.exact.attend` is the function; the module of that name has the stages.
_exact = importlib.import_module("qsa.reference.exact.attend")

STAGES = ("scores", "floor", "group", "mass", "weights", "sum_mass", "sum_value", "output")
"""The stages in order, one row each: scores [heads, n]; the maxima floor [heads] and group [heads, V groups]; mass
[heads, n] and weights [heads, V groups, n]; their sums L [heads] and O [heads, dim]; output [heads, dim], not yet
rotated back."""

CLOSE = 1e-4
"""Relative distance within which an output counts as consistent with a mistake: far above rounding, far below the
effect of the mistakes on ordinary inputs."""


def explain(backend: Any, w: Any, expected: np.ndarray, got: np.ndarray) -> tuple[str, ...]:
    """Lines about the first wrong (row, head) of ``got`` [rows, heads, dim] float32; ``expected`` has the right bytes.

    w  the arguments of the call as attributes ``q``, ``kv`` (one PagedKV), ``ids``, ``steps``
    """
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return ()
    wrong = (expected.view(np.uint32) != got.view(np.uint32)) & ~(np.isnan(expected) & np.isnan(got))
    if not wrong.any():
        return ()
    row, head = (int(x) for x in np.argwhere(wrong.any(axis=-1))[0])
    size = GROUP.get(w.kv.pool.v.coding) or expected.shape[-1]
    groups = sorted({int(dim) // size for dim in np.flatnonzero(wrong[row, head])})
    of = expected.shape[-1] // size
    lines = [f"position: row {row}, head {head}: value groups {groups} of {of}"]
    stage = _first_stage(backend, w, row)
    if stage:
        lines.append(f"stage: row {row}: first wrong in {stage}")
    likely = _likely(w, row, head, expected[row, head].astype(np.float64), got[row, head].astype(np.float64))
    lines.append(f"consistent with: {likely}" if likely else "consistent with none of the simple mistakes tried")
    return tuple(lines)


def stages(w: Any, row: int) -> dict[str, np.ndarray]:
    """Stage -> array of one row in the exact arithmetic."""
    pool, width = w.kv.pool, int(w.steps[row, 3])
    cells = selected_cells(w.kv, w.ids[row], width)
    q = rotate(w.q[row]) if pool.k.coding == "q4_0" else w.q[row]
    scores = _exact.scores(q, cells, pool.geometry)
    top = _exact.maxima(scores, cells, pool.geometry)
    mass, weights = _exact.weights(scores, cells, top, pool.geometry)
    total = _exact.sums(mass, weights, cells, pool.geometry)
    return dict(zip(STAGES, (scores, *top, mass, weights, *total, _exact.output(total, top)), strict=True))


def _first_stage(backend: Any, w: Any, row: int) -> str | None:
    """Name of the first stage that the backend has wrong, with the first coordinate; None when it exposes none."""
    expose = getattr(backend.module, "attend_stages", None)
    if expose is None:
        return None
    given = expose(w.q, w.kv, w.ids, w.steps, row)
    for name, right in stages(w, row).items():
        if name in given:
            ours = np.asarray(given[name])
            if ours.shape != right.shape:
                return f"{name}: shape {list(ours.shape)}, expected {list(right.shape)}"
            bad = (ours != right) & ~((ours != ours) & (right != right))
            if bad.any():
                at = tuple(int(x) for x in np.argwhere(bad)[0])
                return f"{name} at {list(at)}: expected {right[at]}, got {ours[at]}"
    return "none of the stages it shows"


def _near(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.linalg.norm(a - b) <= CLOSE * max(np.linalg.norm(b), np.finfo(np.float64).tiny))


def _likely(w: Any, row: int, head: int, expected: np.ndarray, got: np.ndarray) -> str | None:
    """A simple mistake that gives ``got`` [dim] instead of ``expected``, or None."""
    if np.isnan(got).all():
        return "NaN throughout: a value outside the selection was read, or a maximum over nothing"
    if not np.isfinite(got).all():
        return None
    if not got.any():
        return "zeros: nothing was written or nothing was selected"
    if _near(got, expected):
        return "the right cells: off by rounding alone"
    for text, wrong in _mistakes(w, row, head):
        if _near(got, wrong):
            return text
    factor = float(got @ expected / (expected @ expected)) if expected.any() else 0.0
    if factor and _near(got, factor * expected):
        return "the opposite sign" if abs(factor + 1) < CLOSE else f"a factor of {factor:.6g} on the output"
    return _one_cell(w, row, head, expected, got)


def _float64(w: Any, row: int, kv_head: int, head: int, cells: Any, scale: float | None = None) -> np.ndarray:
    """float64 output [dim] of one query head over ``cells`` of ``kv_head``."""
    pool = w.kv.pool
    k, v = (x[:, kv_head : kv_head + 1] for x in cells.values())
    q = w.q[row, head : head + 1].astype(np.float64)
    q = rotate(q) if pool.k.coding == "q4_0" else q
    out = softmax_attention(q, k, v, scale)[0]
    return rotate(out) if pool.v.coding == "q4_0" else out


def _mistakes(w: Any, row: int, head: int) -> Iterator[tuple[str, np.ndarray]]:
    """(text, output [dim]) of mistakes that kernels are known for."""
    pool, g = w.kv.pool, w.kv.pool.geometry
    ids = w.ids[row, : int(w.steps[row, 3])]
    n_kv, kv_head = int(w.steps[row, 1]), head // g.group
    cells = selected_cells(w.kv, ids, len(ids))
    tail = n_kv // g.ratio * g.ratio

    def over(chosen: np.ndarray, **keywords: Any) -> np.ndarray:
        return _float64(w, row, kv_head, head, selected_cells(w.kv, chosen, len(chosen)), **keywords)

    if n_kv % g.ratio:
        yield "the tail left out", over(ids[ids < tail])
    yield "the last selected cell left out", over(ids[:-1])
    yield "the first selected cell left out", over(ids[1:])
    yield f"KV head {head % g.n_head_kv} (head modulo n_head_kv)", _float64(w, row, head % g.n_head_kv, head, cells)
    yield "scores without 1/sqrt(head_dim)", over(ids, scale=1.0)
    yield "scores in log2 units taken for natural ones", over(ids, scale=float(np.log2(np.e)) * g.head_dim**-0.5)
    if len(cells.resident) < len(ids):
        yield (
            "cells of pages that are not resident counted as zero rows",
            _float64(w, row, kv_head, head, read_kv(w.kv, ids)),
        )
    if pool.v.coding == "q4_0":
        right = _float64(w, row, kv_head, head, cells)
        yield "the output not rotated back", rotate(right)
        yield "a rotation without 1/sqrt(head_dim)", right * g.head_dim**0.5


def _one_cell(w: Any, row: int, head: int, expected: np.ndarray, got: np.ndarray) -> str | None:
    """The cell whose weight alone being wrong explains the difference, if there is one."""
    pool = w.kv.pool
    ids = w.ids[row, : int(w.steps[row, 3])]
    cells = selected_cells(w.kv, ids, len(ids))
    _, values = cells.values()
    values = values[:, head // pool.geometry.group]
    off, base = got - expected, expected
    if pool.v.coding == "q4_0":
        off, base = rotate(off), rotate(base)
    # A weight too large by d moves a weighted mean along (value - mean).
    away = values - base
    size = np.linalg.norm(away, axis=1)
    along = np.abs(away @ off) / np.where(size > 0, size, np.inf)
    best = int(np.argmax(along)) if len(along) else -1
    if best >= 0 and along[best] >= (1 - CLOSE) * np.linalg.norm(off):
        present = ids[w.kv.locate(ids)[0] >= 0]
        return f"a wrong weight of one cell, {int(present[best])}"
    return None
