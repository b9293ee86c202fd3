"""``accuracy``: every operation but selection against float64, quantisation error and kernel error apart.

``kernel`` compares with float64 on the values the kernel was given, quantised K and V. ``total`` compares with float64
on K and V before quantisation; what it holds to the bound is the excess over ``quantisation``, which is float64 against
float64 and no kernel's fault. A failure of the exact arithmetic also names the stage or the likely cause.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from qsa.golden import inputs
from qsa.reference.formats import EXACT_FORMATS
from qsa.reference.geometry import REAL, RULES

from ..backend import Backend, UnsupportedError
from ..compare.comparison import Comparison, equal, error, most, relative_error, verdict
from ..compare.localise import explain
from ..contract import OwnKV
from . import attend_inputs as data
from . import fused, index_operations, real_inputs, storage
from .designs import append_cover, score_cover
from .designs.attention_cover import CORNERS, corner

OPERATIONS = {
    "attend": {
        "format": (*data.FORMATS, data.OWN),
        "scores": data.SCORES,
        "context": range(2**24 + 1),
        "rows": data.ROWS,
        "tail": data.TAILS,
        "seed": data.SEEDS,
    },
    "corners": {"format": EXACT_FORMATS, "rows": data.ROWS, "seed": data.SEEDS},
    "append_kv": {"format": (*data.FORMATS, data.OWN), "rows": range(1, 65), "seed": data.SEEDS},
    "append_index": {
        "context": range(1, 2**16 + 1),
        "index_format": index_operations.INDEX_FORMAT,
        "seed": data.SEEDS,
    },
    "block_scores": {
        "context": range(2**20 + 1),
        "rows": data.ROWS,
        "tail": data.TAILS,
        "index_format": index_operations.INDEX_FORMAT,
        "seed": data.SEEDS,
    },
    "kv_cycle": append_cover.KV_CYCLE,
    "index_cycle": append_cover.INDEX_CYCLE,
    "score_cover": score_cover.SCORE_COVER,
    "score_corners": {"rows": data.ROWS, "index_format": index_operations.INDEX_FORMAT, "seed": data.SEEDS},
    "gated": {
        "format": (*data.FORMATS, data.OWN),
        "context": range(2**24 + 1),
        "rows": data.ROWS,
        "tail": data.TAILS,
        "seed": data.SEEDS,
    },
    "sparse_attention": {
        "format": (*data.FORMATS, data.OWN),
        "rule": RULES,
        "context": range(2**17 + 1),
        "rows": data.ROWS,
        "tail": data.TAILS,
        "seed": data.SEEDS,
    },
}


def cases(arithmetic: str, backend: Backend | None = None) -> Iterator[dict[str, Any]]:
    """The recipes of every case, in order; those of ``backend``'s own storage and fused calls where it has such."""
    for format in data.formats(arithmetic, backend):
        # Widths 1, 63, 64, 65, 500; then 2051, and 1024, 2049 and 2048 over contexts of 1K, 64K and 1M.
        for context, tail, rows in ((0, 1, 1), (60, 3, 1), (64, 0, 1), (64, 1, 2), (500, 0, 2)):
            yield dict(op="attend", format=format, scores="ordinary", context=context, rows=rows, tail=tail, seed=1)
        for kind in data.FACTORS:
            yield dict(op="attend", format=format, scores=kind, context=16384, rows=4, tail=3, seed=2)
        for number, kind in enumerate(real_inputs.KINDS):
            context = real_inputs.CELLS if kind == real_inputs.CAPTURED else 300
            yield dict(op="attend", format=format, scores=kind, context=context, rows=2, tail=number % 4, seed=11)
        yield dict(op="attend", format=format, scores=data.SHARED, context=4096, rows=2, tail=1, seed=12)
        for context, tail in ((1024, 0), (65536, 1), (1048576, 0)):
            yield dict(op="attend", format=format, scores="ordinary", context=context, rows=2, tail=tail, seed=3)
        if arithmetic == "exact":
            yield dict(op="corners", format=format, rows=3, seed=7)
        yield dict(op="append_kv", format=format, rows=16, seed=4)
        if backend is not None and backend.has("attend_gated"):
            for context, rows, tail in ((60, 1, 3), (16384, 3, 1)):
                yield dict(op="gated", format=format, context=context, rows=rows, tail=tail, seed=8)
        if backend is not None and backend.has("sparse_attention"):
            yield dict(op="sparse_attention", format=format, rule="blocks", context=8192, rows=3, tail=1, seed=9)
    for index_format in index_operations.formats(backend):
        named = index_operations.named(index_format)
        yield dict(op="append_index", context=2048, **named, seed=5)
        for context, rows, tail in ((0, 1, 3), (1024, 1, 0), (16384, 4, 2), (65536, 8, 1)):
            yield dict(op="block_scores", context=context, rows=rows, tail=tail, **named, seed=6)
        yield dict(op="score_corners", rows=3, **named, seed=10)
    yield from score_cover.cases(backend)
    yield from append_cover.cases(arithmetic, backend)


def check(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """The comparisons of one case."""
    return _CHECKS[recipe["op"]](backend, recipe)


def _attend(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    w = data.for_backend(backend, recipe)
    got = backend.attend(w.q, w.kv, w.ids, w.steps)
    expected, original = data.truth(w), data.original_truth(w)
    bound, reason = data.float_bound(w, expected, backend.declaration.types)
    kernel = error("attend: kernel", expected, got, bound, reason)
    if got.shape != expected.shape:
        return [kernel]
    found = [kernel, _total(original, expected, got, bound)]
    if backend.arithmetic == "exact":
        right = data.exact_attend(w.q, w.kv, w.ids, w.steps)
        same = equal("attend: bytes", right, got)
        if not (kernel.passed and same.passed):
            found[0] = kernel.noted(*explain(backend, w, right, got))
        # Where an output is wrong by more than rounding, the error tells a reader more than the count of its elements.
        found += [same] if kernel.passed else []
        found.append(data.ceiling(w, expected, got, bound))
    elif not kernel.passed:
        found[0] = kernel.noted(*explain(backend, w, expected, got, bound))
    types = None if backend.arithmetic == "exact" else backend.declaration.types
    found[0] = data.with_budget(found[0], w, expected, got, bound, types)
    if isinstance(w.kv, OwnKV):
        found.append(storage.unchanged(backend, w.kv, w.cells))
    return found


def _corners(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """Queries and scales that ordinary inputs do not have, 77 cells, a -1 among the ids, held to the exact bytes."""
    if backend.arithmetic != "exact":
        raise UnsupportedError("corners: held to the bytes of the exact arithmetic alone")
    rows, seed, n = recipe["rows"], recipe["seed"], 77
    w = data.attend_inputs({"format": recipe["format"], "context": n - 1, "rows": rows, "tail": 1, "seed": seed})
    q, ids = w.q.copy(), w.ids.copy()
    for row in range(rows):
        for head in range(REAL.n_head):
            q[row, head] = corner(CORNERS[(row + head) % len(CORNERS)], q[row, head], backend.arithmetic)
        ids[row, 5 * row] = -1
    for name, side in (("k", w.kv.pool.k), ("v", w.kv.pool.v)):
        size = side.scale.shape
        drawn = inputs.integers(seed, f"accuracy.corners.{name}", size[0], int(np.prod(size[1:])), 8).reshape(size)
        # Every fourth scale 0 or -0, every eighth subnormal; the last group of V is 0 in every cell.
        side.scale[drawn < 2] = 0
        side.scale[drawn == 2] = np.float16(2.0**-24)
        if side.coding == "q4_0":
            side.scale[drawn == 1] = np.float16(-0.0)
        if name == "v":
            side.scale[..., -1] = 0
    right = data.exact_attend(q, w.kv, ids, w.steps)
    got = backend.attend(q, w.kv, ids, w.steps)
    nan = np.isnan(right)
    bits = right.view(np.uint32)[nan], np.ascontiguousarray(got, np.float32).view(np.uint32)[nan]
    return [equal("attend: corners", right, got), equal("attend: bits of the NaN", *bits, ("element",))]


def _total(original: np.ndarray, expected: np.ndarray, got: np.ndarray, bound: np.ndarray) -> Comparison:
    """The error against ``original`` by which ``got`` exceeds that of ``expected``, of the worst row and head.
    ``bound`` is the kernel's."""
    quantisation, total = relative_error(original, expected), relative_error(original, got)
    name = "attend: total, above quantisation"
    measure, limit = most(name, total - quantisation, bound * (1 + quantisation))
    return verdict(
        name,
        measure,
        limit,
        "errors add up at most: the kernel's bound, on a result that quantisation may have made larger",
        kind="error",
        size=got.size,
        figures={"quantisation": float(quantisation.max(initial=0)), "total": float(total.max(initial=0))},
    )


_CHECKS: dict[str, Callable[[Backend, dict[str, Any]], list[Comparison]]] = {
    "attend": _attend,
    "corners": _corners,
    "append_kv": storage.append_kv,
    "append_index": index_operations.append_index,
    "block_scores": index_operations.block_scores,
    "kv_cycle": append_cover.kv_cycle,
    "index_cycle": append_cover.index_cycle,
    "score_cover": score_cover.check,
    "score_corners": index_operations.score_corners,
    "gated": fused.gated,
    "sparse_attention": fused.sparse_attention,
}
