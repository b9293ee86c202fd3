"""Scores of encoded keys: exponents, keys and results of others, and what is kept."""

from collections.abc import Callable
from typing import Any

import numpy as np

from qsa.kernels.ops import OPERATIONS
from qsa.reference.index import Index
from qsa.reference.key_codes import NOT_FINITE

from ..mutant import EXACT, Right
from .changes import ROWS, address, but
from .encodings import BOTH, coded, exponents_of, with_arrays


def _reads(
    name: str,
    kind: str,
    change: Callable[[Index], dict[str, np.ndarray]],
    arithmetics: tuple[str, ...] = BOTH,
    schedule: str | None = None,
) -> None:
    @coded("block_scores", name, kind, arithmetics)
    def other(right: Right, a: Any) -> Any:
        with np.errstate(all="ignore"):
            return right(with_arrays(a, **change(a.index)) if schedule in (None, a.schedule) else a)


def _spread(exponents: np.ndarray, size: int) -> np.ndarray:
    """Every ``size`` keys have the exponent of the first."""
    return np.repeat(exponents[::size], size)[: len(exponents)]


_reads("the exponent of the next block", "neighbour", lambda i: {"pooled_exponent": np.roll(exponents_of(i), -1)})
_reads("the exponent of the block before", "neighbour", lambda i: {"pooled_exponent": np.roll(exponents_of(i), 1)})
for _size in (2, 8, 16):
    _reads(
        f"one exponent for {_size} keys",
        "neighbour",
        lambda i, n=_size: {"pooled_exponent": _spread(exponents_of(i), n)},  # type: ignore[misc]
    )
_reads("exponents of 8 bits", "types", lambda i: {"pooled_exponent": np.clip(exponents_of(i), -128, 127)}, EXACT)
_reads("exponents of -126 and more", "flush to zero", lambda i: {"pooled_exponent": np.maximum(exponents_of(i), -126)})
_reads(
    "a key that is not finite has exponent 0",
    "NaN",
    lambda i: {"pooled_exponent": np.where(exponents_of(i) == NOT_FINITE, 0, exponents_of(i))},
)
_reads("the dead key has the exponent of block 0", "dead key", lambda i: {"dead_exponent": exponents_of(i)[:1]})
_reads("the dead key ignored", "dead key", lambda i: {"dead": i.dead * 0})
_reads(
    "a dead key that is not finite has exponent 0",
    "NaN",
    lambda i: {"dead_exponent": i.dead_exponent * (i.dead_exponent != NOT_FINITE)},  # type: ignore[dict-item,operator]
)
_reads("keys off by one block", "block arithmetic", lambda i: {"pooled": np.roll(i.pooled, 1, axis=0)})
_reads("the last dim of a key left out", "loop bounds", lambda i: {"pooled": i.pooled * (np.arange(128) < 127)})
_reads(
    "pairs of dims exchanged", "packing", lambda i: {"pooled": i.pooled.reshape(-1, 64, 2)[..., ::-1].reshape(-1, 128)}
)
for _schedule in OPERATIONS["block_scores"].schedules:
    _reads(
        f"{_schedule}: the exponent of the next block",
        "D: every schedule",
        lambda i: {"pooled_exponent": np.roll(exponents_of(i), -1)},
        schedule=_schedule,
    )
    _reads(
        f"{_schedule}: the dead key ignored", "D: every schedule", lambda i: {"dead": i.dead * 0}, schedule=_schedule
    )


@coded("block_scores", "the key behind the last complete block in the place of the dead key", "D: a future key")
def _future(right: Right, a: Any) -> Any:
    out = right(a)
    for row, (_, n_kv, n_bid, _) in enumerate(a.steps.tolist()):
        if n_kv and n_bid < len(a.index.pooled):
            part = slice(n_bid, n_bid + 1)
            one = but(a, q_idx=a.q_idx[row : row + 1], steps=a.steps[row : row + 1])
            one = with_arrays(one, dead=a.index.pooled[n_bid], dead_exponent=exponents_of(a.index)[part])
            out[row, part] = right(one)[0, part]
    return out


@coded("block_scores", "the dead key of the first call of this index", "stale dead key")
def _stale_dead(right: Right, a: Any) -> Any:
    key = address(a.index.pooled)
    # The index is kept too: its address must not be given to another one.
    kept = a.memory.setdefault(key, (a.index, a.index.dead.copy(), a.index.dead_exponent.copy()))
    return right(with_arrays(a, dead=kept[1], dead_exponent=kept[2]))


@coded("block_scores", "scores kept by the addresses of query and keys", "D: outputs cached by pointer")
def _pointer(right: Right, a: Any) -> Any:
    key = address(a.q_idx), address(a.index.pooled)
    if key not in a.memory:
        a.memory[key] = right(a), a.q_idx, a.index
    return a.memory[key][0].copy()


def _at_rows(rows: int) -> None:
    @coded("block_scores", f"wrong for {rows} rows", "D: a number of rows that is wrong by itself")
    def wrong(right: Right, a: Any) -> Any:
        out = right(a)
        if len(out) == rows:
            out[-1] *= np.float32(1.02)
        return out


for _rows in ROWS:
    _at_rows(_rows)


def _last_block(tile: int, off: int) -> None:
    @coded("block_scores", f"the last block left at 0 for {tile} k {off:+d} blocks", "block counts around every tile")
    def wrong(right: Right, a: Any) -> Any:
        out = right(a)
        for row, (_, n_kv, n_bid, _) in enumerate(a.steps.tolist()):
            if n_kv and n_bid > 1 and (n_bid - off) % tile == 0:
                out[row, n_bid - 1] = 0
        return out


for _tile in (16, 32, 64):
    for _off in (0, 1):
        _last_block(_tile, _off)
