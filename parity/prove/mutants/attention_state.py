"""Attention that keeps what has changed, is wrong now and then, or has numbers that are too narrow."""

from typing import Any

import numpy as np

from qsa.kernels.ops import OPERATIONS

from ..mutant import Right, mutant
from .changes import address, cached, counted, each_kv, each_row, kv_of, with_table

STALE = "D: the same arrays again with changed contents"
NARROW = "D: 16-bit tables, 32-bit offsets, limits at 2^17 to 2^21 cells"


def _stale(name: str, schedule: str) -> None:
    @mutant("attend", f"{schedule}: {name} kept of the first call with this array", STALE)
    def stale(right: Right, a: Any) -> Any:
        return right(cached(a, name) if a.schedule == schedule else a)


for _schedule in OPERATIONS["attend"].schedules:
    _stale("table", _schedule)
    _stale("ids", _schedule)


def _by_pointer(*names: str) -> None:
    @mutant("attend", f"output kept by the address of {' and '.join(names)}", "D: outputs cached by pointer")
    def kept(right: Right, a: Any) -> Any:
        key = tuple(address(getattr(a, name)) for name in names)
        if key not in a.memory:
            a.memory[key] = right(a), [getattr(a, name) for name in names]
        return a.memory[key][0].copy()


_by_pointer("q")
_by_pointer("q", "ids", "steps")


def _now_and_then(operation: str, calls: int, repeats: int) -> None:
    @mutant(
        operation, f"{operation}: wrong once in {calls} calls", "D: wrong once in 50, in 1,000 calls", repeats=repeats
    )
    def wrong(right: Right, a: Any) -> Any:
        out = right(a)
        if counted(a) % calls == calls - 1:
            # Ids are a set in the float arithmetic: another order would be right there.
            out[:, 0] = out[:, 1]
        return out


for _operation in ("attend", "block_scores", "select"):
    _now_and_then(_operation, 50, 1)
_now_and_then("attend", 1000, 1001)


@mutant("attend", "page numbers of 16 bits", NARROW)
def _sixteen(right: Right, a: Any) -> Any:
    return right(each_kv(a, lambda kv: with_table(kv, np.where(kv.table >= 0, kv.table & 0xFFFF, -1))))


@mutant("attend", "page numbers of 15 bits and sign", NARROW)
def _fifteen(right: Right, a: Any) -> Any:
    return right(each_kv(a, lambda kv: with_table(kv, np.where(kv.table > 0x7FFF, -1, kv.table))))


def _pool_limit(power: int) -> None:
    @mutant("attend", f"cells of the pool from 2^{power} on are not read", NARROW)
    def limit(right: Right, a: Any) -> Any:
        return right(
            each_kv(
                a,
                lambda kv: with_table(
                    kv, np.where(kv.table.astype(np.int64) * kv.pool.page_size >= 2**power, -1, kv.table)
                ),
            )
        )


def _context_limit(power: int) -> None:
    @mutant("attend", f"cells of the context from 2^{power} on are not read", NARROW)
    def limit(right: Right, a: Any) -> Any:
        return right(each_row(a, lambda row, ids: np.where(ids >= 2**power, -1, ids)))


for _power in (15, 16, 17):
    _pool_limit(_power)
for _power in (16, 17, 18, 19, 20, 21, 22):
    _context_limit(_power)


@mutant("attend", "cell numbers as float32", NARROW)
def _rounded(right: Right, a: Any) -> Any:
    def narrow(row: int, ids: np.ndarray) -> np.ndarray:
        return np.minimum(ids.astype(np.float32).astype(np.int64), kv_of(a, row).capacity - 1)

    return right(each_row(a, narrow))


@mutant("attend", "its query is overwritten in place", "J1")
def _overwritten(right: Right, a: Any) -> Any:
    out = right(a)
    a.q[...] = 0
    return out


@mutant("attend", "the ids are sorted in place", "J1")
def _sorted(right: Right, a: Any) -> Any:
    out = right(a)
    a.ids.flags.writeable = True
    a.ids[:] = -np.sort(-a.ids, axis=1)
    return out


@mutant("attend", "one output buffer for all calls, of which the last row is not written", "A: reused buffers")
def _reused(right: Right, a: Any) -> Any:
    out = right(a)
    buffer = a.memory.setdefault(out.shape, np.zeros_like(out))
    buffer[:-1] = out[:-1]
    return buffer


@mutant("attend", "fused: the rows of a call are right only one at a time", "B8")
def _alone(right: Right, a: Any) -> Any:
    out = right(a)
    if len(out) > 1:
        out[-1, 5] = np.nextafter(out[-1, 5], np.float32(9)) * np.float32(1.001)
    return out
