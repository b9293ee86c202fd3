"""The simulator's memory: shared memory with its race detector, and the global arrays that a launch may touch.

Shared memory keeps for every 4-byte word who wrote and read which of its bytes, and when in that lane's own clock; an
access is a race when it meets an unordered one of another lane and either writes. Order comes from barriers and from
``syncwarp`` alone: a shuffle or a vote exchanges registers and orders no memory (PTX memory consistency model).
"""

import itertools
import weakref
from types import CodeType
from typing import Any

import numpy as np

from ..toolchain.constants import STATIC_SHARED
from .arrays import GlobalArray
from .state import State, early, fault

STATIC = 1024
"""First shared address: not 0, so that an address never set is noticed."""

DYNAMIC = 64 * 1024
"""Shared address of the dynamic part."""

MAX_SHARED = 227 * 1024
"""Bytes of shared memory that one block may have (sm_90)."""

_GAP = 64
_ALL, _PENDING = 0b1111, 0b10000


class SharedMemory:
    """Shared memory of one block: static arrays from :data:`STATIC`, the dynamic part from :data:`DYNAMIC`."""

    def __init__(self, dynamic: int) -> None:
        if dynamic > MAX_SHARED:
            raise ValueError(f"shared = {dynamic}: a block has at most {MAX_SHARED} bytes")
        self.end = DYNAMIC + dynamic
        words = (self.end + 3) // 4
        self.data = bytearray(4 * words)
        self.valid = bytearray(words)
        self.writers: list[Any] = [None] * words
        self.readers: list[dict[int, int] | None] = [None] * words
        self.arrays: dict[tuple[CodeType, int], tuple[int, int]] = {}
        self.top = STATIC

    def static(self, site: tuple[CodeType, int], nbytes: int) -> tuple[int, int]:
        """(start, end) of the static array that the call at ``site`` makes, the same for every lane."""
        if site not in self.arrays:
            start = self.top
            self.top = (start + nbytes + _GAP + 15) // 16 * 16
            if self.top > STATIC + STATIC_SHARED:
                fault("bounds", "static shared memory: more than 48 KiB")
            self.arrays[site] = (start, start + nbytes)
        return self.arrays[site]

    def _check(self, address, size, what):
        if address < DYNAMIC or address + size > self.end:
            for start, end in self.arrays.values():
                if start <= address and address + size <= end:
                    break
            else:
                dynamic = f"{DYNAMIC} to {self.end}"
                fault("bounds", f"{what} of {size} bytes at shared address {address}: dynamic memory is {dynamic}")
        if address & (size - 1):
            fault("alignment", f"{what} of {size} bytes at shared address {address}")

    def _race(self, what, word, other, done):
        array = f"dynamic + {4 * word - DYNAMIC}" if 4 * word >= DYNAMIC else f"static + {4 * word - STATIC}"
        fault("race", f"{what} shared word {4 * word} ({array}), which lane {other} {done} without a barrier between")

    def _order(self, lane, word, mask, what, atomic=False):
        """Race unless earlier writes of these bytes come before ``lane``."""
        written = self.writers[word]
        me, seen = lane.index, lane.seen
        if type(written) is tuple:
            if written[0] != me and seen[written[0]] < written[1]:
                self._race(what, word, written[0], "wrote")
        elif written is not None:
            for other, clock, bytes_, by_atomic in written:
                if bytes_ & mask and other != me and seen[other] < clock and not (atomic and by_atomic):
                    self._race(what, word, other, "wrote")

    def reading(self, address: int, size: int) -> None:
        """Check a read of ``size`` bytes (1, 2, 4, 8, 16) by the running lane, and note it."""
        self._check(address, size, "read")
        lane = State.lane
        mask = _ALL if size >= 4 else ((1 << size) - 1) << (address & 3)
        for word in range(address >> 2, (address + size + 3) >> 2):
            valid = self.valid[word]
            if valid & (mask | _PENDING) != mask:
                state = "an asynchronous copy under way" if valid & _PENDING else "nothing written"
                fault("unwritten", f"read of shared word {4 * word}: {state}")
            self._order(lane, word, mask, "reads")
            readers = self.readers[word]
            if readers is None:
                readers = self.readers[word] = {}
            readers[lane.index << 4 | mask] = lane.clock

    def writing(self, address: int, size: int, atomic: bool = False, pending: bool = False) -> None:
        """Check a write by the running lane, and note it. ``pending``: the start of an asynchronous copy."""
        self._check(address, size, "write")
        lane = State.lane
        me, clock, seen = lane.index, lane.clock, lane.seen
        mask = _ALL if size >= 4 else ((1 << size) - 1) << (address & 3)
        for word in range(address >> 2, (address + size + 3) >> 2):
            if self.valid[word] & _PENDING:
                fault("race", f"writes shared word {4 * word}, to which an asynchronous copy is under way")
            self._order(lane, word, mask, "writes", atomic)
            readers = self.readers[word]
            if readers is not None:
                for key, moment in readers.items():
                    if key & mask and key >> 4 != me and seen[key >> 4] < moment:
                        self._race("writes", word, key >> 4, "read")
                self.readers[word] = None
            if mask == _ALL and not atomic:
                self.writers[word] = (me, clock)
            else:
                self._note_part(word, me, clock, mask, atomic)
            self.valid[word] = _PENDING if pending else self.valid[word] | mask

    def _note_part(self, word, me, clock, mask, atomic):
        written = self.writers[word]
        if type(written) is tuple:
            written = [(*written, _ALL, False)]
        kept = []
        for other, moment, bytes_, by_atomic in written or ():
            left = bytes_ if atomic and by_atomic and other != me else bytes_ & ~mask
            if left:
                kept.append((other, moment, left, by_atomic))
        self.writers[word] = [*kept, (me, clock, mask, atomic)]

    def land(self, address: int, chunk: bytes) -> None:
        """Carry out an asynchronous copy of the running lane at its wait: the words are written, by it, now."""
        lane = State.lane
        self.data[address : address + len(chunk)] = chunk
        for word in range(address >> 2, (address + len(chunk)) >> 2):
            self.valid[word] = _ALL
            self.writers[word] = (lane.index, lane.clock)


_SHIFT = 40
_PERSISTENT = 1 << 20
_slots = itertools.count(_PERSISTENT)
_tables: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()


def _offset(array):
    """Offset of a view from 256 bytes, so that a misaligned view is noticed."""
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    return (array.ctypes.data - root.ctypes.data) % 256


class GlobalMemory:
    """The arrays that a launch may touch: its arguments, and those whose address was asked for."""

    def __init__(self) -> None:
        self.arrays: dict[int, GlobalArray] = {}

    def register(self, array: np.ndarray, slot: int | None = None) -> GlobalArray:
        """``array`` (NumPy) as a :class:`GlobalArray`."""
        slot = len(self.arrays) + 1 if slot is None else slot
        registered = GlobalArray(array, (slot << _SHIFT) + _offset(array))
        self.arrays[slot] = registered
        return registered

    def find(self, address: int, size: int, what: str) -> tuple[memoryview, int]:
        """(memory view, offset) of ``size`` bytes at ``address``; a fault unless they lie in one registered array."""
        if State.lane.early:
            early(f"{what} of {size} bytes of global memory")
        slot = address >> _SHIFT
        array = self.arrays.get(slot)
        if array is None and slot >= _PERSISTENT and slot in _tables:
            array = self.register(_tables[slot], slot)
        offset = address - array.address if array is not None else -1
        if array is None or array.data is None or not array.holds(offset, size):
            near = "no array is there"
            if array is not None:
                near = f"array of {array.array.nbytes} bytes, strides {array.strides}, offset {offset}"
            fault("bounds", f"{what} of {size} bytes at global address {address:#x}: {near}")
        if size and address % (size & -size):
            fault("alignment", f"{what} of {size} bytes at global address {address:#x}")
        return array.data, offset


def address(array: np.ndarray) -> int:
    """Address of ``array`` (NumPy), valid in every launch while the array lives."""
    slot = next((slot for slot, known in _tables.items() if known is array), None)
    if slot is None:
        slot = next(_slots)
        _tables[slot] = array
    return (slot << _SHIFT) + _offset(array)
