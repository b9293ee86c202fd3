"""Attention in every schedule under every circumstance: the operations ``cover`` and ``tiles`` of the module ``split``.

``cover`` is a covering design (``covering.py``): every pair of schedule, rows, slots, format, page size, widths, absent
ids and pages, queries, scales and unused rows occurs. ``tiles`` has every number of splits against widths of tile x
splits, and one cell less and more, for the tiles that kernels use.

Step records are those of the rules: a row whose context fits the budget selects all of it.

One file: both operations draw rows, ids and queries by the same words, which are tables at the top.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from qsa.golden import inputs
from qsa.golden.families.attend import ODD
from qsa.kernels.ops import MAX_SPLITS, OPERATIONS
from qsa.reference.formats import EXACT_FORMATS
from qsa.reference.geometry import REAL, step_records
from qsa.reference.kv import PagedKV

from ...backend import Backend
from ...compare.comparison import Comparison, equal, error
from ...contract import OwnKV
from .. import attend_inputs as data
from .covering import cover

SCHEDULES = OPERATIONS["attend"].schedules
MIXED = "mixed"
"""As a format or a page size: every slot has another one."""

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 65)
SLOTS = (1, 2, 3, 8, 11)
PAGES = (4, 1, 64, 512)
WIDTHS = ("small", "boundary", "random")
"""1 to 33 cells; 2,047 to 2,056, around which the rules part; any number up to 2,051."""

ABSENT = ("none", "ids", "pages", "all", "twice", "head64", "middle64", "end64", "head512", "middle512", "end600")
"""Among a row's ids: none; -1 here and there; pages that are not resident; -1 throughout; a cell twice; a run of -1."""

QUERIES = ("ordinary", "corners", "low", "extremes")
"""Bell-shaped; :data:`CORNERS`; all scores near -1,000; queries and weights at the ends of fixed point."""

SCALES = ("ordinary", "special")
UNUSED = ("none", "first", "middle", "last")
TILES = (16, 32, 64, 128)
SEEDS = data.SEEDS

COVER: dict[str, Any] = {
    "schedule": SCHEDULES,
    "splits": range(1, MAX_SPLITS + 1),
    "format": (*data.FORMATS, data.OWN, MIXED),
    "page": (*PAGES, MIXED),
    "rows": ROWS,
    "slots": SLOTS,
    "widths": WIDTHS,
    "absent": ABSENT,
    "query": QUERIES,
    "scales": SCALES,
    "unused": UNUSED,
    "seed": SEEDS,
}
"""Parameters of ``cover`` and their values."""

TILED: dict[str, Any] = {
    "schedule": ("split", "batch"),
    "splits": range(1, MAX_SPLITS + 1),
    "format": (*data.FORMATS, data.OWN),
    "query": ("ordinary", "low"),
    "seed": SEEDS,
}
"""Parameters of ``tiles`` and their values."""

CORNERS = ("zero", "subnormal", "huge", "large", "tiny", "nan", "inf", "sparse", "ordinary")
"""Kinds of query, a head each in turn. ``huge`` takes nearly every score beyond the limits of 2^24; ``large`` spreads
them around it: another limit makes equals of other cells."""

EXTREMES = ("top", "below", "power", "above", "tiny", "minus_tiny")
"""Kinds of query of ``extremes``, a head each in turn. ``top`` rounds up to 2^22 in fixed point, ``below`` has
2^22 - 1, ``power`` 2^21 and ``above`` 2^21 + 1; the scores of ``minus_tiny`` are just below 0: each weight is 2^31."""

WIDE = 3
"""Rows of a call that are wider than a few cells: more of them cost time and show nothing more."""


def corner(kind: str, q: np.ndarray, arithmetic: str) -> np.ndarray:
    """``q`` [head_dim] float32 as one of :data:`CORNERS`. Our float kernels clamp scores to 2^24 too, others do not: in
    the float arithmetic ``huge`` and ``large`` stay below it, far enough for one cell to have all the weight."""
    if kind in ("nan", "inf"):
        return np.where(np.arange(len(q)) == 77, np.float32(kind), q)
    if kind == "sparse":
        return np.where(np.arange(len(q)) % 61 == 3, q, np.float32(0))
    power = {"zero": -300, "subnormal": -141, "huge": 100, "large": 23, "tiny": -110, "ordinary": 0}[kind]
    if arithmetic == "float":
        power = min(power, 18 if kind == "huge" else 12)
    return np.ldexp(q.astype(np.float64), power).astype(np.float32)


def _extreme(kind: str, q: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """``q`` [head_dim] float32 as one of :data:`EXTREMES`; every key lies near ``direction``."""
    if kind in ("tiny", "minus_tiny"):
        return (direction * (2.0**-40 if kind == "tiny" else -(2.0**-40))).astype(np.float32)
    largest = {"top": 2 - 2.0**-23, "below": 2 - 2.0**-21, "power": 1.0, "above": 1 + 2.0**-21}[kind]
    q = q / np.float32(8)
    q[[5, 200]] = largest, -largest
    return q


def offered(backend: Backend | None, operation: str) -> tuple[str, ...]:
    """The schedules of ``operation`` that the function of a backend may be asked for; of no backend all."""
    schedules = OPERATIONS[operation].schedules
    if backend is None or not backend.has(operation) or backend.kernel.takes(operation, "schedule"):
        return schedules
    more = ("split",) if operation == "attend" and backend.kernel.takes(operation, "splits") else ()
    return (schedules[0], *more)


def cases(arithmetic: str, backend: Backend | None = None) -> Iterator[dict[str, Any]]:
    """The recipes of ``cover`` and ``tiles`` within what ``backend`` declares."""
    formats, schedules = data.formats(arithmetic, backend), offered(backend, "attend")
    own = data.OWN in formats
    several = "multi" in schedules and not own
    values = dict(COVER, schedule=schedules, format=(*formats, MIXED) if several else formats)
    values |= {"page": (4,) if own else (*PAGES, MIXED) if several else PAGES, "slots": SLOTS if several else (1,)}
    values |= {"absent": ABSENT, "query": QUERIES, "scales": ("ordinary",) if own else SCALES, "unused": UNUSED}
    if backend is not None:
        domain = backend.declaration.domain
        values["absent"] = tuple(a for a in ABSENT if _declared(a, domain) and not (own and a == "pages"))
        values["query"] = QUERIES if domain.nan and domain.infinity else tuple(q for q in QUERIES if q != "corners")
        values["unused"] = UNUSED if domain.unused_rows else ("none",)
    # The number of splits goes with the schedule `split` alone, and `tiles` has all of them.
    del values["splits"], values["seed"]
    for number, case in enumerate(cover(values, _together)):
        splits = 1 + 7 * number % MAX_SPLITS if case["schedule"] == "split" else 1
        recipe = {"op": "cover", "schedule": case.pop("schedule"), "splits": splits, **case, "seed": 11 + number}
        yield recipe
    for schedule in (each for each in TILED["schedule"] if each in schedules):
        for query, some in (("ordinary", range(1, MAX_SPLITS + 1)), ("low", range(3, MAX_SPLITS + 1, 5))):
            for splits in some:
                format = formats[splits % len(formats)]
                recipe = {"op": "tiles", "schedule": schedule, "splits": splits, "format": format}
                yield {**recipe, "query": query, "seed": 12}


def _declared(absent: str, domain: Any) -> bool:
    if absent == "pages":
        return bool(domain.absent_pages)
    return bool(absent in ("none", "twice") or domain.absent_ids)


def _together(case: Any) -> bool:
    """Whether values may stand in one case: several slots go with the schedule ``multi``, mixed ones need several; the
    only row is used."""
    if case.get("rows") == 1 and case.get("unused", "none") != "none":
        return False
    slots = case.get("slots")
    if slots is None:
        mixed = MIXED in (case.get("format"), case.get("page"))
        return not mixed or case.get("schedule", "multi") == "multi"
    if slots == 1 and MIXED in (case.get("format"), case.get("page")):
        return False
    return bool((slots > 1) == (case.get("schedule", "multi" if slots > 1 else "batch") == "multi"))


class Call(NamedTuple):
    """The arguments of one call of attention; ``kvs`` has an entry for every slot."""

    q: np.ndarray
    kvs: list[Any]
    ids: np.ndarray
    steps: np.ndarray
    slots: np.ndarray


class OneSlot(NamedTuple):
    """The rows of one slot, as truth and bounds take them."""

    q: np.ndarray
    kv: Any
    ids: np.ndarray
    steps: np.ndarray


CELLS = 2080


@lru_cache(maxsize=2)
def _values(kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(k, v [cells, heads, dim], direction [heads, dim]) float32: bell-shaped, K near ``direction`` unless ordinary."""
    shape = (CELLS, REAL.n_head_kv, REAL.head_dim)
    dims = shape[1] * shape[2]
    k, v = (inputs.bell(13, f"cover.{side}", CELLS, dims).reshape(shape) for side in "kv")
    direction = np.where(inputs.bell(13, "cover.direction", 1, dims) < 0, -1, 1).reshape(shape[1:]).astype(np.float32)
    if kind == "near":
        k = direction + k / np.float32(64)
    return k, v, direction


def _slot_kv(backend: Backend, recipe: Any, slot: int, capacity: int, absent: np.ndarray) -> Any:
    """K and V of ``capacity`` cells of one slot, those of the pages ``absent`` [cells] not resident."""
    formats = [
        each for each in EXACT_FORMATS if backend.declaration.formats is None or each in backend.declaration.formats
    ]
    format = formats[slot % len(formats)] if recipe["format"] == MIXED else recipe["format"]
    page = PAGES[slot % len(PAGES)] if recipe["page"] == MIXED else recipe["page"]
    k, v, _ = _values("near" if recipe["query"] in ("low", "extremes") else "ordinary")
    at = (np.arange(capacity) + 89 * slot) % CELLS
    if format == data.OWN:
        return backend.own_kv(k[at], v[at], np.arange(capacity), capacity)
    # One page more, which no row selects a cell of.
    table = inputs.permutation(recipe["seed"], f"cover.table{slot}", -(-capacity // page) + 1).astype(np.int32)
    table[np.unique(absent // page)] = -1
    kv = data.poisoned_kv(format, page, np.arange(capacity), k[at], v[at], table, 1)
    return special_scales(kv, recipe["seed"]) if recipe["scales"] == "special" else kv


def special_scales(kv: PagedKV, seed: int) -> PagedKV:
    """Every fourth scale 0 or -0, every eighth subnormal; the last group of V is 0 in every cell."""
    for name, side in (("k", kv.pool.k), ("v", kv.pool.v)):
        if not side.scale.size:
            continue
        drawn = _drawn(seed, name, side.scale.shape)
        side.scale[drawn < 2] = 0
        side.scale[drawn == 2] = np.float16(2.0**-24)
        if side.coding == "q4_0":
            side.scale[drawn == 1] = np.float16(-0.0)
        if name == "v":
            side.scale[..., -1] = 0
    return kv


def _drawn(seed: int, name: str, shape: tuple[int, ...]) -> np.ndarray:
    return inputs.integers(seed, f"cover.scale.{name}", shape[0], int(np.prod(shape[1:])), 8).reshape(shape)


def _run_length(absent: str) -> int:
    """Cells of a run: 512 of ``head512``."""
    return int(absent.removeprefix("head").removeprefix("middle").removeprefix("end"))


def _contexts(recipe: Any, rows: int) -> np.ndarray:
    """Cells that every row sees, int64 [rows]: the first few rows of ``widths``, the others 1 to 33."""
    seed = recipe["seed"]
    small = 1 + inputs.integers(seed, "cover.small", rows, 1, 33)[:, 0]
    wide = {"small": small, "boundary": 2047 + (seed + np.arange(rows)) % 10}.get(recipe["widths"])
    if wide is None:
        wide = 1 + inputs.integers(seed, "cover.wide", rows, 1, 2051)[:, 0]
    if recipe["absent"].endswith(("64", "512", "600")) and recipe["widths"] == "small":
        # A run needs room, and cells beside it.
        wide = small + 20 + _run_length(recipe["absent"])
    return np.where(np.arange(rows) < WIDE, wide, small)


def _absent(kind: str, row: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """The ids ``row`` [width] with some of them absent, or one twice; ``drawn`` [width] from 0 to 7."""
    ids, width = row.copy(), len(row)
    if kind == "ids":
        ids[drawn == 0] = -1
    elif kind == "all":
        ids[:] = -1
    elif kind == "twice" and width > 2:
        ids[width // 2] = ids[width // 2 - 1]
    elif kind[-1].isdigit():
        size = min(_run_length(kind), max(width - 3, 1))
        start = {"h": 0, "m": (width - size) // 2, "e": width - size}[kind[0]]
        ids[start : start + size] = -1
    return ids


def _call(backend: Backend, recipe: Any, contexts: np.ndarray, slots: np.ndarray, used: np.ndarray) -> Call:
    """The :class:`Call` of rows that see ``contexts`` cells of their slot; rows not ``used`` [rows] belong to none."""
    rows, seed = len(contexts), recipe["seed"]
    steps = step_records(np.where(used, contexts - 1, -1), ("blocks", "cells")[seed % 2])
    ids = np.full((rows, REAL.max_width), -1, np.int32)
    number = int(slots.max(initial=0)) + 1 if recipe["slots"] == 1 else recipe["slots"]
    kvs = []
    for slot in range(number):
        mine = slots == slot
        capacity = int(contexts[mine].max(initial=1))
        gone = np.zeros(0, np.int64)
        if recipe["absent"] == "pages":
            gone = np.flatnonzero(inputs.integers(seed, f"cover.gone{slot}", capacity, 1, 5)[:, 0] == 0)
        kv = _slot_kv(backend, recipe, slot, capacity, gone)
        kvs.append(kv)
        for row in np.flatnonzero(mine):
            n_kv, width = int(contexts[row]), int(steps[row, 3])
            chosen = np.arange(n_kv)
            if n_kv > width:
                tail = n_kv // REAL.ratio * REAL.ratio
                blocks = np.sort(inputs.permutation(seed, f"cover.row{row}", tail // REAL.ratio)[: -(-width // 4)])
                cells = (blocks[:, None] * REAL.ratio + np.arange(REAL.ratio)).ravel()[: max(0, width - n_kv % 4)]
                chosen = np.concatenate([cells, np.arange(tail, n_kv)])[:width]
            drawn = inputs.integers(seed, f"cover.absent{row}", max(width, 1), 1, 8)[:width, 0]
            ids[row, :width] = _absent(recipe["absent"], chosen[:width], drawn)
            # Behind the width lies a cell that no row selects, of a page that is resident and poisoned.
            ids[row, width:] = -1 if isinstance(kv, OwnKV) else kv.capacity - 1
    return Call(_queries(backend, recipe, slots, used), kvs, ids, steps, slots)


def _queries(backend: Backend, recipe: Any, slots: np.ndarray, used: np.ndarray) -> np.ndarray:
    """float32 [rows, heads, dim]; NaN in a row that is not ``used``."""
    q = backend.rounded("query", _drawn_queries(len(slots), recipe["query"], recipe["seed"], backend.arithmetic)).copy()
    q[~used] = np.nan
    return q


@lru_cache(maxsize=2)
def _drawn_queries(rows: int, kind: str, seed: int, arithmetic: str) -> np.ndarray:
    q = inputs.bell(seed, "cover.q", rows, REAL.n_head * REAL.head_dim) * ODD
    q = q.reshape(rows, REAL.n_head, REAL.head_dim)
    if kind != "ordinary":
        direction = np.repeat(_values("near")[2], REAL.group, axis=0)
        for row in range(rows):
            for head in range(REAL.n_head):
                if kind == "corners":
                    q[row, head] = corner(CORNERS[(row + head) % len(CORNERS)], q[row, head], arithmetic)
                elif kind == "extremes":
                    q[row, head] = _extreme(EXTREMES[(row + head) % len(EXTREMES)], q[row, head], direction[head])
                else:
                    # direction . direction = 256, divided by 16: 16 nats for each unit.
                    q[row, head] = -62.5 * direction[head] + q[row, head] / 64
    return q


def check_cover(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """One case of ``cover``: a call in the schedule against truth, slot by slot."""
    rows, unused = recipe["rows"], recipe["unused"]
    used = np.ones(rows, bool)
    if unused != "none":
        used[{"first": 0, "middle": rows // 2, "last": rows - 1}[unused]] = False
    # Every third slot has no row, as in a batch in which requests come and go.
    owners = np.array([slot for slot in range(recipe["slots"]) if slot % 3 != 1 or recipe["slots"] == 1])
    slots = owners[(np.arange(rows) * 5 + recipe["seed"]) % len(owners)].astype(np.int32)
    return _judged(backend, recipe, _call(backend, recipe, _contexts(recipe, rows), slots, used))


def check_tiles(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """One case of ``tiles``: a row for each tile and each width around tile x splits."""
    full = {**recipe, "page": 4, "slots": 1, "absent": "none", "scales": "ordinary"}
    widths = sorted({tile * recipe["splits"] + off for tile in TILES for off in (-1, 0, 1)})
    contexts = np.array([each for each in widths if 1 <= each <= REAL.max_width])
    used = np.ones(len(contexts), bool)
    return _judged(backend, full, _call(backend, full, contexts, np.zeros(len(contexts), np.int32), used))


def _judged(backend: Backend, recipe: dict[str, Any], call: Call) -> list[Comparison]:
    schedule = recipe["schedule"]
    keywords: dict[str, Any] = {"schedule": schedule}
    if schedule == "split":
        keywords["splits"] = recipe["splits"]
    if schedule == "step":
        rows = [
            backend.attend(call.q[[r]], call.kvs[0], call.ids[[r]], call.steps[[r]], **keywords)
            for r in range(len(call.q))
        ]
        got = np.concatenate(rows)
    elif recipe["slots"] == 1:
        got = backend.attend(call.q, call.kvs[0], call.ids, call.steps, **keywords)
    else:
        got = backend.attend(call.q, call.kvs, call.ids, call.steps, call.slots, **keywords)
    expected, bound = np.empty(call.q.shape, np.float64), np.zeros((len(call.q), 1))
    reason = "a schedule cannot change a byte"
    for slot in np.unique(call.slots):
        mine = call.slots == slot
        own = OneSlot(call.q[mine], call.kvs[slot], call.ids[mine], call.steps[mine])
        if backend.arithmetic == "exact":
            expected[mine] = data.exact_truth(own)
        else:
            expected[mine] = right = data.truth(own)
            bound[mine], reason = data.float_bound(own, right, backend.declaration.types)
    name = f"attend: {schedule}"
    if backend.arithmetic == "exact":
        return [equal(name, expected.astype(np.float32), got, reason=reason)]
    if got.shape == expected.shape:
        # A query that is not finite has no bound: only NaN is right, or 0 where nothing is selected.
        bound = np.where(np.isfinite(bound), bound, 0)
    return [error(name, expected, got, bound, reason)]
