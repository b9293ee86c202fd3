"""What passes between the judge and a child: messages over a socket, arrays of arguments in shared memory.

To the child: a pickle, in which every array is a :class:`Placed`, and the memory that holds them; the child may change
that memory, and the judge sees it. From the child: a header in MessagePack and the bytes of arrays, which are checked
before they are read (the child is not trusted).
"""

import mmap
import os
import pickle
import socket
from dataclasses import dataclass
from typing import Annotated, Any

import ml_dtypes
import msgspec
import numpy as np
from msgspec import Meta

from ..contract.arrays import mapped
from ..contract.storage import Own

ALIGNMENT = 64
"""Bytes at whose multiples arrays lie in shared memory, as NumPy's own do at least."""

LIMIT = 1 << 32
"""Bytes that a child's answer may have: a million rows of scores fit."""

_NARROW = {name: np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")}


@dataclass(frozen=True)
class Placed:
    """An array in shared memory: its first byte, dtype and shape."""

    offset: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Handle:
    """A backend's own storage in the child, by number."""

    number: int


class Header(msgspec.Struct, forbid_unknown_fields=True):
    """The head of a child's answer: ``kind`` is result, unsupported, changed or error; ``text`` the reason; ``arrays``
    dtype and shape of each array that follows; ``many`` whether the result is a list of them, ``names`` those of a dict
    of them; ``handle`` a number."""

    kind: str
    text: str = ""
    error: str = ""
    arrays: list[tuple[str, list[Annotated[int, Meta(ge=0, lt=1 << 40)]]]] = []
    many: bool = False
    names: list[str] = []
    handle: int | None = None


def dtype_of(name: str) -> np.dtype:
    """The dtype of a name: NumPy's, or one of ml_dtypes. Raises TypeError on an unknown name, or one of objects."""
    found = _NARROW.get(name) or np.dtype(name)
    if found.hasobject:
        raise TypeError(f"dtype {name!r}: has objects")
    return found


class SharedMemory:
    """Anonymous memory that another process maps through its file descriptor."""

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = os.memfd_create("qsa-parity")
            os.ftruncate(descriptor, max(size, 1))
        self.descriptor = descriptor
        self.map = mmap.mmap(descriptor, max(size, 1))

    def array(self, placed: Placed) -> np.ndarray:
        """The array at its place, writable."""
        dtype = dtype_of(placed.dtype)
        count = int(np.prod(placed.shape))
        return np.frombuffer(self.map, dtype, count, placed.offset).reshape(placed.shape)

    def close(self) -> None:
        """Closes the descriptor; arrays in the memory stay valid as long as they live."""
        os.close(self.descriptor)


def place(value: Any) -> tuple[bytes, SharedMemory]:
    """(pickle, memory) of arguments: every array is copied into the memory, storage of the child is named by number."""
    found: list[tuple[int, np.ndarray]] = []
    size = 0

    def move(array: np.ndarray) -> Placed:
        nonlocal size
        array = np.ascontiguousarray(array)
        placed = Placed(size, array.dtype.name if array.dtype in _NARROW.values() else array.dtype.str, array.shape)
        found.append((size, array))
        size += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        return placed

    def walk(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: walk(part) for key, part in item.items()}
        if isinstance(item, list):
            return [walk(part) for part in item]
        return item.handle if isinstance(item, Own) else mapped(item, move)

    head = pickle.dumps(walk(value), protocol=5)
    memory = SharedMemory(size)
    for offset, array in found:
        memory.array(Placed(offset, "|u1", (array.nbytes,)))[...] = array.reshape(-1).view(np.uint8)
    return head, memory


def take(head: bytes, memory: SharedMemory, own: Any) -> Any:
    """The inverse of :func:`place`: arrays in the memory itself; ``own`` turns a :class:`Handle` into what the backend
    gave. Only the judge's own messages may be given: a pickle is code."""

    def walk(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: walk(part) for key, part in item.items()}
        if isinstance(item, list):
            return [walk(part) for part in item]
        if isinstance(item, Handle):
            return own(item)
        return mapped(item, memory.array, lambda part: isinstance(part, Placed))

    return walk(pickle.loads(head))


def send(channel: socket.socket, *parts: Any) -> None:
    """Sends parts of bytes, each behind its length."""
    for part in parts:
        view = memoryview(part).cast("B") if len(part) else memoryview(b"")
        channel.sendall(len(view).to_bytes(8, "little"))
        channel.sendall(view)


def receive(channel: socket.socket, limit: int = LIMIT) -> bytearray:
    """One part. Raises EOFError when the other side is gone, ValueError when the part is longer than ``limit``."""
    size = int.from_bytes(_exactly(channel, 8), "little")
    if size > limit:
        raise ValueError(f"a message of {size} bytes: {limit} are allowed")
    return _exactly(channel, size)


def _exactly(channel: socket.socket, size: int) -> bytearray:
    buffer = bytearray(size)
    view, done = memoryview(buffer), 0
    while done < size:
        count = channel.recv_into(view[done:], min(size - done, 1 << 20))
        if not count:
            raise EOFError("the other side is gone")
        done += count
    return buffer


def answer(channel: socket.socket, header: Header, arrays: list[np.ndarray]) -> None:
    """Sends a header and its arrays."""
    arrays = [np.ascontiguousarray(array) for array in arrays]
    header.arrays = [(array.dtype.str, list(array.shape)) for array in arrays]
    send(channel, msgspec.msgpack.encode(header), *(array.reshape(-1).view(np.uint8) for array in arrays))


def read_answer(channel: socket.socket) -> tuple[Header, list[np.ndarray]]:
    """A header and its arrays. Raises EOFError when the child is gone, ValueError on an answer that does not fit."""
    try:
        header = msgspec.msgpack.decode(receive(channel, 1 << 24), type=Header)
    except msgspec.MsgspecError as error:
        raise ValueError(f"an answer that cannot be read: {error}") from error
    arrays = []
    for name, shape in header.arrays:
        try:
            dtype = dtype_of(name)
        except TypeError as error:
            raise ValueError(f"an array of dtype {name!r}: not known") from error
        data = receive(channel)
        size = dtype.itemsize
        for axis in shape:
            size *= axis
        if size != len(data):
            raise ValueError(f"an array {name} {shape} of {len(data)} bytes: must have {size}")
        arrays.append(np.frombuffer(data, dtype).reshape(shape))
    return header, arrays
