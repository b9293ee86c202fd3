"""A backend under test: our own or any importable module with some of the five operations.

What the suite needs to know about a module is read off it here and nowhere else. A module may define any of
``append_kv``, ``append_index``, ``block_scores``, ``select`` and ``attend`` with the reference's arguments; what it
lacks is unsupported. ``attend`` is asked for a schedule, a number of splits and an arithmetic only when the function
takes such a keyword: without ``schedule`` it has the standing schedule alone (and ``split`` when it takes ``splits``),
without ``arithmetic`` it is taken to have the one that the run asks for. ``block_scores`` and ``select`` may take a
``schedule`` too. A result of False is a refusal.

A call may write its result and, of an append, the K/V or the index that it is given. Every other input is compared byte
by byte after the call (``given.py``). A change is an error, and what was changed is put back. A backend that moves its
arguments with ``to_device`` works on copies, so the truth is safe from it. The copies are compared too, as an engine
would go on with them: those up to 64 MiB, when there is a ``to_host`` to bring them back.
"""

import inspect

import numpy as np

from qsa.kernels.ops import BACKENDS, load_backend, refusals
from qsa.kernels.switches import ARITHMETICS
from qsa.reference.geometry import REAL
from qsa.reference.index import Index
from qsa.reference.kv import PagedKV

from .given import WHOLE, Given, nbytes

GUARD = np.float32(-(2.0**93))
"""Fills the rows around an output and the output itself beforehand: what is not written, or written outside, shows."""


class UnsupportedError(Exception):
    """The backend does not carry out what was asked; the message is the reason shown."""


class Backend:
    """The backend ``name`` (design section 5) in one arithmetic, called with NumPy arrays throughout.

    Every operation raises :class:`UnsupportedError` when the module lacks it or refuses, ValueError when its result is
    not an array of the right kind, ChangedInputError when it changed an input, and whatever the module itself raises.
    Raises ValueError on an unknown name or arithmetic, or an arithmetic that the backend does not have.
    """

    def __init__(self, name, arithmetic="exact"):
        if arithmetic not in ARITHMETICS:
            raise ValueError(f"arithmetic = {arithmetic!r}: allowed are {', '.join(ARITHMETICS)}")
        self.name, self.arithmetic = name, arithmetic
        self.module = _load(name)
        if self.module.__name__ == BACKENDS["exact"] and arithmetic != "exact":
            raise ValueError(f"arithmetic = {arithmetic!r}: backend {name!r} has the exact arithmetic alone")

    def has(self, operation):
        """Whether the module defines ``operation``."""
        return callable(getattr(self.module, operation, None))

    def _function(self, operation):
        if not self.has(operation):
            raise UnsupportedError(f"{operation}: the backend has none")
        return getattr(self.module, operation)

    def _device(self, value):
        move = getattr(self.module, "to_device", None)
        if move is None or value is None:
            return value
        if isinstance(value, list):
            return [self._device(one) for one in value]
        return move(value) if isinstance(value, (np.ndarray, PagedKV, Index)) else value

    def _host(self, value):
        move = getattr(self.module, "to_host", None)
        if move is None:
            return value
        return [self._host(one) for one in value] if isinstance(value, list) else move(value)

    def _call(self, operation, function, arguments, keywords):
        before = refusals()
        result = function(*arguments, **keywords)
        if isinstance(result, (bool, np.bool_)) and not result:
            after = refusals()
            reasons = [reason for key, reason in after if after[key, reason] != before.get((key, reason), 0)]
            raise UnsupportedError(f"{operation}: refused: {', '.join(reasons) or 'no reason given'}")
        return result

    def _checked(self, operation, function, arguments, keywords):
        """(result, arguments as the function had them) of one call whose inputs are compared; ``arguments`` maps names
        to values on the host, in order. Slots are given by keyword."""
        given = Given(operation, arguments)
        moved = {name: self._device(value) for name, value in arguments.items()}
        named = {"slots": moved["slots"]} if "slots" in moved else {}
        try:
            in_order = [value for name, value in moved.items() if name != "slots"]
            result = self._call(operation, function, in_order, named | keywords)
        except UnsupportedError:
            given.check()
            raise
        except BaseException:
            given.restore()
            raise
        given.check()
        self._check_moved(given, arguments, moved)
        return result, moved

    def _check_moved(self, given, arguments, moved):
        """Compares the copies that the function worked on, where there are such."""
        if hasattr(self.module, "to_device") and hasattr(self.module, "to_host"):
            small = {name: value for name, value in arguments.items() if nbytes(value) <= WHOLE}
            given.check({name: self._host(moved[name]) for name in small if moved[name] is not small[name]})

    def attend(self, q, kv, ids, steps, slots=None, *, schedule="batch", splits=1):
        """float32 [rows, n_head, head_dim]; arguments as ``reference.attend`` has them, all in NumPy."""
        function = self._function("attend")
        kvs = kv if isinstance(kv, list) else [kv]
        if self.arithmetic == "exact" and not all(one.exact for one in kvs):
            raise UnsupportedError(f"attend: format {kvs[0].pool.format} is outside the exact arithmetic")
        keywords = self._attend_keywords(function, schedule, splits)
        guarded = None
        if _takes(function, "out") and not hasattr(self.module, "to_device"):
            guarded = np.full((len(q) + 2, *q.shape[1:]), GUARD, np.float32)
            keywords["out"] = guarded[1:-1]
        arguments = {"q": q, "kv": kv, "ids": ids, "steps": steps}
        if slots is not None:
            arguments["slots"] = slots
        result, _ = self._checked("attend", function, arguments, keywords)
        if guarded is not None:
            if not (guarded[0] == GUARD).all() or not (guarded[-1] == GUARD).all():
                raise ValueError("attend: wrote outside its output")
            result = guarded[1:-1] if result is None or isinstance(result, (bool, np.bool_)) else result
        return self._array("attend", result)

    def _attend_keywords(self, function, schedule, splits):
        keywords = {"arithmetic": self.arithmetic} if _takes(function, "arithmetic") else {}
        if _takes(function, "schedule"):
            keywords["schedule"] = schedule
        elif schedule != "batch" and not (schedule == "split" and _takes(function, "splits")):
            raise UnsupportedError(f"attend: schedule {schedule}: the function takes no schedule")
        if schedule == "split":
            if not _takes(function, "splits"):
                raise UnsupportedError("attend: schedule split: the function takes no splits")
            keywords["splits"] = splits
        return keywords

    def _array(self, operation, result):
        result = self._host(result)
        if not isinstance(result, np.ndarray):
            raise ValueError(f"{operation}: gave {type(result).__name__}: must be an array")
        # A copy: a backend that gives the same buffer again would be compared with itself.
        return result.copy()

    def block_scores(self, q_idx, index, steps, *, schedule=None):
        """float32 [rows, max_blocks]; entries behind a row's n_bid have no meaning."""
        function = self._function("block_scores")
        keywords = _schedule("block_scores", function, schedule)
        arguments = {"q_idx": q_idx, "index": index, "steps": steps}
        return self._array("block_scores", self._checked("block_scores", function, arguments, keywords)[0])

    def select(self, scores, steps, rule="blocks", geometry=REAL, *, schedule=None):
        """int32 [rows, 2051]: a row's cells, then -1."""
        function = self._function("select")
        keywords = {} if geometry == REAL and not _takes(function, "geometry") else {"geometry": geometry}
        keywords |= _schedule("select", function, schedule)
        arguments = {"scores": scores, "steps": steps}
        return self._array("select", self._checked("select", function, arguments, {"rule": rule, **keywords})[0])

    def append_kv(self, k, v, kv, steps, slots=None):
        """The PagedKV (or list of them) after appending; the one given may have changed too."""
        function = self._function("append_kv")
        arguments = {"k": k, "v": v, "kv": kv, "steps": steps}
        if slots is not None:
            arguments["slots"] = slots
        return self._host(self._checked("append_kv", function, arguments, {})[1]["kv"])

    def append_index(self, raw, steps, index):
        """The Index after appending; the one given may have changed too."""
        function = self._function("append_index")
        arguments = {"raw": raw, "steps": steps, "index": index}
        return self._host(self._checked("append_index", function, arguments, {})[1]["index"])


def _schedule(operation, function, schedule):
    """The keyword for a schedule, none for None: the standing one."""
    if schedule is None:
        return {}
    if not _takes(function, "schedule"):
        raise UnsupportedError(f"{operation}: schedule {schedule}: the function takes no schedule")
    return {"schedule": schedule}


def _load(name):
    try:
        return load_backend(name)
    except ValueError:
        raise
    except Exception as error:
        # A module under development may fail in any way while it is imported.
        raise ValueError(f"backend = {name!r}: {type(error).__name__} while importing it: {error}") from error


def _takes(function, keyword):
    """Whether ``function`` takes ``keyword``; one whose signature cannot be read is taken to."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return True
    return keyword in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
