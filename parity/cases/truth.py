"""The float64 truth of a call, and the bounds of ``compare/twin.py`` on what a kernel may give: what an engine needs to
compare for itself. The verdict is that of the suite's checks, which make both again."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from qsa.reference.block_scores import TAIL_BONUS
from qsa.reference.geometry import REAL

from ..compare import twin
from .reference import Reference, pools


class Truth(NamedTuple):
    """``values`` float64, ``bound`` float64, and in words what is held to the bound."""

    values: np.ndarray
    bound: np.ndarray
    measure: str


VECTOR = "KEY.bound [rows, 1]: |got - KEY.truth| / |KEY.truth| of every head of a row, norms over the last axis"
SCORE = "KEY.bound [rows, blocks]: |got - KEY.truth| of every score; NaN where nothing is held"


def truth(operation: str, arguments: dict[str, Any], reference: Reference) -> dict[str, Truth]:
    """Name of an output -> its :class:`Truth`; empty where only the suite's checks say what is right."""
    if operation == "attend":
        return {"out": _attend(reference, **{k: v for k, v in arguments.items() if k not in ("schedule", "splits")})}
    if operation == "block_scores":
        return {"scores": _scores(reference, arguments["q_idx"], arguments["index"], arguments["steps"])}
    return {}


def _attend(
    reference: Reference, q: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray, slots: Any = None
) -> Truth:
    q, cells = q.astype(np.float32), reference.cells(ids, steps)
    values = reference.attention(q, kv, cells, steps, slots).astype(np.float64)
    bound = np.zeros((len(q), 1))
    slots = np.zeros(len(q), np.int32) if slots is None else slots
    held = pools(kv if isinstance(kv, list) else [kv])
    for slot in np.unique(slots):
        rows = slots == slot
        own = SimpleNamespace(q=q[rows], kv=held[slot], ids=cells[rows], steps=steps[rows])
        bound[rows], _ = twin.attention_bound(own, values[rows], reference.declaration.types)
    return Truth(values, bound, VECTOR)


def _scores(reference: Reference, q_idx: np.ndarray, index: Any, steps: np.ndarray) -> Truth:
    index = reference.index(index) if hasattr(index, "values") else index
    q = q_idx.astype(np.float64)
    values = np.zeros((len(q), index.max_blocks))
    bound = np.full(values.shape, np.nan)
    for row, (_, n_kv, n_bid, _) in enumerate(steps.tolist()):
        tail = reference.declaration.tail_score
        keys = index.pooled_values(slice(n_bid))
        keys = np.concatenate([keys, index.dead_values()[None]]) if tail else keys
        with np.errstate(invalid="ignore"):
            dots = keys @ q[row].T
        plain = np.isfinite(keys).all(axis=1)
        own, _ = twin.score_bound(q_idx[row], keys[plain], reference.declaration.types.index_scores)
        scale = twin.score_scale(q_idx[row], keys[plain])
        values[row, : len(keys)] = np.where(dots <= 0, 0, dots).sum(axis=1)
        if tail and n_kv % REAL.ratio:
            values[row, n_bid] += TAIL_BONUS
            scale[-1] += abs(values[row, n_bid])
        relative = own + twin.query_bound(q_idx[row], keys[plain], scale) if index.format == "int16" else own
        bound[row, : len(keys)][plain] = relative * scale
    return Truth(values, bound, SCORE)
