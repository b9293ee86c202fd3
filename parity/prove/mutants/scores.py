"""Block scores with other keys, heads, sums, bonuses, and state."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from qsa.kernels.ops import OPERATIONS
from qsa.reference.block_scores import TAIL_BONUS

from ..mutant import EXACT, Right, mutant
from .changes import ROWS, address, but


def _index(a: Any, **arrays: np.ndarray) -> Any:
    """The arguments with arrays of the index replaced."""
    index = copy.copy(a.index)
    for name, array in arrays.items():
        setattr(index, name, array)
    return but(a, index=index)


def _given(
    name: str,
    kind: str,
    change: Callable[[Any], Any],
    schedule: str | None = None,
    arithmetics: tuple[str, ...] = ("exact", "float"),
) -> None:
    """A kernel that gets other arguments than it was given."""

    @mutant("block_scores", name, kind, arithmetics)
    def other(right: Right, a: Any) -> Any:
        with np.errstate(all="ignore"):
            return right(change(a) if schedule in (None, a.schedule) else a)


def _future(a: Any, out: np.ndarray, right: Right) -> np.ndarray:
    """The key behind the last complete block is scored in the place of the dead key."""
    for row, (_, n_kv, n_bid, _) in enumerate(a.steps.tolist()):
        if n_kv and n_bid < len(a.index.pooled):
            one = _index(but(a, q_idx=a.q_idx[row : row + 1], steps=a.steps[row : row + 1]), dead=a.index.pooled[n_bid])
            out[row, n_bid] = right(one)[0, n_bid]
    return out


@mutant("block_scores", "a future key behind the bonus read", "D: a future key behind the bonus of 1e9")
def _future_key(right: Right, a: Any) -> Any:
    return _future(a, right(a), right)


for _schedule in OPERATIONS["block_scores"].schedules:

    @mutant("block_scores", f"{_schedule}: a future key behind the bonus read", "D: every schedule")
    def _future_in(right: Right, a: Any, schedule: str = _schedule) -> Any:
        out = right(a)
        return _future(a, out, right) if a.schedule == schedule else out

    _given(
        f"{_schedule}: the dead key ignored", "D: every schedule", lambda a: _index(a, dead=a.index.dead * 0), _schedule
    )


_given("the dead key ignored", "dead key", lambda a: _index(a, dead=a.index.dead * 0))
_given(
    "subnormal keys are 0",
    "D: wholly subnormal keys",
    lambda a: _index(a, pooled=np.where(np.abs(a.index.pooled) < 2.0**-126, np.float32(0), a.index.pooled)),
)
_given("keys of fp16", "types", lambda a: _index(a, pooled=a.index.pooled.astype(np.float16).astype(np.float32)))
_given(
    "a NaN in a key read as 0",
    "NaN",
    lambda a: _index(a, pooled=np.nan_to_num(a.index.pooled, nan=0, posinf=np.inf, neginf=-np.inf)),
)
_given(
    "an infinite key held at the largest number",
    "infinity",
    lambda a: _index(a, pooled=np.nan_to_num(a.index.pooled, nan=np.nan)),
)
_given("keys off by one block", "block arithmetic", lambda a: _index(a, pooled=np.roll(a.index.pooled, 1, axis=0)))
_given(
    "the last dim of a key left out",
    "loop bounds",
    lambda a: _index(a, pooled=a.index.pooled * (np.arange(128) < 127).astype(np.float32)),
)
_given("the last head left out", "heads", lambda a: but(a, q_idx=a.q_idx * np.array([1, 1, 1, 0], np.float32)[:, None]))
_given(
    "all rows have the query of the first",
    "scalar baked into a graph, A3",
    lambda a: but(a, q_idx=np.repeat(a.q_idx[:1], len(a.q_idx), axis=0)),
)
_given(
    "rows from the ninth on have the query of the eighth",
    "more rows than a window",
    lambda a: but(a, q_idx=np.concatenate([a.q_idx[:8], np.repeat(a.q_idx[7:8], max(0, len(a.q_idx) - 8), axis=0)])),
)
_given(
    "heads in descending order",
    "order of sums",
    lambda a: but(a, q_idx=np.ascontiguousarray(a.q_idx[:, ::-1])),
    arithmetics=EXACT,
)


def _heads(a: Any, row: int, keys: np.ndarray) -> np.ndarray:
    """float32 dots [blocks, heads] of one row, in NumPy's own order."""
    return keys @ a.q_idx[row].T


def _own(
    name: str, kind: str, score: Callable[[np.ndarray], np.ndarray], arithmetics: tuple[str, ...] = ("exact", "float")
) -> None:
    """A kernel that makes the score of a block of its dots [blocks, heads] in its own way."""

    @mutant("block_scores", name, kind, arithmetics)
    def other(right: Right, a: Any) -> Any:
        out = right(a)
        with np.errstate(all="ignore"):
            for row, (_, n_kv, n_bid, _) in enumerate(a.steps.tolist()):
                if n_kv:
                    out[row, :n_bid] = score(_heads(a, row, a.index.pooled[:n_bid]))
        return out


def _relu(dots: np.ndarray) -> np.ndarray:
    return np.where(dots <= 0, np.float32(0), dots)


def _relu_but(head: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda dots: np.where(np.arange(4) == head, dots, _relu(dots)).sum(axis=1)


for _head in range(4):
    _own(f"relu missing in head {_head}", "relu", _relu_but(_head))
_own("relu over the sum of the heads", "relu", lambda d: _relu(d.sum(axis=1)))
_own("relu that makes 0 of a NaN, not declared", "relu", lambda d: np.fmax(d, 0).sum(axis=1))
_own("the largest head in the place of the sum", "heads", lambda d: _relu(d).max(axis=1, initial=0))
_own("the mean of the heads", "heads", lambda d: _relu(d).mean(axis=1))
_own("the lane tree replaced by a plain sum", "order of sums", lambda d: _relu(d).sum(axis=1, dtype=np.float32), EXACT)


def _bonus(name: str, kind: str, change: Callable[[np.ndarray, int, int], None]) -> None:
    @mutant("block_scores", name, kind)
    def other(right: Right, a: Any) -> Any:
        out = right(a)
        for row, (_, n_kv, n_bid, _) in enumerate(a.steps.tolist()):
            if n_kv:
                change(out[row], n_kv, n_bid)
        return out


def _add(out: np.ndarray, at: int, amount: float) -> None:
    out[at] = out[at] + np.float32(amount)


_bonus("a bonus of 1e8", "tail bonus", lambda out, n_kv, n: _add(out, n, -0.9 * TAIL_BONUS if n_kv % 4 else 0))
_bonus("no bonus", "A4", lambda out, n_kv, n: _add(out, n, -TAIL_BONUS if n_kv % 4 else 0))
_bonus("a bonus without a tail", "tail bonus", lambda out, n_kv, n: _add(out, n, 0 if n_kv % 4 else TAIL_BONUS))
_bonus("a bonus of 2e9", "J8", lambda out, n_kv, n: _add(out, n, TAIL_BONUS if n_kv % 4 else 0))
_bonus(
    "the bonus on the last block",
    "tail bonus",
    lambda out, n_kv, n: _add(out, max(n - 1, 0), TAIL_BONUS if n_kv % 4 and n else 0),
)
_bonus("block 0 is not written", "loop bounds", lambda out, n_kv, n: _add(out, 0, -np.inf if n else 0))
for _tile in (32, 64, 128):
    for _off in (0, 1):
        _bonus(
            f"the last block left at 0 for {_tile} k {_off:+d} blocks",
            "block counts around every tile",
            lambda out, n_kv, n, t=_tile, o=_off: (
                out.__setitem__(slice(n - 1, n), 0) if n > 1 and (n - o) % t == 0 else None
            ),  # type: ignore[misc]
        )


def _at_rows(rows: int) -> None:
    @mutant("block_scores", f"block_scores: wrong for {rows} rows", "D: a number of rows that is wrong by itself")
    def wrong(right: Right, a: Any) -> Any:
        out = right(a)
        if len(out) == rows:
            out[-1] *= np.float32(1.02)
        return out


for _rows in ROWS:
    _at_rows(_rows)


@mutant("block_scores", "the query of an unused row spoils the next", "D: unused rows")
def _spoilt(right: Right, a: Any) -> Any:
    out = right(a)
    for row in np.flatnonzero(a.steps[:, 0] < 0):
        if row + 1 < len(out):
            out[row + 1] = np.nan
        if row:
            out[row - 1] = np.nan
    return out


@mutant("block_scores", "an unused row moves the rows behind it up", "C14")
def _compacted(right: Right, a: Any) -> Any:
    out, used = right(a), a.steps[:, 0] >= 0
    moved = np.full_like(out, -np.inf)
    moved[: used.sum()] = out[used]
    return moved


@mutant("block_scores", "scores kept by the address of the query", "D: outputs cached by pointer")
def _pointer(right: Right, a: Any) -> Any:
    key = address(a.q_idx)
    if key not in a.memory:
        a.memory[key] = right(a), a.q_idx
    return a.memory[key][0].copy()


@mutant("block_scores", "products below 2^-126 are 0", "flush to zero")
def _flushed(right: Right, a: Any) -> Any:
    q = np.where(np.abs(a.q_idx) < 2.0**-90, np.float32(0), a.q_idx)
    return right(but(a, q_idx=q))
