"""Goldens of verify windows over several slots: block scores, selected ids and attention of one batch window.

Every slot is a sequence of its own: raw indexer keys of its whole context, appended; int8 K/V in a pool of its own,
behind a page table of its own. Selections come out of the scores. Three blocks in four repeat one of 32 keys that the
rotation leaves alone, so that ties stand at the cut; the other blocks have keys of their own.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from qsa.reference import exact
from qsa.reference.geometry import REAL, RULES, step_records
from qsa.reference.index import Index
from qsa.reference.kv import read_kv

from .. import inputs
from ..case import CaseError
from ..keys import whole_context
from ..recipe import check
from ..record import Produced
from .attend import paged
from .block_scores import seen

WINDOWS = ((2, 1), (2, 2), (4, 2), (6, 1), (1, 4))
"""Slots and rows per slot of the windows of the verify-batch program."""

CONTEXTS = (1024, 16384, 65536)

MAX_ROWS = 8
"""Rows of a window over all slots (design section 2)."""

ALLOWED = {
    "slots": range(1, MAX_ROWS + 1),
    "rows": range(1, MAX_ROWS + 1),
    "context": range(256, 2**20 + 1),
    "rule": RULES,
    "seed": range(2**32),
}

APART = 13
"""Cells by which each slot's context is shorter than that of the slot before it: four slots have the four tails."""

REPEATED = 32
"""Keys that blocks share."""


class BatchWindow(NamedTuple):
    """The arguments of a batch window's operations; N rows, those of a slot one after the other.

    ``q_idx`` [N, 4, 128] and ``indexes``, one Index a slot, go to block_scores, slot by slot; ``scores`` [N, blocks] to
    select; ``q`` [N, 24, 256], ``kvs``, one PagedKV a slot, and ``ids`` [N, 2051] to attend; ``steps`` [N, 4] int32 and
    ``slots`` [N] int32 belong to all. ``scores`` and ``ids`` are the reference's, so that every operation stands for
    itself alone; behind a row's spare block the scores are +inf, and not to be read.
    """

    q_idx: np.ndarray
    indexes: list
    q: np.ndarray
    kvs: list
    steps: np.ndarray
    slots: np.ndarray
    rule: str
    scores: np.ndarray
    ids: np.ndarray


def slot_seed(seed, slot):
    """The seed of a slot's sequence."""
    return seed + (slot << 32)


def raw_keys(seed, cells):
    """Raw indexer keys float32 [cells, 128] of a sequence; see the top of this file."""
    blocks = -(-cells // REAL.ratio)
    own = inputs.uniform(seed, "verify_batch.raw", cells, REAL.idx_dim, 4.0)
    shared = inputs.uniform(seed, "verify_batch.repeated", REPEATED * REAL.ratio, REAL.idx_dim, 4.0)
    # Without rotated dims a key is the same at every position.
    shared[:, : REAL.n_rot] = 0
    which = inputs.integers(seed, "verify_batch.which", blocks, 1, REPEATED * 4 // 3)
    number = (which * REAL.ratio + np.arange(REAL.ratio)).reshape(-1)[:cells]
    repeated = number < len(shared)
    own[repeated] = shared[number[repeated]]
    return own


@lru_cache(maxsize=MAX_ROWS)
def index_of(seed, cells):
    """The Index of a sequence of ``cells`` cells; ``pooled`` behind the last complete block is NaN. Not to be changed:
    it is kept for other windows."""
    weight = 1 + inputs.uniform(seed, "verify_batch.weight", 1, REAL.idx_dim)[0]
    index = whole_context(raw_keys(seed, cells), Index(cells // REAL.ratio + 1, weight))
    index.pooled[cells // REAL.ratio :] = np.nan
    return index


def positions(recipe):
    """(positions [N], slots [N] int32) of the rows: the last cells of each slot's context."""
    slots = np.repeat(np.arange(recipe["slots"], dtype=np.int32), recipe["rows"])
    first = recipe["context"] - APART * slots - recipe["rows"]
    return first + np.tile(np.arange(recipe["rows"]), recipe["slots"]), slots


def batch_scores(compute, q_idx, indexes, steps, slots):
    """float32 [N, blocks]: the scores of a batch window, one call of ``compute.block_scores`` per slot; -inf behind
    every row's spare block."""
    out = np.full((len(q_idx), max(index.max_blocks for index in indexes)), -np.inf, np.float32)
    for slot, index in enumerate(indexes):
        mine = slots == slot
        out[mine, : index.max_blocks] = seen(compute.block_scores(q_idx[mine], index, steps[mine]), steps[mine])
    return out


@lru_cache(maxsize=2)
def _scored(slots, rows, context, seed):
    """(q_idx, indexes, scores) that the two rules share; the scores are the reference's."""
    at, slot = positions({"slots": slots, "rows": rows, "context": context})
    indexes = [index_of(slot_seed(seed, one), context - APART * one) for one in range(slots)]
    q_idx = inputs.bell(seed, "verify_batch.q_idx", len(at), REAL.idx_heads * REAL.idx_dim)
    q_idx = q_idx.reshape(-1, REAL.idx_heads, REAL.idx_dim)
    return q_idx, indexes, batch_scores(exact, q_idx, indexes, step_records(at), slot)


def make_inputs(recipe):
    """The :class:`BatchWindow` of ``recipe``: slots, rows (per slot), context, rule, seed.

    The last row of slot s sees context - 13 s cells. Only the K/V of cells that some row of the slot selects exists;
    everything else is not resident, or poison (``golden/families/attend.py``).

    Raises CaseError, naming the parameter, on a recipe outside :data:`ALLOWED` or with more than 8 rows in all.
    """
    check("verify_batch", recipe, ALLOWED)
    if recipe["slots"] * recipe["rows"] > MAX_ROWS:
        raise CaseError(f"verify_batch: slots = {recipe['slots']}, rows = {recipe['rows']}: at most {MAX_ROWS} in all")
    seed, rule = recipe["seed"], recipe["rule"]
    at, slots = positions(recipe)
    steps = step_records(at, rule)
    q_idx, indexes, scores = _scored(recipe["slots"], recipe["rows"], recipe["context"], seed)
    scores = np.where(np.arange(scores.shape[1]) <= steps[:, 2:3], scores, np.float32(np.inf))
    ids = exact.select(scores, steps, rule=rule)
    q = inputs.bell(seed, "verify_batch.q", len(at), REAL.n_head * REAL.head_dim, 2.0)
    w = BatchWindow(q_idx, indexes, q.reshape(-1, REAL.n_head, REAL.head_dim), [], steps, slots, rule, scores, ids)
    for slot in range(recipe["slots"]):
        layout = {"format": "int8", "page": 4, "seed": slot_seed(seed, slot)}
        w.kvs.append(paged(layout, selected(w, slot), recipe["context"] - APART * slot))
    return w


def selected(w, slot):
    """The cells int64 [n], ascending, that the rows of a slot select."""
    ids = w.ids[w.slots == slot]
    return np.unique(ids[ids >= 0]).astype(np.int64)


def input_arrays(w):
    """The inputs of a window by name, as they are hashed: index and selected K/V of all slots, one after the other."""
    cells = [read_kv(kv, selected(w, slot)) for slot, kv in enumerate(w.kvs)]
    return {
        "q_idx": w.q_idx,
        "pooled": np.concatenate([index.pooled for index in w.indexes]),
        "dead": np.stack([index.dead for index in w.indexes]),
        "q": w.q,
        "steps": w.steps,
        "slots": w.slots,
        **{
            name: np.concatenate([getattr(one, name) for one in cells])
            for name in ("k_codes", "k_scale", "v_codes", "v_scale")
        },
    }


def outputs(w, compute=exact):
    """What ``compute``, the operations of a backend, makes of a window: ``scores`` [N, blocks] float32 with -inf behind
    every row's spare block, ``ids`` [N, 2051] int32, ``attention`` [N, 24, 256] float32."""
    return {
        "scores": batch_scores(compute, w.q_idx, w.indexes, w.steps, w.slots),
        "ids": compute.select(w.scores, w.steps, rule=w.rule),
        "attention": compute.attend(w.q, w.kvs, w.ids, w.steps, w.slots),
    }


AXES = {"attention": 2}
"""Output -> leading axes that count its blocks, where they are not rows alone."""


def produce(recipe, compute=exact):
    """Inputs as :func:`input_arrays` has them; the three :func:`outputs`, a block per row (attention: row and head).

    ``compute`` is an object with ``block_scores``, ``select`` and ``attend``.
    """
    w = make_inputs(recipe)
    return Produced(input_arrays(w), outputs(w, compute), AXES)


def grid():
    """The 15 windows of the verify-batch program under both rules."""
    for context in CONTEXTS:
        for slots, rows in WINDOWS:
            for rule in RULES:
                yield {"slots": slots, "rows": rows, "context": context, "rule": rule, "seed": 7}
