"""``accuracy``: every operation but selection against float64, quantisation error and kernel error apart.

``kernel`` compares with float64 on the values the kernel was given, quantised K and V. ``total`` compares with float64
on K and V before quantisation; what it holds to the bound is the excess over ``quantisation``, which is float64 against
float64 and no kernel's fault. A failure of the exact arithmetic also names the stage or the likely cause.
"""

import numpy as np

from qsa.golden import case, inputs
from qsa.reference.append_index import append_index
from qsa.reference.append_kv import append_kv
from qsa.reference.block_scores import block_scores
from qsa.reference.exact import attend as exact_attend
from qsa.reference.formats import EXACT_FORMATS
from qsa.reference.geometry import REAL, step_records
from qsa.reference.index import Index
from qsa.reference.kv import PagedKV, read_kv

from . import data
from .backend import UnsupportedError
from .compare import equal, error, most, relative_error, verdict
from .localise import explain

_SEEDS = range(2**63)
_FORMATS = (*EXACT_FORMATS, "fp16")
_TAILS = range(4)

OPERATIONS = {
    "attend": {
        "format": _FORMATS,
        "scores": tuple(data.SCORES),
        "context": range(2**24 + 1),
        "rows": range(1, 9),
        "tail": _TAILS,
        "seed": _SEEDS,
    },
    "corners": {"format": EXACT_FORMATS, "rows": range(1, 9), "seed": _SEEDS},
    "append_kv": {"format": _FORMATS, "rows": range(1, 65), "seed": _SEEDS},
    "append_index": {"context": range(1, 2**16 + 1), "seed": _SEEDS},
    "block_scores": {"context": range(2**20 + 1), "rows": range(1, 9), "tail": _TAILS, "seed": _SEEDS},
}

ORDINARY = {"int8": 1e-6, "k8v4": 1e-6, "q4_0": 2e-6}
"""Below this the exact arithmetic stays in every row and head unless the scores are very peaked (design section 4). A
q4_0 K meets a query that a float32 rotation has rounded in eight stages more; in the norm over all heads of a row it
stays below 1e-6 too."""

ROUNDING = 2.0**-24
"""Relative error of one rounding to float32."""

SCORE_ROUNDINGS = 13
"""On the way to one block score in the lane tree: product 1, lane 3, butterfly 5, heads 3, bonus of the tail 1."""


def cases(arithmetic):
    """(case string, recipe) of every case, in order."""
    for format in EXACT_FORMATS if arithmetic == "exact" else _FORMATS:
        # Widths 1, 63, 64, 65, 500; then 2051, and 1024, 2049 and 2048 over contexts of 1K, 64K and 1M.
        for context, tail, rows in ((0, 1, 1), (60, 3, 1), (64, 0, 1), (64, 1, 2), (500, 0, 2)):
            yield _case("attend", format=format, scores="ordinary", context=context, rows=rows, tail=tail, seed=1)
        for kind in data.SCORES:
            yield _case("attend", format=format, scores=kind, context=16384, rows=4, tail=3, seed=2)
        for context, tail in ((1024, 0), (65536, 1), (1048576, 0)):
            yield _case("attend", format=format, scores="ordinary", context=context, rows=2, tail=tail, seed=3)
        if arithmetic == "exact":
            yield _case("corners", format=format, rows=3, seed=7)
        yield _case("append_kv", format=format, rows=16, seed=4)
    yield _case("append_index", context=2048, seed=5)
    for context, rows, tail in ((0, 1, 3), (1024, 1, 0), (16384, 4, 2), (65536, 8, 1)):
        yield _case("block_scores", context=context, rows=rows, tail=tail, seed=6)


def _case(op, **recipe):
    recipe = {"op": op, **recipe}
    return case.format("accuracy", recipe), recipe


def check(backend, recipe):
    """The comparisons of one case."""
    return _CHECKS[recipe["op"]](backend, recipe)


def _attend(backend, recipe):
    w = data.window(recipe)
    got = backend.attend(w.q, w.kv, w.ids, w.steps)
    expected, original = data.truth(w), data.original_truth(w)
    bound, reason = data.float_bound(w, expected)
    if backend.arithmetic == "exact" and recipe["scores"] != "peaked":
        promised = ORDINARY[recipe["format"]]
        bound = np.minimum(bound, promised)
        reason += f"; {promised:g} at most: promised by the exact arithmetic for scores that are not very peaked"
    kernel = error("attend: kernel", expected, got, bound, reason)
    found = [kernel, _total(original, expected, got, bound)]
    if backend.arithmetic == "exact":
        right = exact_attend(w.q, w.kv, w.ids, w.steps)
        same = equal("attend: bytes", right, got)
        if not (kernel.passed and same.passed):
            found[0] = kernel.noted(*explain(backend, w, right, got))
        # Of an output that is wrong by more than rounding the error says more than the count of its elements.
        found += [same] if kernel.passed else []
    return found


CORNERS = ("zero", "subnormal", "huge", "large", "tiny", "nan", "inf", "sparse", "ordinary")
"""Kinds of query, a head each in turn. ``huge`` takes nearly every score beyond the limits of 2^24; ``large`` spreads
them around it: another limit makes equals of other cells."""


def _corner(kind, q):
    """``q`` [head_dim] float32 as one of :data:`CORNERS`."""
    if kind in ("nan", "inf"):
        return np.where(np.arange(len(q)) == 77, np.float32(kind), q)
    if kind == "sparse":
        return np.where(np.arange(len(q)) % 61 == 3, q, np.float32(0))
    power = {"zero": -300, "subnormal": -141, "huge": 100, "large": 23, "tiny": -110, "ordinary": 0}[kind]
    return np.ldexp(q.astype(np.float64), power).astype(np.float32)


def _corners(backend, recipe):
    """Queries and scales that ordinary inputs do not have, 77 cells, a -1 among the ids, held to the exact bytes."""
    if backend.arithmetic != "exact":
        raise UnsupportedError("corners: held to the bytes of the exact arithmetic alone")
    rows, seed, n = recipe["rows"], recipe["seed"], 77
    w = data.window({"format": recipe["format"], "context": n - 1, "rows": rows, "tail": 1, "seed": seed})
    q, ids = w.q.copy(), w.ids.copy()
    for row in range(rows):
        for head in range(REAL.n_head):
            q[row, head] = _corner(CORNERS[(row + head) % len(CORNERS)], q[row, head])
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
    right = exact_attend(q, w.kv, ids, w.steps)
    got = backend.attend(q, w.kv, ids, w.steps)
    nan = np.isnan(right)
    bits = right.view(np.uint32)[nan], np.ascontiguousarray(got, np.float32).view(np.uint32)[nan]
    return [equal("attend: corners", right, got), equal("attend: bits of the NaN", *bits, ("element",))]


def _total(original, expected, got, bound):
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


def _append_kv(backend, recipe):
    rows, seed, page = recipe["rows"], recipe["seed"], 4
    shape = (rows, REAL.n_head_kv, REAL.head_dim)
    k, v = (inputs.bell(seed, f"accuracy.{side}", rows, shape[1] * shape[2]).reshape(shape) for side in "kv")
    # A group of zeros has scale 0; a very large and a very small group have scales at the ends of fp16.
    k[0, 0, :64], v[0, 1, 64:128], k[0, 1, :64], v[0, 0, :] = 0, 2.0**16, 2.0**-22, 0
    steps = step_records(np.arange(rows))
    got, expected = (PagedKV.new(recipe["format"], rows, page) for _ in range(2))
    append_kv(k, v, expected, steps)
    got = backend.append_kv(k, v, got, steps)
    cells = np.arange(rows)
    ours, theirs = read_kv(expected, cells), read_kv(got, cells)
    axes = ("cell", "kv head", "dim")
    return [
        equal(f"append_kv: {name}", getattr(ours, name), getattr(theirs, name), axes, "the codes are exact to the bit")
        for name in ("k_codes", "k_scale", "v_codes", "v_scale")
        # fp16 has no scales.
        if getattr(ours, name).size or getattr(theirs, name).size
    ]


def _key_twin(raw, index):
    """float32 pooled keys [blocks, idx_dim] as plain NumPy makes them: how hard these keys are for float32."""
    g = index.geometry
    x = raw.reshape(-1, g.ratio, g.idx_dim).mean(axis=1, dtype=np.float32)
    x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True, dtype=np.float32) + np.float32(g.eps)) * index.weight
    half = g.n_rot // 2
    a, b, (cos, sin) = x[:, :half].copy(), x[:, half : g.n_rot].copy(), np.split(index.rope[: len(x)], 2, axis=1)
    x[:, :half], x[:, half : g.n_rot] = a * cos - b * sin, b * cos + a * sin
    return x


def _append_index(backend, recipe):
    context, seed = recipe["context"], recipe["seed"]
    raw = inputs.bell(seed, "accuracy.raw", context, REAL.idx_dim)
    weight = 1 + inputs.uniform(seed, "accuracy.weight", 1, REAL.idx_dim)[0]
    steps = step_records(np.arange(context))
    blocks = context // REAL.ratio
    expected, got = (Index(blocks + 1, weight, dtype=dtype) for dtype in (np.float64, np.float32))
    append_index(raw, steps, expected)
    got = backend.append_index(raw, steps, got)
    twin = _key_twin(raw[: blocks * REAL.ratio], got)
    own = relative_error(expected.pooled[:blocks], twin)
    bound = 4 * own + data.SLACK
    reason = f"4 x the error of plain float32 on the same key, {own.max(initial=0):.2g} at most, and 2^-22 of slack"
    right, held, most_of_all = expected.pooled[:blocks], got.pooled[:blocks], bound.max(initial=data.SLACK)
    found = [error("append_index: dead", expected.dead[None], got.dead[None], most_of_all, reason, ("key", "dim"))]
    if blocks:
        found.insert(0, error("append_index: pooled", right, held, bound, reason, ("block", "dim")))
    open_cells = context % REAL.ratio
    if open_cells:
        tail, kept = raw[context - open_cells :], got.tail[:open_cells]
        found.append(equal("append_index: tail", tail, kept, ("place", "dim"), "raw keys are kept unrounded"))
    return found


def _block_scores(backend, recipe):
    rows, seed, end = recipe["rows"], recipe["seed"], recipe["context"] + recipe["tail"]
    index = Index(end // REAL.ratio + 1, np.ones(REAL.idx_dim, np.float32))
    index.pooled[:] = inputs.bell(seed, "accuracy.pooled", index.max_blocks, REAL.idx_dim)
    index.dead[:] = inputs.bell(seed, "accuracy.dead", 1, REAL.idx_dim)[0]
    # The slot behind the last complete block is not to be read: the dead key stands for it.
    index.pooled[end // REAL.ratio] = np.nan
    q = inputs.bell(seed, "accuracy.q_idx", rows, REAL.idx_heads * REAL.idx_dim)
    q = q.reshape(rows, REAL.idx_heads, REAL.idx_dim)
    steps = step_records(np.arange(end - rows, end))
    expected, got = block_scores(q, index, steps), backend.block_scores(q, index, steps)
    comparisons = []
    bound = SCORE_ROUNDINGS * ROUNDING
    reason = f"{SCORE_ROUNDINGS} roundings in the lane tree, each at most 2^-24 of the sum of |key x query|"
    for row, (_, _, n_bid, _) in enumerate(steps.tolist()):
        keys = np.concatenate([index.pooled[:n_bid], index.dead[None]]).astype(np.float64)
        scale = (np.abs(keys) @ np.abs(q[row].astype(np.float64)).T).sum(axis=1)
        scale[n_bid] += abs(expected[row, n_bid])
        seen = slice(0, n_bid + 1)
        one = error(f"block_scores: row {row}", expected[row, seen], got[row, seen], bound, reason, ("block",), scale)
        comparisons.append(one)
    return comparisons


_CHECKS = {
    "attend": _attend,
    "corners": _corners,
    "append_kv": _append_kv,
    "append_index": _append_index,
    "block_scores": _block_scores,
}
