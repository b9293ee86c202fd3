"""Block scores under every circumstance: the operation ``score_cover`` of the module ``accuracy``.

A covering design (``covering.py``) of keys, blocks, rows, tail, unused rows, schedule and index format. The score of an
unused row has no meaning and is not compared; its query is NaN, which no other row may see.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from qsa.golden import inputs
from qsa.kernels.ops import OPERATIONS
from qsa.reference import exact
from qsa.reference.geometry import REAL, step_records
from qsa.reference.index import Index

from ...backend import Backend, UnsupportedError
from ...compare.comparison import Comparison, equal
from ..index_operations import INDEX_FORMAT, corner_row, formats, named, score_row
from . import code_limits
from .attention_cover import ROWS, SEEDS, UNUSED, offered
from .covering import cover

KEYS = ("ordinary", "dead", "subnormal", "special", "tiny_query", "sizes")
"""``dead``: the dead key is 2^24 times as large, so that its score is seen beside the bonus of 1e9; ``subnormal``:
every key wholly; ``special``: NaN, infinities, 0 among the keys; ``tiny_query``: products near the end of float32;
``sizes``: keys from 2^-11 to 2^11 of the ordinary size, as exponents of encoded keys must follow."""

LIMITS = "limits"
"""Keys and queries at the limits of their codes (``code_limits.py``)."""

ENCODED_KEYS = ("sizes", "special", "tiny_query", LIMITS)
"""Kinds that every schedule meets in an index of encoded keys, besides the design: what is particular to codes and
exponents shows in these, and the design needs each but in one schedule, maybe without a block."""

BLOCKS = (3, 0, 1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 500, 1023, 1025)

SCORE_COVER: dict[str, Any] = {
    "keys": (*KEYS, LIMITS),
    "blocks": range(2**18),
    "rows": ROWS,
    "tail": tuple(range(REAL.ratio)),
    "unused": UNUSED,
    "schedule": (None, *OPERATIONS["block_scores"].schedules),
    "index_format": INDEX_FORMAT,
    "seed": SEEDS,
}
"""Parameters of ``score_cover`` and their values."""


def cases(backend: Backend | None = None) -> Iterator[dict[str, Any]]:
    """The recipes of ``score_cover`` within what ``backend`` declares."""
    if backend is not None and backend.own_index:
        return
    schedules = offered(backend, "block_scores")
    domain = None if backend is None else backend.declaration.domain
    values = {
        "keys": tuple(k for k in KEYS if k != "special" or domain is None or (domain.nan and domain.infinity)),
        "blocks": BLOCKS,
        "rows": ROWS,
        "tail": tuple(range(REAL.ratio)),
        "unused": UNUSED if domain is None or domain.unused_rows else ("none",),
        "schedule": schedules,
    }
    if len(formats(backend)) > 1:
        values["index_format"] = formats(backend)
    for number, case in enumerate(cover(values, _together)):
        schedule, format = case.pop("schedule"), case.pop("index_format", "fp32")
        schedule_named = {"schedule": schedule} if len(schedules) > 1 else {}
        yield {"op": "score_cover", **case, **schedule_named, **named(format), "seed": 31 + number}
    for format in formats(backend)[1:]:
        for kind in ENCODED_KEYS:
            # The dead key is NaN among special ones.
            seed = 33 if kind == "special" else 31
            if kind != "special" or kind in values["keys"]:
                for number, schedule in enumerate(schedules):
                    shape: dict[str, Any] = {"blocks": 65, "rows": 9, "tail": number % REAL.ratio, "unused": "none"}
                    schedule_named = {"schedule": schedule} if len(schedules) > 1 else {}
                    yield {"op": "score_cover", "keys": kind, **shape, **schedule_named, **named(format), "seed": seed}


def _together(case: Any) -> bool:
    """A context has a cell, and some row is used."""
    return bool(
        (case.get("blocks", 1) or case.get("tail", 1))
        and (case.get("rows", 2) > 1 or case.get("unused", "none") == "none")
    )


def arguments(backend: Backend, recipe: dict[str, Any]) -> tuple[np.ndarray, Index, np.ndarray]:
    """(q_idx [rows, heads, dim] float32, index, steps [rows, 4])."""
    rows, seed, kind, dim = recipe["rows"], recipe["seed"], recipe["keys"], REAL.idx_dim
    end = recipe["blocks"] * REAL.ratio + recipe["tail"]
    positions = np.maximum(end - rows + np.arange(rows), 0)
    if kind == "dead":
        # No bonus, which would hide it, for every other row; the others have it.
        positions = np.maximum(end - rows + np.arange(rows) - np.arange(rows) % 2, 0)
    q = inputs.bell(seed, "score_cover.q", rows, REAL.idx_heads * dim, 2.0**-100 if kind == "tiny_query" else 1.0)
    if kind == LIMITS:
        # Every row has another kind in each head.
        q = code_limits.vectors(np.arange(rows * REAL.idx_heads), q.reshape(-1, dim))
    q = backend.rounded("index_query", q.reshape(rows, REAL.idx_heads, dim))
    if recipe["unused"] != "none":
        unused = {"first": 0, "middle": rows // 2, "last": rows - 1}[recipe["unused"]]
        positions[unused], q[unused] = -1, np.nan
    index = Index(recipe["blocks"] + 2, np.ones(dim, np.float32), format=recipe.get("index_format", "fp32"))
    scale = {"subnormal": 2.0**-140, "tiny_query": 2.0**-40}.get(kind, 1.0)
    keys = inputs.bell(seed, "score_cover.pooled", index.max_blocks, dim, scale)
    dead = inputs.bell(seed, "score_cover.dead", 1, dim, 2.0**24 if kind == "dead" else scale)[0]
    if kind == LIMITS:
        keys, dead = (
            code_limits.vectors(np.arange(len(keys)), keys),
            code_limits.vectors(np.zeros(1, int), dead[None])[0],
        )
    if kind == "sizes":
        keys *= np.float32(2) ** (np.arange(len(keys)) * 5 % 23 - 11)[:, None].astype(np.float32)
    if kind == "special":
        for block in range(0, recipe["blocks"], 3):
            keys[block, block % dim] = (np.nan, np.inf, -np.inf)[block // 3 % 3]
            keys[block + 1] = (0.0, -0.0)[block % 2]
        if seed % 3 == 0:
            dead[7] = np.nan
    else:
        # No row may see a key behind the blocks of the last one: the dead key stands there.
        keys[recipe["blocks"] :] = np.nan
    index.set_pooled(slice(None), keys)
    index.set_dead(dead)
    return q, index, step_records(positions)


def check(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """The comparisons of one case, a row each in the float arithmetic."""
    q, index, steps = arguments(backend, recipe)
    got = backend.block_scores(q, index, steps, schedule=recipe.get("schedule"))
    used = np.flatnonzero(steps[:, 0] >= 0)
    if backend.arithmetic == "exact":
        seen = (np.arange(got.shape[1]) <= steps[:, 2:3]) & (steps[:, :1] >= 0)
        right = exact.block_scores(q, index, steps)
        if got.shape != right.shape:
            return [equal("block_scores", right, got, ("row", "block"))]
        right, got = np.where(seen, right, 0), np.where(seen, got, 0)
        return [equal("block_scores", right, got, ("row", "block"), "one tree, whatever the schedule")]
    found = []
    for row in used:
        step = steps[row].tolist()
        if not step[2] and not backend.declaration.tail_score:
            continue
        if recipe["keys"] == "special":
            found.append(corner_row(backend, q[row], index, step, got[row], int(row)))
        else:
            found.append(score_row(backend, f"block_scores: row {row}", q[row], index, step, got[row]))
    if not found:
        raise UnsupportedError("block_scores: no complete block, and the tail's score is not declared (tail_score)")
    return found
