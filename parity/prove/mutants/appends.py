"""Appends that keep what was rewound, write too much or too little, or store other numbers.

One file: it is a list of small changes of the two appends, which share the helpers at the top.
"""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from qsa.reference.append_kv import slots_of
from qsa.reference.geometry import REAL
from qsa.reference.layers.rope import rope_table

from ..mutant import EXACT, Right, mutant
from .changes import ROWS, address, but, kvs_of

REWIND = "D: appends are never repeated"


def _arrays(kv: Any) -> list[np.ndarray]:
    """Every array that an append writes: of the pool, then of the host copy."""
    pools = [pool for pool in (kv.pool, kv.host) if pool is not None]
    return [array for pool in pools for side in (pool.k, pool.v) for array in (side.codes, side.scale)]


def _before(a: Any) -> list[list[np.ndarray]]:
    return [[array.copy() for array in _arrays(kv)] for kv in kvs_of(a)]


def _kv(name: str, kind: str, arithmetics: tuple[str, ...] = ("exact", "float")) -> Callable[..., Any]:
    return mutant("append_kv", name, kind, arithmetics)


@_kv("append_kv: a cell once written stays", REWIND)
def _stays(right: Right, a: Any) -> Any:
    seen = a.memory.setdefault("seen", {})
    steps = a.steps.copy()
    slots = slots_of(len(steps), a.kv, a.slots)[1]
    for row, pos in enumerate(steps[:, 0].tolist()):
        # The pools are kept too: their address must not be given to others.
        key = id(kvs_of(a)[slots[row]].pool.k.codes), pos
        if key in seen:
            steps[row] = -1, 0, 0, 0
        seen[key] = kvs_of(a)[slots[row]]
    return right(but(a, steps=steps))


@_kv("append_kv: a scale that is larger stays", REWIND)
def _scale_stays(right: Right, a: Any) -> Any:
    before = _before(a)
    result = right(a)
    for kv, old in zip(kvs_of(a), before, strict=True):
        for array, was in list(zip(_arrays(kv), old, strict=True))[1::2]:
            with np.errstate(invalid="ignore"):
                array[...] = np.where(np.abs(was) > np.abs(array), was, array)
    return result


@_kv("append_kv: an unused row is written to cell 0", "D: unused row appended")
def _unused(right: Right, a: Any) -> Any:
    steps = a.steps.copy()
    steps[(steps[:, 0] < 0) & ~(steps[:, 0] == 0).any()] = 0, 1, 0, 1
    return right(but(a, steps=steps))


@_kv("append_kv: 64 rows at most", "D: more than 64 rows")
def _sixty_four(right: Right, a: Any) -> Any:
    return right(but(a, k=a.k[:64], v=a.v[:64], steps=a.steps[:64], slots=None if a.slots is None else a.slots[:64]))


def _at_rows(rows: int) -> None:
    @_kv(f"append_kv: the last of {rows} rows is not written", "D: a number of rows that is wrong by itself")
    def wrong(right: Right, a: Any) -> Any:
        steps = a.steps.copy()
        if len(steps) == rows:
            steps[-1] = -1, 0, 0, 0
        return right(but(a, steps=steps))


def _index_at_rows(rows: int) -> None:
    @mutant("append_index", f"append_index: the last of {rows} rows is not written", "D: a number of rows")
    def wrong(right: Right, a: Any) -> Any:
        steps = a.steps.copy()
        if len(steps) == rows:
            steps[-1] = -1, 0, 0, 0
        return right(but(a, steps=steps))


for _rows in ROWS:
    _at_rows(_rows)
    _index_at_rows(_rows)


def _restored(name: str, kind: str, which: Callable[[Any, int], bool]) -> None:
    """Some arrays are put back after the append: number 0 to 3 of the pool, then those of the host copy."""

    @_kv(name, kind)
    def wrong(right: Right, a: Any) -> Any:
        before = _before(a)
        result = right(a)
        for slot, (kv, old) in enumerate(zip(kvs_of(a), before, strict=True)):
            for number, (array, was) in enumerate(zip(_arrays(kv), old, strict=True)):
                if which((slot, kv), number):
                    array[...] = was
        return result


_restored("append_kv: the host copy is not written", "A14", lambda slot, n: n >= 4)
_restored(
    "append_kv: the pool is not written where there is a host copy",
    "A14",
    lambda slot, n: n < 4 and slot[1].host is not None,
)
_restored("append_kv: V is not written", "A21", lambda slot, n: n in (2, 3))
_restored("append_kv: scales of K are not written", "scales", lambda slot, n: n == 1)
_restored("append_kv: slots from the fourth on are not written", "D: 8 and more slots", lambda slot, n: slot[0] >= 3)
_restored(
    "append_kv: slots of another format than int8 are not written",
    "D: mixed formats",
    lambda slot, n: slot[0] > 0 and slot[1].pool.format != "int8",
)


@_kv("append_kv: a missing page is written to the first one", "A7")
def _first_page(right: Right, a: Any) -> Any:
    result = right(a)
    for kv in kvs_of(a):
        if (kv.table < 0).any() and len(a.steps) and a.steps[:, 0].max() >= 0:
            kv.pool.k.codes[0] = 1
    return result


@_kv("append_kv: the whole page is cleared first", "neighbours")
def _cleared(right: Right, a: Any) -> Any:
    slots = slots_of(len(a.steps), a.kv, a.slots)[1]
    for row, pos in enumerate(a.steps[:, 0].tolist()):
        kv = kvs_of(a)[slots[row]]
        if pos >= 0 and kv.table[pos // kv.pool.page_size] >= 0:
            kv.pool.k.codes[kv.table[pos // kv.pool.page_size]] = 0
    return right(a)


def _values(
    name: str,
    kind: str,
    change: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]],
    arithmetics: tuple[str, ...] = ("exact", "float"),
) -> None:
    """Other numbers are stored than those given."""

    @_kv(name, kind, arithmetics)
    def wrong(right: Right, a: Any) -> Any:
        with np.errstate(all="ignore"):
            k, v = change(a.k, a.v)
        return right(but(a, k=k.astype(np.float32), v=v.astype(np.float32)))


_values("append_kv: K and V exchanged", "sides", lambda k, v: (v, k))
_values("append_kv: K of fp16 first", "types", lambda k, v: (np.clip(k, -65504, 65504).astype(np.float16), v))
_values("append_kv: KV heads exchanged", "heads", lambda k, v: (k[:, ::-1], v))
_values(
    "append_kv: the first row is stored for all",
    "scalar baked into a graph, A3",
    lambda k, v: (np.repeat(k[:1], len(k), 0), v),
)
_values("append_kv: values held at 2^12", "D: huge inputs", lambda k, v: (np.clip(k, -4096, 4096), v))
_values(
    "append_kv: an overflow is held, not refused", "E5", lambda k, v: (np.clip(k, -1e6, 1e6), np.clip(v, -1e6, 1e6))
)
_values("append_kv: tiny values are 0", "D: zero inputs", lambda k, v: (np.where(np.abs(k) < 2.0**-15, 0, k), v))
_values("append_kv: values times 1.02", "scale", lambda k, v: (k * np.float32(1.02), v))


@_kv("append_kv: an overflow is written in part before it is refused", "D: overflowing inputs")
def _in_part(right: Right, a: Any) -> Any:
    try:
        return right(a)
    except ValueError:
        kvs_of(a)[0].pool.v.scale.view(np.uint8)[0, 0, 0] = 7
        raise


@_kv("append_kv: codes cut, not rounded", "rounding by truncation")
def _cut(right: Right, a: Any) -> Any:
    before = _before(a)
    result = right(a)
    for kv, old in zip(kvs_of(a), before, strict=True):
        for array, was in zip(_arrays(kv), old, strict=True):
            if array.dtype == np.int8:
                new = array != was
                array[new] = array[new] - np.sign(array[new])
            elif array.dtype == np.uint8:
                array[(array != was) & (array & 15 > 9)] -= 1
    return result


@_kv("append_kv: positions off by one", "position arithmetic")
def _position(right: Right, a: Any) -> Any:
    steps = a.steps.copy()
    capacity = min(kv.capacity for kv in kvs_of(a))
    if steps[:, 0].max(initial=0) + 1 < capacity:
        steps[steps[:, 0] >= 0] += np.array([1, 1, 0, 0], np.int32)
    return right(but(a, steps=steps))


def _index(name: str, kind: str, arithmetics: tuple[str, ...] = ("exact", "float")) -> Callable[..., Any]:
    return mutant("append_index", f"append_index: {name}", kind, arithmetics)


@_index("a rewound block keeps its key", "C4")
def _block_stays(right: Right, a: Any) -> Any:
    seen = a.memory.setdefault("seen", {})
    before = a.index.pooled.copy()
    result = right(a)
    for block in np.unique(a.steps[a.steps[:, 0] >= 0, 0] // REAL.ratio).tolist():
        if (address(a.index.pooled), block) in seen:
            a.index.pooled[block] = before[block]
        elif not np.array_equal(a.index.pooled[block], before[block]):
            seen[address(a.index.pooled), block] = a.index
    return result


@_index("a raw key of the open block stays", "C12")
def _tail_stays(right: Right, a: Any) -> Any:
    seen = a.memory.setdefault("seen", {})
    raw = a.raw.copy()
    for row, pos in enumerate(a.steps[:, 0].tolist()):
        if pos >= 0 and (address(a.index.pooled), pos) in seen:
            raw[row] = seen[address(a.index.pooled), pos][0]
        elif pos >= 0:
            seen[address(a.index.pooled), pos] = a.raw[row].copy(), a.index
    return right(but(a, raw=raw))


@_index("the dead key is written by the first row of any call", "dead key")
def _dead(right: Right, a: Any) -> Any:
    result = right(a)
    if a.steps[0, 0] > 0:
        a.index.dead[:] = a.index.dead[::-1].copy()
    return result


@_index("the dead key is never written", "dead key")
def _no_dead(right: Right, a: Any) -> Any:
    before = a.index.dead.copy()
    result = right(a)
    a.index.dead[:] = before
    return result


@_index("an unused row is appended", "D: unused row appended")
def _index_unused(right: Right, a: Any) -> Any:
    steps = a.steps.copy()
    for row in np.flatnonzero(steps[:, 0] < 0):
        near = steps[row - 1 if row else min(1, len(steps) - 1), 0]
        if near >= 0:
            steps[row] = near, near + 1, (near + 1) // 4, 0
    return right(but(a, steps=steps))


@_index("64 rows at most", "D: more than 64 rows")
def _index_sixty_four(right: Right, a: Any) -> Any:
    return right(but(a, raw=a.raw[:64], steps=a.steps[:64]))


def _with(a: Any, **arrays: np.ndarray) -> Any:
    """The arguments with tables of the index replaced; what is written goes to the one given."""
    index = copy.copy(a.index)
    for name, array in arrays.items():
        setattr(index, name, array)
    return but(a, index=index)


def _tables(
    name: str,
    kind: str,
    change: Callable[[Any], dict[str, np.ndarray]],
    arithmetics: tuple[str, ...] = ("exact", "float"),
) -> None:
    @_index(name, kind, arithmetics)
    def wrong(right: Right, a: Any) -> Any:
        return right(_with(a, **change(a.index)))


def _plain_rope(index: Any) -> np.ndarray:
    return rope_table(REAL.ratio * np.arange(index.max_blocks), REAL.n_rot, REAL.rope_base, 1.0)


def _turned(rope: np.ndarray) -> np.ndarray:
    cos, sin = np.split(rope, 2, axis=-1)
    return np.concatenate([cos, -sin], axis=-1)


_tables("the base of the position ignored", "D: position base ignored", lambda i: {"rope": _plain_rope(i)})
_tables("the rotation of the next block", "position arithmetic", lambda i: {"rope": np.roll(i.rope, -1, axis=0)})
_tables("no rotation", "rotation", lambda i: {"rope": np.repeat(i.rope0[None], len(i.rope), 0)})
_tables("rotated the other way", "rotation", lambda i: {"rope": _turned(i.rope)})
_tables("the dead key rotated as block 1", "A11", lambda i: {"rope0": i.rope[min(1, len(i.rope) - 1)]})
_tables("the weight of the norm ignored", "C10", lambda i: {"weight": np.ones_like(i.weight)})
_tables("the weight of the norm off by 1", "C10", lambda i: {"weight": i.weight + np.float32(1)})
_tables("tables of bf16", "types", lambda i: {"rope": i.rope.astype(np.float16).astype(np.float32)})


def _raw(
    name: str, kind: str, change: Callable[[np.ndarray], np.ndarray], arithmetics: tuple[str, ...] = ("exact", "float")
) -> None:
    @_index(name, kind, arithmetics)
    def wrong(right: Right, a: Any) -> Any:
        with np.errstate(all="ignore"):
            return right(but(a, raw=change(a.raw).astype(np.float32)))


_raw("raw keys of fp16 that are not declared", "types", lambda r: r.astype(np.float16))
_raw("tiny raw keys are 0", "D: zero keys", lambda r: np.where(np.abs(r) < 2.0**-24, 0, r))
_raw("subnormal raw keys are 0", "flush to zero", lambda r: np.where(np.abs(r) < 2.0**-126, 0, r))
_raw("raw keys held at 2^20", "D: huge keys", lambda r: np.clip(r, -(2.0**20), 2.0**20))
_raw("the rows of a call exchanged", "row order", lambda r: r[::-1])


def _after(
    name: str, kind: str, change: Callable[[Any, Any], None], arithmetics: tuple[str, ...] = ("exact", "float")
) -> None:
    """The index is changed after the append."""

    @_index(name, kind, arithmetics)
    def wrong(right: Right, a: Any) -> Any:
        result = right(a)
        change(a.index, sorted({pos // 4 for pos in a.steps[:, 0].tolist() if pos >= 0 and pos % 4 == 3}))
        return result


def _scaled(index: Any, blocks: list[int]) -> None:
    index.pooled[blocks] *= np.float32(1.0001)


def _ulp(index: Any, blocks: list[int]) -> None:
    index.pooled[blocks, 3] = np.nextafter(index.pooled[blocks, 3], np.float32(9))


def _spare(index: Any, blocks: list[int]) -> None:
    if blocks and blocks[-1] + 1 < len(index.pooled):
        index.pooled[blocks[-1] + 1] = index.dead


def _nan_of_zero(index: Any, blocks: list[int]) -> None:
    for block in blocks:
        if not index.pooled[block].any():
            index.pooled[block] = np.nan


_after("keys off by 1e-4", "norm", _scaled)
_after("one dim off by one unit in the last place", "A2", _ulp, EXACT)
_after("the dead key stored behind the last block", "neighbours", _spare)
_after("a key of zeros becomes NaN", "D: zero keys", _nan_of_zero)


@_index("the keys of a block added from the last to the first", "order of sums", EXACT)
def _order(right: Right, a: Any) -> Any:
    steps, raw = a.steps, a.raw.copy()
    pos = steps[:, 0]
    for row in np.flatnonzero(pos % 4 == 3):
        if row >= 3 and np.array_equal(pos[row - 3 : row + 1], pos[row] - np.arange(3, -1, -1)):
            raw[row - 3 : row + 1] = raw[row - 3 : row + 1][::-1]
    result = right(but(a, raw=raw))
    kept = copy.copy(a)
    # The tail and the dead key come from the right order.
    index = copy.deepcopy(a.index)
    right(but(kept, index=index))
    a.index.tail[:], a.index.dead[:] = index.tail, index.dead
    return result


@_index("blocks that a call completes see the keys of this call alone", "A5")
def _this_call(right: Right, a: Any) -> Any:
    if a.steps[:, 0].max(initial=-1) % 4 == 3 and len(a.steps) < 4:
        a.index.tail[:] = 0
    return right(a)
