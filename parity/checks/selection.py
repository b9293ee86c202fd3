"""``selection``: the selected cells under both rules, and the indexer from raw keys to cells.

In the exact arithmetic ``select`` is held to the one right answer, byte for byte; ids of a float backend are sets with
multiplicity, and the tie policy is the one that it declares. ``indexer`` runs append_index, block_scores and select one
after the other, or the backend's fused call: byte for byte against the exact arithmetic, and against float64
throughout, where a difference at the cut is allowed if the two scores are within rounding of each other. Every
difference is put in a class (``margins.py``).
"""

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

from qsa.golden import inputs
from qsa.golden.families import select as family
from qsa.golden.recipe import window
from qsa.kernels.ops import WINDOW_ROWS
from qsa.reference import exact
from qsa.reference.append_index import append_index
from qsa.reference.block_scores import TAIL_BONUS, block_scores
from qsa.reference.geometry import REAL, RULES, step_records
from qsa.reference.index import Index
from qsa.reference.select import select

from ..backend import Backend, UnsupportedError
from ..compare import index_causes, twin
from ..compare.comparison import Comparison, equal, verdict
from ..compare.margins import margins
from ..contract import NUMBER_TYPES, Types
from . import real_scores
from .designs import selection_cover

OPERATIONS = {
    "select": family.ALLOWED,
    "unused": family.ALLOWED,
    "cut": selection_cover.CUT,
    "indexer": {
        "rule": RULES,
        "context": range(2**17 + 1),
        "rows": range(1, WINDOW_ROWS + 1),
        "tail": range(REAL.ratio),
        "seed": range(2**63),
        "keys": (None, *real_scores.KEYS),
    },
    "crowded": {**family.ALLOWED, "scores": real_scores.KINDS},
}

INDEXER = ("append_index", "block_scores", "select")

ROUNDING = 64 * 2.0**-24
"""Relative to the sum of |key x query| over a score: 13 roundings of the score and about 24 of its key (pool, norm,
rotation), each at most 2^-24, with room for keys whose pooled sum cancels."""


def cases(arithmetic: str, backend: Backend | None = None) -> Iterator[dict[str, Any]]:
    """The recipes of every case, in order; selection is the same in both arithmetics."""
    for rule in RULES:
        # n_kv 2047 to 2060: around the width at which the rules part.
        for n_kv in range(2047, 2061):
            kind = family.SCORES[n_kv % 4]
            yield dict(op="select", rule=rule, scores=kind, context=n_kv - n_kv % 4, rows=1, tail=n_kv % 4, seed=1)
        for kind in family.SCORES:
            for context, rows, tail in ((16, 2, 3), (2048, 4, 0), (8192, 8, 1), (131072, 4, 2)):
                yield dict(op="select", rule=rule, scores=kind, context=context, rows=rows, tail=tail, seed=2)
            yield dict(op="select", rule=rule, scores=kind, context=1048576, rows=1, tail=3, seed=3)
        # Either side of 135,168 cells, which some kernels hold in registers, and of 2^18 blocks.
        for context, tail in ((135168, 0), (135168, 1), (160000, 2), (1200000, 1)):
            yield dict(op="select", rule=rule, scores=family.SCORES[0], context=context, rows=1, tail=tail, seed=5)
        for context, rows in ((64, 3), (8192, 8)):
            yield dict(op="unused", rule=rule, scores=family.SCORES[0], context=context, rows=rows, tail=1, seed=6)
        for context, rows, tail in ((8, 2, 2), (2048, 3, 1), (8192, 4, 3)):
            yield dict(op="indexer", rule=rule, context=context, rows=rows, tail=tail, seed=4)
        for number, keys in enumerate(real_scores.KEYS):
            yield dict(op="indexer", rule=rule, context=4096, rows=2, tail=number, seed=7, keys=keys)
        # Contexts whose blocks are the bin, those above it and some below.
        for kind, context, rows in (
            ("shared", 8192, 8),
            ("captured", 2592, 4),
            ("bin4097", 20480, 2),
            ("bin16385", 81920, 2),
        ):
            yield dict(op="crowded", rule=rule, scores=kind, context=context, rows=rows, tail=1, seed=8)
        yield dict(op="crowded", rule=rule, scores="bin32768", context=135168, rows=1, tail=2, seed=8)
    yield from selection_cover.cases(backend)


def check(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """The comparisons of one case."""
    given = {key: value for key, value in recipe.items() if key != "op"}
    checks = {"select": _select, "crowded": _select, "unused": _unused, "indexer": _indexer, "cut": _cut}
    return checks[recipe["op"]](backend, given)


def _select(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    make = real_scores.scores if recipe["scores"] in real_scores.KINDS else family.make_inputs
    given = _within(backend, make(recipe))
    got = backend.select(**given)
    return [ids_comparison(backend, "select", select(**given), got, given["scores"], given["steps"])]


def _unused(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """Every other row is one that no sequence uses, as a captured launch has them: it selects nothing."""
    given = _within(backend, family.make_inputs(recipe))
    given["steps"][1::2] = step_records([-1], recipe["rule"])
    got = backend.select(**given)
    return [ids_comparison(backend, "select: unused rows", select(**given), got, given["scores"], given["steps"])]


def _cut(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    given = _within(backend, selection_cover.arguments(recipe))
    got = backend.select(**given, schedule=recipe.get("schedule"))
    return [ids_comparison(backend, "select: cut", select(**given), got, given["scores"], given["steps"])]


def _within(backend: Backend, given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of ``select`` whose scores are those of the backend's type, within the domain that it declares: NaN
    becomes the type's lowest score, an infinity the largest finite one of its sign. So ``special`` scores hold a
    backend with a narrow domain to what is left of them."""
    declaration, scores = backend.declaration, given["scores"]
    largest = np.float32(ml_dtypes.finfo(NUMBER_TYPES[declaration.types.index_scores].dtype).max)
    for row, n_bid in enumerate(given["steps"][:, 2].tolist()):
        seen = scores[row, :n_bid]
        if not declaration.domain.nan:
            seen[np.isnan(seen)] = -largest
        if not declaration.domain.infinity:
            seen[...] = np.clip(seen, -largest, largest)
        elif not declaration.tail_over_infinity:
            seen[np.isposinf(seen)] = largest
    given["scores"] = backend.rounded("index_scores", scores)
    return given


def ids_comparison(
    backend: Backend, name: str, expected: np.ndarray, got: np.ndarray, scores: np.ndarray, steps: np.ndarray
) -> Comparison:
    """Ids against the right ones: in the exact arithmetic bytes, with the class of every difference; else as sets with
    multiplicity, where a tie that is broken otherwise is a fault only of a backend that declares ``lowest``."""
    if backend.arithmetic == "exact":
        found = equal(name, expected, got, ("row", "index"), "the order is total: there is one right answer")
        if found.passed or got.shape != expected.shape:
            return found
        classes = margins(expected, got, scores, steps)
        likely = index_causes.explained(index_causes.selection(expected, got, scores, steps))
        return found.noted(f"cells: {classes.tie} tie, {classes.wrong} wrong", *classes.notes, *likely)
    kind = backend.declaration.types.index_scores
    # Scores come in the type in which they are compared: the type itself makes ties, and no rounding is left.
    return held_as_sets(backend, name, expected, got, scores, steps, np.zeros_like(scores), f"scores are {kind}")


def held_as_sets(
    backend: Backend,
    name: str,
    expected: np.ndarray,
    got: np.ndarray,
    scores: np.ndarray,
    steps: np.ndarray,
    tolerance: np.ndarray,
    text: str,
) -> Comparison:
    """Cells [rows, cap] of a float backend against the right ones; ``tolerance`` [rows, blocks] is by how much each of
    ``scores`` may be off, and ``text`` says why."""
    cap = max(expected.shape[1], got.shape[1])
    right, given = (np.full((len(steps), cap), -1, np.int64) for _ in range(2))
    right[:, : expected.shape[1]], given[:, : got.shape[1]] = expected, got
    classes = margins(right, given, scores, steps, tolerance=tolerance)
    lowest = backend.declaration.ties == "lowest"
    bad = classes.wrong + (classes.tie if lowest else 0)
    reason = f"cells may differ only where the scores at the cut are within rounding ({text})"
    reason += ", and ties go to the lower index, as declared" if lowest else ", or equal: ties are declared to be any"
    return verdict(
        name,
        bad,
        0,
        reason,
        size=max(1, int(steps[:, 3].sum())),
        bad=bad,
        notes=(*classes.notes, *index_causes.explained(index_causes.selection(right, given, scores, steps)))
        if bad
        else (),
        figures={"tie": classes.tie, "rounding": classes.rounding, "wrong": classes.wrong},
    )


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
    index = Index(len(raw) // REAL.ratio + 1, weight, dtype=dtype)
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


def _indexer(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    steps = window(recipe)
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
        index = Index(blocks + 1, weight)
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
