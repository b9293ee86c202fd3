"""``selection:op=indexer``: from raw keys to cells, by append_index, block_scores and select one after the other, or by
the backend's fused call: byte for byte against the exact arithmetic, and against float64 throughout, where a difference
at the cut is allowed if the two scores are within rounding of each other."""

from collections.abc import Callable
from typing import Any

import numpy as np

from qsa.golden import inputs
from qsa.golden.recipe import window
from qsa.reference import exact
from qsa.reference.append_index import append_index
from qsa.reference.block_scores import TAIL_BONUS, block_scores
from qsa.reference.geometry import REAL
from qsa.reference.index import Index
from qsa.reference.select import select

from ..backend import Backend, UnsupportedError
from ..compare import twin
from ..compare.comparison import Comparison, equal, verdict
from ..compare.margins import margins
from ..contract import Types
from . import real_scores
from .selected import held_as_sets, ids_comparison

INDEXER = ("append_index", "block_scores", "select")

ROUNDING = 64 * 2.0**-24
"""Relative to the sum of |key x query| over a score: 13 roundings of the score and about 24 of its key (pool, norm,
rotation), each at most 2^-24, with room for keys whose pooled sum cancels."""


def _keys(recipe: dict[str, Any], steps: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(raw [n, idx_dim], q_idx [rows, heads, idx_dim], weight [idx_dim]) float32 of an indexer case."""
    seed, n = recipe["seed"], int(steps[:, 1].max())
    raw = inputs.bell(seed, "selection.raw", n, REAL.idx_dim)
    q = inputs.bell(seed, "selection.q", recipe["rows"], REAL.idx_heads * REAL.idx_dim)
    weight = 1 + inputs.uniform(seed, "selection.weight", 1, REAL.idx_dim)[0]
    q = q.reshape(-1, REAL.idx_heads, REAL.idx_dim)
    if recipe.get("keys"):
        raw, q = real_scores.keys(recipe["keys"], raw, q)
    return raw, q, weight


def _chain(
    backend: Any, recipe: dict[str, Any], steps: np.ndarray, dtype: type, raw: Any = None
) -> tuple[Index, Any, Any]:
    """(index, scores, ids) of append_index, block_scores and select by ``backend``."""
    made, q, weight = _keys(recipe, steps)
    raw = made if raw is None else raw
    # The rows of the window are there already, as verify windows have it: a row sees the blocks complete for it.
    records = window({"context": len(raw), "tail": 0, "rows": len(raw), "rule": recipe["rule"]})
    format = "fp32" if dtype == np.float64 else recipe.get("index_format", "fp32")
    index = Index(len(raw) // REAL.ratio + 1, weight, dtype=dtype, format=format)
    written = backend.append_index(raw, records, index)
    index = index if written is True else written
    scores = backend.block_scores(q, index, steps)
    return index, scores, backend.select(scores, steps, rule=recipe["rule"])


class _Float64:
    """The float64 reference as a backend."""

    append_index = staticmethod(append_index)
    block_scores = staticmethod(block_scores)
    select = staticmethod(select)


class _Filled:
    """A backend whose missing operations are those of the exact arithmetic."""

    append_index: Callable[..., Any]
    block_scores: Callable[..., Any]
    select: Callable[..., Any]

    def __init__(self, backend: Backend) -> None:
        self.missing = [name for name in INDEXER if not backend.has(name)]
        if len(self.missing) == len(INDEXER):
            raise UnsupportedError("indexer: the backend has none of append_index, block_scores, select, indexer")
        for name in INDEXER:
            setattr(self, name, getattr(exact if name in self.missing else backend, name))


def check(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """The comparisons of one case."""
    steps = window(recipe)
    if backend.has("indexer") and recipe.get("index_format"):
        raise UnsupportedError(f"indexer: makes its own keys: index_format {recipe['index_format']} is of ours")
    if backend.arithmetic == "float":
        return _float_indexer(backend, recipe, steps)
    if backend.has("indexer"):
        raw, q, weight = _keys(recipe, steps)
        tables = Index(len(raw) // REAL.ratio + 1, weight)
        ids = backend.indexer(q, raw, tables, steps, recipe["rule"])
        _, right_scores, right_ids = _chain(exact, recipe, steps, np.float32)
        return [ids_comparison(backend, "indexer: ids", right_ids, ids, right_scores, steps)]
    filled = _Filled(backend)
    index, scores, ids = _chain(filled, recipe, steps, np.float32)
    right, right_scores, right_ids = _chain(exact, recipe, steps, np.float32)
    seen = np.arange(scores.shape[1]) <= steps[:, 2:3]
    blocks, open_cells = right.max_blocks - 1, int(steps[-1, 1]) % REAL.ratio
    found = [
        equal("indexer: dead", right.dead, index.dead, ("dim",)),
        equal("indexer: scores", np.where(seen, right_scores, 0), np.where(seen, scores, 0), ("row", "block")),
        ids_comparison(backend, "indexer: ids", right_ids, ids, right_scores, steps),
        _against_float64(backend, recipe, steps, ids),
    ]
    if blocks:
        found.append(equal("indexer: pooled", right.pooled[:blocks], index.pooled[:blocks], ("block", "dim")))
    if open_cells:
        found.append(equal("indexer: tail", right.tail[:open_cells], index.tail[:open_cells], ("cell", "dim")))
    return _noted(found, filled)


def _noted(found: list[Comparison], filled: _Filled) -> list[Comparison]:
    if not filled.missing:
        return found
    note = f"of the exact arithmetic: {', '.join(filled.missing)}"
    return [comparison.noted(note) for comparison in found]


def _float_indexer(backend: Backend, recipe: dict[str, Any], steps: np.ndarray) -> list[Comparison]:
    """The cells of a float backend, from its fused call or from its operations one after the other."""
    raw, q, weight = _keys(recipe, steps)
    raw, q = backend.rounded("raw_keys", raw), backend.rounded("index_query", q)
    if backend.has("indexer"):
        tables = Index(len(raw) // REAL.ratio + 1, weight)
        ids = backend.indexer(q, raw, tables, steps, recipe["rule"])
        return [_against_float64(backend, recipe, steps, ids)]
    filled = _Filled(backend)
    records = window({"context": len(raw), "tail": 0, "rows": len(raw), "rule": recipe["rule"]})
    blocks = len(raw) // REAL.ratio
    if backend.own_index:
        own = Index(blocks + 1, weight, dtype=np.float64)
        append_index(raw, records, own)
        index: Any = backend.own_index_of(raw, own)
    else:
        index = Index(blocks + 1, weight, format=recipe.get("index_format", "fp32"))
        written = filled.append_index(raw, records, index)
        index = index if written is True else written
    scores = filled.block_scores(q, index, steps)
    wide = np.full((len(steps), blocks + 1), np.inf, np.float32)
    wide[:, : scores.shape[1]] = scores[:, : blocks + 1]
    ids = filled.select(backend.rounded("index_scores", wide), steps, rule=recipe["rule"])
    return _noted([_against_float64(backend, recipe, steps, ids)], filled)


def _against_float64(backend: Backend, recipe: dict[str, Any], steps: np.ndarray, ids: np.ndarray) -> Comparison:
    """Cells that differ from a float64 indexer by more than rounding."""
    raw, q, _ = _keys(recipe, steps)
    raw, q = backend.rounded("raw_keys", raw), backend.rounded("index_query", q)
    index, _, _ = _chain(_Float64, recipe, steps, np.float64, raw)
    scores = block_scores(q, index, steps)
    truth = select(scores, steps, rule=recipe["rule"])
    keys = np.abs(np.concatenate([index.pooled[: index.max_blocks - 1], index.dead[None]]))
    sums = (keys @ np.abs(q.astype(np.float64)).sum(axis=1).T).T
    text = "64 x 2^-24 of the sum of |key x query|"
    tolerance = ROUNDING * sums
    types = backend.declaration.types
    if any(kind != "float32" for kind in (types.index_keys, types.index_scores)):
        narrow = _narrow_error(index, raw, q, scores, types)
        tolerance = tolerance + narrow[:, None] * np.ones_like(sums)
        text += f", and 4 x the error of a plain kernel with {types.index_keys} keys and {types.index_scores} scores"
    if recipe.get("index_format"):
        tolerance = tolerance + np.stack([_encoding(one, keys) for one in q])
        text += ", and what encoding key and query to 16 bits changes: half a unit in every dim"
    name = "indexer: cells against float64"
    if backend.arithmetic == "float":
        return held_as_sets(backend, name, truth, ids, scores, steps, tolerance, text)
    classes = margins(truth, ids, scores, steps, tolerance=tolerance)
    return verdict(
        name,
        classes.wrong,
        0,
        f"cells may differ only where the scores at the cut are within {text}",
        size=int(steps[:, 3].sum()),
        bad=classes.wrong,
        notes=classes.notes,
        figures={"tie": classes.tie, "rounding": classes.rounding},
    )


def _encoding(q: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """float64 [keys]: what encoding the query ``q`` [heads, dim] and ``keys`` [keys, dim] may change in a score."""
    key = twin.encoding_bound(keys) * np.linalg.norm(keys, axis=-1) / np.sqrt(keys.shape[-1])
    return key * np.abs(q).sum(dtype=np.float64) + twin.query_bound(q, keys, np.ones(len(keys)))


def _narrow_error(index: Index, raw: np.ndarray, q: np.ndarray, scores: np.ndarray, types: Types) -> np.ndarray:
    """float64 [rows]: 4 x the largest error of a row's scores by a plain kernel that rounds keys and scores."""
    blocks = len(raw) // REAL.ratio
    keys = twin.pooled_keys(raw[: blocks * REAL.ratio], index, types.index_keys)
    found = []
    for row in range(len(q)):
        own = twin.scores(q[row], keys, types.index_scores)
        seen = np.isfinite(scores[row, :blocks]) & (scores[row, :blocks] < TAIL_BONUS / 2)
        found.append(np.abs(own - scores[row, :blocks])[seen].max(initial=0))
    return twin.FACTOR * np.array(found)
