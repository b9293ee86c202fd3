"""Relations that need no tolerance: the operation ``relation`` of the module ``split``.

Of two calls whose arguments are related in a simple way the results are related in that way, to the byte: in the exact
arithmetic always, in the float arithmetic where the backend declares it (``invariance``). The first call is also held
to truth: zeros are related to zeros.

Each case makes sure that it can fail: a plain kernel with a small fault of that kind must be seen on the same inputs.

Why they hold in the exact arithmetic (design, section 4): a power of two on V's scales goes into the exponents v and
M_j alone, as long as no scale and no output is subnormal; a sign goes to codes or scales, and every rounding is to
nearest, ties to even, which knows no sign; heads do not meet. A float kernel adds the same numbers in the same order.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from qsa.golden import inputs
from qsa.reference import exact
from qsa.reference.attend import selected_cells
from qsa.reference.formats import rotate
from qsa.reference.geometry import REAL, RULES, step_records
from qsa.reference.kv import Side

from ..backend import Backend, UnsupportedError
from ..compare.comparison import Comparison, equal, verdict
from ..compare.twin import paged
from ..contract import OwnKV
from ..contract.number_types import NUMBER_TYPES
from . import attend_inputs as data
from . import score_cover
from .attention_cover import offered
from .index_operations import score_row
from .selection import held_as_sets

TRANSFORMS = ("value_scale", "value_sign", "signs", "heads")
"""V times a power of two; V → -V; (q, K) → (-q, -K); KV heads permuted, with their query heads."""

ORDERS = ("repeat", "batch", "schedule", "splits", "pages")
"""The same call again; other rows beside a row, 1 to 64; another schedule; another number of splits; page size, labels
of the pages."""

RELATIONS = {
    "attend": (*TRANSFORMS, *ORDERS),
    "block_scores": ("repeat", "batch", "schedule"),
    "select": ("repeat", "batch", "schedule"),
}
"""Operation -> its relations, each the name of an invariance (``contract/declaration.py``)."""

RELATION: dict[str, Any] = {
    "operation": tuple(RELATIONS),
    "relation": (*TRANSFORMS, *ORDERS),
    "format": (*data.FORMATS, data.OWN, None),
    "seed": data.SEEDS,
}
"""Parameters of ``relation`` and their values."""

ROWS = 64
WINDOWS = ((0, 1), (5, 2), (11, 3), (3, 4), (40, 5), (20, 7), (8, 8), (31, 9), (2, 16), (17, 33))
"""(first, rows) of the windows in which rows of a call of 64 are computed again."""

SPLITS = (2, 3, 5, 8, 13, 20)
POWERS = (3, -5)
PAGES = (1, 64, 512)

SEEN = 0.5
"""Share of heads, rows or blocks in which a plain kernel with a fault of the kind must be seen at least."""

Pair = tuple[str, np.ndarray, np.ndarray]
"""What is compared: a name, what the relation makes of the first result, the other result."""


def cases(arithmetic: str, backend: Backend | None = None) -> Iterator[dict[str, Any]]:
    """The recipes, in order: in the float arithmetic of the invariances that ``backend`` declares."""
    formats = data.formats(arithmetic, backend)
    for operation, relations in RELATIONS.items():
        for number, relation in enumerate(relations):
            if arithmetic == "float" and backend is not None and relation not in backend.declaration.invariance:
                continue
            recipe = {"op": "relation", "operation": operation, "relation": relation}
            if operation != "attend":
                yield {**recipe, "seed": 71}
                continue
            some = formats if relation in TRANSFORMS else formats[number % len(formats) :][:1]
            for format in some:
                if (relation, format) != ("pages", data.OWN):
                    yield {**recipe, "format": format, "seed": 71}


def check(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """The comparisons of one case."""
    operation, relation = recipe["operation"], recipe["relation"]
    if relation not in RELATIONS[operation]:
        raise ValueError(f"relation = {relation!r}: {operation} has {', '.join(RELATIONS[operation])}")
    if backend.arithmetic == "float" and relation not in backend.declaration.invariance:
        raise UnsupportedError(f"{operation}: {relation}: is not declared (invariance)")
    if (operation == "attend") != ("format" in recipe):
        raise ValueError(f"format: {'is missing' if operation == 'attend' else f'{operation} has none'}")
    return {"attend": _attend, "block_scores": _block_scores, "select": _select}[operation](backend, recipe)


def _same(backend: Backend, name: str, pairs: Iterator[Pair], axes: tuple[str, ...]) -> Iterator[Comparison]:
    reason = "exact" if backend.arithmetic == "exact" else "declared"
    for label, expected, got in pairs:
        yield equal(f"{name}: {label}", expected, got, axes, f"{reason}: no rounding knows of it")


def _shown(name: str, seen: np.ndarray) -> Comparison:
    """Fails where a plain kernel with a fault of the kind is ``seen`` (bool) in too few places."""
    weak = 1 - float(np.mean(seen)) if seen.size else 1.0
    reason = "inputs on which a wrong kernel looks right prove nothing; a plain one with such a fault is tried on them"
    return verdict(f"{name}: a variant kernel would be seen", weak, 1 - SEEN, reason, kind="error", size=seen.size)


# Attention.


def _attend(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    relation, name = recipe["relation"], f"attend: {recipe['relation']}"
    rows = 2
    if relation == "batch":
        rows = min(ROWS, backend.declaration.shapes.rows or ROWS)
    # Few cells where the rows are many; 303 and 300 cells else, for 20 splits.
    w = data.for_backend(backend, {**recipe, "context": 96 if relation == "batch" else 300, "rows": rows, "tail": 3})
    if relation == "pages" and isinstance(w.kv, OwnKV):
        raise UnsupportedError("attend: pages: own storage has no pages of ours")
    base = _plain(backend.attend(w.q, w.kv, w.ids, w.steps))
    if backend.arithmetic == "exact":
        held = equal("attend: standard", data.exact_truth(w), base)
    else:
        expected = data.truth(w)
        bound, reason = data.float_bound(w, expected, backend.declaration.types)
        held = data.held(backend, "attend: standard", w, expected, base, bound, reason)
    found = [held, *_same(backend, name, _ATTEND[relation](backend, w, base), ("row", "head", "dim"))]
    return [*found, _shown(name, _variant(relation, w))]


def _plain(out: np.ndarray) -> np.ndarray:
    """A result as float32 without -0: the sign of a zero has no meaning here."""
    return np.asarray(out, np.float32) + np.float32(0)


def _kv(backend: Backend, w: data.AttendInputs, k: float = 1, v: float = 1, swapped: bool = False) -> Any:
    """The stored cells with K times ``k`` and V times ``v``, powers of two with a sign, or with the KV heads in reverse
    order: changed in the pool, so that no value is quantised anew."""
    order = slice(None, None, -1 if swapped else 1)
    if isinstance(w.kv, OwnKV):
        values = [(x * np.float32(factor))[:, order] for x, factor in ((w.k, k), (w.v, v))]
        return backend.own_kv(values[0], values[1], w.cells, int(w.steps[:, 1].max()))
    kv = copy.deepcopy(w.kv)
    for side, factor in ((kv.pool.k, k), (kv.pool.v, v)):
        _multiply(side, factor)
        for part in (side.codes, side.scale):
            part[...] = part[:, order].copy()
    return kv


def _multiply(side: Side, factor: float) -> None:
    """Multiply a side in place by a power of two with a sign. The sign of int8 is that of its codes: its scales have
    none, as those of q4_0 have."""
    if side.coding == "int8" and factor < 0:
        np.negative(side.codes, out=side.codes)
        factor = -factor
    values = side.scale if side.scale.size else side.codes
    values *= values.dtype.type(factor)


def _value_scale(backend: Backend, w: data.AttendInputs, base: np.ndarray) -> Iterator[Pair]:
    least = 64 * float(np.finfo(NUMBER_TYPES[backend.declaration.types.output].dtype).tiny)
    scaled = isinstance(w.kv, OwnKV) or w.kv.pool.v.scale.size > 0
    for power in POWERS:
        if power < 0 and not scaled:
            # Small values of fp16 would become subnormal.
            continue
        expected = base * np.float32(2.0**power)
        got = _plain(backend.attend(w.q, _kv(backend, w, v=2.0**power), w.ids, w.steps))
        if got.shape == expected.shape:
            # A subnormal output has fewer bits.
            small = np.minimum(np.abs(base), np.abs(expected)) < least
            expected, got = np.where(small, 0, expected), np.where(small & (np.abs(got) < 4 * least * 2**6), 0, got)
        yield f"V times 2^{power}", expected, got


def _value_sign(backend: Backend, w: data.AttendInputs, base: np.ndarray) -> Iterator[Pair]:
    yield "-V", _plain(-base), _plain(backend.attend(w.q, _kv(backend, w, v=-1), w.ids, w.steps))


def _signs(backend: Backend, w: data.AttendInputs, base: np.ndarray) -> Iterator[Pair]:
    yield "-q and -K", base, _plain(backend.attend(-w.q, _kv(backend, w, k=-1), w.ids, w.steps))


def _heads(backend: Backend, w: data.AttendInputs, base: np.ndarray) -> Iterator[Pair]:
    q = np.ascontiguousarray(_swapped(w.q))
    got = _plain(backend.attend(q, _kv(backend, w, swapped=True), w.ids, w.steps))
    yield "KV heads in reverse order", _swapped(base), got


def _swapped(x: np.ndarray) -> np.ndarray:
    """``x`` [rows, heads, dim] with the groups of query heads in reverse order."""
    return x.reshape(len(x), REAL.n_head_kv, -1, x.shape[-1])[:, ::-1].reshape(x.shape)


def _repeat(backend: Backend, w: data.AttendInputs, base: np.ndarray) -> Iterator[Pair]:
    yield "again", base, _plain(backend.attend(w.q, w.kv, w.ids, w.steps))


def _batch(backend: Backend, w: data.AttendInputs, base: np.ndarray) -> Iterator[Pair]:
    for rows in _windows(len(base)):
        got = _plain(backend.attend(w.q[rows], w.kv, w.ids[rows], w.steps[rows]))
        yield f"{rows.stop - rows.start} rows", base[rows], got


def _windows(rows: int) -> Iterator[slice]:
    """Windows of a call of ``rows`` rows."""
    for first, count in WINDOWS:
        if count < rows:
            yield slice(first % (rows - count + 1), first % (rows - count + 1) + count)


def _schedule(backend: Backend, w: data.AttendInputs, base: np.ndarray) -> Iterator[Pair]:
    for schedule in offered(backend, "attend"):
        if schedule == "step":
            rows = [slice(row, row + 1) for row in range(len(base))]
            parts = [backend.attend(w.q[r], w.kv, w.ids[r], w.steps[r], schedule="step") for r in rows]
            yield schedule, base, _plain(np.concatenate(parts))
        elif schedule == "multi":
            slots = np.zeros(len(base), np.int32)
            yield schedule, base, _plain(backend.attend(w.q, [w.kv], w.ids, w.steps, slots, schedule="multi"))
        elif schedule != "split":
            # Another order of additions is an invariance of its own: splits.
            yield schedule, base, _plain(backend.attend(w.q, w.kv, w.ids, w.steps, schedule=schedule))


def _splits(backend: Backend, w: data.AttendInputs, base: np.ndarray) -> Iterator[Pair]:
    one = _plain(backend.attend(w.q, w.kv, w.ids, w.steps, schedule="split", splits=1))
    for splits in SPLITS:
        got = backend.attend(w.q, w.kv, w.ids, w.steps, schedule="split", splits=splits)
        yield f"{splits} splits", one, _plain(got)


def _pages(backend: Backend, w: data.AttendInputs, base: np.ndarray) -> Iterator[Pair]:
    sizes, format = backend.declaration.shapes.page_sizes, w.kv.pool.format
    capacity = int(w.steps[:, 1].max())
    for page, order in ((4, "identity"), (4, "reversed"), *((page, "shuffled") for page in PAGES)):
        if sizes is None or page in sizes:
            table = data.sparse_table(w.cells, page, capacity, order, 5)
            kv = data.poisoned_kv(format, page, w.cells, w.k, w.v, table, spare=2)
            yield f"pages of {page}, {order}", base, _plain(backend.attend(w.q, kv, w.ids, w.steps))


_ATTEND: dict[str, Callable[[Backend, data.AttendInputs, np.ndarray], Iterator[Pair]]] = {
    "value_scale": _value_scale,
    "value_sign": _value_sign,
    "signs": _signs,
    "heads": _heads,
    "repeat": _repeat,
    "batch": _batch,
    "schedule": _schedule,
    "splits": _splits,
    "pages": _pages,
}


def _variant(relation: str, w: data.AttendInputs) -> np.ndarray:
    """Where a plain float32 kernel breaks the relation that has one small fault of its kind: bool [rows, heads], of two
    rows at most."""
    kv, seen = paged(w.kv), []
    for row in range(min(2, len(w.q))):
        k, v = (x.astype(np.float32) for x in selected_cells(kv, w.ids[row], w.steps[row, 3]).values())
        q = rotate(w.q[row]) if kv.pool.k.coding == "q4_0" else w.q[row]
        one, other = _VARIANTS[relation if relation in TRANSFORMS else "order"](q, k, v)
        seen.append((one != other).any(axis=-1))
    return np.array(seen)


def _softmax(q: np.ndarray, k: np.ndarray, v: np.ndarray, halves: bool = False) -> np.ndarray:
    """float32 [heads, dim]; with ``halves`` the sums of the first and the second half of the cells are added last."""
    s = q.reshape(k.shape[1], -1, q.shape[-1]) @ k.transpose(1, 2, 0) * np.float32(q.shape[-1] ** -0.5)
    p = np.exp(s - s.max(axis=-1, keepdims=True, initial=0))
    cut = len(k) // 2 if halves else 0
    parts = [(p[..., at] @ v[at].transpose(1, 0, 2), p[..., at].sum(-1)) for at in (slice(cut), slice(cut, None))]
    return ((parts[0][0] + parts[1][0]) / (parts[0][1] + parts[1][1])[..., None]).reshape(q.shape)


def _other_order(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return _softmax(q, k, v), _softmax(q, k, v, halves=True)


def _absolute(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # A number is added whose size does not go with V's.
    small = np.float32(2.0**-20)
    return np.float32(8) * (_softmax(q, k, v) + small), _softmax(q, k, 8 * v) + small


def _upward(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # Outputs are rounded upward.
    grid = np.float32(2.0**20)
    return -np.ceil(_softmax(q, k, v) * grid), np.ceil(_softmax(q, k, -v) * grid)


def _cut_off(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # The query's last bits are cut off, as a shift of a negative integer cuts them.
    grid = np.float32(2.0**12)
    return _softmax(np.floor(q * grid) / grid, k, v), _softmax(np.floor(-q * grid) / grid, -k, v)


def _second_head(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # The last KV head is summed in another order.
    def kernel(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        out, other = _softmax(q, k, v), _softmax(q, k, v, halves=True)
        last = len(q) - len(q) // k.shape[1]
        return np.concatenate([out[:last], other[last:]])[None]

    back = kernel(_swapped(q[None])[0], k[:, ::-1], v[:, ::-1])
    return kernel(q, k, v)[0], _swapped(back)[0]


_VARIANTS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
    "order": _other_order,
    "value_scale": _absolute,
    "value_sign": _upward,
    "signs": _cut_off,
    "heads": _second_head,
}


# Scores and selection.


def _calls(backend: Backend, recipe: dict[str, Any], run: Callable[..., np.ndarray]) -> Iterator[Pair]:
    """The pairs of an operation of the indexer; ``run(rows, schedule)`` is its result for a slice of the rows."""
    everything = slice(None)
    base = run(everything, None)
    if recipe["relation"] == "repeat":
        yield "again", base, run(everything, None)
    elif recipe["relation"] == "schedule":
        for schedule in (
            offered(backend, recipe["operation"]) if backend.kernel.takes(recipe["operation"], "schedule") else ()
        ):
            yield schedule, base, run(everything, schedule)
    else:
        for rows in _windows(len(base)):
            yield f"{rows.stop - rows.start} rows", base[rows], run(rows, None)


def _rows(backend: Backend) -> int:
    return min(ROWS, backend.declaration.shapes.rows or ROWS)


def _block_scores(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """Scores of up to 64 rows over 24 to 40 blocks."""
    if backend.own_index:
        raise UnsupportedError("block_scores: relations: are made with an index of ours")
    wide = {
        "keys": "ordinary",
        "blocks": 40,
        "tail": 1,
        "unused": "none",
        "rows": _rows(backend),
        "seed": recipe["seed"],
    }
    q, index, steps = score_cover.arguments(backend, wide)
    tail = int(bool(backend.declaration.tail_score))

    def run(rows: slice, schedule: str | None) -> np.ndarray:
        got = _plain(backend.block_scores(q[rows], index, steps[rows], schedule=schedule))
        return np.where(np.arange(got.shape[1]) < steps[rows, 2:3] + tail, got, 0)

    name = f"block_scores: {recipe['relation']}"
    base = run(slice(None), None)
    if backend.arithmetic == "exact":
        right = exact.block_scores(q, index, steps)
        seen = np.arange(right.shape[1]) < steps[:, 2:3] + tail
        found = [equal("block_scores: standard", np.where(seen, _plain(right), 0), base, ("row", "block"))]
    else:
        found = [
            score_row(backend, f"block_scores: standard, row {row}", q[row], index, steps[row].tolist(), base[row])
            for row in range(0, len(q), 9)
        ]
    found += _same(backend, name, _calls(backend, recipe, run), ("row", "block"))
    keys, half = index.pooled[: steps[0, 2]], REAL.idx_dim // 2
    whole = np.maximum(keys @ q[0].T, 0).sum(axis=1)
    halves = np.maximum(keys[:, :half] @ q[0].T[:half] + keys[:, half:] @ q[0].T[half:], 0).sum(axis=1)
    return [*found, _shown(name, whole != halves)]


def _select(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """Selection of up to 64 rows of 700 blocks whose scores have 32 values: the cut lies among equal ones."""
    rows, blocks = _rows(backend), 700
    rule = next(rule for rule in RULES if rule in backend.declaration.rules)
    steps = step_records(blocks * REAL.ratio - rows + np.arange(rows), rule)
    scores = inputs.integers(recipe["seed"], "relation.scores", rows, blocks + 1, 32).astype(np.float32)

    def run(these: slice, schedule: str | None) -> np.ndarray:
        got = backend.select(scores[these], steps[these], rule, schedule=schedule)
        wide = np.full((len(got), REAL.max_width), -1, np.int64)
        wide[:, : got.shape[1]] = got[:, : REAL.max_width]
        return wide

    name = f"select: {recipe['relation']}"
    right, base = exact.select(scores, steps, rule=rule), run(slice(None), None)
    if backend.arithmetic == "exact":
        found = [equal("select: standard", right.astype(np.int64), base, ("row", "index"))]
    else:
        text = f"scores are {backend.declaration.types.index_scores}"
        found = [held_as_sets(backend, "select: standard", right, base, scores, steps, np.zeros_like(scores), text)]
    found += _same(backend, name, _calls(backend, recipe, run), ("row", "index"))
    sorted_scores = -np.sort(-np.stack([scores[row, : steps[0, 2]] for row in range(rows)]), axis=1)
    cut = REAL.budget // REAL.ratio
    return [*found, _shown(name, sorted_scores[:, cut - 1] == sorted_scores[:, cut])]
