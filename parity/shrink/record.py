"""The call of a case that fails by itself: what ``shrink`` makes smaller."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from qsa.reference.geometry import REAL, RULES
from qsa.reference.kv import PagedKV, read_kv

from .. import suite
from ..backend import Backend, UnsupportedError
from ..contract import OwnKV
from .problem import OWN, AttendProblem, Problem, SelectProblem


class ShrinkError(ValueError):
    """A case that cannot be made smaller; the message says why."""


class Recorder(Backend):
    """A backend that keeps the arguments of its calls of ``attend`` and ``select`` as problems."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend.name, backend.arithmetic, backend.kernel)
        self.problems: list[Problem] = []
        self.other: set[str] = set()

    def attend(self, q: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray, *more: Any, **options: Any) -> Any:
        """As :meth:`Backend.attend`."""
        slots = more[0] if more else options.get("slots")
        kvs = kv if isinstance(kv, list) else [kv]
        owner = np.zeros(len(q), np.int64) if slots is None else np.asarray(slots)
        for slot in np.unique(owner):
            # Every slot by itself: the cause may be its own.
            mine = owner == slot
            if (q.shape[1:]) == (REAL.n_head, REAL.head_dim):
                kept = {key: value for key, value in options.items() if key in ("schedule", "splits")}
                self.problems.append(attend_problem(q[mine], kvs[slot], ids[mine], steps[mine], **kept))
            else:
                self.other.add("attend with other heads")
        return super().attend(q, kv, ids, steps, *more, **options)

    def select(self, scores: np.ndarray, steps: np.ndarray, rule: str = "blocks", *more: Any, **options: Any) -> Any:
        """As :meth:`Backend.select`."""
        geometry = more[0] if more else options.get("geometry", REAL)
        if geometry == REAL and rule in RULES:
            self.problems.append(SelectProblem(scores.copy(), steps.copy(), rule, options.get("schedule")))
        else:
            self.other.add("select with another budget")
        return super().select(scores, steps, rule, *more, **options)

    def block_scores(self, *given: Any, **options: Any) -> Any:
        """As :meth:`Backend.block_scores`."""
        self.other.add("block_scores")
        return super().block_scores(*given, **options)

    def append_kv(self, *given: Any, **options: Any) -> Any:
        """As :meth:`Backend.append_kv`."""
        self.other.add("append_kv")
        return super().append_kv(*given, **options)

    def append_index(self, *given: Any, **options: Any) -> Any:
        """As :meth:`Backend.append_index`."""
        self.other.add("append_index")
        return super().append_index(*given, **options)


def attend_problem(
    q: np.ndarray, kv: PagedKV | OwnKV, ids: np.ndarray, steps: np.ndarray, schedule: str = "batch", splits: int = 1
) -> AttendProblem:
    """The problem of one call over one slot: the cells that its ids name, those behind the width too, with codes and
    scales."""
    chosen = np.unique(ids)
    paged = kv.paged if isinstance(kv, OwnKV) else kv
    cells = chosen[chosen >= 0].astype(np.int64)
    cells = cells[paged.locate(cells)[0] >= 0]
    read = read_kv(paged, cells)
    size = paged.pool.page_size
    logical = np.unique(cells // size)
    pages = np.stack([logical, paged.table[logical]], axis=1).astype(np.int64)
    own = isinstance(kv, OwnKV)
    values = (np.float32 if own else read.k_codes.dtype, np.float32 if own else read.v_codes.dtype)
    # Columns of -1 at the end say nothing.
    used = np.flatnonzero((ids >= 0).any(axis=0))
    width = max(int(steps[:, 3].max(initial=0)), int(used[-1]) + 1 if len(used) else 0, 1)
    kept = np.ascontiguousarray(ids[:, :width], np.int32)
    return AttendProblem(
        q.astype(np.float32),
        kept.copy(),
        steps.copy(),
        cells,
        read.k_codes.astype(values[0]),
        read.k_scale,
        read.v_codes.astype(values[1]),
        read.v_scale,
        pages,
        paged.capacity,
        size,
        OWN if own else paged.pool.format,
        schedule,
        splits,
    )


class Failure(NamedTuple):
    """``how``: wrong, or the type of an exception; ``share``: how many times its bound an error is."""

    how: str
    share: float


def failure(problem: Problem, backend: Backend) -> Failure | None:
    """How ``problem`` fails; None where it passes or is unsupported."""
    try:
        with np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"):
            worst = suite.worst_of(problem.check(backend))
    except UnsupportedError:
        return None
    except Exception as error:
        return Failure(type(error).__name__, np.inf)
    return None if worst is None or worst.passed else Failure("wrong", worst.share)


def failing_call(case: suite.Case, backend: Backend) -> tuple[Problem, Failure]:
    """(problem, how it fails) of the first call of ``attend`` or ``select`` in ``case`` that fails by itself.

    Raises ShrinkError where the case passes, is unsupported, or none of its calls does.
    """
    recorder = Recorder(backend)
    result = suite.run_case(case, recorder)
    if result.status != "failed":
        raise ShrinkError(f"{case.text}: {result.status}: there is no failure to make smaller")
    for problem in _distinct(recorder.problems):
        how = failure(problem, backend)
        if how:
            return problem, how
    calls = f"its {len(recorder.problems)} calls of attend and select pass when each is judged by itself"
    also = f"; it calls {', '.join(sorted(recorder.other))} too, which are not made smaller" if recorder.other else ""
    raise ShrinkError(f"{case.text}: cannot be made smaller: {calls}{also}")


def _distinct(problems: list[Problem]) -> Iterator[Problem]:
    """The problems, smaller ones first: a call of one row before one of eight."""
    yield from sorted(problems, key=lambda problem: len(problem.steps))
