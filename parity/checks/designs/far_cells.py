"""Cells far out: the operation ``far`` of the module ``pages``.

Attention to a few cells whose physical pages lie at the end of a large pool, and to cells at the end of a long context:
numbers that are too narrow for a page, a cell or an offset show.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from qsa.golden import inputs
from qsa.reference.formats import EXACT_FORMATS
from qsa.reference.geometry import REAL, step_records
from qsa.reference.kv import PagedKV, Pool, encode

from ...backend import Backend
from ...compare.comparison import Comparison
from .. import attend_inputs as data
from .attention_cover import SEEDS, OneSlot
from .changed_contents import judged

FAR: dict[str, Any] = {
    "format": data.FORMATS,
    "page": (1, 4, 64),
    "cells": tuple(2**power for power in (16, 17, 18, 19, 20, 21, 22, 24)),
    "where": ("pool", "context"),
    "seed": SEEDS,
}
"""Parameters of ``far``; ``cells``: how far out, in the physical pool or in the context."""


def cases(arithmetic: str, backend: Backend | None = None) -> Iterator[dict[str, Any]]:
    """The recipes of ``far`` within what ``backend`` declares."""
    if backend is not None and backend.own_storage:
        return
    formats = EXACT_FORMATS if arithmetic == "exact" else data.FORMATS
    for number, (page, cells) in enumerate(((1, 2**16), (4, 2**17), (64, 2**17))):
        yield {"op": "far", "format": formats[number], "page": page, "cells": cells, "where": "pool", "seed": 62}
    for number, power in enumerate((17, 18, 19, 20, 21, 22, 24)):
        format = formats[number % len(formats)]
        yield {"op": "far", "format": format, "page": 4, "cells": 2**power, "where": "context", "seed": 62}


def more_cases(arithmetic: str) -> Iterator[dict[str, Any]]:
    """Pools of up to 2 GiB: q4_0, the smallest."""
    for page, power in ((4, 18), (4, 19), (4, 20), (4, 21)):
        yield {"op": "far", "format": "q4_0", "page": page, "cells": 2**power, "where": "pool", "seed": 62}


def far(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """Attention over 40 cells of which half lie far out, and an append there."""
    page, cells, seed = recipe["page"], recipe["cells"], recipe["seed"]
    n, dims = 40, REAL.n_head_kv * REAL.head_dim
    k, v = (inputs.bell(seed, f"far.{side}", n, dims).reshape(n, REAL.n_head_kv, -1) for side in "kv")
    pages = -(-n // page)
    if recipe["where"] == "pool":
        pool = Pool(recipe["format"], cells // page + pages + 1, page)
        # The pages in turn at either side of the limit, and at the start, where a narrow number would lead.
        table = (cells // page + np.arange(pages) - pages // 2).astype(np.int32)
        kv, chosen = PagedKV(pool, table), np.arange(n)
        steps = step_records(np.array([n - 1, n - 2]))
    else:
        chosen = cells - n // 2 + np.arange(n)
        table = np.full(-(-(int(chosen[-1]) + 1) // page), -1, np.int32)
        logical = np.unique(chosen // page)
        table[logical] = np.arange(len(logical))[::-1]
        kv = PagedKV(Pool(recipe["format"], len(logical), page), table)
        # As the rule selects them: few cells of a long context. Absent ids fill the row up.
        steps = step_records(np.array([int(chosen[-1])] * 2))
    physical, at = kv.locate(chosen)
    for side, x in ((kv.pool.k, k), (kv.pool.v, v)):
        codes, scale = encode(x, side.coding)
        side.codes[physical, :, at], side.scale[physical, :, at] = codes, scale
    ids = np.full((2, REAL.max_width), -1, np.int32)
    for row, width in enumerate(steps[:, 3].tolist()):
        count = min(n, width)
        ids[row, width - count : width] = chosen[:count]
    w = OneSlot(data.queries(2, seed), kv, ids, steps)._replace(q=backend.rounded("query", data.queries(2, seed)))
    got = backend.attend(w.q, w.kv, w.ids, w.steps)
    # The same cells in a small pool: truth need not hash a large one.
    small = PagedKV(
        Pool(recipe["format"], len(table[table >= 0]), page), np.where(table >= 0, np.cumsum(table >= 0) - 1, -1)
    )
    to, from_ = small.table[small.table >= 0], table[table >= 0]
    for ours, theirs in ((small.pool.k, kv.pool.k), (small.pool.v, kv.pool.v)):
        ours.codes[to], ours.scale[to] = theirs.codes[from_], theirs.scale[from_]
    return [judged(backend, f"attend: {recipe['where']}, cells at {cells}", w._replace(kv=small), got)]
