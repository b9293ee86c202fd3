"""Selection with other keys, ties, budgets, tails, and state."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from qsa.kernels.ops import OPERATIONS
from qsa.reference.geometry import step_records

from ..mutant import EXACT, Right, mutant
from .changes import ROWS, address, but

CUT = "D: the cut in each class of values"


def _keys(name: str, kind: str, change: Callable[[np.ndarray], np.ndarray], schedule: str | None = None) -> None:
    """A kernel that ranks ``change`` of a row's scores [n_bid] instead of them."""

    @mutant("select", name, kind)
    def other(right: Right, a: Any) -> Any:
        scores = a.scores.copy()
        if schedule in (None, a.schedule):
            for row, n_bid in enumerate(a.steps[:, 2].tolist()):
                with np.errstate(all="ignore"):
                    scores[row, :n_bid] = change(a.scores[row, :n_bid])
        return right(but(a, scores=scores))


def _ranked(order: np.ndarray) -> np.ndarray:
    """Scores in which the blocks come in this order, best first."""
    found = np.empty(len(order), np.float32)
    found[order] = -np.arange(len(order), dtype=np.float32)
    return found


def _by_key(key: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """Ranks by an integer ``key`` of the scores, greater first, ties to the lower index."""
    return lambda s: _ranked(np.argsort(-key(s).astype(np.int64), kind="stable"))


def _key(s: np.ndarray) -> np.ndarray:
    bits = (s + np.float32(0)).view(np.uint32)
    key = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))
    return np.where(np.isnan(s), np.uint32(0), key)


def _signed_zero(s: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(s).view(np.uint32)
    key = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))
    return np.where(np.isnan(s), np.uint32(0), key)


def _higher(s: np.ndarray) -> np.ndarray:
    order = np.argsort(-_key(s).astype(np.int64)[::-1], kind="stable")
    return _ranked(len(s) - 1 - order)


def _without_bits(bits: int) -> Callable[[np.ndarray], np.ndarray]:
    return _by_key(lambda s: _key(s) >> bits)


def _crowded(most: int) -> Callable[[np.ndarray], np.ndarray]:
    """Of the blocks in one bin of the leading 16 bits the first ``most`` alone are candidates."""

    def few(s: np.ndarray) -> np.ndarray:
        out = s.copy()
        bins, counts = np.unique(_key(s) >> 16, return_counts=True)
        for each in bins[counts > most]:
            out[np.flatnonzero(_key(s) >> 16 == each)[most:]] = np.nan
        return out

    return few


_keys("ties go to the higher index", "C1", _higher)
_keys("NaN preferred", CUT, lambda s: np.where(np.isnan(s), np.float32(np.inf), s))
_keys("NaN taken for -inf", CUT, lambda s: np.where(np.isnan(s), np.float32(-np.inf), s))
_keys("NaN taken for 0", CUT, lambda s: np.nan_to_num(s, nan=0.0, posinf=np.inf, neginf=-np.inf))
_keys("-0 below +0", CUT, _by_key(_signed_zero))
_keys("subnormal scores are 0", "flush to zero", lambda s: np.where(np.abs(s) < 2.0**-126, np.float32(0), s))
_keys("the sign left out of the key", CUT, lambda s: np.abs(s))
_keys(
    "negative scores in the order of their bits", CUT, lambda s: np.where(s < 0, -np.float32(1) / s * np.float32(-1), s)
)
_keys("negative scores are 0", CUT, lambda s: np.where(s < 0, np.float32(0), s))
_keys("+inf taken for the largest number", CUT, lambda s: np.where(s == np.inf, np.finfo(np.float32).max, s))
_keys("-inf taken for NaN", CUT, lambda s: np.where(s == -np.inf, np.float32(np.nan), s))
_keys("scores as bf16", "types", lambda s: s.astype(ml_dtypes.bfloat16).astype(np.float32))
_keys("scores as fp16", "types", lambda s: s.astype(np.float16).astype(np.float32))
for _bits in (1, 2, 4, 8, 11):
    _keys(f"the last {_bits} bits of a key ignored", "D: the last bits of a selection key", _without_bits(_bits))
for _most in (4096, 16384, 32767):
    _keys(f"candidates of one bin: {_most} at most", "C11", _crowded(_most))
for _schedule in OPERATIONS["select"].schedules:
    _keys(
        f"{_schedule}: NaN preferred",
        "D: every schedule",
        lambda s: np.where(np.isnan(s), np.float32(np.inf), s),
        _schedule,
    )
    _keys(f"{_schedule}: ties go to the higher index", "D: every schedule", _higher, _schedule)
    _keys(
        f"{_schedule}: the last 2 bits of a key ignored",
        "D: every schedule",
        _by_key(lambda s: _key(s) >> 2),
        _schedule,
    )
_keys("the first block always selected", "sink", lambda s: np.where(np.arange(len(s)) == 0, np.float32(np.inf), s))
_keys(
    "the last block never selected",
    "loop bounds",
    lambda s: np.where(np.arange(len(s)) == len(s) - 1, np.float32(np.nan), s),
)


@mutant("select", "ids in the order of their scores", "unsorted", EXACT)
def _unsorted(right: Right, a: Any) -> Any:
    out = right(a)
    for row, width in enumerate(a.steps[:, 3].tolist()):
        out[row, :width] = out[row, :width][::-1]
    return out


@mutant("select", "the tail stands first", "tail order", EXACT)
def _tail_first(right: Right, a: Any) -> Any:
    out = right(a)
    for row, (_, n_kv, _, width) in enumerate(a.steps.tolist()):
        out[row, :width] = np.roll(out[row, :width], n_kv % 4)
    return out


@mutant("select", "0 behind the width", "padding", EXACT)
def _padding(right: Right, a: Any) -> Any:
    out = right(a)
    out[out < 0] = 0
    return out


@mutant("select", "the tail left out", "A4")
def _no_tail(right: Right, a: Any) -> Any:
    out = right(a)
    for row, (_, _, n_bid, width) in enumerate(a.steps.tolist()):
        out[row, :width][out[row, :width] >= 4 * n_bid] = -1
    return out


@mutant("select", "the score behind the last block read", "loop bounds")
def _behind(right: Right, a: Any) -> Any:
    out = right(a)
    for row, (_, _, n_bid, width) in enumerate(a.steps.tolist()):
        if width > 8 and a.scores.shape[1] > n_bid and n_bid > 512:
            out[row, :4] = 4 * n_bid + np.arange(4)
    return out


@mutant("select", "a block of the budget missing", "budget")
def _fewer(right: Right, a: Any) -> Any:
    out = right(a)
    for row, width in enumerate(a.steps[:, 3].tolist()):
        if width >= 2048:
            out[row, 100:104] = out[row, 96:100]
    return out


def _rule_at(n_kv: int) -> None:
    @mutant("select", f"the other rule at {n_kv} cells", "D: rule boundaries")
    def other(right: Right, a: Any) -> Any:
        out = right(a)
        rule = "cells" if a.rule == "blocks" else "blocks"
        for row, cells in enumerate(a.steps[:, 1].tolist()):
            if cells == n_kv:
                steps = step_records([cells - 1], rule)
                one = right(but(a, scores=a.scores[row : row + 1], steps=steps, rule=rule))[0]
                out[row] = one
        return out


for _n_kv in (2052, 2053, 2054, 2056, 2057, 2060):
    _rule_at(_n_kv)


def _block_at(n_kv: int) -> None:
    @mutant("select", f"wrong at {n_kv} cells", "D: a width or context that is wrong by itself")
    def wrong(right: Right, a: Any) -> Any:
        out = right(a)
        for row, (_, cells, _, width) in enumerate(a.steps.tolist()):
            if cells == n_kv:
                out[row, :width] = np.roll(out[row, :width], 1)
                out[row, 0] = out[row, 1]
        return out


for _n_kv in (2047, 2048, 2049, 2050, 2051, 2055):
    _block_at(_n_kv)


def _at_rows(rows: int) -> None:
    @mutant("select", f"select: wrong for {rows} rows", "D: a number of rows that is wrong by itself")
    def wrong(right: Right, a: Any) -> Any:
        out = right(a)
        if len(out) == rows:
            out[-1] = np.where(out[-1] >= 0, 0, -1)
        return out


for _rows in ROWS:
    _at_rows(_rows)


@mutant("select", "an unused row selects cell 0", "D: unused rows", EXACT)
def _unused(right: Right, a: Any) -> Any:
    out = right(a)
    out[a.steps[:, 0] < 0, 0] = 0
    return out


@mutant("select", "rows from the second on are the first", "scalar baked into a graph, A3")
def _first_row(right: Right, a: Any) -> Any:
    out = right(a)
    same = (a.steps[:, 1] == a.steps[0, 1]) | (a.steps[:, 3] == a.steps[0, 3])
    out[same] = out[0]
    return out


@mutant("select", "select: ids kept by the address of the scores", "D: outputs cached by pointer")
def _pointer(right: Right, a: Any) -> Any:
    key = address(a.scores)
    if key not in a.memory:
        a.memory[key] = right(a), a.scores
    return a.memory[key][0].copy()


@mutant("select", "scores sorted in place", "J1")
def _in_place(right: Right, a: Any) -> Any:
    out = right(a)
    a.scores[0].sort()
    return out


def _context(power: int) -> None:
    @mutant("select", f"blocks from 2^{power} on are not seen", "A, C: limits of kernels")
    def limit(right: Right, a: Any) -> Any:
        scores = a.scores.copy()
        scores[:, 2**power :] = np.nan
        return right(but(a, scores=scores))


for _power in (12, 14, 15, 16, 17, 18):
    _context(_power)
