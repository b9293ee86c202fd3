"""Whether a call changed its inputs.

A kernel that overwrites its inputs must not be judged by the changed ones. :class:`Given` keeps the bytes of every
input before the call, compares them after it, and puts changed bytes back, so that the right result of this case and of
later ones is made from the right inputs.
"""

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import xxhash

from qsa.reference.index import Index
from qsa.reference.kv import PagedKV, Pool

from .element import bit_patterns, bits_text, element

WRITTEN = {"append_kv": (".codes", ".scale"), "append_index": (".tail", ".dead", ".pooled", "_exponent")}
"""Operation -> endings of the names of the arrays that it writes. All others are inputs."""

WHOLE = 64 << 20
"""Bytes up to which an array is kept as a copy. Of a larger one the hashes of its pieces are kept: a change is found,
but neither its value nor its element is known, and it cannot be put back."""

PIECE = 1 << 20
"""Bytes of one hashed piece."""

_MISSING = object()


class ChangedInputError(ValueError):
    """A call changed one of its inputs; the message names the operation, the input and the first change."""


class Given:
    """The inputs of one call, kept.

    operation  name of the operation: the arrays that it writes (:data:`WRITTEN`) are not kept
    arguments  dict of name -> array, PagedKV, Index, plain value or None, or a list of these
    """

    def __init__(self, operation: str, arguments: dict[str, Any]) -> None:
        self.operation, self.arguments = operation, arguments
        self._states: list[tuple[Any, Any]] = []
        self._kept: dict[str, Any] = {}
        arrays: dict[int, _Array] = {}
        for name, value in leaves(arguments, self._states):
            if name.endswith(WRITTEN.get(operation, ())):
                continue
            if isinstance(value, np.ndarray):
                # Slots may share a pool: it is kept once.
                value = arrays.setdefault(id(value), _Array(value))
            self._kept[name] = value

    def changes(self, arguments: dict[str, Any] | None = None) -> dict[str, str]:
        """Name -> text of the first change, for every changed input. ``arguments`` are compared instead of the given
        ones; an input that they lack is not compared."""
        whole = arguments is None
        now = dict(leaves(self.arguments if arguments is None else arguments, []))
        found = {}
        for name, kept in self._kept.items():
            value = now.get(name, _MISSING)
            if value is _MISSING:
                text = "it is gone" if whole else None
            elif isinstance(kept, _Array):
                text = kept.difference(value)
            else:
                text = None if _same(kept, value) else f"given {kept}, left {value}"
            if text:
                found[name] = text
        return found

    def restore(self) -> None:
        """Puts changed inputs back, as far as they were kept whole."""
        for target, state in self._states:
            if isinstance(target, list):
                target[:] = state
            else:
                vars(target).update(state)
        for kept in self._kept.values():
            if isinstance(kept, _Array):
                kept.restore()

    def check(self, arguments: dict[str, Any] | None = None) -> None:
        """Raises :class:`ChangedInputError` when an input has changed; see :meth:`changes`. The input is put back
        first."""
        found = self.changes(arguments)
        if found:
            self.restore()
            (name, text), *others = found.items()
            more = f"; changed too: {', '.join(other for other, _ in others)}" if others else ""
            raise ChangedInputError(f"{self.operation}: changed its input {name}: {text}{more}")


def nbytes(value: Any) -> int:
    """Bytes of all arrays of an argument."""
    return sum(leaf.nbytes for _, leaf in leaves({"": value}, []) if isinstance(leaf, np.ndarray))


def leaves(arguments: dict[str, Any], states: list[tuple[Any, Any]] | None = None) -> Iterator[tuple[str, Any]]:
    """(name, array or plain value) of everything in ``arguments``; every container's state is added to ``states``,
    where given."""
    states = [] if states is None else states
    for name, value in arguments.items():
        if isinstance(value, (list, tuple)):
            if isinstance(value, list):
                states.append((value, list(value)))
            yield f"{name} (length)", len(value)
            names = getattr(value, "_fields", None)
            parts = [f"{name}.{field}" for field in names] if names else [f"{name}[{i}]" for i in range(len(value))]
            yield from leaves(dict(zip(parts, value, strict=True)), states)
        elif isinstance(value, (PagedKV, Pool, Index)):
            states.append((value, dict(vars(value))))
            yield from leaves({f"{name}.{field}": part for field, part in vars(value).items()}, states)
        else:
            yield name, value


def _same(kept: Any, value: Any) -> bool:
    if kept is value:
        return True
    return not isinstance(value, np.ndarray) and bool(kept == value)


class _Array:
    """The content of an array before a call: a copy, or hashes of its pieces."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        self.copy = array.copy() if array.nbytes <= WHOLE or not array.flags.c_contiguous else None
        self.hashes = [] if self.copy is not None else _hashes(array)

    def difference(self, now: Any) -> str | None:
        """Text of the first difference of ``now``, None when there is none."""
        if not isinstance(now, np.ndarray) or (now.shape, now.dtype) != (self.shape, self.dtype):
            left = f"{now.dtype} {list(now.shape)}" if isinstance(now, np.ndarray) else type(now).__name__
            return f"given {self.dtype} {list(self.shape)}, left {left}"
        if self.copy is None:
            pieces = [i for i, (a, b) in enumerate(zip(self.hashes, _hashes(now), strict=True)) if a != b]
            return f"first in bytes {pieces[0] * PIECE} to {(pieces[0] + 1) * PIECE - 1}" if pieces else None
        bad = bit_patterns(self.copy) != bit_patterns(now)
        if not bad.any():
            return None
        first = element(self.copy, now, np.unravel_index(int(bad.argmax()), bad.shape))
        given, left, at = first.expected, first.got, first.coordinate
        if given == left:
            given, left = f"{given} ({bits_text(self.copy[at])})", f"{left} ({bits_text(now[at])})"
        return f"first at {list(at)}: given {given}, left {left}"

    def restore(self) -> None:
        """Puts the copy back where the array differs from it."""
        array = self.array
        if self.copy is None or array.shape != self.shape or not (bit_patterns(self.copy) != bit_patterns(array)).any():
            return
        if array.flags.writeable:
            array[...] = self.copy
        elif array.flags.c_contiguous:
            # A compiled kernel writes to arrays that NumPy holds for read-only.
            ctypes.memmove(array.ctypes.data, np.ascontiguousarray(self.copy).ctypes.data, array.nbytes)


def _hashes(array: np.ndarray) -> list[int]:
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return [xxhash.xxh3_64_intdigest(flat[first : first + PIECE].data) for first in range(0, flat.size, PIECE)]
