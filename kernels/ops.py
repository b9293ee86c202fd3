"""The table of operations, and the backends that carry them out.

A backend is a module with any of the operations, as ``kernels/backend.py`` describes them (design section 5). An
operation that cannot be carried out as asked returns False before anything is launched or written; :func:`refuse`
counts it. What a backend does not define is unsupported.

A backend whose arrays are not NumPy's defines ``to_device(x)`` and ``to_host(x)`` for arrays, ``PagedKV`` and
``Index``.
"""

import importlib
import threading
from collections import Counter
from dataclasses import dataclass
from numbers import Integral
from types import ModuleType
from typing import Literal


@dataclass(frozen=True)
class Operation:
    """Name of an operation, and the schedules in which it can be cut over a device (the first is the standing one)."""

    name: str
    schedules: tuple[str, ...]


OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation("append_kv", ("window", "step", "multi")),
        Operation("append_index", ("window", "step")),
        Operation("block_scores", ("warp", "multi_query", "transposed", "prompt", "held")),
        Operation("select", ("registers", "wide", "scan", "spread", "bounded")),
        Operation("attend", ("batch", "step", "split", "multi", "prompt")),
    )
}

BACKENDS = {"cpu": "qsa.kernels.cpu", "cuda": "qsa.kernels.cuda.backend", "exact": "qsa.reference.exact"}
"""Names of our own backends; any other name is taken as an importable module."""

MAX_SPLITS = 20
"""Splits of one row at most in the split schedule (design section 8)."""

WINDOW_ROWS = 8
"""Rows of a window at most, over all its slots (design section 2). A call of more rows is of a prompt, in which the
switch of the split schedule changes nothing (design section 8)."""

_refusals: Counter[tuple[str, str]] = Counter()
_lock = threading.Lock()


def check_schedule(operation: str, schedule: str) -> None:
    """Raises ValueError unless ``schedule`` is one of ``operation``'s."""
    allowed = OPERATIONS[operation].schedules
    if schedule not in allowed:
        raise ValueError(f"schedule = {schedule!r}: allowed are {', '.join(allowed)}")


def check_splits(schedule: str, splits: int | None) -> None:
    """Raises ValueError unless ``splits`` is None or, in the schedule ``split`` alone, an integer that it takes."""
    if splits is None:
        return
    if schedule != "split":
        raise ValueError(f"splits = {splits}: schedule {schedule!r} takes none")
    if not isinstance(splits, Integral) or not 1 <= splits <= MAX_SPLITS:
        raise ValueError(f"splits = {splits}: must be an integer from 1 to {MAX_SPLITS}")


def refuse(operation: str, reason: str) -> Literal[False]:
    """Count a refusal of ``operation`` and return False. ``reason``: format, device, geometry, scratch or schedule."""
    with _lock:
        _refusals[operation, reason] += 1
    return False


def refusals() -> dict[tuple[str, str], int]:
    """Counts of refusals so far: (operation, reason) -> times."""
    with _lock:
        return dict(_refusals)


def load_backend(name: str) -> ModuleType:
    """The backend ``name``: one of :data:`BACKENDS`, or any importable module that defines an operation.

    Raises ValueError when it cannot be imported, naming what is missing, or defines no operation.
    """
    try:
        backend = importlib.import_module(BACKENDS.get(name, name))
        # A backend may load an operation when it is first asked for, so asking can fail as importing does.
        found = any(callable(getattr(backend, operation, None)) for operation in OPERATIONS)
    except ImportError as error:
        raise ValueError(f"backend = {name!r}: {error}; known are {', '.join(BACKENDS)}, or a module's name") from error
    if not found:
        raise ValueError(f"backend = {name!r}: defines none of {', '.join(OPERATIONS)}")
    return backend
