"""Making a failing call smaller: rows, heads, length, selected set, then values; what still fails is kept."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from qsa.reference.geometry import REAL, step_records

from ..backend import Backend
from .problem import OWN, AttendProblem, Problem, SelectProblem
from .record import Failure, failure

SECONDS = 120.0
"""Time after which no further step is begun."""


CLEAR = 10.0
"""Times the bound that a smaller failure is at least, if the first one was: inputs on which an honest kernel is near
its bound would be a failure of another kind."""


class _Search:
    """The smallest problem so far, and whether another fails in the same way."""

    def __init__(
        self, problem: Problem, backend: Backend, first: Failure, seconds: float, report: Callable[[str], object]
    ) -> None:
        self.problem, self.backend, self.first = problem, backend, first
        self.end, self.report, self.tried = time.monotonic() + seconds, report, 0

    def keep(self, smaller: Problem | None, text: str = "") -> bool:
        """Whether ``smaller`` fails as the first one did; then it takes its place."""
        if smaller is None or time.monotonic() > self.end:
            return False
        self.tried += 1
        found = failure(smaller, self.backend)
        if found is None or found.how != self.first.how or found.share < min(self.first.share, CLEAR):
            return False
        self.problem = smaller
        if text:
            self.report(f"{text}: {smaller.size()}")
        return True

    def fewest(self, n: int, of: Callable[[np.ndarray], Problem | None], least: int = 1) -> np.ndarray:
        """The parts of ``range(n)`` (indices) that are left when no run of them can be taken away: halves first, then
        quarters, down to single ones. ``of`` makes the problem of some indices of the first one."""
        left = np.arange(n)
        size = max(1, n // 2)
        while size and len(left) > least:
            start = 0
            while start < len(left) and len(left) > least and time.monotonic() <= self.end:
                rest = np.delete(left, np.arange(start, min(start + size, len(left))))
                if len(rest) >= least and self.keep(of(rest)):
                    left = rest
                else:
                    start += size
            size = size // 2
        return left


def shrink(
    problem: Problem,
    backend: Backend,
    first: Failure,
    seconds: float = SECONDS,
    report: Callable[[str], object] = lambda line: None,
) -> Problem:
    """The smallest problem found that fails as ``first`` did. ``report`` gets a line for every kind of step."""
    search = _Search(problem, backend, first, seconds, report)
    if isinstance(problem, AttendProblem):
        _attend(search)
    else:
        _select(search)
    return search.problem


def _attend(search: _Search) -> None:
    first = search.problem
    assert isinstance(first, AttendProblem)
    search.fewest(len(first.q), lambda rows: _rows(first, rows))
    search.report(f"rows: {search.problem.size()}")
    after = search.problem
    assert isinstance(after, AttendProblem)
    heads = np.flatnonzero(after.q.any(axis=(0, 2)))
    if len(heads) > 1:
        search.fewest(len(heads), lambda some: _heads(after, heads[some]))
    search.report(f"heads: {search.problem.size()}")
    for smaller in (_one_part, _plain_pages, _dense):
        current = search.problem
        assert isinstance(current, AttendProblem)
        search.keep(smaller(current))
    search.report(f"length: {search.problem.size()}")
    current = search.problem
    assert isinstance(current, AttendProblem)
    dense = _is_dense(current)
    chosen = np.unique(np.concatenate([row[: step[3]] for row, step in zip(current.ids, current.steps, strict=True)]))

    def of(some: np.ndarray) -> Problem | None:
        return _cells(current, chosen[some], dense)

    # The least of a failure is mostly at the end of a selection, or in few cells: short ones are tried first.
    for count in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024):
        if count < len(chosen) and search.keep(of(np.arange(count))):
            chosen = chosen[:count]
            break
    search.fewest(len(chosen), of)
    latest = search.problem
    assert isinstance(latest, AttendProblem)
    search.keep(_dense(latest))
    search.report(f"selected set: {search.problem.size()}")
    for change in _attend_values():
        latest = search.problem
        assert isinstance(latest, AttendProblem)
        search.keep(change(latest))
    search.report(f"values: {search.problem.size()}")


def _rows(p: AttendProblem, rows: np.ndarray) -> AttendProblem:
    return _used(replace(p, q=p.q[rows], ids=p.ids[rows], steps=p.steps[rows]))


def _heads(p: AttendProblem, heads: np.ndarray) -> AttendProblem:
    """The queries of the other heads are 0: the number of heads is part of a kernel's shape."""
    q = np.zeros_like(p.q)
    q[:, heads] = p.q[:, heads]
    return replace(p, q=q)


def _used(p: AttendProblem) -> AttendProblem:
    """Without the cells that no row names any more, and their pages."""
    kept = np.isin(p.cells, p.ids)
    cells = p.cells[kept]
    pages = p.pages[np.isin(p.pages[:, 0], cells // p.page)]
    arrays = {name: getattr(p, name)[kept] for name in ("k", "k_scale", "v", "v_scale")}
    return replace(p, cells=cells, pages=pages, **arrays)


def _one_part(p: AttendProblem) -> AttendProblem | None:
    """In the standing schedule."""
    return replace(p, schedule="batch", splits=1) if p.schedule != "batch" else None


def _plain_pages(p: AttendProblem) -> AttendProblem:
    """The pages that are there, in order, from the first physical page on."""
    pages = np.stack([p.pages[:, 0], np.arange(len(p.pages))], axis=1)
    return replace(p, pages=pages)


def _is_dense(p: AttendProblem) -> bool:
    return bool(all(step[1] == step[3] for step in p.steps.tolist()))


def _dense(p: AttendProblem) -> AttendProblem | None:
    """The selected cells as the whole of a context: renumbered from 0, every row seeing all that it selects."""
    wanted = [row[: step[3]] for row, step in zip(p.ids, p.steps, strict=True)]
    chosen = np.unique(np.concatenate(wanted))
    if (
        (p.ids >= 0).sum() != sum(map(len, wanted))
        or (chosen < 0).any()
        or len(p.cells) != len(chosen)
        or not len(chosen)
        or len(chosen) > REAL.budget
    ):
        return None
    n = [len(row) for row in wanted]
    # Rows of a window see one cell more each: another selection cannot be the whole of a context.
    if any(not np.array_equal(np.sort(row), chosen[: len(row)]) for row in wanted):
        return None
    ids = np.full((len(n), max(n)), -1, np.int32)
    for row, own in enumerate(wanted):
        ids[row, : len(own)] = np.searchsorted(chosen, own)
    cells = np.arange(len(chosen))
    logical = np.arange(-(-len(cells) // p.page))
    capacity = len(logical) * p.page if p.format != OWN else len(cells)
    steps = step_records(np.array(n) - 1)
    return replace(p, ids=ids, steps=steps, cells=cells, pages=np.stack([logical, logical], 1), capacity=capacity)


def _cells(p: AttendProblem, chosen: np.ndarray, dense: bool) -> AttendProblem | None:
    """Rows that select the cells ``chosen`` alone, of those that they select."""
    rows = [row[: step[3]][np.isin(row[: step[3]], chosen)] for row, step in zip(p.ids, p.steps, strict=True)]
    if not all(len(row) for row in rows):
        return None
    behind = [row[step[3] :] for row, step in zip(p.ids, p.steps, strict=True)]
    ids = np.full((len(rows), max(len(a) + len(b) for a, b in zip(rows, behind, strict=True))), -1, np.int32)
    steps = p.steps.copy()
    for number, (row, rest) in enumerate(zip(rows, behind, strict=True)):
        ids[number, : len(row)] = row
        # What lies behind the width stays there: a kernel that reads it must not.
        ids[number, len(row) : len(row) + len(rest)] = rest
        steps[number, 3] = len(row)
    smaller = _used(replace(p, ids=ids, steps=steps))
    return _dense(smaller) if dense else smaller


def _attend_values() -> Iterator[Callable[[AttendProblem], AttendProblem | None]]:
    """Simpler values, the largest steps first."""
    yield from (partial(_repeated, period=period) for period in (1, 2, 4, 8))
    yield lambda p: replace(p, q=np.sign(p.q))
    yield lambda p: replace(p, q=np.rint(p.q))
    yield lambda p: replace(p, q=np.rint(p.q * 8) / np.float32(8))
    yield lambda p: replace(p, k=np.zeros_like(p.k))
    for name in ("k", "v"):
        yield partial(_one_dim, name=name)
    for name in ("k", "v"):
        yield partial(_signs_of, name=name)
        for side in range(REAL.n_head_kv):
            yield partial(_silent, name=name, side=side)


def _one_dim(p: AttendProblem, name: str) -> AttendProblem:
    """0 in every dim but the first."""
    values = getattr(p, name)
    return replace(p, **{name: values * (np.arange(REAL.head_dim) < 1).astype(values.dtype)})


def _signs_of(p: AttendProblem, name: str) -> AttendProblem:
    values = getattr(p, name)
    return replace(p, **{name: np.sign(values).astype(values.dtype)})


def _repeated(p: AttendProblem, period: int) -> AttendProblem | None:
    """K and V of the first cells again and again: equal cells are written once."""
    if len(p.cells) <= period:
        return None
    at = np.arange(len(p.cells)) % period
    return replace(p, **{name: getattr(p, name)[at] for name in ("k", "k_scale", "v", "v_scale")})


def _silent(p: AttendProblem, name: str, side: int) -> AttendProblem:
    """0 in one KV head."""
    values = getattr(p, name).copy()
    values[:, side] = 0
    return replace(p, **{name: values})


def _select(search: _Search) -> None:
    first = search.problem
    assert isinstance(first, SelectProblem)
    search.fewest(len(first.scores), lambda rows: replace(first, scores=first.scores[rows], steps=first.steps[rows]))
    search.report(f"rows: {search.problem.size()}")
    search.keep(_without_tail(_current(search)))
    start = _current(search)
    if len(start.scores) == 1:
        search.fewest(int(start.steps[0, 2]), lambda some: _blocks(start, some))
    search.report(f"length: {search.problem.size()}")
    for change in (_signs, _ranks, _halves):
        search.keep(change(_current(search)))
    search.report(f"values: {search.problem.size()}")


def _current(search: _Search) -> SelectProblem:
    assert isinstance(search.problem, SelectProblem)
    return search.problem


def _without_tail(p: SelectProblem) -> SelectProblem | None:
    if (p.steps[:, 0] < 0).any() or not (p.steps[:, 2] > 0).all():
        return None
    return replace(p, steps=step_records(p.steps[:, 2] * REAL.ratio - 1, p.rule))


def _blocks(p: SelectProblem, some: np.ndarray) -> SelectProblem | None:
    """The one row with the blocks ``some`` alone, and the score behind them."""
    _, n_kv, n_bid, _ = p.steps[0].tolist()
    if n_kv < 1 or not len(some):
        return None
    steps = step_records([len(some) * REAL.ratio + n_kv % REAL.ratio - 1], p.rule)
    kept = np.append(some, np.arange(n_bid, min(n_bid + 1, p.scores.shape[1])))
    return replace(p, scores=np.ascontiguousarray(p.scores[:, kept]), steps=steps)


def _seen(p: SelectProblem, change: Callable[[np.ndarray], np.ndarray]) -> SelectProblem:
    scores = p.scores.copy()
    for row, n_bid in enumerate(p.steps[:, 2].tolist()):
        scores[row, :n_bid] = change(scores[row, :n_bid])
    return replace(p, scores=scores)


def _signs(p: SelectProblem) -> SelectProblem:
    return _seen(p, np.sign)


def _ranks(p: SelectProblem) -> SelectProblem:
    """Small integers in the order of the scores."""
    return _seen(p, lambda x: np.unique(x, return_inverse=True)[1].reshape(-1).astype(np.float32))


def _halves(p: SelectProblem) -> SelectProblem:
    """Two values: at or above the score at the cut, and below."""

    def change(x: np.ndarray) -> np.ndarray:
        cut = np.sort(x)[::-1][min(REAL.top_blocks, len(x)) - 1] if len(x) else 0
        return (x >= cut).astype(np.float32)

    return _seen(p, change)
