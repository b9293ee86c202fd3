"""Kernels whose verdict is known beforehand: right ones, and ones that are wrong by a stated amount or in a stated way.

An error is a share of the bound that a case has, and the bound is that of the unchanged suite: what a kernel gives is
made once, by the first run, and kept. So a suite whose bounds have moved measures another share.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from qsa.reference import exact
from qsa.reference.append_index import append_index as reference_append
from qsa.reference.attend import attend as reference_attend
from qsa.reference.block_scores import block_scores as reference_scores
from qsa.reference.geometry import REAL
from qsa.reference.index import Index
from qsa.reference.kv import PagedKV

from ...backend import Backend
from ...compare import twin
from ...compare.ceiling import exact_ceiling
from ...contract import Kernel, Types, declared

ANYTHING = dict.fromkeys(("nan", "infinity", "absent_ids", "unused_rows", "absent_pages"), True)
"""A domain without limits."""

_kept: dict[tuple, Any] = {}


def kept(key: tuple, make: Callable[[], Any]) -> Any:
    """What ``make()`` gave when ``key`` came first; a copy."""
    if key not in _kept:
        _kept[key] = make()
    return _kept[key].copy()


def backend(arithmetic: str, declaration: dict[str, Any] | None = None, **functions: Any) -> Backend:
    """A fresh :class:`Backend` of functions in this process."""
    module = SimpleNamespace(declaration={"arithmetic": arithmetic} | (declaration or {}), **functions)
    return Backend("sentinel", arithmetic, Kernel(module, declared(module)))


def right(q: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray, slots: Any = None, **how: Any) -> np.ndarray:
    """float32 attention with the error of its last rounding alone."""
    return reference_attend(q, kv, ids, steps, slots).astype(np.float32)


def exactly(q: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray, slots: Any = None, **how: Any) -> np.ndarray:
    """Attention of the exact arithmetic."""
    return exact.attend(q, kv, ids, steps, slots)


def in_schedules(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function(q, kv, ids, steps, slots, schedule=...)`` as an ``attend`` that takes every schedule."""

    def attend(
        q: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray, slots: Any = None, *, schedule: str = "batch",
        splits: int = 1,
    ) -> Any:  # fmt: skip
        return function(q, kv, ids, steps, slots, schedule=schedule)

    return attend


def off(share: float, where: str = "everywhere", types: Types | None = None) -> Callable[..., np.ndarray]:
    """Attention whose error is ``share`` of the bound of a float kernel of these types: in every vector; in one
    ``head``; in one ``element`` of one head; in the ``row`` with the least bound; or in the schedule ``step`` alone,
    where it is twice as much, as the bound is there."""
    stages = types or Types()

    def attend(
        q: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray, slots: Any = None, *, schedule: str = "batch"
    ) -> np.ndarray:
        def make() -> np.ndarray:
            truth = reference_attend(q, kv, ids, steps)
            w = SimpleNamespace(q=q, kv=kv, ids=ids, steps=steps)
            bound, _ = twin.attention_bound(w, truth, stages)
            wrong = share * np.broadcast_to(bound, truth.shape[:2])[..., None] * truth
            if where in ("head", "element"):
                wrong[:, np.arange(truth.shape[1]) != 5] = 0
            if where == "element":
                size = np.linalg.norm(wrong, axis=-1)
                wrong[...] = 0
                wrong[..., 7] = size
            if where == "row":
                wrong[np.arange(len(q)) != bound[:, 0].argmin()] = 0
            if where == "step":
                wrong *= 2 if schedule == "step" else 0
            return truth + wrong

        key = ("off", share, where, stages.output, schedule, q.tobytes(), steps.tobytes())
        return kept(key, make).astype(np.float32)

    return in_schedules(attend) if where == "step" else attend


def gated(share: float) -> Callable[..., np.ndarray]:
    """Attention times sigmoid(gate) with a relative error of ``share`` times 1e-6."""

    def attend_gated(q: np.ndarray, gate: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray) -> np.ndarray:
        right = reference_attend(q, kv, ids, steps) / (1 + np.exp(-gate.astype(np.float64)))
        return (right * (1 + share * 1e-6)).astype(np.float32)

    return attend_gated


def near_ceiling(share: float) -> Callable[..., np.ndarray]:
    """Attention of which one head of every row is off by ``share`` of what the exact arithmetic may ever be."""

    def attend(q: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray) -> np.ndarray:
        def make() -> np.ndarray:
            truth = reference_attend(q, kv, ids, steps)
            w = SimpleNamespace(q=q, kv=kv, ids=ids, steps=steps)
            truth[:, 5] *= 1 + share * exact_ceiling(w, truth, np.full(len(q), 5))[:, None]
            return truth

        return kept(("ceiling", share, q.tobytes(), steps.tobytes()), make).astype(np.float32)

    return attend


def changed(function: Callable[..., np.ndarray], change: Callable[[np.ndarray], Any]) -> Callable[..., Any]:
    """``function`` whose result [rows, heads, dim] is changed in place by ``change``, or replaced by what it gives."""

    def attend(q: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray) -> Any:
        out = function(q, kv, ids, steps).copy()
        given = change(out)
        return out if given is None else given

    return attend


def reads(cells: Callable[[Any, np.ndarray, int], np.ndarray]) -> Callable[..., np.ndarray]:
    """Attention that also reads other cells and adds them with the weight 0: ``cells(kv, ids, width)`` says which."""

    def attend(q: np.ndarray, kv: PagedKV, ids: np.ndarray, steps: np.ndarray) -> np.ndarray:
        out = right(q, kv, ids, steps)
        for row, width in enumerate(steps[:, 3].tolist()):
            page, at = kv.locate(cells(kv, ids[row], width))
            scale = kv.pool.v.scale[page[page >= 0], :, at[page >= 0]].astype(np.float32)
            out[row] += 0 * scale.sum()
        return out

    return attend


def behind(kv: PagedKV, ids: np.ndarray, width: int) -> np.ndarray:
    """The ids behind a row's width."""
    return ids[width:][ids[width:] >= 0]


def beside(kv: PagedKV, ids: np.ndarray, width: int) -> np.ndarray:
    """All cells of the pages of a row's cells: some are nobody's."""
    size = kv.pool.page_size
    pages = np.unique(ids[:width] // size)
    cells = (pages[:, None] * size + np.arange(size)).ravel()
    return cells[cells < kv.capacity]


def absent_as_zero(q: np.ndarray, kv: PagedKV, ids: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Attention that gives cells of absent pages a weight, as of zeros."""
    out = right(q, kv, ids, steps)
    for row, width in enumerate(steps[:, 3].tolist()):
        gone = (kv.locate(ids[row, :width])[0] < 0).sum()
        out[row] *= 1 - gone / (4.0 * max(1, width))
    return out


def unused_as_first(q: np.ndarray, kv: PagedKV, ids: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Attention that computes an unused row like any other."""
    out = right(q, kv, ids, steps)
    out[steps[:, 0] < 0] = out[0]
    return out


def same_buffer(stale: bool) -> Callable[..., np.ndarray]:
    """Attention into a buffer of its own that every call hands out; when ``stale``, it is written the first time
    alone."""
    memory: dict[str, np.ndarray] = {}

    def attend(q: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray, slots: Any, schedule: str) -> np.ndarray:
        if "out" not in memory or not stale:
            memory.setdefault("out", np.empty(q.shape, np.float32))[...] = right(q, kv, ids, steps)
        return memory["out"]

    return in_schedules(attend)


def outside(q: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray, *, out: np.ndarray) -> None:
    """Attention that also writes the row behind its output."""
    out[...] = right(q, kv, ids, steps)
    assert isinstance(out.base, np.ndarray), "the output is a part of a larger array"
    out.base[-1] = 0


def scores_off(share: float) -> Callable[..., np.ndarray]:
    """Block scores whose error is ``share`` of the bound: of 13 roundings where exact is declared, else of a float
    kernel's."""

    def block_scores(q_idx: np.ndarray, index: Index, steps: np.ndarray) -> np.ndarray:
        def make() -> np.ndarray:
            out = reference_scores(q_idx, index, steps)
            for row, n_bid in enumerate(steps[:, 2].tolist()):
                keys = index.pooled[:n_bid]
                bound = 13 * 2.0**-24 if share < 0 else twin.score_bound(q_idx[row], keys, "float32")[0]
                out[row, :n_bid] += abs(share) * bound * twin.score_scale(q_idx[row], keys)
            return out

        return kept(("scores", share, steps.tobytes()), make).astype(np.float32)

    return block_scores


def keys_off(share: float, part: str = "pooled") -> Callable[..., Index]:
    """An index whose pooled keys are wrong by ``share`` of their bound; or whose ``tail`` or ``dead`` key is wrong."""

    def append_index(raw: np.ndarray, steps: np.ndarray, index: Index) -> Index:
        wide = Index(index.max_blocks, index.weight, dtype=np.float64)
        reference_append(raw, steps, wide)
        blocks = len(raw) // REAL.ratio

        def make() -> np.ndarray:
            truth = wide.pooled[:blocks]
            own = twin.relative_error(truth, twin.pooled_keys(raw[: blocks * REAL.ratio], index))
            bound = twin.FACTOR * own + twin.slack("float32")
            return truth * (1 + share * bound[:, None])

        index.pooled[:blocks] = kept(("keys", share), make)
        index.dead[:], index.tail[: len(raw) % REAL.ratio] = wide.dead, raw[blocks * REAL.ratio :]
        if part != "pooled":
            getattr(index, part)[...] *= np.float32(1.001)
        return index

    return append_index


def scales_off(factor: float) -> Callable[..., PagedKV]:
    """K and V stored with scales that are ``factor`` times the right ones."""

    def append_kv(k: np.ndarray, v: np.ndarray, kv: PagedKV, steps: np.ndarray) -> PagedKV:
        exact.append_kv(k, v, kv, steps)
        for side in (kv.pool.k, kv.pool.v):
            side.scale[...] = (side.scale.astype(np.float32) * np.float32(factor)).astype(np.float16)
        return kv

    return append_kv


def own_storage(share: float, error: float = 0.01, attend: str = "right") -> dict[str, Any]:
    """The functions of a kernel with own storage whose error is ``share`` of the declared ``error``; ``attend`` may
    ``write`` to the storage, or be that of the values ``given``."""

    def cache(capacity: int) -> dict[str, np.ndarray]:
        return {name: np.zeros((capacity, REAL.n_head_kv, REAL.head_dim), np.float64) for name in "kv"}

    def append(cache: Any, k: np.ndarray, v: np.ndarray, positions: np.ndarray) -> None:
        for name, values in zip("kv", (k, v), strict=True):
            cache[name][positions] = values.astype(np.float64) * (1 + share * error)

    def read(cache: Any, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return cache["k"][positions].astype(np.float32), cache["v"][positions].astype(np.float32)

    def run(q: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray) -> np.ndarray:
        out = np.empty(q.shape, np.float32)
        for row, width in enumerate(steps[:, 3].tolist()):
            k, v = (kv[name][ids[row, :width]].astype(np.float32).astype(np.float64) for name in "kv")
            s = np.einsum("ghd,ngd->ghn", q[row].reshape(REAL.n_head_kv, -1, REAL.head_dim), k) / 16
            p = np.exp(s - s.max(-1, keepdims=True))
            p /= p.sum(-1, keepdims=True)
            out[row] = np.einsum("ghn,ngd->ghd", p, v).reshape(q.shape[1:])
        if attend == "write":
            kv["v"][ids[0, 0]] *= 1.5
        return out

    return {"cache": cache, "append": append, "read": read, "attend": run}
