"""Goldens of exact attention: rows of one window over cells of a paged context of up to a million.

Only cells that some row selects are made. Their pages lie shuffled in a small pool; every other logical page is not
resident. Cells of a resident page that no row selects hold codes at the limit and NaN scales, so that a kernel which
uses them shows it.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from qsa.reference.exact import attend
from qsa.reference.formats import EXACT_FORMATS, pack_nibbles
from qsa.reference.geometry import REAL, RULES
from qsa.reference.kv import PagedKV, read_kv

from .. import inputs
from ..recipe import CONTEXTS, ROWS, TAILS, Recipe, check, window
from ..record import Produced

PAGES = (1, 4, 64, 512)

ALLOWED = {
    "format": EXACT_FORMATS,
    "context": range(4 * REAL.ratio, 2**24 + 1),
    "rows": range(1, 9),
    "tail": TAILS,
    "rule": RULES,
    "page": PAGES,
    "queries": (None, "full"),
    "seed": range(2**63),
}

ODD = np.float32(float.fromhex("0x1.f5c28ep-1"))
"""A factor of 24 significant bits, near 1: what it multiplies has 24 bits too, rounded once."""

_COMMON = REAL.top_blocks + 128
"""Blocks from which the rows of a window choose: they share most of a selection, as rows of a real window do."""


def selection(recipe: Recipe, steps: np.ndarray) -> np.ndarray:
    """Cells int32 [rows, 2051] that the rows select, ascending, then -1: random blocks and the row's tail.

    The rule ``cells`` cuts the last block, as in ``reference.select``.
    """
    seed, ratio = recipe["seed"], REAL.ratio
    # Blocks that are complete for the first row are so for all rows.
    complete = int(steps[0, 2])
    common = inputs.permutation(seed, "attend.blocks", complete)[:_COMMON]
    ids = np.full((len(steps), REAL.max_width), -1, np.int32)
    for row, (_, n_kv, n_bid, width) in enumerate(steps.tolist()):
        own = inputs.permutation(seed, f"attend.row{row}", len(common))
        # The blocks which later rows have besides: at a short context a row selects all it has.
        blocks = np.concatenate([np.arange(complete, n_bid), common[own]])
        wanted = width - n_kv % ratio
        cells = (blocks[:, None] * ratio + np.arange(ratio)).ravel()[:wanted]
        ids[row, :width] = np.sort(np.concatenate([cells, np.arange(n_bid * ratio, n_kv)]))
    return ids


def _codes_and_scales(seed: int, side: str, coding: str, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes [n, heads, x] and scales [n, heads, groups] of ``cells`` in one coding, as a pool stores them."""
    shape = (len(cells), REAL.n_head_kv, -1)
    dims = REAL.n_head_kv * REAL.head_dim
    if coding == "int8":
        codes = inputs.int8_codes(seed, f"attend.{side}.int8", cells, dims).reshape(shape)
        scale = inputs.fp16_scales(seed, f"attend.{side}.int8.scale", cells, dims // 64)
    else:
        codes = pack_nibbles(inputs.q4_codes(seed, f"attend.{side}.q4_0", cells, dims).reshape(shape))
        # Wider and of both signs, as q4_0 scales are.
        scale = inputs.fp16_scales(seed, f"attend.{side}.q4_0.scale", cells, dims // 32, -6, -1, signed=True)
    return codes, scale.reshape(shape)


def paged(recipe: Recipe, cells: np.ndarray, capacity: int) -> PagedKV:
    """A PagedKV of ``capacity`` logical cells in which the pages of ``cells`` [n] alone are resident, shuffled."""
    page = recipe["page"]
    logical = np.unique(cells // page)
    table = np.full(-(-capacity // page), -1, np.int32)
    table[logical] = inputs.permutation(recipe["seed"], "attend.pages", len(logical))
    kv = PagedKV.new(recipe["format"], capacity, page, table=table)
    physical, offset = kv.locate(cells)
    for name, side in (("k", kv.pool.k), ("v", kv.pool.v)):
        side.codes[:] = 127 if side.coding == "int8" else 0xFF
        side.scale[:] = np.nan
        side.codes[physical, :, offset], side.scale[physical, :, offset] = _codes_and_scales(
            recipe["seed"], name, side.coding, cells
        )
    return kv


def make_inputs(recipe: Recipe) -> dict[str, Any]:
    """The arguments of ``attend`` that ``recipe`` stands for: dict of ``q`` [rows, 24, 256] float32, ``kv`` a PagedKV,
    ``ids`` [rows, 2051] int32, ``steps`` [rows, 4] int32.

    recipe  format, context, rows, tail, rule, page, seed: the last row sees context + tail cells. Queries are
            bell-shaped with deviation 2.3, which makes scores of deviation 2 and a moderately peaked softmax. They have
            18 bits, which fixed point of 22 bits holds as they are; ``queries`` ``full`` gives them 24.

    Raises CaseError, naming the parameter, on a recipe outside :data:`ALLOWED`.
    """
    check("attend", recipe, ALLOWED)
    steps = window(recipe)
    ids = selection(recipe, steps)
    cells = np.unique(ids[ids >= 0]).astype(np.int64)
    q = inputs.bell(recipe["seed"], "attend.q", recipe["rows"], REAL.n_head * REAL.head_dim, 2.0)
    q = q * ODD if recipe.get("queries") == "full" else q
    kv = paged(recipe, cells, recipe["context"] + recipe["tail"])
    return {"q": q.reshape(-1, REAL.n_head, REAL.head_dim), "kv": kv, "ids": ids, "steps": steps}


def produce(recipe: Recipe, compute: Callable[..., Any] = attend) -> Produced:
    """Inputs as logical cells, so that their hashes know nothing of pages; output ``out``, a block per row and head.

    ``compute`` takes the values of :func:`make_inputs` by name and gives float32 [rows, 24, 256].
    """
    given = make_inputs(recipe)
    cells = read_kv(given["kv"], np.unique(given["ids"][given["ids"] >= 0]))
    hashed = {
        "q": given["q"],
        "ids": given["ids"],
        "steps": given["steps"],
        **{name: getattr(cells, name) for name in ("k_codes", "k_scale", "v_codes", "v_scale")},
    }
    return Produced(hashed, {"out": compute(**given)}, {"out": 2})


def grid() -> Iterator[dict[str, Any]]:
    """Recipes in which every pair of values of context, rows, tail, format and rule occurs, and one of each format with
    full queries.

    The page size follows the context: few cells of a large page are selected in a long one, and all of the page would
    have to be held.
    """
    pages = {1024: (512, 64, 4, 1), 16384: (4, 1, 64, 4), 65536: (1, 4, 4, 4), 1048576: (4, 4, 1, 4)}
    for i, context in enumerate(CONTEXTS):
        for j, tail in enumerate(TAILS):
            yield {
                "format": EXACT_FORMATS[(i + j) % 3],
                "context": context,
                "rows": ROWS[(i + 2 * j) % 3],
                "tail": tail,
                "rule": RULES[(i // 2 + j) % 2],
                "page": pages[context][j],
                "seed": 7,
            }
    for i, format in enumerate(EXACT_FORMATS):
        yield {
            "format": format,
            "context": CONTEXTS[i],
            "rows": ROWS[-1 - i],
            "tail": TAILS[1 + i],
            "rule": RULES[i % 2],
            "page": 4,
            "queries": "full",
            "seed": 7,
        }
