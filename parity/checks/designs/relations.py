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

from qsa.reference.kv import Side

from ...backend import Backend, UnsupportedError
from ...compare.comparison import Comparison, equal
from ...contract import OwnKV
from ...contract.number_types import NUMBER_TYPES
from .. import attend_inputs as data
from .attention_cover import offered
from .index_relations import check_scores, check_select
from .related import Pair, plain, rows_of, same, shown, windows
from .variant_kernels import swapped, variant

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

SPLITS = (2, 3, 5, 8, 13, 20)
POWERS = (3, -5)
PAGES = (1, 64, 512)


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
    return {"attend": _attend, "block_scores": check_scores, "select": check_select}[operation](backend, recipe)


# Attention.


def _attend(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    relation, name = recipe["relation"], f"attend: {recipe['relation']}"
    rows = 2
    if relation == "batch":
        rows = rows_of(backend)
    # Few cells where the rows are many; 303 and 300 cells else, for 20 splits.
    w = data.for_backend(backend, {**recipe, "context": 96 if relation == "batch" else 300, "rows": rows, "tail": 3})
    if relation == "pages" and isinstance(w.kv, OwnKV):
        raise UnsupportedError("attend: pages: own storage has no pages of ours")
    base = plain(backend.attend(w.q, w.kv, w.ids, w.steps))
    if backend.arithmetic == "exact":
        held = equal("attend: standard", data.exact_truth(w), base)
    else:
        expected = data.truth(w)
        bound, reason = data.float_bound(w, expected, backend.declaration.types)
        held = data.held(backend, "attend: standard", w, expected, base, bound, reason)
    found = [held, *same(backend, name, _ATTEND[relation](backend, w, base), ("row", "head", "dim"))]
    return [*found, shown(name, variant(relation, w))]


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
        got = plain(backend.attend(w.q, _kv(backend, w, v=2.0**power), w.ids, w.steps))
        if got.shape == expected.shape:
            # A subnormal output has fewer bits.
            small = np.minimum(np.abs(base), np.abs(expected)) < least
            expected, got = np.where(small, 0, expected), np.where(small & (np.abs(got) < 4 * least * 2**6), 0, got)
        yield f"V times 2^{power}", expected, got


def _value_sign(backend: Backend, w: data.AttendInputs, base: np.ndarray) -> Iterator[Pair]:
    yield "-V", plain(-base), plain(backend.attend(w.q, _kv(backend, w, v=-1), w.ids, w.steps))


def _signs(backend: Backend, w: data.AttendInputs, base: np.ndarray) -> Iterator[Pair]:
    yield "-q and -K", base, plain(backend.attend(-w.q, _kv(backend, w, k=-1), w.ids, w.steps))


def _heads(backend: Backend, w: data.AttendInputs, base: np.ndarray) -> Iterator[Pair]:
    q = np.ascontiguousarray(swapped(w.q))
    got = plain(backend.attend(q, _kv(backend, w, swapped=True), w.ids, w.steps))
    yield "KV heads in reverse order", swapped(base), got


def _repeat(backend: Backend, w: data.AttendInputs, base: np.ndarray) -> Iterator[Pair]:
    yield "again", base, plain(backend.attend(w.q, w.kv, w.ids, w.steps))


def _batch(backend: Backend, w: data.AttendInputs, base: np.ndarray) -> Iterator[Pair]:
    for rows in windows(len(base)):
        got = plain(backend.attend(w.q[rows], w.kv, w.ids[rows], w.steps[rows]))
        yield f"{rows.stop - rows.start} rows", base[rows], got


def _schedule(backend: Backend, w: data.AttendInputs, base: np.ndarray) -> Iterator[Pair]:
    for schedule in offered(backend, "attend"):
        if schedule == "step":
            rows = [slice(row, row + 1) for row in range(len(base))]
            parts = [backend.attend(w.q[r], w.kv, w.ids[r], w.steps[r], schedule="step") for r in rows]
            yield schedule, base, plain(np.concatenate(parts))
        elif schedule == "multi":
            slots = np.zeros(len(base), np.int32)
            yield schedule, base, plain(backend.attend(w.q, [w.kv], w.ids, w.steps, slots, schedule="multi"))
        elif schedule != "split":
            # Another order of additions is an invariance of its own: splits.
            yield schedule, base, plain(backend.attend(w.q, w.kv, w.ids, w.steps, schedule=schedule))


def _splits(backend: Backend, w: data.AttendInputs, base: np.ndarray) -> Iterator[Pair]:
    one = plain(backend.attend(w.q, w.kv, w.ids, w.steps, schedule="split", splits=1))
    for splits in SPLITS:
        got = backend.attend(w.q, w.kv, w.ids, w.steps, schedule="split", splits=splits)
        yield f"{splits} splits", one, plain(got)


def _pages(backend: Backend, w: data.AttendInputs, base: np.ndarray) -> Iterator[Pair]:
    sizes, format = backend.declaration.shapes.page_sizes, w.kv.pool.format
    capacity = int(w.steps[:, 1].max())
    for page, order in ((4, "identity"), (4, "reversed"), *((page, "shuffled") for page in PAGES)):
        if sizes is None or page in sizes:
            table = data.sparse_table(w.cells, page, capacity, order, 5)
            kv = data.poisoned_kv(format, page, w.cells, w.k, w.v, table, spare=2)
            yield f"pages of {page}, {order}", base, plain(backend.attend(w.q, kv, w.ids, w.steps))


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
