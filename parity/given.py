"""What a call was given, and whether the call left it as it was.

A kernel that overwrites its inputs must not be judged by what it left there. :class:`Given` keeps the bytes of every
input before the call, compares them after it, and puts back what was changed, so that the truth of this case and of the
cases after it is made from the right inputs.
"""

import ctypes

import numpy as np
import xxhash

from qsa.reference.index import Index
from qsa.reference.kv import PagedKV, Pool

from .compare import element

WRITTEN = {"append_kv": (".codes", ".scale"), "append_index": (".tail", ".dead", ".pooled")}
"""Operation -> endings of the names of what it is there to write. All else is an input."""

WHOLE = 64 << 20
"""Bytes up to which an array is kept as a copy. Of a larger one the hashes of its pieces are kept: a change is found,
but neither its value nor its element is known, and it cannot be put back."""

PIECE = 1 << 20
"""Bytes of one hashed piece."""

_MISSING = object()


class ChangedInputError(ValueError):
    """A call changed one of its inputs; the message names the operation, the input and the first changed place."""


class Given:
    """The inputs of one call, kept.

    operation  name of the operation: what it is there to write (:data:`WRITTEN`) is not kept
    arguments  dict of name -> array, PagedKV, Index, plain value or None, or a list of these
    """

    def __init__(self, operation, arguments):
        self.operation, self.arguments = operation, arguments
        self._states, self._kept, arrays = [], {}, {}
        for name, value in _leaves(arguments, self._states):
            if name.endswith(WRITTEN.get(operation, ())):
                continue
            if isinstance(value, np.ndarray):
                # Slots may share a pool: it is kept once.
                value = arrays.setdefault(id(value), _Array(value))
            self._kept[name] = value

    def changes(self, arguments=None):
        """Name -> text of the first change, of every input that is not what it was. ``arguments`` stand in the place of
        the given ones; what they do not have is not compared."""
        whole = arguments is None
        now = dict(_leaves(self.arguments if whole else arguments, []))
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

    def restore(self):
        """Puts back what was changed, as far as it was kept whole."""
        for target, state in self._states:
            if isinstance(target, list):
                target[:] = state
            else:
                vars(target).update(state)
        for kept in self._kept.values():
            if isinstance(kept, _Array):
                kept.restore()

    def check(self, arguments=None):
        """Raises :class:`ChangedInputError` when an input is not what it was; see :meth:`changes`. What was changed is
        put back first."""
        found = self.changes(arguments)
        if found:
            self.restore()
            (name, text), *others = found.items()
            more = f"; changed too: {', '.join(other for other, _ in others)}" if others else ""
            raise ChangedInputError(f"{self.operation}: changed its input {name}: {text}{more}")


def nbytes(value):
    """Bytes of all arrays of an argument."""
    return sum(leaf.nbytes for _, leaf in _leaves({"": value}, []) if isinstance(leaf, np.ndarray))


def _leaves(arguments, states):
    """(name, array or plain value) of all that ``arguments`` hold; every container's state is added to ``states``."""
    for name, value in arguments.items():
        if isinstance(value, (list, tuple)):
            if isinstance(value, list):
                states.append((value, list(value)))
            yield f"{name} (length)", len(value)
            names = getattr(value, "_fields", None)
            parts = [f"{name}.{field}" for field in names] if names else [f"{name}[{i}]" for i in range(len(value))]
            yield from _leaves(dict(zip(parts, value, strict=True)), states)
        elif isinstance(value, (PagedKV, Pool, Index)):
            states.append((value, dict(vars(value))))
            yield from _leaves({f"{name}.{field}": part for field, part in vars(value).items()}, states)
        else:
            yield name, value


def _same(kept, value):
    if kept is value:
        return True
    return not isinstance(value, np.ndarray) and bool(kept == value)


class _Array:
    """An array as it was: a copy, or hashes of its pieces."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        self.copy = array.copy() if array.nbytes <= WHOLE or not array.flags.c_contiguous else None
        self.hashes = None if self.copy is not None else _hashes(array)

    def difference(self, now):
        """Text of the first difference of ``now``, None when there is none."""
        if not isinstance(now, np.ndarray) or (now.shape, now.dtype) != (self.shape, self.dtype):
            left = f"{now.dtype} {list(now.shape)}" if isinstance(now, np.ndarray) else type(now).__name__
            return f"given {self.dtype} {list(self.shape)}, left {left}"
        if self.copy is None:
            pieces = [i for i, (a, b) in enumerate(zip(self.hashes, _hashes(now), strict=True)) if a != b]
            return f"first in bytes {pieces[0] * PIECE} to {(pieces[0] + 1) * PIECE - 1}" if pieces else None
        bad = _bits(self.copy) != _bits(now)
        if not bad.any():
            return None
        one = element(self.copy, now, np.unravel_index(int(bad.argmax()), bad.shape))
        given, left = one.expected, one.got
        if given == left:
            given, left = f"{given} ({_hex(self.copy, one)})", f"{left} ({_hex(now, one)})"
        return f"first at {list(one.coordinate)}: given {given}, left {left}"

    def restore(self):
        array = self.array
        if self.copy is None or array.shape != self.shape or not (_bits(self.copy) != _bits(array)).any():
            return
        if array.flags.writeable:
            array[...] = self.copy
        elif array.flags.c_contiguous:
            # A compiled kernel writes to arrays that NumPy holds for read-only.
            ctypes.memmove(array.ctypes.data, np.ascontiguousarray(self.copy).ctypes.data, array.nbytes)


def _bits(array):
    return array.view(f"u{array.dtype.itemsize}")


def _hex(array, one):
    return f"0x{int(_bits(array)[one.coordinate]):0{2 * array.dtype.itemsize}x}"


def _hashes(array):
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return [xxhash.xxh3_64_intdigest(flat[first : first + PIECE]) for first in range(0, flat.size, PIECE)]
