"""Whether the cases can fail: every one is run with outputs that are wrong on purpose, and none of them may pass.

The outputs are a backend's own, changed in one of three ways; or the backend writes to an input (:data:`KINDS`). A
case is left out of a kind when the change left every output as it was, as with an output that is all zeros and right.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from qsa.reference.index import Index, written

from . import suite
from .backend import Backend
from .compare.input_changes import ChangedInputError
from .contract import Kernel

MODULES = ("accuracy", "selection", "split", "pages", "goldens", "verify-batch")
"""Modules whose cases are about operations, not about texts."""

KINDS = ("zero", "scaled", "permuted", "input")
"""Zeros; everything times 1.02; heads in another order (of scores the blocks, of ids the cells, of keys the dims); the
first number of the first input of every call moved by one unit in the last place."""

FACTOR = np.float32(1.02)


class WrongBackend(Backend):
    """The backend ``name`` with every output changed in the way ``kind``. ``changed``: whether a byte of any output has
    changed since it was last set to False."""

    def __init__(self, name: str, arithmetic: str, kind: str, kernel: Any = None) -> None:
        super().__init__(name, arithmetic, kernel)
        self.kind, self.changed, self.experiments = kind, False, False
        if kind == "input":
            self.kernel = Kernel(_Writing(self), self.kernel.declaration)

    # Results that modules keep by backend are this one's own: two wrong ones of a name differ.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def _altered(self, right: np.ndarray, axis: int) -> np.ndarray:
        """``right`` changed; the axis that is permuted is ``axis``."""
        if self.kind == "input":
            return right
        if self.kind == "zero":
            wrong = np.zeros_like(right)
        elif self.kind == "scaled":
            # Integers are rounded up, so that small ones change too.
            with np.errstate(over="ignore"):
                wrong = right * FACTOR
            wrong = (np.ceil(wrong) if right.dtype.kind != "f" else wrong).astype(right.dtype)
        else:
            wrong = np.roll(right, 1, axis=axis)
        self.changed |= not np.array_equal(right, wrong, equal_nan=right.dtype.kind == "f")
        return wrong

    def attend(self, *arguments: Any, **keywords: Any) -> np.ndarray:
        """As :meth:`Backend.attend`, changed."""
        return self._altered(super().attend(*arguments, **keywords), axis=1)

    def block_scores(self, q_idx: np.ndarray, index: Any, steps: np.ndarray, **keywords: Any) -> np.ndarray:
        """As :meth:`Backend.block_scores`, changed as far as a row's scores have a meaning."""
        scores = super().block_scores(q_idx, index, steps, **keywords)
        for row, (position, _, n_bid, _) in enumerate(steps.tolist()):
            if position >= 0:
                scores[row, : n_bid + 1] = self._altered(scores[row, : n_bid + 1], axis=0)
        return scores

    def select(self, scores: np.ndarray, steps: np.ndarray, *arguments: Any, **keywords: Any) -> np.ndarray:
        """As :meth:`Backend.select`, the cells of every row changed."""
        ids = super().select(scores, steps, *arguments, **keywords)
        for row, width in enumerate(steps[:, 3].tolist()):
            ids[row, :width] = self._altered(ids[row, :width], axis=0)
        return ids

    def append_kv(self, *arguments: Any, **keywords: Any) -> Any:
        """As :meth:`Backend.append_kv`, all that its pools hold changed; codes that have scales are not scaled."""
        result = super().append_kv(*arguments, **keywords)
        for kv in result if isinstance(result, list) else [result]:
            for pool in filter(None, (kv.pool, kv.host)):
                for side in (pool.k, pool.v):
                    parts = [side.scale] if self.kind == "scaled" and side.scale.size else [side.codes, side.scale]
                    for part in parts:
                        part[...] = self._altered(part, axis=1)
        return result

    def append_index(self, *arguments: Any, **keywords: Any) -> Index:
        """As :meth:`Backend.append_index`, every key of the index changed."""
        index = super().append_index(*arguments, **keywords)
        for name in written(index):
            part = getattr(index, name)
            part[...] = self._altered(part, axis=-1)
        return index


class _Writing:
    """The functions of a backend's module, each of which writes to its first argument after the call."""

    def __init__(self, backend: WrongBackend) -> None:
        self._backend, self._module = backend, backend.module

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if name not in ("attend", "block_scores", "select", "append_kv", "append_index"):
            return found

        @functools.wraps(found)
        def write(*arguments: Any, **keywords: Any) -> Any:
            result = found(*arguments, **keywords)
            given = arguments[0]
            if given.size:
                owner = given if given.base is None or not isinstance(given.base, np.ndarray) else given.base
                try:
                    owner.flags.writeable = given.flags.writeable = True
                except ValueError:
                    # A view of memory that nobody can write to.
                    return result
                first = given[(0,) * given.ndim]
                given[(0,) * given.ndim] = 0 if np.isnan(first) else np.nextafter(first, np.float32(9))
                self._backend.changed = True
            return result

        return write


def sample(cases: Iterable[suite.Case]) -> list[suite.Case]:
    """Some of ``cases``: for each module, operation, formats, schedule, pass and kind of scores the case of the
    least context."""
    least: dict[tuple, tuple] = {}
    for case in cases:
        recipe = case.recipe
        stratum = (
            case.module,
            *(recipe.get(key) for key in ("family", "op", "format", "index_format", "schedule", "pass", "scores")),
        )
        size = recipe.get("context", 0), recipe.get("rows", 1)
        if stratum not in least or size < least[stratum][0]:
            least[stratum] = size, case
    return [case for _, case in least.values()]


OnResult = Callable[[suite.Case, str, str], object]
"""Gets every case, kind and status; the status is ``unchanged`` where no byte of an output or input changed."""


def passing(
    cases: Iterable[suite.Case], right: Backend, on_result: OnResult = lambda case, kind, status: None
) -> list[tuple[str, str]]:
    """[(case string, kind)] of the ``cases`` that pass with changed outputs of the backend ``right``, or with a changed
    input, and of those that fail without a comparison, which proves nothing.

    Every kind runs one case before the next case begins, so its truth is made once. Over all cases of :data:`MODULES`
    this takes minutes; the tests take :func:`sample` of them.
    """
    backends = [WrongBackend(right.name, right.arithmetic, kind, right.kernel) for kind in KINDS]
    found = []
    for case in cases:
        for backend in backends:
            backend.changed = False
            result = suite.run_case(case, backend)
            status = result.status if backend.changed or result.status != "passed" else "unchanged"
            if status == "passed" or (status == "failed" and not _proven(result, backend.kind)):
                found.append((case.text, backend.kind))
            on_result(case, backend.kind, status)
    return found


def _proven(result: suite.Result, kind: str) -> bool:
    """Whether a failure comes of what was changed: of a comparison, or of the comparison of the inputs."""
    if kind == "input":
        return result.reason.startswith(ChangedInputError.__name__)
    return bool(result.comparisons)


def survivors(
    cases: Iterable[suite.Case],
    name: str,
    arithmetic: str,
    on_result: OnResult = lambda case, kind, status: None,
) -> list[tuple[str, str]]:
    """:func:`passing` of the backend ``name`` in one arithmetic."""
    return passing(cases, Backend(name, arithmetic), on_result)
