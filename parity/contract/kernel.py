"""Calling the functions of a backend: arguments in its arrays, the result in NumPy, inputs compared.

A call may write its result and, of an append, the K/V or the index that it is given. Every other input is compared byte
by byte after the call (``compare/input_changes.py``). A change is an error, and the input is put back. A backend whose
arrays lie elsewhere works on copies, so the host's arrays are safe from it. The copies are compared too, as an engine
would go on with them: those up to 64 MiB, when they can be brought back.

A backend moves its arguments itself when it defines ``to_device(x)`` and ``to_host(x)``; else they come in the library
and on the device that it declares. Where it defines ``stream``, a context manager, its functions run within it; where
it defines ``synchronize()``, that is called after every call.
"""

import contextlib
import difflib
import inspect
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from qsa.kernels.ops import refusals
from qsa.reference.index import Index
from qsa.reference.kv import PagedKV

from ..compare.input_changes import WHOLE, Given, nbytes
from .arrays import arrays_of, from_numpy, is_array, mapped, to_numpy
from .declaration import Declaration
from .number_types import NUMBER_TYPES
from .operations import FUNCTIONS
from .storage import Own

GUARD = np.float32(-(2.0**93))
"""Fills an output and the rows around it before the call: an element that is not written, or written outside, shows."""

GUARD_HALF = 3072.0
"""The same for narrow types, negative."""

Gives = Literal["array", "rows", "pair", "own", "kv", "index", "named"]
"""What a function gives back: see :meth:`Kernel.run`."""

NARROW = [kind.dtype for name, kind in NUMBER_TYPES.items() if name not in ("float32", "fp16")]


class UnsupportedError(NotImplementedError):
    """The backend does not carry out a call as it was given; the message is the reason shown.

    A backend may raise it itself (``qsa.parity.Unsupported``); a NotImplementedError of another kind means the same,
    and so does a result of False.
    """


def call(operation: str, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
    """The function's result. Raises UnsupportedError, with the reason, when it refuses: when the result is False, whose
    reasons are those that it counted, or when it raised NotImplementedError."""
    before, policy = refusals(), np.geterr()
    try:
        result = function(*arguments, **keywords)
    except NotImplementedError as error:
        raise UnsupportedError(f"{operation}: {str(error) or f'{type(error).__name__} without a reason'}") from error
    finally:
        # What a backend wants of its own arithmetic must not change that of the judge.
        np.seterr(**policy)
    if isinstance(result, (bool, np.bool_)) and not result:
        after = refusals()
        reasons = [reason for key, reason in after if after[key, reason] != before.get((key, reason), 0)]
        raise UnsupportedError(f"{operation}: refused: {', '.join(reasons) or 'it returned False, without a reason'}")
    return result


class Kernel:
    """The functions of one backend, called with values of the host.

    ``module`` is the backend itself, ``declaration`` what it declares.
    """

    def __init__(self, module: Any, declaration: Declaration) -> None:
        self.module, self.declaration = module, declaration
        self._moves = hasattr(module, "to_device")
        self._elsewhere = self._moves or declaration.arrays != "numpy"
        if self._elsewhere and not self._moves:
            # A missing library or device is no fault of a case.
            try:
                self._array(np.zeros(1, np.float32))
            except Exception as error:
                text = str(error).strip() or type(error).__name__
                text = f"declaration.arrays: {declaration.arrays} on {declaration.device}: {text.splitlines()[0]}"
                raise ValueError(text) from error

    def has(self, name: str) -> bool:
        """Whether the backend defines the function ``name``."""
        return callable(getattr(self.module, name, None))

    def near(self, name: str) -> str:
        """A function of the backend whose name is nearly ``name``, and which the contract does not know; else empty."""
        own = [
            each for each in dir(self.module) if each not in FUNCTIONS and callable(getattr(self.module, each, None))
        ]
        return next(iter(difflib.get_close_matches(name, own, 1, 0.85)), "")

    def function(self, name: str) -> Callable[..., Any]:
        """The function ``name``. Raises UnsupportedError where there is none."""
        if not self.has(name):
            raise UnsupportedError(f"{name}: the backend has none")
        return getattr(self.module, name)

    def takes(self, name: str, keyword: str) -> bool:
        """Whether the function ``name`` takes ``keyword``; assumed where its signature cannot be read."""
        return _takes(self.function(name), keyword)

    @property
    def on_host(self) -> bool:
        """Whether the functions work on the arrays of the host themselves."""
        return not self._elsewhere

    def device(self, value: Any) -> Any:
        """``value`` as the backend takes it."""
        if isinstance(value, Own):
            return value.handle
        if isinstance(value, list) and (self._elsewhere or _own(value)):
            return [self.device(item) for item in value]
        if self._moves:
            return self.module.to_device(value) if isinstance(value, (np.ndarray, PagedKV, Index)) else value
        return mapped(value, self._array) if self._elsewhere else value

    def _array(self, array: np.ndarray) -> Any:
        return from_numpy(array, self.declaration.arrays, self.declaration.device)

    def host(self, value: Any) -> Any:
        """A result or argument of the backend in NumPy."""
        if isinstance(value, list):
            return [self.host(item) for item in value]
        move = getattr(self.module, "to_host", None)
        if move is not None:
            return move(value)
        return mapped(value, to_numpy)

    def array(self, name: str, result: Any) -> np.ndarray:
        """A result as an array of NumPy. Raises ValueError, naming the function, for what is no array."""
        host = self.host(result)
        if not is_array(host):
            raise ValueError(f"{name}: gave {type(host).__name__}: must be an array")
        # A copy: a backend that gives the same buffer again would be compared with itself.
        found = np.array(to_numpy(host))
        if found.dtype.kind not in "fiub" and found.dtype not in NARROW:
            raise ValueError(f"{name}: gave numbers of {found.dtype}: must be real")
        # bf16 and fp8 are no floats to NumPy; float32 has all their values.
        return found.astype(np.float32) if found.dtype in NARROW else found

    def run(self, name: str, arguments: dict[str, Any], keywords: dict[str, Any], gives: Gives, guarded: Any) -> Any:
        """One call, and its result as values of the host.

        gives    ``array``: an array; ``rows``: a list of arrays, or one; ``pair``: two arrays; ``own``: an
                 :class:`Own`; ``kv`` or ``index``: the argument of that name as it is after the call; ``named``:
                 a dict of arrays
        guarded  None, or the shape of an output that the function may write to: it gets ``out``, between two guards
        """
        out = None
        if guarded is not None and self.on_host and self.takes(name, "out"):
            out = np.full((guarded[0] + 2, *guarded[1:]), GUARD, np.float32)
            keywords = {**keywords, "out": out[1:-1]}
        result, moved = self.call(name, arguments, keywords)
        if out is not None:
            if not (out[0] == GUARD).all() or not (out[-1] == GUARD).all():
                raise ValueError(f"{name}: wrote outside its output")
            result = out[1:-1] if result is None or isinstance(result, (bool, np.bool_)) else result
        found = self.given(name, result, moved, gives)
        if gives in ("array", "rows", "pair"):
            for part in result if isinstance(result, (list, tuple)) else [result]:
                poison(part, arguments)
        return found

    def given(self, name: str, result: Any, moved: dict[str, Any], gives: Gives) -> Any:
        """What a call gave, as values of the host; ``moved`` are the arguments as the function had them."""
        if gives == "own":
            return Own(result)
        if gives in ("kv", "index"):
            return self.host(moved[gives])
        if gives == "named":
            if not isinstance(result, dict):
                raise ValueError(f"{name}: gave {type(result).__name__}: must be a dict of arrays")
            return {str(key): self.array(name, part) for key, part in result.items()}
        several = gives == "pair" or (gives == "rows" and isinstance(result, (list, tuple)))
        found = [self.array(name, part) for part in (result if several else [result])]
        return found if several else found[0]

    def call(
        self, name: str, arguments: dict[str, Any], keywords: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """(result, arguments as the function had them) of one call whose inputs are compared.

        ``arguments`` maps names to values of the host, in order; ``slots`` is given by name. Raises UnsupportedError,
        ChangedInputError where an input was changed, and whatever the function raises.
        """
        self.function(name)
        given = Given(name, {key: value for key, value in arguments.items() if not _own(value)})
        moved = {key: self.device(value) for key, value in arguments.items()}
        try:
            result = self.invoke(name, moved, keywords or {})
            if self.has("synchronize"):
                self.module.synchronize()
        except UnsupportedError:
            given.check()
            raise
        except BaseException:
            given.restore()
            raise
        given.check()
        self._check_moved(given, arguments, moved)
        return result, moved

    def invoke(self, name: str, moved: dict[str, Any], keywords: dict[str, Any]) -> Any:
        """The result of the function alone, on arguments as it takes them; nothing is compared or waited for. Raises
        UnsupportedError, and whatever the function raises."""
        named = {"slots": moved["slots"]} if "slots" in moved else {}
        in_order = [value for key, value in moved.items() if key != "slots"]
        with self._stream():
            return call(name, self.function(name), *in_order, **named, **keywords)

    def _stream(self) -> contextlib.AbstractContextManager[Any]:
        stream: Any = getattr(self.module, "stream", None)
        return stream if hasattr(stream, "__enter__") else contextlib.nullcontext()

    def _check_moved(self, given: Given, arguments: dict[str, Any], moved: dict[str, Any]) -> None:
        """Compares the copies that the function worked on, where there are such."""
        if self._elsewhere and (not self._moves or hasattr(self.module, "to_host")):
            small = {key: value for key, value in arguments.items() if not _own(value) and nbytes(value) <= WHOLE}
            given.check({key: self.host(moved[key]) for key in small if moved[key] is not small[key]})


def poison(result: Any, arguments: dict[str, Any]) -> None:
    """Fills a result that the backend may keep, after it was copied: what is handed out again without being written
    shows. Nothing is written to memory of the arguments, nor to an array that is read only or of integers."""
    if isinstance(result, np.ndarray):
        given = [each for each in arrays_of(list(arguments.values())) if isinstance(each, np.ndarray)]
        mine = result.flags.writeable and result.dtype.kind == "f"
        if mine and not any(np.shares_memory(result, each) for each in given):
            result[...] = GUARD if result.dtype.itemsize > 2 else np.float16(-GUARD_HALF)
    elif type(result).__module__.startswith(("torch", "cupy")) and "float" in str(getattr(result, "dtype", "")):
        fill = getattr(result, "fill_", None) or result.fill
        fill(-GUARD_HALF)


def _own(value: Any) -> bool:
    """Whether ``value`` is a backend's own storage, or a list of it."""
    return isinstance(value, Own) or (isinstance(value, list) and any(map(_own, value)))


def _takes(function: Callable[..., Any], keyword: str) -> bool:
    """Whether ``function`` takes ``keyword``; assumed where its signature cannot be read."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return True
    return keyword in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
