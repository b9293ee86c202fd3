"""``selection``: the selected cells under both rules, and the indexer from raw keys to cells.

``select`` is held to the one right answer, byte for byte. ``indexer`` runs append_index, block_scores and select one
after the other: byte for byte against the exact arithmetic, and against float64 throughout, where a difference at the
cut is allowed if the two scores are within rounding of each other. Every difference is put in a class (``margins.py``).
"""

import numpy as np

from qsa.golden import case, inputs
from qsa.golden import select as family
from qsa.golden.recipe import window
from qsa.reference import exact
from qsa.reference.append_index import append_index
from qsa.reference.block_scores import block_scores
from qsa.reference.geometry import REAL, RULES, step_records
from qsa.reference.index import Index
from qsa.reference.select import select

from .backend import UnsupportedError
from .compare import equal, verdict
from .margins import margins

OPERATIONS = {
    "select": family.ALLOWED,
    "unused": family.ALLOWED,
    "indexer": {
        "rule": RULES,
        "context": range(2**17 + 1),
        "rows": range(1, 9),
        "tail": range(4),
        "seed": range(2**63),
    },
}

INDEXER = ("append_index", "block_scores", "select")

ROUNDING = 64 * 2.0**-24
"""Relative to the sum of |key x query| over a score: 13 roundings of the score and about 24 of its key (pool, norm,
rotation), each at most 2^-24, with room for keys whose pooled sum cancels."""


def cases(arithmetic):
    """(case string, recipe) of every case, in order; selection is the same in both arithmetics."""
    for rule in RULES:
        # n_kv 2047 to 2060: around the width at which the rules part.
        for n_kv in range(2047, 2061):
            kind = family.SCORES[n_kv % 4]
            yield _case("select", rule=rule, scores=kind, context=n_kv - n_kv % 4, rows=1, tail=n_kv % 4, seed=1)
        for kind in family.SCORES:
            for context, rows, tail in ((16, 2, 3), (2048, 4, 0), (8192, 8, 1), (131072, 4, 2)):
                yield _case("select", rule=rule, scores=kind, context=context, rows=rows, tail=tail, seed=2)
            yield _case("select", rule=rule, scores=kind, context=1048576, rows=1, tail=3, seed=3)
        # Either side of 135,168 cells, which some kernels hold in registers, and of 2^18 blocks.
        for context, tail in ((135168, 0), (135168, 1), (160000, 2), (1200000, 1)):
            yield _case("select", rule=rule, scores=family.SCORES[0], context=context, rows=1, tail=tail, seed=5)
        for context, rows in ((64, 3), (8192, 8)):
            yield _case("unused", rule=rule, scores=family.SCORES[0], context=context, rows=rows, tail=1, seed=6)
        for context, rows, tail in ((8, 2, 2), (2048, 3, 1), (8192, 4, 3)):
            yield _case("indexer", rule=rule, context=context, rows=rows, tail=tail, seed=4)


def _case(op, **recipe):
    recipe = {"op": op, **recipe}
    return case.format("selection", recipe), recipe


def check(backend, recipe):
    """The comparisons of one case."""
    given = {key: value for key, value in recipe.items() if key != "op"}
    return {"select": _select, "unused": _unused, "indexer": _indexer}[recipe["op"]](backend, given)


def _select(backend, recipe):
    given = family.make_inputs(recipe)
    got = backend.select(**given)
    return [_ids("select", select(**given), got, given["scores"], given["steps"])]


def _unused(backend, recipe):
    """Every other row is one that no sequence uses, as a captured launch has them: it selects nothing."""
    given = family.make_inputs(recipe)
    given["steps"][1::2] = step_records([-1], recipe["rule"])
    got = backend.select(**given)
    return [_ids("select: unused rows", select(**given), got, given["scores"], given["steps"])]


def _ids(name, expected, got, scores, steps):
    """Equal bytes of ids, and the class of every difference."""
    found = equal(name, expected, got, ("row", "place"), "the order is total: there is one right answer")
    if found.passed or got.shape != expected.shape:
        return found
    classes = margins(expected, got, scores, steps)
    return found.noted(f"cells: {classes.tie} tie, {classes.wrong} wrong", *classes.notes)


def _keys(recipe, steps):
    """(raw [n, idx_dim], q_idx [rows, heads, idx_dim], weight [idx_dim]) float32 of an indexer case."""
    seed, n = recipe["seed"], int(steps[:, 1].max())
    raw = inputs.bell(seed, "selection.raw", n, REAL.idx_dim)
    q = inputs.bell(seed, "selection.q", recipe["rows"], REAL.idx_heads * REAL.idx_dim)
    weight = 1 + inputs.uniform(seed, "selection.weight", 1, REAL.idx_dim)[0]
    return raw, q.reshape(-1, REAL.idx_heads, REAL.idx_dim), weight


def _chain(backend, recipe, steps, dtype):
    """(index, scores, ids) of append_index, block_scores and select by ``backend``."""
    raw, q, weight = _keys(recipe, steps)
    # The rows of the window are there already, as verify windows have it: a row sees the blocks complete for it.
    records = window({"context": len(raw), "tail": 0, "rows": len(raw), "rule": recipe["rule"]})
    index = Index(len(raw) // REAL.ratio + 1, weight, dtype=dtype)
    written = backend.append_index(raw, records, index)
    index = index if written is True else written
    scores = backend.block_scores(q, index, steps)
    return index, scores, backend.select(scores, steps, rule=recipe["rule"])


class _Float64:
    """The float64 reference in the place of a backend."""

    append_index = staticmethod(append_index)
    block_scores = staticmethod(block_scores)
    select = staticmethod(select)


class _Filled:
    """A backend whose missing operations are those of the exact arithmetic."""

    def __init__(self, backend):
        self.missing = [name for name in INDEXER if not backend.has(name)]
        if len(self.missing) == len(INDEXER):
            raise UnsupportedError("indexer: the backend has none of append_index, block_scores, select")
        for name in INDEXER:
            setattr(self, name, getattr(exact if name in self.missing else backend, name))


def _indexer(backend, recipe):
    steps = window(recipe)
    filled = _Filled(backend)
    index, scores, ids = _chain(filled, recipe, steps, np.float32)
    right, right_scores, right_ids = _chain(exact, recipe, steps, np.float32)
    seen = np.arange(scores.shape[1]) <= steps[:, 2:3]
    place, blocks, open_cells = ("block", "dim"), right.max_blocks - 1, int(steps[-1, 1]) % REAL.ratio
    found = [
        equal("indexer: dead", right.dead, index.dead, ("dim",)),
        equal("indexer: scores", np.where(seen, right_scores, 0), np.where(seen, scores, 0), ("row", "block")),
        _ids("indexer: ids", right_ids, ids, right_scores, steps),
        _against_float64(recipe, steps, ids),
    ]
    if blocks:
        found.append(equal("indexer: pooled", right.pooled[:blocks], index.pooled[:blocks], place))
    if open_cells:
        found.append(equal("indexer: tail", right.tail[:open_cells], index.tail[:open_cells], ("place", "dim")))
    if filled.missing:
        return [one.noted(f"of the exact arithmetic: {', '.join(filled.missing)}") for one in found]
    return found


def _against_float64(recipe, steps, ids):
    """Cells that differ from a float64 indexer by more than rounding."""
    index, scores, truth = _chain(_Float64, recipe, steps, np.float64)
    _, q, _ = _keys(recipe, steps)
    keys = np.abs(np.concatenate([index.pooled[: index.max_blocks - 1], index.dead[None]]))
    tolerance = ROUNDING * (keys @ np.abs(q.astype(np.float64)).sum(axis=1).T).T
    classes = margins(truth, ids, scores, steps, tolerance=tolerance)
    return verdict(
        "indexer: cells against float64",
        classes.wrong,
        0,
        "cells may differ only where the scores at the cut are within 64 x 2^-24 of the sum of |key x query|",
        size=int(steps[:, 3].sum()),
        bad=classes.wrong,
        notes=classes.notes,
        figures={"tie": classes.tie, "rounding": classes.rounding},
    )
