"""Where a failing ``attend`` first went wrong: its place, its stage, and the mistakes that it is consistent with.

A backend may define ``attend_stages(q, kv, ids, steps, row)``, which gives a dict with any of the arrays of that row in
:data:`STAGES` (the exact arithmetic) or :data:`FLOAT_STAGES`; the first that is wrong is the stage. A backend without
it shows only which row, head and value groups are wrong, and which simple mistakes (``likely.py``) give its output.
That is a hint, and the text says so. Where none does, it is called again with less (``experiments.py``).
"""

import importlib
from typing import Any

import numpy as np

from qsa.reference.attend import selected_cells
from qsa.reference.formats import GROUP, rotate

from ..contract.kernel import UnsupportedError
from ..contract.number_types import unit
from . import twin
from .comparison import relative_error
from .experiments import experiments
from .likely import CLOSE, likely

# `qsa.reference.exact.attend` is the function; the module of that name has the stages.
_exact = importlib.import_module("qsa.reference.exact.attend")

STAGES = ("scores", "floor", "group", "mass", "weights", "sum_mass", "sum_value", "output")
"""The stages of the exact arithmetic in order, one row each: scores [heads, n]; the maxima floor [heads] and group
[heads, V groups]; mass [heads, n] and weights [heads, V groups, n]; their sums L [heads] and O [heads, dim]; output
[heads, dim], not yet rotated back."""

FLOAT_STAGES = ("cells", "scores", "weights", "output")
"""The stages of a float kernel, one row each: cells [n], the ids in the order in which it has them (those of the call
that are there unless given); scores [heads, n] with their factor, in nats; weights [heads, n], whatever their sum;
output [heads, dim], not yet rotated back."""


def explain(
    backend: Any, w: Any, expected: np.ndarray, got: np.ndarray, bound: np.ndarray | None = None
) -> tuple[str, ...]:
    """Lines about the place where ``got`` [rows, heads, dim] is wrong.

    w         the arguments of the call as attributes ``q``, ``kv`` (one PagedKV or OwnKV), ``ids``, ``steps``
    expected  the right bytes, float32; with ``bound`` the truth, float64
    bound     None in the exact arithmetic; else what broadcasts to [rows, heads]: the relative errors allowed
    """
    if got.shape != expected.shape or (bound is None and got.dtype != expected.dtype):
        return ()
    place = _first_wrong(expected, got) if bound is None else _worst(expected, got, bound)
    if place is None:
        return ()
    row, head, text = place
    lines = [f"position: row {row}, head {head}: {text}{_value_groups(w, expected[row, head], got[row, head], bound)}"]
    stage = _first_stage(backend, w, row, exact=bound is None)
    if stage:
        lines.append(f"stage: row {row}: first wrong in {stage}")
    tolerance = CLOSE
    output = "float32"
    if bound is not None:
        tolerance = max(tolerance, float(np.broadcast_to(bound, expected.shape[:2])[row, head]))
        output = backend.declaration.types.output
    found = likely(w, row, head, expected, got, tolerance, output)
    lines.append(f"consistent with: {found}" if found else "consistent with none of the simple mistakes tried")
    if backend.experiments and not (stage or found):
        lines += experiments(backend, w, row)
    return tuple(lines)


def _first_wrong(expected: np.ndarray, got: np.ndarray) -> tuple[int, int, str] | None:
    """(row, head, "") of the first head that is off by more than rounding; of the first differing bytes where none is;
    None where all bytes are equal."""
    wrong = (expected.view(np.uint32) != got.view(np.uint32)) & ~(np.isnan(expected) & np.isnan(got))
    if not wrong.any():
        return None
    far = relative_error(expected, got) > CLOSE
    row, head = (int(x) for x in np.argwhere(far if far.any() else wrong.any(axis=-1))[0])
    return row, head, ""


def _worst(expected: np.ndarray, got: np.ndarray, bound: np.ndarray) -> tuple[int, int, str] | None:
    """(row, head, words) of the head that is furthest beyond its bound, or None."""
    errors = relative_error(expected, got)
    bounds = np.broadcast_to(bound, errors.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(errors == 0, 0, errors / bounds)
    if not (share > 1).any():
        return None
    row, head = (int(x) for x in np.unravel_index(int(share.argmax()), share.shape))
    beyond = int((share > 1).sum())
    text = f"error {errors[row, head]:.3g} of {bounds[row, head]:.3g} allowed, the worst of {beyond} heads beyond: "
    return row, head, text


def _value_groups(w: Any, expected: np.ndarray, got: np.ndarray, bound: np.ndarray | None) -> str:
    """Which groups of dims with a common scale are wrong; for a float kernel those that hold most of the error."""
    size = GROUP.get(twin.paged(w.kv).pool.v.coding) or (len(expected) if bound is None else 64)
    of = len(expected) // size
    if bound is None:
        wrong = (expected.view(np.uint32) != got.view(np.uint32)) & ~(np.isnan(expected) & np.isnan(got))
    else:
        off = np.abs(got.astype(np.float64) - expected)
        off = np.where(np.isfinite(off), off, np.inf)
        wrong = np.repeat(off.reshape(of, size).max(axis=1) >= off.max() / 8, size)
    groups = sorted({int(dim) // size for dim in np.flatnonzero(wrong)})
    return f"value groups {groups} of {of}"


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


def _first_stage(backend: Any, w: Any, row: int, exact: bool) -> str | None:
    """Name of the first stage that the backend has wrong, with the first coordinate; None when it exposes none."""
    try:
        given = backend.attend_stages(w.q, w.kv, w.ids, w.steps, row)
    except UnsupportedError:
        return None
    except Exception as error:
        # A tap is a help, no part of the verdict: a fault of it must not hide the failure that it should explain.
        return f"attend_stages itself: {type(error).__name__}: {error}"
    return _exact_stage(given, stages(w, row)) if exact else _float_stage(given, w, row, backend.declaration.types)


def _exact_stage(given: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> str:
    for name, array in right.items():
        if name in given:
            ours = given[name]
            if ours.shape != array.shape:
                return f"{name}: shape {list(ours.shape)}, expected {list(array.shape)}"
            bad = (ours != array) & ~((ours != ours) & (array != array))
            if bad.any():
                at = tuple(int(x) for x in np.argwhere(bad)[0])
                return f"{name} at {list(at)}: expected {array[at]}, got {ours[at]}"
    return "none of the stages it shows"


def _float_stage(given: dict[str, np.ndarray], w: Any, row: int, types: Any) -> str:
    """The first stage of a float kernel that is further from float64 than its types allow."""
    kv = twin.paged(w.kv)
    ids = np.asarray(w.ids[row, : int(w.steps[row, 3])])
    present = ids[kv.locate(ids)[0] >= 0]
    if "cells" in given:
        cells = np.asarray(given["cells"]).astype(np.int64).ravel()
        lacking, extra = np.setdiff1d(present, cells), np.setdiff1d(cells, present)
        if len(lacking) or len(extra) or len(cells) != len(present):
            return f"cells: without {lacking[:4].tolist()}, with {extra[:4].tolist()}, {len(cells)} of {len(present)}"
        present = cells
    for name, (right, allowed) in _float_right(w, kv, row, present, types).items():
        if name not in given:
            continue
        ours = given[name].astype(np.float64)
        if ours.shape != right.shape:
            return f"{name}: shape {list(ours.shape)}, expected {list(right.shape)}"
        if name == "weights":
            with np.errstate(divide="ignore", invalid="ignore"):
                ours = ours / ours.sum(axis=-1, keepdims=True)
        allowed = np.broadcast_to(allowed, right.shape)
        off = np.abs(ours - right)
        bad = ~(off <= allowed)
        if bad.any():
            # The one that is furthest off: a sum spreads the fault of one weight over the others.
            with np.errstate(divide="ignore", invalid="ignore"):
                share = np.where(np.isnan(off), np.inf, np.where(bad, off / allowed, 0))
            at = tuple(int(x) for x in np.unravel_index(int(share.argmax()), share.shape))
            text = f"expected {right[at]:.9g}, got {ours[at]:.9g}, {allowed[at]:.3g} allowed"
            return f"{name} at {list(at)}: {text} ({int(bad.sum())} of {bad.size} are wrong)"
    return "none of the stages it shows"


def _float_right(
    w: Any, kv: Any, row: int, present: np.ndarray, types: Any
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Stage -> (float64 array, what each element may be off by) of one row over the cells ``present`` in their order.

    A score may be off by a rounding of float32 for every dim that it sums and two of its type; a weight by twice the
    worst score of its head (one in the weight, one in the sum) and four of its type; an output as the twin says.
    """
    g = kv.pool.geometry
    k, v = selected_cells(kv, present, len(present)).values()
    q = np.asarray(w.q[row], np.float64)
    q = rotate(q) if kv.pool.k.coding == "q4_0" else q
    grouped, scale = q.reshape(g.n_head_kv, g.group, -1), g.head_dim**-0.5
    s = np.einsum("gjd,ngd->gjn", grouped, k).reshape(g.n_head, -1) * scale
    most = np.einsum("gjd,ngd->gjn", np.abs(grouped), np.abs(k)).reshape(g.n_head, -1) * scale
    per_score = (g.head_dim + 2) * 2.0**-24 * most + 2 * unit(types.scores) * np.abs(s)
    p = np.exp(s - s.max(axis=-1, keepdims=True, initial=-np.inf))
    p /= p.sum(axis=-1, keepdims=True)
    slack = 2 * per_score.max(axis=-1, keepdims=True, initial=0) + 4 * unit(types.weights) + len(present) * 2.0**-24
    out = np.einsum("gjn,ngd->gjd", p.reshape(g.n_head_kv, g.group, -1), v).reshape(g.n_head, -1)
    spread = np.einsum("gjn,ngd->gjd", p.reshape(g.n_head_kv, g.group, -1), np.abs(v)).reshape(g.n_head, -1)
    per_output = np.expm1(np.minimum(slack, 1)) * spread + 4 * unit(types.output) * np.abs(out)
    return {
        "scores": (s, per_score),
        "weights": (p, np.expm1(np.minimum(slack, 1)) * p + np.finfo(np.float32).tiny),
        "output": (out, per_output),
    }
