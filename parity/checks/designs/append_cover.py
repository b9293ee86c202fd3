"""Appends that are rewound and repeated: the operations ``kv_cycle`` and ``index_cycle`` of the module ``accuracy``.

Both are covering designs (``covering.py``). A case appends rows, rewinds and appends others in the place of some of
them, as a rejected draft does, then the first ones again: after each append all bytes are those of the reference, where
nothing may remain of what a later append has replaced. ``overflow`` must raise, and leave everything as it was.
"""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

from qsa.golden import inputs
from qsa.reference import exact
from qsa.reference.append_index import append_index as reference_index
from qsa.reference.append_kv import append_kv as reference_kv
from qsa.reference.formats import EXACT_FORMATS
from qsa.reference.geometry import REAL, step_records
from qsa.reference.index import Index, written
from qsa.reference.kv import PagedKV

from ...backend import Backend, UnsupportedError
from ...compare import twin
from ...compare.comparison import Comparison, equal, error, verdict
from .. import attend_inputs as data
from ..index_operations import ENCODED, INDEX_FORMAT, formats, named
from . import code_limits
from .attention_cover import MIXED, PAGES, ROWS, SEEDS, UNUSED
from .covering import cover

VALUES = ("ordinary", "zero", "huge", "tiny", "mixed", "overflow")
"""``huge``: scales at the end of fp16; ``tiny``: scales that are subnormal or 0 in fp16; ``mixed``: large first, small
after the rewind, so that a scale which only grows shows; ``overflow``: a value that no scale can hold."""

SLOTS = (1, 3, 8)
STARTS = (0, 1, 2, 3, 61, 2049)
"""Cells that are there before."""

BASES = (0, 1, 4096, 1000003)
"""Position of the sequence's cell 0."""

RAW_VALUES = ("ordinary", "zero", "huge", "tiny", "subnormal")
"""Raw keys of ``index_cycle``."""

LIMITS = "limits"
"""Raw keys whose pooled keys are at the limits of their codes (``code_limits.py``)."""

KV_CYCLE: dict[str, Any] = {
    "format": (*data.FORMATS, MIXED),
    "page": (*PAGES, MIXED),
    "rows": ROWS,
    "slots": SLOTS,
    "values": VALUES,
    "unused": UNUSED,
    "start": STARTS,
    "missing": ("none", "some", "all"),
    "seed": SEEDS,
}
"""Parameters of ``kv_cycle`` and their values."""

INDEX_CYCLE: dict[str, Any] = {
    "rows": ROWS,
    "values": (*RAW_VALUES, LIMITS),
    "unused": UNUSED,
    "start": STARTS,
    "base": BASES,
    "index_format": INDEX_FORMAT,
    "seed": SEEDS,
}
"""Parameters of ``index_cycle`` and their values."""


def cases(arithmetic: str, backend: Backend | None = None) -> Iterator[dict[str, Any]]:
    """The recipes of both operations within what ``backend`` declares."""
    unused: tuple[str, ...] = UNUSED
    if backend is not None and not backend.declaration.domain.unused_rows:
        unused = ("none",)
    if backend is None or not backend.own_storage:
        kv_formats = EXACT_FORMATS if arithmetic == "exact" else data.FORMATS
        values = dict(KV_CYCLE, format=(*kv_formats, MIXED), unused=unused)
        del values["seed"]
        if backend is not None and not backend.declaration.domain.overflow:
            values["values"] = VALUES[:-1]
        for number, case in enumerate(cover(values, _together)):
            yield {"op": "kv_cycle", **case, "seed": 41 + number}
    if backend is None or not backend.own_index:
        values = dict(INDEX_CYCLE, values=RAW_VALUES, unused=unused, index_format=formats(backend))
        del values["seed"]
        if len(formats(backend)) == 1:
            del values["index_format"]
        for number, case in enumerate(cover(values, _used)):
            format = case.pop("index_format", "fp32")
            yield {"op": "index_cycle", **case, **named(format), "seed": 51 + number}
        # Besides the design, whole blocks of zeros, and of what is particular to encoded keys.
        whole = {"rows": 33, "unused": "none", "start": 0, "base": 1}
        for format in formats(backend):
            for kind in ("zero",) if format == "fp32" else ("zero", "subnormal", LIMITS):
                yield {"op": "index_cycle", "values": kind, **whole, **named(format), "seed": 51}


def _together(case: Any) -> bool:
    """Mixed formats and pages need several slots; fp16 holds what it likes, so nothing overflows it."""
    if not _used(case):
        return False
    mixed = MIXED in (case.get("format"), case.get("page"))
    if mixed and case.get("slots", 2) == 1:
        return False
    if case.get("values") == "overflow":
        return case.get("format") != "fp16" and case.get("unused", "none") == "none"
    return True


def _used(case: Any) -> bool:
    """The only row is used."""
    return bool(case.get("rows") != 1 or case.get("unused", "none") == "none")


def _kv_values(kind: str, seed: int, rows: int, again: bool) -> tuple[np.ndarray, np.ndarray]:
    shape = (rows, REAL.n_head_kv, REAL.head_dim)
    name = "rewound" if again else "first"
    k, v = (inputs.bell(seed, f"cycle.{name}.{side}", rows, shape[1] * shape[2]).reshape(shape) for side in "kv")
    if kind == "zero":
        k[::2], v[1::2] = 0, 0
        k[:, 0, 64:128], v[:, 1, :64] = 0, -0.0
    elif kind in ("huge", "tiny"):
        # fp16 ends at 65,504; a scale is an amax over 127 or 8. 16 is left for the rotation, which adds 256 dims.
        factor = np.float32(2.0**11 if kind == "huge" else 2.0**-17)
        k, v = k * factor, v * factor
    elif kind == "mixed":
        factor = np.float32(2.0**-6 if again else 2.0**6)
        k, v = k * factor, v * factor
    elif kind == "overflow" and again:
        (k if seed % 2 else v)[rows // 2, 1, 200] = 3e38
    return k, v


def kv_cycle(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """Append, rewind, append others, append the first again: all bytes of every pool and host copy."""
    rows, number, seed = recipe["rows"], recipe["slots"], recipe["seed"]
    slots = (np.arange(rows) * 5 % number).astype(np.int32)
    # The rows of a slot are consecutive cells.
    order = np.array([int((slots[:row] == slots[row]).sum()) for row in range(rows)])
    steps = step_records(recipe["start"] + order)
    if recipe["unused"] != "none":
        steps[{"first": 0, "middle": rows // 2, "last": rows - 1}[recipe["unused"]]] = step_records([-1])[0]
    kvs = [_empty(recipe, slot, recipe["start"] + rows + 1) for slot in range(number)]
    right = copy.deepcopy(kvs)
    first, rewound = (_kv_values(recipe["values"], seed, rows, again) for again in (False, True))
    half = rows // 2
    found: list[Comparison] = []
    if recipe["values"] == "overflow" and not backend.declaration.domain.overflow:
        raise UnsupportedError("append_kv: values that no scale holds: not declared (domain.overflow)")
    for text, (k, v), begin in (("appended", first, 0), ("rewound", rewound, half), ("again", first, half)):
        part = slice(begin, rows)
        if recipe["values"] == "overflow" and text == "rewound":
            found += [
                _raises(backend, k[part], v[part], kvs, steps[part], slots[part], number),
                same_kv(text, right, kvs),
            ]
            continue
        one = number == 1
        reference_kv(k[part], v[part], right, steps[part], None if one else slots[part])
        given = kvs[0] if one else kvs
        after = backend.append_kv(k[part], v[part], given, steps[part], None if one else slots[part])
        kvs = [after] if one else after
        found.append(same_kv(text, right, kvs))
    return found


def _empty(recipe: Any, slot: int, capacity: int) -> PagedKV:
    """Poisoned pages for ``capacity`` cells, and a host copy."""
    format = EXACT_FORMATS[slot % 3] if recipe["format"] == MIXED else recipe["format"]
    page = PAGES[slot % 4] if recipe["page"] == MIXED else recipe["page"]
    pages = -(-capacity // page)
    table = inputs.permutation(recipe["seed"], f"cycle.table{slot}", pages).astype(np.int32)
    if recipe["missing"] != "none":
        table[:: 2 if recipe["missing"] == "some" else 1] = -1
    none = np.zeros((0, REAL.n_head_kv, REAL.head_dim), np.float32)
    kv = data.poisoned_kv(format, page, np.arange(0), none, none, table, 2)
    host = data.poisoned_kv(format, page, np.arange(0), none, none, np.arange(pages))
    return PagedKV(kv.pool, table, host.pool)


def _raises(
    backend: Backend,
    k: np.ndarray,
    v: np.ndarray,
    kvs: list[PagedKV],
    steps: np.ndarray,
    slots: np.ndarray,
    number: int,
) -> Comparison:
    try:
        backend.append_kv(k, v, kvs[0] if number == 1 else kvs, steps, None if number == 1 else slots)
    except UnsupportedError:
        raise
    except Exception:
        bad = 0
    else:
        bad = 1
    return verdict(
        "append_kv: overflow raises", bad, 0, "no scale holds 3e38: an error, and nothing is written", size=1, bad=bad
    )


def same_kv(text: str, right: list[PagedKV], got: list[PagedKV]) -> Comparison:
    """All bytes of the pools and host copies, as one comparison: the first side that differs."""
    found = None
    for slot, (ours, theirs) in enumerate(zip(right, got, strict=True)):
        for pool in ("pool", "host"):
            for side in ("k", "v"):
                for part in ("codes", "scale"):
                    a, b = (getattr(getattr(getattr(kv, pool), side), part) for kv in (ours, theirs))
                    name = f"append_kv: {text}: slot {slot}, {pool}, {side} {part}"
                    if a.size or b.size:
                        axes = ("page", "kv head", "cell", "byte")
                        one = equal(name, a, b, axes, "codes are exact, and nothing else is written")
                        if not one.passed:
                            return one
                        found = one
    assert found is not None, "a pool has codes"
    return found


def _raw(kind: str, seed: int, rows: int, again: bool) -> np.ndarray:
    if kind == LIMITS:
        return code_limits.raw_keys(rows, again)
    raw = inputs.bell(seed, f"cycle.raw.{'rewound' if again else 'first'}", rows, REAL.idx_dim)
    scale = {"huge": 2.0**40, "tiny": 2.0**-30, "subnormal": 2.0**-140}.get(kind, 1.0)
    if kind == "zero":
        # Whole blocks of zeros first, then keys of which every second one is 0.
        raw[:: 2 if again else 1] = 0
    return raw * np.float32(scale)


def index_cycle(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """Append, rewind, append others, append the first again: tail, dead key and pooled keys."""
    rows, start, seed = recipe["rows"], recipe["start"], recipe["seed"]
    steps = step_records(start + np.arange(rows))
    if recipe["unused"] != "none":
        steps[{"first": 0, "middle": rows // 2, "last": rows - 1}[recipe["unused"]]] = step_records([-1])[0]
    limits = recipe["values"] == LIMITS
    weight = code_limits.weight(seed) if limits else 1 + inputs.uniform(seed, "cycle.weight", 1, REAL.idx_dim)[0]
    blocks = (start + rows) // REAL.ratio + 2
    exactly = backend.arithmetic == "exact"
    format = recipe.get("index_format", "fp32")
    index = Index(blocks, weight, pos_base=recipe["base"], format=format)
    # The truth of a float kernel's encoded keys are the keys themselves.
    right = Index(blocks, weight, pos_base=recipe["base"], format=format)
    if not exactly:
        right = Index(blocks, weight, dtype=np.float64, pos_base=recipe["base"])
    before = inputs.bell(seed, "cycle.before", 3, REAL.idx_dim)
    held = inputs.bell(seed, "cycle.held", blocks, REAL.idx_dim)
    for each in (index, right):
        each.tail[:] = before
        each.set_pooled(slice(None), held)
        each.set_dead(before[0])
    found: list[Comparison] = []
    half = rows // 2
    first, rewound = (backend.rounded("raw_keys", _raw(recipe["values"], seed, rows, again)) for again in (False, True))
    for text, raw, begin in (("appended", first, 0), ("rewound", rewound, half), ("again", first, half)):
        part = slice(begin, rows)
        (exact.append_index if exactly else reference_index)(raw[part], steps[part], right)
        index = backend.append_index(raw[part], steps[part], index)
        found += same_index(text, right, index, exactly, int(steps[rows - 1, 1]) % REAL.ratio if rows else 0)
        if not exactly:
            # What rounding has left must not be held against the next append.
            index.set_pooled(slice(None), right.pooled)
            index.set_dead(right.dead)
    return found


def same_index(text: str, right: Index, got: Index, exactly: bool, open_cells: int) -> list[Comparison]:
    """The bytes of an index, or its keys against float64 and the raw keys of its tail."""
    if exactly:
        pairs = [("pooled", right.pooled, got.pooled), ("dead", right.dead[None], got.dead[None])]
        found = [equal(f"append_index: {text}: {name}", a, b, ("key", "dim")) for name, a, b in pairs]
        for name in written(right):
            if name.endswith("_exponent"):
                given = getattr(right, name), getattr(got, name)
                found.append(equal(f"append_index: {text}: {name}", *given, ("key",)))
    else:
        pairs = [
            ("pooled", right.pooled_values(), got.pooled_values()),
            ("dead", right.dead_values()[None], got.dead_values()[None]),
        ]
        # Pool, norm and rotation: some 24 roundings, and 4 x where a pooled sum cancels.
        reason = (
            "24 roundings of float32 on the way to a key, with 4 x room for sums that cancel, and one of a subnormal"
        )
        coded = got.format == "int16"
        reason += ENCODED if coded else ""
        found = []
        for name, a, b in pairs:
            bound = _key_bound(a) + (twin.encoding_bound(a) if coded else 0)
            found.append(error(f"append_index: {text}: {name}", a, b, bound, reason, ("key", "dim")))
    if open_cells:
        tail = right.tail[:open_cells].astype(got.tail.dtype)
        found.append(equal(f"append_index: {text}: tail", tail, got.tail[:open_cells], ("cell", "dim")))
    return found


def _key_bound(right: np.ndarray) -> np.ndarray:
    """Bounds [keys] on the relative error of keys [keys, dim]. A subnormal pooled key is rounded to multiples of
    2^-149 before the norm, which multiplies it by 1 / sqrt(eps) = 1,000 and a weight of 1.5 at most."""
    norm = np.linalg.norm(right, axis=-1)
    quantum = 2 * 1500 * np.sqrt(right.shape[-1]) * 2.0**-149
    return 100 * 2.0**-24 + np.where(norm > 0, quantum / np.where(norm > 0, norm, 1), 0)
