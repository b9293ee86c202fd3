"""``append_index`` and ``block_scores`` against float64, in an Index of ours or in a backend's own index."""

from typing import Any

import numpy as np

from qsa.golden import inputs
from qsa.reference import exact
from qsa.reference.append_index import append_index as reference_append
from qsa.reference.block_scores import TAIL_BONUS
from qsa.reference.geometry import REAL, step_records
from qsa.reference.index import INDEX_FORMATS, Index

from ..backend import Backend, UnsupportedError
from ..compare import index_causes, twin
from ..compare.comparison import Comparison, equal, error, relative_error
from ..contract import OwnIndex

ROUNDING = 2.0**-24
"""Relative error of one rounding to float32."""

TREE_ROUNDINGS = 13
"""On the way to one block score in the lane tree: product 1, lane 3, butterfly 5, heads 3, bonus of the tail 1."""

SPECIAL = ("nan", "inf", "-inf", "zero", "subnormal")
"""Keys of ``score_corners``, a block each in turn among ordinary ones."""


INDEX_FORMAT = (None, *INDEX_FORMATS[1:])
"""Values of the parameter ``index_format``; where it is missing the index is one of fp32."""


def formats(backend: Backend | None) -> tuple[str, ...]:
    """The index formats that ``backend`` declares, fp32 first."""
    if backend is None:
        return INDEX_FORMATS
    return tuple(name for name in INDEX_FORMATS if name in backend.declaration.index_formats)


def named(format: str) -> dict[str, str]:
    """The parameter of a recipe for an index of ``format``."""
    return {} if format == "fp32" else {"index_format": format}


ENCODED = ", and the encoding to 16 bits: half a unit in every dim"


def append_index(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """Pooled keys, the dead key and the tail of ``context`` raw keys appended at once."""
    context, seed = recipe["context"], recipe["seed"]
    raw = backend.rounded("raw_keys", inputs.bell(seed, "accuracy.raw", context, REAL.idx_dim))
    weight = 1 + inputs.uniform(seed, "accuracy.weight", 1, REAL.idx_dim)[0]
    return appended(backend, raw, weight, recipe.get("index_format", "fp32"))


def appended(backend: Backend, raw: np.ndarray, weight: np.ndarray, format: str = "fp32") -> list[Comparison]:
    """The comparisons of the keys that ``backend`` makes of ``raw`` [n, idx_dim], of its type, appended at once to an
    index of ``format``."""
    context = len(raw)
    steps = step_records(np.arange(context))
    blocks = context // REAL.ratio
    expected, given = Index(blocks + 1, weight, dtype=np.float64), Index(blocks + 1, weight, format=format)
    reference_append(raw, steps, expected)
    plain = twin.pooled_keys(raw[: blocks * REAL.ratio], expected)
    own = relative_error(expected.pooled[:blocks], plain)
    bound = twin.FACTOR * own + twin.slack("float32")
    reason = f"4 x the error of plain float32 on the same key, {own.max(initial=0):.2g} at most, and 2^-22 of slack"
    axes = ("block", "dim")
    right = expected.pooled[:blocks].copy()
    if backend.own_index:
        if not blocks:
            raise UnsupportedError("append_index: no complete block: an own index shows no other keys")
        stored = backend.own_index_of(raw, expected)
        storage = backend.declaration.index_error or 0.0
        reason += f", and the declared index_error {storage:.3g}"
        return [error("index_append: pooled", right, stored.index.pooled[:blocks], bound + storage, reason, axes)]
    got = backend.append_index(raw, steps, given)
    dead, dead_bound = expected.dead[None], np.full(1, bound.max(initial=twin.slack("float32")))
    if format == "int16":
        bound, dead_bound, reason = (
            bound + twin.encoding_bound(right),
            dead_bound + twin.encoding_bound(dead),
            reason + ENCODED,
        )
    found = [error("append_index: dead", dead, got.dead_values()[None], dead_bound, reason, ("key", "dim"))]
    if blocks:
        values = got.pooled_values(slice(blocks))
        found.insert(0, error("append_index: pooled", right, values, bound, reason, axes))
    open_cells = context % REAL.ratio
    if open_cells:
        tail, kept = raw[context - open_cells :], got.tail[:open_cells]
        text = f"raw keys are kept as {backend.declaration.types.raw_keys}"
        found.append(equal("append_index: tail", tail, kept, ("cell", "dim"), text))
    return found


def _inputs(backend: Backend, recipe: dict[str, Any]) -> tuple[np.ndarray, Index | OwnIndex, np.ndarray]:
    """(q_idx [rows, heads, dim] float32, index, steps [rows, 4]) of a case of ``block_scores``."""
    rows, seed, end = recipe["rows"], recipe["seed"], recipe["context"] + recipe["tail"]
    q = inputs.bell(seed, "accuracy.q_idx", rows, REAL.idx_heads * REAL.idx_dim)
    q = backend.rounded("index_query", q.reshape(rows, REAL.idx_heads, REAL.idx_dim))
    steps = step_records(np.arange(end - rows, end))
    weight = np.ones(REAL.idx_dim, np.float32)
    if backend.own_index:
        raw = backend.rounded("raw_keys", inputs.bell(seed, "accuracy.raw", end, REAL.idx_dim))
        filled = Index(end // REAL.ratio + 1, weight, dtype=np.float64)
        reference_append(raw, step_records(np.arange(end)), filled)
        return q, backend.own_index_of(raw, filled), steps
    index = Index(end // REAL.ratio + 1, weight, format=recipe.get("index_format", "fp32"))
    index.set_pooled(slice(None), inputs.bell(seed, "accuracy.pooled", index.max_blocks, REAL.idx_dim))
    index.set_dead(inputs.bell(seed, "accuracy.dead", 1, REAL.idx_dim)[0])
    # The key behind the last complete block must not be read: the dead key is used instead.
    index.set_pooled(end // REAL.ratio, np.full(REAL.idx_dim, np.nan))
    return q, index, steps


def block_scores(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """Every row's scores, relative to the sum of |key x query| of each."""
    if not recipe["context"] + recipe["tail"] >= REAL.ratio and not backend.declaration.tail_score:
        raise UnsupportedError("block_scores: no complete block, and the tail's score is not declared (tail_score)")
    q, index, steps = _inputs(backend, recipe)
    got = backend.block_scores(q, index, steps)
    values = index.index if isinstance(index, OwnIndex) else index
    return [
        score_row(backend, f"block_scores: row {row}", q[row], values, step, got[row])
        for row, step in enumerate(steps.tolist())
        if backend.declaration.tail_score or step[2]
    ]


def score_row(backend: Backend, name: str, q: np.ndarray, index: Index, step: list[int], got: np.ndarray) -> Comparison:
    """The scores of one row: those of its blocks, and the tail's where the backend declares it."""
    _, n_kv, n_bid, _ = step
    tail = backend.declaration.tail_score
    keys64 = index.pooled_values(slice(n_bid))
    keys64 = np.concatenate([keys64, index.dead_values()[None]]) if tail else keys64
    expected = np.maximum(keys64 @ q.astype(np.float64).T, 0).sum(axis=1)
    scale = twin.score_scale(q, keys64)
    if tail and n_kv % REAL.ratio:
        expected[n_bid] += TAIL_BONUS
        scale[n_bid] += abs(expected[n_bid])
    bound: float | np.ndarray
    if backend.arithmetic == "exact":
        bound = TREE_ROUNDINGS * ROUNDING
        reason = f"{TREE_ROUNDINGS} roundings in the lane tree, each at most 2^-24 of the sum of |key x query|"
    else:
        bound, reason = twin.score_bound(q, keys64, backend.declaration.types.index_scores)
    if index.format == "int16":
        bound, reason = bound + twin.query_bound(q, keys64, scale), reason + ENCODED + " of the query"
    found = error(name, expected, got[: len(expected)], bound, reason, ("block",), scale)
    if found.passed or len(got) < len(expected):
        return found
    return found.noted(*index_causes.explained(index_causes.block_scores(q, index, step, got, bool(tail))))


def score_corners(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """Keys that are NaN, infinite, 0 or subnormal among ordinary ones, as far as the backend declares them.

    relu keeps a NaN, or makes it 0 where that is declared; a key of infinities gives an infinity, 0 or a NaN. An own
    index makes its keys itself, of raw keys of those kinds."""
    domain, seed, rows, blocks = backend.declaration.domain, recipe["seed"], recipe["rows"], 40
    end = blocks * REAL.ratio + rows - 1
    own = backend.own_index
    filled = Index(
        end // REAL.ratio + 1,
        np.ones(REAL.idx_dim, np.float32),
        dtype=np.float64 if own else np.float32,
        format=recipe.get("index_format", "fp32"),
    )
    keys = inputs.bell(seed, "accuracy.pooled", filled.max_blocks, REAL.idx_dim)
    for block in range(0, blocks, 4):
        kind = SPECIAL[block // 4 % len(SPECIAL)]
        if kind == "nan" and domain.nan:
            keys[block, 5] = np.nan
        elif kind.endswith("inf") and domain.infinity and domain.nan:
            keys[block, 7] = float(kind)
        elif kind == "zero":
            keys[block] = 0
        elif kind == "subnormal" and domain.subnormal:
            keys[block] *= np.float32(2.0**-140)
    index: Index | OwnIndex = filled
    if own:
        raw = backend.rounded("raw_keys", np.repeat(keys, REAL.ratio, axis=0)[:end])
        with np.errstate(invalid="ignore"):
            reference_append(raw, step_records(np.arange(end)), filled)
        index = backend.own_index_of(raw, filled)
    else:
        filled.set_pooled(slice(None), keys)
        filled.set_dead(inputs.bell(seed, "accuracy.dead", 1, REAL.idx_dim)[0])
    q = inputs.bell(seed, "accuracy.q_idx", rows, REAL.idx_heads * REAL.idx_dim)
    q = backend.rounded("index_query", q.reshape(rows, REAL.idx_heads, REAL.idx_dim))
    steps = step_records(np.arange(end - rows, end))
    got = backend.block_scores(q, index, steps)
    if backend.arithmetic == "exact":
        seen = np.arange(got.shape[1]) <= steps[:, 2:3]
        right = exact.block_scores(q, filled, steps)
        return [equal("block_scores: corners", np.where(seen, right, 0), np.where(seen, got, 0), ("row", "block"))]
    return [corner_row(backend, q[row], filled, steps[row].tolist(), got[row], row) for row in range(rows)]


def corner_row(backend: Backend, q: np.ndarray, index: Index, step: list[int], got: np.ndarray, row: int) -> Comparison:
    """The scores of one row whose keys may be NaN or infinite: those of its blocks, and the tail's where the backend
    declares it and the index is ours."""
    _, n_kv, n_bid, _ = step
    tail = backend.declaration.tail_score and not backend.own_index
    keys = index.pooled_values(slice(n_bid))
    keys = np.concatenate([keys, index.dead_values()[None]]) if tail else keys
    with np.errstate(invalid="ignore"):
        dots = keys @ q.astype(np.float64).T
    if backend.declaration.relu_nan == "zero":
        dots = np.where(np.isnan(dots), 0, dots)
    expected = np.where(dots <= 0, 0, dots).sum(axis=1)
    plain = np.isfinite(keys).all(axis=1)
    bound: float | np.ndarray
    bound, reason = twin.score_bound(q, keys[plain], backend.declaration.types.index_scores)
    scale = np.ones(len(keys))
    scale[plain] = twin.score_scale(q, keys[plain])
    if index.format == "int16":
        bound = bound + twin.query_bound(q, np.where(plain[:, None], keys, 0), scale)
        reason += ENCODED + " of the query"
    if tail and n_kv % REAL.ratio:
        expected[n_bid] += TAIL_BONUS
        scale[n_bid] += TAIL_BONUS if np.isnan(expected[n_bid]) else abs(expected[n_bid])
    return error(f"block_scores: corners, row {row}", expected, got[: len(keys)], bound, reason, ("block",), scale)
