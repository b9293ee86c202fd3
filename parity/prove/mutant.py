"""A mutant: a right kernel of one operation with one small change, and the backend that is made of it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np

from qsa.kernels.switches import ARITHMETICS
from qsa.reference.index import INDEX_FORMATS

from ..backend import Backend
from ..contract import Kernel, declared
from ..contract.declaration import Invariance
from . import float_kernel, right_kernels

Arguments = SimpleNamespace
"""The arguments of one call as attributes, which a change may replace, and ``memory``: a dict that lasts for the life
of the kernel. Arrays must not be written to: they are the judge's."""

Right = Callable[[Arguments], Any]
Change = Callable[[Right, Arguments], Any]

EXACT, FLOAT = (("exact",), ("float",))


@dataclass(frozen=True)
class Mutant:
    """``change(right, a)`` gives the result of a call: of the right kernel ``right(a)`` with something wrong.

    name         in words that say what is wrong
    operation    the operation that is replaced
    kind         the entry of the lists of known faults that it is an example of
    arithmetics  those in which it is a mistake
    repeats      how often each case's calls are made (a fault of one call in a hundred needs some)
    index_formats  formats of the index that the kernel takes: a mutant of one format must be caught by its cases
    others       operation -> change, of a mistake that several operations make together; ``memory`` is then common
    """

    name: str
    operation: str
    kind: str
    change: Change = field(repr=False)
    arithmetics: tuple[str, ...] = ARITHMETICS
    repeats: int = 1
    index_formats: tuple[str, ...] = ("fp32",)
    others: tuple[tuple[str, Change], ...] = field(default=(), repr=False)

    def backend(self, arithmetic: str) -> Backend:
        """A :class:`Backend` of this kernel alone, fresh, in one arithmetic."""
        changes = {self.operation: self.change, **dict(self.others)}
        return backend_of(arithmetic, changes, self.name, self.index_formats)


CATALOGUE: list[Mutant] = []
"""Every mutant, in order."""


def mutant(
    operation: str,
    name: str,
    kind: str,
    arithmetics: Iterable[str] = ARITHMETICS,
    repeats: int = 1,
    index_formats: tuple[str, ...] = ("fp32",),
    others: Iterable[tuple[str, Change]] = (),
) -> Callable[[Change], Change]:
    """Enters the decorated change into :data:`CATALOGUE`."""

    def enter(change: Change) -> Change:
        CATALOGUE.append(
            Mutant(name, operation, kind, change, tuple(arithmetics), repeats, index_formats, tuple(others))
        )
        return change

    return enter


def backend_of(
    arithmetic: str,
    changes: dict[str, Change],
    name: str = "right",
    index_formats: tuple[str, ...] = INDEX_FORMATS,
) -> Backend:
    """A backend with the operations ``changes``, each changed; with none, all operations of the right kernels."""
    table = float_kernel.OPERATIONS if arithmetic == "float" else right_kernels.OPERATIONS
    module = SimpleNamespace(declaration=DECLARATIONS[arithmetic] | {"index_formats": list(index_formats)})
    memory: dict[str, Any] = {}
    for operation in changes or table:
        setattr(module, operation, _function(operation, table[operation], changes.get(operation), memory))
    return Backend(name, arithmetic, Kernel(module, declared(module)))


DECLARATIONS: dict[str, dict[str, Any]] = {
    "exact": {"arithmetic": "exact", "domain": {"overflow": True}},
    "float": {
        "arithmetic": "float",
        "ties": "lowest",
        "tail_score": True,
        "domain": dict.fromkeys(("nan", "infinity", "absent_ids", "unused_rows", "absent_pages", "overflow"), True),
        "invariance": list(get_args(Invariance)),
    },
}


def _function(operation: str, right: Right, change: Change | None, memory: dict[str, Any]) -> Callable[..., Any]:
    """The function of a backend that makes its arguments an :data:`Arguments`."""

    def run(**given: Any) -> Any:
        a = SimpleNamespace(memory=memory, **given)
        return right(a) if change is None else change(right, a)

    if operation == "attend":

        def attend(
            q: np.ndarray,
            kv: Any,
            ids: np.ndarray,
            steps: np.ndarray,
            slots: Any = None,
            *,
            schedule: str = "batch",
            splits: int = 1,
        ) -> Any:
            return run(q=q, kv=kv, ids=ids, steps=steps, slots=slots, schedule=schedule, splits=splits)

        return attend
    if operation == "select":

        def select(
            scores: np.ndarray, steps: np.ndarray, *, rule: str = "blocks", geometry: Any, schedule: str = ""
        ) -> Any:
            return run(scores=scores, steps=steps, rule=rule, geometry=geometry, schedule=schedule)

        return select
    if operation == "block_scores":

        def block_scores(q_idx: np.ndarray, index: Any, steps: np.ndarray, *, schedule: str = "") -> Any:
            return run(q_idx=q_idx, index=index, steps=steps, schedule=schedule)

        return block_scores
    if operation == "append_kv":

        def append_kv(k: np.ndarray, v: np.ndarray, kv: Any, steps: np.ndarray, slots: Any = None) -> Any:
            return run(k=k, v=v, kv=kv, steps=steps, slots=slots)

        return append_kv

    def append_index(raw: np.ndarray, steps: np.ndarray, index: Any) -> Any:
        return run(raw=raw, steps=steps, index=index)

    return append_index
