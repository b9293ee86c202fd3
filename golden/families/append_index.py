"""Goldens of the indexer's append: raw keys into tail, dead key and pooled keys, around the borders of blocks.

The index holds its cells already; what an append must not read or write is NaN beforehand, or where it is encoded has
codes and exponents that no key has together.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from qsa.reference.exact import append_index
from qsa.reference.geometry import REAL, step_records
from qsa.reference.index import INDEX_FORMATS, Index
from qsa.reference.key_codes import NOT_FINITE

from .. import inputs
from ..keys import whole_context
from ..recipe import CONTEXTS, ROWS, TAILS, Recipe, check
from ..record import Produced

SCHEDULES = ("window", "step")

NO_CODE = 32767
"""Larger than every code of a key: what lies in an encoded index before anything is written."""

ALLOWED = {
    "schedule": SCHEDULES,
    "context": range(2**24 + 1),
    "rows": range(1, 9),
    "tail": TAILS,
    "index_format": (None, *INDEX_FORMATS[1:]),
    "seed": range(2**63),
}


def make_inputs(recipe: Recipe) -> dict[str, Any]:
    """The arguments of ``append_index``: dict of ``raw`` [rows, 128] float32, ``steps`` [rows, 4] int32, ``index``.

    recipe  schedule, context, rows, tail, seed: the index holds ``context`` cells (cut to whole blocks) and ``tail``
            open ones; the rows are the next cells. All of ``pooled`` is NaN, or NO_CODE: an append reads none of it.
            ``index_format`` is fp32 where it is missing.

    Raises CaseError, naming the parameter, on a recipe outside :data:`ALLOWED`.
    """
    check("append_index", recipe, ALLOWED)
    seed, tail, rows = recipe["seed"], recipe["tail"], recipe["rows"]
    complete = recipe["context"] // REAL.ratio
    start = complete * REAL.ratio + tail
    weight = 1 + inputs.uniform(seed, "append_index.weight", 1, REAL.idx_dim)[0]
    index = Index((start + rows) // REAL.ratio + 1, weight, format=recipe.get("index_format", "fp32"))
    index.tail[:] = np.nan
    if index.pooled_exponent is None or index.dead_exponent is None:
        index.pooled[:] = index.dead[:] = np.nan
    else:
        index.pooled[:] = index.dead[:] = NO_CODE
        index.pooled_exponent[:] = index.dead_exponent[:] = NOT_FINITE
    raw = inputs.bell(seed, "append_index.raw", np.arange(start - tail, start + rows), REAL.idx_dim)
    index.tail[:tail] = raw[:tail]
    if start:
        first = inputs.bell(seed, "append_index.raw", 1, REAL.idx_dim)
        index.set_dead(whole_context(first, Index(1, weight)).dead)
    return {"raw": raw[tail:], "steps": step_records(np.arange(start, start + rows)), "index": index}


def produce(recipe: Recipe, compute: Callable[..., Any] = append_index) -> Produced:
    """Inputs ``raw``, ``steps``, ``tail``, ``dead``, ``weight``. Outputs ``tail`` [3, 128] float32 (0 where there is no
    open cell), ``dead`` [128], ``pooled`` [n, 128], the blocks that were completed, and ``written`` [n] int64, the
    numbers of all blocks that are no longer what they were. Encoded keys have ``dead_exponent`` [1] and
    ``pooled_exponent`` [n] beside them, int16.

    ``compute`` takes the values of :func:`make_inputs` by name, at once or (schedule ``step``) row by row, and gives
    True or the Index that it wrote.
    """
    given = make_inputs(recipe)
    raw, steps, index = given.values()
    hashed = {"raw": raw, "steps": steps, "tail": index.tail.copy(), "dead": index.dead.copy(), "weight": index.weight}
    if index.dead_exponent is not None:
        hashed["dead_exponent"] = index.dead_exponent.copy()
    each = len(raw) if recipe["schedule"] == "window" else 1
    for row in range(0, len(raw), each):
        written = compute(raw=raw[row : row + each], steps=steps[row : row + each], index=index)
        index = index if written is True else written
    end = int(steps[-1, 1])
    cell = np.arange(len(index.tail))[:, None]
    complete = slice(int(steps[0, 0]) // REAL.ratio, end // REAL.ratio)
    outputs = {
        # Behind the open cells the tail may keep keys of the block before: they have no meaning.
        "tail": np.where(cell < end % REAL.ratio, index.tail, np.float32(0)),
        "dead": index.dead,
        "pooled": index.pooled[complete],
    }
    if index.pooled_exponent is None:
        outputs["written"] = np.flatnonzero(~np.isnan(index.pooled).all(axis=1))
    else:
        kept = (index.pooled == NO_CODE).all(axis=1) & (index.pooled_exponent == NOT_FINITE)
        outputs["written"] = np.flatnonzero(~kept)
        outputs |= {"dead_exponent": index.dead_exponent, "pooled_exponent": index.pooled_exponent[complete]}
    return Produced(hashed, outputs, {})


def grid() -> Iterator[dict[str, Any]]:
    """Recipes in which every pair of values of schedule, context, rows and tail occurs, in each index format; at
    context 0 without a tail the dead key is made."""
    for format in INDEX_FORMATS:
        for i, context in enumerate((0, *CONTEXTS)):
            for j, tail in enumerate(TAILS):
                yield {
                    "schedule": SCHEDULES[(i + j // 2) % 2],
                    "context": context,
                    "rows": ROWS[(i + 2 * j) % 3],
                    "tail": tail,
                    **({} if format == "fp32" else {"index_format": format}),
                    "seed": 7,
                }
