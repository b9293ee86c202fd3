"""The cut of a selection in every class of values: the operation ``cut`` of the module ``selection``.

A covering design (``covering.py``) of rule, kind of scores, cells, rows, unused rows and schedule. Each kind puts the
cut where a kernel's keys, histograms or tie rule may be wrong.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from qsa.golden import inputs
from qsa.kernels.ops import OPERATIONS
from qsa.reference.geometry import REAL, RULES, step_records

from ...backend import Backend
from .attention_cover import ROWS, SEEDS, UNUSED, offered
from .covering import cover

KINDS = (
    "continuous", "ulp", "zeros", "nan", "nan_inf", "inf", "subnormal", "negative", "top_heavy",
    "all_zero", "all_negative_zero", "all_nan", "all_inf", "all_minus_inf", "all_subnormal",
)  # fmt: skip
"""``ulp``: neighbours one unit in the last place apart; ``zeros``: +0 and -0 at the cut, below few positive scores;
``nan``: fewer numbers than are selected, then NaN; ``nan_inf``: NaN beside -inf at the cut; ``inf``: +inf beside the
largest finite score; ``subnormal``: of both signs, around 0; ``negative``: all below 0; ``top_heavy``: all in one
binade; ``all_...``: equal throughout."""

CELLS = (2052, 5, 63, 2047, 2048, 2049, 2050, 2051, 2053, 2054, 2055, 2056, 2057, 2060, 2564, 4099, 7001, 13333, 33026)
"""Cells of the last row: around the budget under both rules, and others of no round number."""

CROWDED = (4097, 16385, 32768)
"""Scores in one bin of the leading 16 bits: a kernel that keeps fewer candidates loses some."""

CUT: dict[str, Any] = {
    "rule": RULES,
    "scores": (*KINDS, *(f"crowded{n}" for n in CROWDED)),
    "cells": range(4, 2**20),
    "rows": ROWS,
    "unused": UNUSED,
    "schedule": (None, *OPERATIONS["select"].schedules),
    "seed": SEEDS,
}
"""Parameters of ``cut`` and their values."""


def cases(backend: Backend | None = None) -> Iterator[dict[str, Any]]:
    """The recipes of ``cut`` within what ``backend`` declares."""
    schedules = offered(backend, "select")
    domain = None if backend is None else backend.declaration.domain
    values = {
        "rule": RULES,
        "scores": KINDS,
        "cells": CELLS,
        "rows": ROWS,
        "unused": UNUSED if domain is None or domain.unused_rows else ("none",),
        "schedule": schedules,
    }
    for number, case in enumerate(cover(values, _together)):
        yield _recipe(case, schedules, 21 + number)
    for number, crowd in enumerate(CROWDED):
        for schedule in schedules:
            case = {"rule": RULES[number % 2], "scores": f"crowded{crowd}", "cells": 4 * crowd + 4100, "rows": 1}
            yield _recipe({**case, "unused": "none", "schedule": schedule}, schedules, 20)


def _together(case: Any) -> bool:
    """Many rows of many cells cost time and show nothing more; only where blocks are left out is there a cut."""
    if case.get("rows") == 1 and case.get("unused", "none") != "none":
        return False
    kind = case.get("scores", "continuous")
    cut = kind == "continuous" or kind.startswith("all_") or case.get("cells", 2052) >= 2052
    return bool(cut and (case.get("rows", 1) <= 9 or case.get("cells", 0) < 4000))


def _recipe(case: dict[str, Any], schedules: tuple[str, ...], seed: int) -> dict[str, Any]:
    schedule = case.pop("schedule")
    named = {"schedule": schedule} if len(schedules) > 1 else {}
    return {"op": "cut", **case, **named, "seed": seed}


def arguments(recipe: dict[str, Any]) -> dict[str, Any]:
    """The arguments of ``select``: ``scores`` [rows, blocks + 3] float32, ``steps``, ``rule``."""
    rows, seed = recipe["rows"], recipe["seed"]
    # Rows of a window, in which the last sees all cells.
    positions = np.maximum(recipe["cells"] - rows + np.arange(rows), 0)
    if recipe["unused"] != "none":
        positions[{"first": 0, "middle": rows // 2, "last": rows - 1}[recipe["unused"]]] = -1
    steps = step_records(positions, recipe["rule"])
    scores = np.full((rows, recipe["cells"] // REAL.ratio + 3), np.inf, np.float32)
    for row, n_bid in enumerate(steps[:, 2].tolist()):
        scores[row, :n_bid] = _scores(recipe["scores"], seed, row, n_bid)
    return {"scores": scores, "steps": steps, "rule": recipe["rule"]}


def _scores(kind: str, seed: int, row: int, n: int) -> np.ndarray:
    """float32 [n] scores of one row."""
    order = inputs.permutation(seed, f"cut.order{row}", n)
    rank = np.empty(n, np.int64)
    rank[order] = np.arange(n)
    cut = min(n, REAL.top_blocks)
    largest = np.finfo(np.float32).max
    if kind.startswith("all_"):
        return np.full(n, _EQUAL[kind], np.float32)
    if kind == "ulp":
        return _nth_float(0x3F800000 + rank)
    if kind == "top_heavy":
        # Low bits alone differ, and few of them: ties besides.
        return _nth_float(0x4B000000 + rank // 3)
    if kind.startswith("crowded"):
        # As many in one bin as the kind says, above all others.
        crowd = int(kind[7:])
        # The best ones at either end in turn: a kernel that keeps the first, or the last, of a bin loses some.
        index = np.arange(n)
        rank = np.minimum(2 * (n - 1 - index), 2 * index + 1)
        return np.where(rank < crowd, _nth_float(0x40490000 + (crowd - 1 - rank) * 65535 // crowd), 0.5).astype(
            np.float32
        )
    if kind == "zeros":
        return np.where(rank < cut - 50, 1 + rank, np.where(rank % 2, -0.0, 0.0)).astype(np.float32)
    if kind == "nan":
        return np.where(rank < cut - 40, rank - cut / 2, np.nan).astype(np.float32)
    if kind == "nan_inf":
        return np.where(rank < cut - 60, rank - cut / 2, np.where(rank % 2, np.nan, -np.inf)).astype(np.float32)
    if kind == "inf":
        return np.where(rank < cut + 40, np.where(rank % 2, np.inf, largest), -np.inf).astype(np.float32)
    if kind == "subnormal":
        return ((rank - n // 2).astype(np.float64) * 2.0**-149).astype(np.float32)
    if kind == "negative":
        return -_nth_float(0x42000000 + 3 * rank)
    return inputs.bell(seed, f"cut.scores{row}", 1, n)[0] if n else np.zeros(0, np.float32)


def _nth_float(bits: np.ndarray) -> np.ndarray:
    return bits.astype(np.uint32).view(np.float32)


_EQUAL = {
    "all_zero": 0.0,
    "all_negative_zero": -0.0,
    "all_nan": np.nan,
    "all_inf": np.inf,
    "all_minus_inf": -np.inf,
    "all_subnormal": 2.0**-149,
}
