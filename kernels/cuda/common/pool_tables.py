"""Pool tables: descriptors of slots' pools in device memory, for launches over more slots than parameters hold.

A row of a pool table is a slot: its fields of ``attend_exact/shared_memory.py`` and the kind of its pool. Up to
MAX_POOLS slots of one format go by value, in the launch's parameters; more, and slots of several formats, by a table.
A launch reads the rows of its own kind, so there are as many launches as formats, whatever the number of slots.

**A table is written once and never changed.** A call with other pools gets another one, so what was launched or
captured before keeps what it was given. A table is kept by its words and its stream: calls with the same pools, of
several plans or layers, share one, and a call whose pools were seen before uploads nothing. Its words travel in the
parameters of a small kernel on the launch's own stream, which is behind nothing but that stream and can be captured.

Who keeps it: the plan that used it last, :data:`TABLES` for the last :data:`MOST_TABLES` of them, and for good what a
captured launch reads, for nobody says when a graph is gone. A table that is first needed during a capture is written
by the graph, at every replay, and no other call uses it; one call before the capture avoids that.
"""

from array import array
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any

from ..attend_exact.shared_memory import POOL_FIELDS, TABLE
from ..device.containers import CODINGS
from ..toolchain.compiler import address, capturing, cuda, device_function, int32, int64, kernel, lasting, prepare
from ..toolchain.host import DeviceArray, Numbers
from ..toolchain.ptx import global_base, ld_global_v2_i64_nc, st_global_i64
from ..toolchain.ptx_rows import PtxRow, signature_of

ROW = POOL_FIELDS + 1
"""int64 of a row: the fields of a pool, then :data:`KIND`. Four of them are a sector of the cache."""

KIND = POOL_FIELDS
"""Field of a row: :func:`kind_of` its pool."""

ADDRESSES, SIZES = TABLE + 1, POOL_FIELDS - TABLE - 1
"""Fields of a pool that are addresses, and those behind them."""

WRITTEN = 256
"""Words that a launch writes at most; the parameters of a kernel end at 4 KiB."""

MOST_TABLES = 512
"""Tables that are kept for later calls at most; the one that was used longest ago goes first."""


def kind_of(k_coding: str, v_coding: str) -> int:
    """The number of a pool's codings in a table."""
    return CODINGS.index(k_coding) * len(CODINGS) + CODINGS.index(v_coding)


def by_slot(fields: Sequence[int], kinds: Sequence[int] = ()) -> tuple[int, ...]:
    """``pools.pool_fields`` in another order: all of the first slot, and its kind where there are ``kinds``, then those
    of the next."""
    slots = len(fields) // POOL_FIELDS
    if slots == 1:
        return (*fields, *kinds)
    found: list[int] = []
    for slot in range(slots):
        sizes = slots * ADDRESSES + slot * SIZES
        found += fields[slot * ADDRESSES : (slot + 1) * ADDRESSES]
        found += fields[sizes : sizes + SIZES]
        found += kinds[slot : slot + 1]
    return tuple(found)


@device_function
def value_of(pools, which, i):
    """Field ``i`` of pool ``which`` of those that go by value."""
    value = pools[i]
    if which == 1:
        value = pools[POOL_FIELDS + i]
    elif which == 2:
        value = pools[2 * POOL_FIELDS + i]
    elif which == 3:
        value = pools[3 * POOL_FIELDS + i]
    return value


@device_function
def _as_they_are(pools, which):
    return pools


@device_function
def _row_of(pools, which):
    at = global_base(pools) + int64(which) * (ROW * 8)
    k_codes, k_scale = ld_global_v2_i64_nc(at)
    v_codes, v_scale = ld_global_v2_i64_nc(at + 16)
    table, cells = ld_global_v2_i64_nc(at + 32)
    page_size, kind = ld_global_v2_i64_nc(at + 48)
    return k_codes, k_scale, v_codes, v_scale, table, cells, page_size, kind


@device_function
def _field_of_row(row, which, i):
    return row[i]


def readers(tabled: bool) -> tuple[Any, Any]:
    """(find, field) for a kernel: ``held = find(pools, which)``, then ``field(held, which, i)`` is field ``i`` of slot
    ``which``. ``tabled``: ``pools`` is a table, of which ``find`` loads the row, else it goes by value."""
    return (_row_of, _field_of_row) if tabled else (_as_they_are, value_of)


@kernel()
def write_pools_kernel(words):
    """Store words[2], words[3], ... to the address words[0], words[1] of them. One block of WRITTEN lanes."""
    word = int32(cuda.threadIdx.x)
    if word < words[1]:
        st_global_i64(words[0] + int64(word) * 8, words[word + 2])


class PoolTables:
    """The pool tables of all plans. May be used by several threads."""

    def __init__(self) -> None:
        self._recent: dict[tuple[Any, bytes], DeviceArray] = {}
        self._captured: dict[tuple[Any, bytes], DeviceArray] = {}
        self._written_by_graphs: list[DeviceArray] = []
        self._writers: dict[int, Any] = {}
        self._lock = Lock()

    def open(self, device: int) -> None:
        """Have the kernel ready that writes tables on ``device``, the current one."""
        with self._lock:
            if device not in self._writers:
                words = Numbers(0, WRITTEN + 2, WRITTEN + 2)
                self._writers[device] = prepare(write_pools_kernel, 1, WRITTEN, (words,))

    def get(self, key: tuple[int, int, int], words: Sequence[int], captured: bool) -> tuple[DeviceArray, bool]:
        """(table int64 [slots, ROW] of ``words``, whether a later call may use it), for launches on the stream of
        ``key``, which is the current one and is being ``captured`` or not."""
        name = key, array("q", words).tobytes()
        with self._lock:
            if name in self._captured:
                return self._captured[name], True
            table = self._recent.pop(name, None)
            if table is None:
                table = self._write(key, words)
                if captured:
                    self._written_by_graphs.append(table)
                    return table, False
            if captured:
                self._captured[name] = table
            else:
                self._recent[name] = table
                while len(self._recent) > MOST_TABLES:
                    del self._recent[next(iter(self._recent))]
            return table, True

    def _write(self, key, words):
        # Memory of the current stream's tables: what was launched on another is not about to write or read there.
        table = lasting((len(words) // ROW, ROW), "int64")
        writer, base = self._writers[key[0]], address(table)
        for first in range(0, len(words), WRITTEN):
            part = words[first : first + WRITTEN]
            writer.number((base + 8 * first, len(part), *part, *(0,) * (WRITTEN - len(part))))
            writer.submit(key[1])
        return table

    def clear(self) -> None:
        """Forget what no captured launch reads."""
        with self._lock:
            self._recent.clear()


TABLES = PoolTables()


class PlannedTable:
    """The pool table of the calls of one plan, on the stream of ``key``; ``kinds``: :func:`kind_of` every slot."""

    def __init__(self, key: tuple[int, int, int], kinds: Sequence[int]) -> None:
        self._key, self._kinds = key, tuple(kinds)
        self._numbers: Sequence[int] | None = None
        self._table: DeviceArray = None
        TABLES.open(key[0])

    def of(self, numbers: Sequence[int]) -> DeviceArray:
        """The table of a call with these ``pools.pool_fields``. The plan's stream must be the current one."""
        captured = capturing(self._key[1])
        if captured or numbers != self._numbers:
            self._table, reusable = TABLES.get(self._key, by_slot(numbers, self._kinds), captured)
            self._numbers = numbers if reusable else None
        return self._table


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each."""
    yield PtxRow("write_pools", write_pools_kernel, signature_of(f"UniTuple(int64, {WRITTEN + 2})"))
