"""The same arrays of an index again with other contents: ``block_scores`` and ``append_index`` of the operation
``again`` (``changed_contents.py``), of plain and of encoded keys."""

from typing import Any

import numpy as np

from qsa.golden import inputs
from qsa.reference import exact
from qsa.reference.append_index import append_index as reference_index
from qsa.reference.geometry import REAL, step_records
from qsa.reference.index import Index

from ...backend import Backend
from ...compare.comparison import Comparison, equal
from ..index_operations import score_row
from .append_cover import same_index

ARGUMENTS = {
    "block_scores": ("q_idx", "pooled", "dead", "steps"),
    "append_index": ("raw", "steps", "weight", "rope"),
}
"""Operation -> the arguments that are changed between two calls."""

ENCODED = {
    **ARGUMENTS,
    "block_scores": ("q_idx", "pooled", "pooled_exponent", "dead", "dead_exponent", "steps"),
}
"""The same for an index of encoded keys."""

CALLS = ("first call", "after a change", "after one element changed")


def scores(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """Every call of ``block_scores`` against truth."""
    name, seed, rows, blocks, dim = recipe["argument"], recipe["seed"], 2, 40, REAL.idx_dim
    q = inputs.bell(seed, "again.q", rows, REAL.idx_heads * dim).reshape(rows, REAL.idx_heads, dim)
    q = backend.rounded("index_query", q)
    index = Index(blocks + 1, np.ones(dim, np.float32), format=recipe.get("index_format", "fp32"))
    index.set_pooled(slice(None), inputs.bell(seed, "again.pooled", blocks + 1, dim))
    index.set_dead(inputs.bell(seed, "again.dead", 1, dim)[0])
    # No tail: the score of the dead key is seen without its bonus.
    steps = step_records(np.array([blocks * REAL.ratio - 1, blocks * 2 - 1]))
    random, found = np.random.default_rng(seed), []
    for text in CALLS:
        got = backend.block_scores(q, index, steps)
        right = exact.block_scores(q, index, steps)
        for row, step in enumerate(steps.tolist()):
            label = f"block_scores: {name}, {text}, row {row}"
            if backend.arithmetic == "exact":
                found.append(equal(label, right[row, : step[2] + 1], got[row, : step[2] + 1], ("block",)))
            else:
                found.append(score_row(backend, label, q[row], index, step, got[row]))
        if text != CALLS[0]:
            row, block, dims = (int(random.integers(n)) for n in (rows, blocks // 4, dim))
            if name == "q_idx":
                q[row, random.integers(REAL.idx_heads), dims] += 4
            elif name == "steps":
                steps[row] = step_records(np.array([blocks * 3 + block * 4 - 1]))[0]
            elif name.endswith("_exponent"):
                array = getattr(index, name)
                array[block % len(array)] += 1
            elif index.format == "int16":
                # Two neighbours change places: no code becomes larger than one may be.
                keys = getattr(index, name).reshape(-1, dim)
                codes = keys[block % len(keys)]
                dims = int(random.choice(np.flatnonzero(codes[:-1] != codes[1:])))
                codes[[dims, dims + 1]] = codes[[dims + 1, dims]]
            else:
                array = getattr(index, name).reshape(-1, dim)
                array[block if len(array) > 1 else 0, dims] += 4
        elif name == "q_idx":
            q[:] = q[:, ::-1].copy() * np.float32(2)
        elif name == "steps":
            steps[:] = steps[::-1].copy()
        elif name.endswith("_exponent"):
            array = getattr(index, name)
            array += 1 + np.arange(len(array), dtype=array.dtype) % 3
        else:
            array = getattr(index, name)
            array[:] = np.roll(array, 3, axis=0)
    return found


def append(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """Every call of ``append_index`` against truth."""
    name, rows, seed = recipe["argument"], 9, recipe["seed"]
    exactly = backend.arithmetic == "exact"
    raw = backend.rounded("raw_keys", inputs.bell(seed, "again.raw", rows, REAL.idx_dim))
    weight = 1 + inputs.uniform(seed, "again.weight", 1, REAL.idx_dim)[0]
    format = recipe.get("index_format", "fp32")
    index = Index(12, weight, format=format)
    # The truth of a float kernel's encoded keys are the keys themselves.
    right = Index(12, weight, format=format) if exactly else Index(12, weight, dtype=np.float64)
    steps, random, found = step_records(np.arange(rows)), np.random.default_rng(seed), []
    for text in CALLS:
        (exact.append_index if exactly else reference_index)(raw, steps, right)
        index = backend.append_index(raw, steps, index)
        found += same_index(f"{name}, {text}", right, index, exactly, int(steps[-1, 1]) % REAL.ratio)
        if text != CALLS[0]:
            row, dim = int(random.integers(rows - 1)), int(random.integers(REAL.idx_dim))
            if name == "raw":
                raw[row, dim] += 9
            elif name == "steps":
                steps[:] = step_records(np.arange(24 + row % 4, 24 + row % 4 + rows))
            else:
                for each in (right, index):
                    getattr(each, name)[..., dim % getattr(each, name).shape[-1]] *= 3
        elif name == "raw":
            raw[:] = raw[::-1].copy()
        elif name == "steps":
            steps[:] = step_records(np.arange(20, 20 + rows))
        else:
            for each in (right, index):
                array = getattr(each, name)
                array[:] = np.roll(array, 5, axis=-1)
    return found
