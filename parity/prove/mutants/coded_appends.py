"""Appends of encoded keys: other encodings, exponents of others, and what is not written."""

from collections.abc import Callable
from typing import Any

import numpy as np

from qsa.reference.geometry import REAL
from qsa.reference.index import Index
from qsa.reference.key_codes import LARGEST_CODE, decode, encode

from ..mutant import EXACT, Change, Right
from .changes import address, but
from .encodings import BOTH, coded, coded_to, half_away, without_low


def _appends(name: str, kind: str, arithmetics: tuple[str, ...] = BOTH) -> Callable[[Change], Change]:
    return coded("append_index", name, kind, arithmetics)


def _twin(a: Any) -> Index:
    """The index of the same call in float32: the one that was made for these keys, kept between calls."""
    key = "twin", address(a.index.pooled)
    if key not in a.memory:
        i = a.index
        other = Index(i.max_blocks, i.weight, i.geometry)
        other.weight, other.rope, other.rope0 = i.weight, i.rope, i.rope0
        other.tail[:] = i.tail
        a.memory[key] = other, i
    return a.memory[key][0]  # type: ignore[no-any-return]


def _completed(a: Any) -> list[int]:
    return sorted({pos // REAL.ratio for pos in a.steps[:, 0].tolist() if pos >= 0 and pos % REAL.ratio == 3})


def _encoded(name: str, kind: str, encoding: Any, arithmetics: tuple[str, ...] = EXACT) -> None:
    """Pooled keys and the dead key are made in float32, then encoded in another way."""

    @_appends(name, kind, arithmetics)
    def wrong(right: Right, a: Any) -> Any:
        twin = _twin(a)
        twin.tail[:] = a.index.tail
        right(but(a, index=twin))
        result = right(a)
        with np.errstate(all="ignore"):
            for block in _completed(a):
                a.index.pooled[block], a.index.pooled_exponent[block] = encoding(twin.pooled[block])
            if (a.steps[:, 0] == 0).any():
                a.index.dead[:], a.index.dead_exponent[0] = encoding(twin.dead)
        return result


_encoded("a key to the next smaller exponent, codes held at 32,639", "saturation", coded_to(32767, LARGEST_CODE))
_encoded("codes up to 32,767", "saturation", coded_to(32767))
_encoded("codes up to 32,640", "saturation", coded_to(32640))
_encoded("codes up to 32,638", "saturation", coded_to(32638))
_encoded("ties away from 0", "rounding", coded_to(LARGEST_CODE, rint=half_away))
_encoded("codes cut, not rounded", "rounding by truncation", coded_to(LARGEST_CODE, rint=np.trunc), BOTH)
_encoded("keys of fp16 first", "rounded twice", lambda x: encode(x.astype(np.float16)), BOTH)
_encoded("keys of tf32 first", "rounded twice", lambda x: encode((x.view(np.int32) & ~0x1FFF).view(np.float32)))
_encoded("subnormal keys are 0", "flush to zero", lambda x: encode(np.where(np.abs(x) < 2.0**-126, 0, x)))
_encoded("the low limb left out", "limb", lambda x: (without_low(encode(x)[0]), encode(x)[1]), BOTH)
_encoded(
    "a key of zeros has the exponent of the smallest number",
    "zero keys",
    lambda x: (encode(x)[0], encode(x)[1] if x.any() else -148),
    EXACT,
)


def _after(name: str, kind: str, change: Callable[[Any, list[int]], None], arithmetics: tuple[str, ...] = BOTH) -> None:
    @_appends(name, kind, arithmetics)
    def wrong(right: Right, a: Any) -> Any:
        result = right(a)
        change(a.index, _completed(a))
        return result


def _next_exponent(index: Any, blocks: list[int]) -> None:
    for block in blocks:
        if block + 1 < index.max_blocks:
            index.pooled_exponent[block + 1] = index.pooled_exponent[block]


def _shared_exponent(index: Any, blocks: list[int]) -> None:
    index.pooled_exponent[blocks] = index.pooled_exponent[blocks].max(initial=-200)


def _off_by_one(index: Any, blocks: list[int]) -> None:
    index.pooled[blocks, 3] += 1


_after("the exponent of the block behind is written too", "neighbour", _next_exponent)
_after("one exponent for all keys of a call", "neighbour", _shared_exponent)
_after("one code off by one", "A2", _off_by_one, EXACT)


def _kept(name: str, kind: str, *names: str) -> None:
    """Arrays of the index that the append does not write."""

    @_appends(name, kind)
    def wrong(right: Right, a: Any) -> Any:
        before = {each: getattr(a.index, each).copy() for each in names}
        result = right(a)
        for each, was in before.items():
            getattr(a.index, each)[...] = was
        return result


_kept("exponents of keys are not written", "scales", "pooled_exponent")
_kept("the exponent of the dead key is not written", "stale dead key", "dead_exponent")
_kept("the dead key is never written", "stale dead key", "dead", "dead_exponent")


@_appends("the dead key is written once and stays", "stale dead key")
def _first_dead(right: Right, a: Any) -> Any:
    key = address(a.index.dead)
    result = right(a)
    if (a.steps[:, 0] == 0).any():
        if key in a.memory:
            a.index.dead[:], a.index.dead_exponent[:] = a.memory[key][:2]
        else:
            a.memory[key] = a.index.dead.copy(), a.index.dead_exponent.copy(), a.index
    return result


@_appends("a rewound block keeps its key", "C4")
def _block_stays(right: Right, a: Any) -> Any:
    seen = a.memory.setdefault("seen", {})
    before = a.index.pooled.copy(), a.index.pooled_exponent.copy()
    result = right(a)
    for block in _completed(a):
        key = address(a.index.pooled), block
        if key in seen:
            a.index.pooled[block], a.index.pooled_exponent[block] = before[0][block], before[1][block]
        seen[key] = a.index
    return result


@_appends("raw keys of the open block are encoded", "types")
def _tail_coded(right: Right, a: Any) -> Any:
    with np.errstate(all="ignore"):
        raw = decode(*encode(a.raw)).astype(np.float32)
    return right(but(a, raw=raw))


@_appends("an unused row is appended", "D: unused row appended")
def _unused(right: Right, a: Any) -> Any:
    steps = a.steps.copy()
    for row in np.flatnonzero(steps[:, 0] < 0):
        near = steps[row - 1 if row else min(1, len(steps) - 1), 0]
        if near >= 0:
            steps[row] = near, near + 1, (near + 1) // 4, 0
    return right(but(a, steps=steps))


def _keeps(right: Right, a: Any) -> Any:
    twin = _twin(a)
    twin.tail[:] = a.index.tail
    right(but(a, index=twin))
    return right(a)


@coded(
    "block_scores",
    "float32 keys kept beside the codes are scored",
    "a float32 key or query in the place of the encoded one",
    EXACT,
    others=[("append_index", _keeps)],
)
def _scores_kept(right: Right, a: Any) -> Any:
    kept = a.memory.get(("twin", address(a.index.pooled)))
    return right(but(a, index=kept[0]) if kept else a)
