"""``selection``: the selected cells under both rules, and the indexer from raw keys to cells.

In the exact arithmetic ``select`` is held to the one right answer, byte for byte; ids of a float backend are sets with
multiplicity, and the tie policy is the one that it declares. Every difference is put in a class (``margins.py``).
``indexer`` is in a file of its own (``indexer.py``).
"""

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from qsa.golden.families import select as family
from qsa.kernels.ops import WINDOW_ROWS
from qsa.reference.geometry import REAL, RULES, step_records
from qsa.reference.select import select

from ..backend import Backend
from ..compare.comparison import Comparison
from ..contract import NUMBER_TYPES
from . import index_operations, indexer, real_scores
from .designs import selection_cover
from .selected import ids_comparison

OPERATIONS = {
    "select": family.ALLOWED,
    "unused": family.ALLOWED,
    "cut": selection_cover.CUT,
    "indexer": {
        "rule": RULES,
        "context": range(2**17 + 1),
        "rows": range(1, WINDOW_ROWS + 1),
        "tail": range(REAL.ratio),
        "index_format": index_operations.INDEX_FORMAT,
        "seed": range(2**63),
        "keys": (None, *real_scores.KEYS),
    },
    "crowded": {**family.ALLOWED, "scores": real_scores.KINDS},
}


def cases(arithmetic: str, backend: Backend | None = None) -> Iterator[dict[str, Any]]:
    """The recipes of every case, in order; selection is the same in both arithmetics."""
    for rule in RULES:
        # n_kv 2047 to 2060: around the width at which the rules part.
        for n_kv in range(2047, 2061):
            kind = family.SCORES[n_kv % 4]
            yield dict(op="select", rule=rule, scores=kind, context=n_kv - n_kv % 4, rows=1, tail=n_kv % 4, seed=1)
        for kind in family.SCORES:
            for context, rows, tail in ((16, 2, 3), (2048, 4, 0), (8192, 8, 1), (131072, 4, 2)):
                yield dict(op="select", rule=rule, scores=kind, context=context, rows=rows, tail=tail, seed=2)
            yield dict(op="select", rule=rule, scores=kind, context=1048576, rows=1, tail=3, seed=3)
        # Either side of 135,168 cells, which some kernels hold in registers, and of 2^18 blocks.
        for context, tail in ((135168, 0), (135168, 1), (160000, 2), (1200000, 1)):
            yield dict(op="select", rule=rule, scores=family.SCORES[0], context=context, rows=1, tail=tail, seed=5)
        for context, rows in ((64, 3), (8192, 8)):
            yield dict(op="unused", rule=rule, scores=family.SCORES[0], context=context, rows=rows, tail=1, seed=6)
        for context, rows, tail in ((8, 2, 2), (2048, 3, 1), (8192, 4, 3)):
            yield dict(op="indexer", rule=rule, context=context, rows=rows, tail=tail, seed=4)
        for number, keys in enumerate(real_scores.KEYS):
            yield dict(op="indexer", rule=rule, context=4096, rows=2, tail=number, seed=7, keys=keys)
        for format in index_operations.formats(backend)[1:]:
            # Keys that an append makes, and keeps beside their codes, are seen by the scores alone.
            yield dict(op="indexer", rule=rule, context=2048, rows=3, tail=1, **index_operations.named(format), seed=4)
        # Contexts whose blocks are the bin, those above it and some below.
        for kind, context, rows in (
            ("shared", 8192, 8),
            ("captured", 2592, 4),
            ("bin4097", 20480, 2),
            ("bin16385", 81920, 2),
        ):
            yield dict(op="crowded", rule=rule, scores=kind, context=context, rows=rows, tail=1, seed=8)
        yield dict(op="crowded", rule=rule, scores="bin32768", context=135168, rows=1, tail=2, seed=8)
    yield from selection_cover.cases(backend)


def check(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """The comparisons of one case."""
    given = {key: value for key, value in recipe.items() if key != "op"}
    checks = {"select": _select, "crowded": _select, "unused": _unused, "indexer": indexer.check, "cut": _cut}
    return checks[recipe["op"]](backend, given)


def _select(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    make = real_scores.scores if recipe["scores"] in real_scores.KINDS else family.make_inputs
    given = _within(backend, make(recipe))
    got = backend.select(**given)
    return [ids_comparison(backend, "select", select(**given), got, given["scores"], given["steps"])]


def _unused(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """Every other row is one that no sequence uses, as a captured launch has them: it selects nothing."""
    given = _within(backend, family.make_inputs(recipe))
    given["steps"][1::2] = step_records([-1], recipe["rule"])
    got = backend.select(**given)
    return [ids_comparison(backend, "select: unused rows", select(**given), got, given["scores"], given["steps"])]


def _cut(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    given = _within(backend, selection_cover.arguments(recipe))
    got = backend.select(**given, schedule=recipe.get("schedule"))
    return [ids_comparison(backend, "select: cut", select(**given), got, given["scores"], given["steps"])]


def _within(backend: Backend, given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of ``select`` whose scores are those of the backend's type, within the domain that it declares: NaN
    becomes the type's lowest score, an infinity the largest finite one of its sign. So ``special`` scores hold a
    backend with a narrow domain to what is left of them."""
    declaration, scores = backend.declaration, given["scores"]
    largest = np.float32(ml_dtypes.finfo(NUMBER_TYPES[declaration.types.index_scores].dtype).max)
    for row, n_bid in enumerate(given["steps"][:, 2].tolist()):
        seen = scores[row, :n_bid]
        if not declaration.domain.nan:
            seen[np.isnan(seen)] = -largest
        if not declaration.domain.infinity:
            seen[...] = np.clip(seen, -largest, largest)
        elif not declaration.tail_over_infinity:
            seen[np.isposinf(seen)] = largest
    given["scores"] = backend.rounded("index_scores", scores)
    return given
