"""``select``: the cells a row attends to, under either rule of the field.

Source: design section 6. Works on scores of any float dtype; the order is total, so there is one right answer.
"""

import numpy as np
import numpy.typing as npt

from .arguments import check_floats, check_output, check_steps
from .geometry import REAL, RULES, Geometry


def check_select(
    scores: np.ndarray, steps: np.ndarray, ids: np.ndarray | None, rule: str, geometry: Geometry
) -> np.ndarray:
    """The output array, -1 throughout. Raises ValueError on mismatched shapes, an unknown rule, or ids too narrow."""
    if rule not in RULES:
        raise ValueError(f"rule = {rule!r}: allowed are {', '.join(RULES)}")
    if check_floats("scores", scores).ndim != 2:
        raise ValueError(f"scores: shape {scores.shape}: must be [rows, blocks]")
    check_steps(steps, len(scores))
    for row, (_, n_kv, n_bid, width) in enumerate(steps.tolist()):
        if width != geometry.width(n_kv, rule) or n_bid != n_kv // geometry.ratio:
            raise ValueError(f"steps: row {row}: {steps[row].tolist()}: not the record of {n_kv} cells under {rule!r}")
        if n_bid > scores.shape[1]:
            raise ValueError(f"steps: row {row}: n_bid = {n_bid}: there are {scores.shape[1]} scores")
    if ids is None:
        ids = np.empty((len(scores), geometry.max_width), np.int32)
    width = steps[:, 3].max(initial=0)
    if check_output("ids", ids, np.dtype(np.int32)).ndim != 2 or len(ids) != len(scores) or ids.shape[1] < width:
        raise ValueError(f"ids: shape {ids.shape}: must be [{len(scores)}, {width} or more]")
    ids[:] = -1
    return ids


def rank_blocks(scores: npt.ArrayLike) -> np.ndarray:
    """Blocks [n] in order of preference: score descending, ties to the lower index, -0 as +0, NaN last."""
    scores = np.asarray(scores) + 0.0
    index = np.arange(len(scores))
    # lexsort: the last key decides first.
    return np.lexsort((index, -np.where(np.isnan(scores), 0, scores), np.isnan(scores)))


def select(
    scores: np.ndarray,
    steps: np.ndarray,
    ids: np.ndarray | None = None,
    *,
    rule: str = "blocks",
    geometry: Geometry = REAL,
) -> np.ndarray:
    """The selected cells of every row, ascending and unique.

    scores  [rows, blocks] float: entries 0 to n_bid - 1 are complete blocks; the tail is selected whatever its score
    steps   [rows, 4] int32, made for ``rule``
    rule    ``blocks``: min(512, n_bid) whole blocks and the tail. ``cells``: the min(n_kv, 2051) best cells, the tail
            first; the last block may be cut, its first cells stay

    Returns int32 [rows, cap] (or ``ids``, cap >= width): ``width`` cells, then -1. Raises ValueError on mismatched
    shapes, an unknown rule, or a step record that does not belong to it.
    """
    ids = check_select(scores, steps, ids, rule, geometry)
    ratio = geometry.ratio
    for row, (_, n_kv, n_bid, width) in enumerate(steps.tolist()):
        wanted = width - n_kv % ratio
        best = rank_blocks(scores[row, :n_bid])[: -(-wanted // ratio)]
        cells = (best[:, None] * ratio + np.arange(ratio)).ravel()[:wanted]
        ids[row, :width] = np.sort(np.concatenate([cells, np.arange(n_bid * ratio, n_kv)]))
    return ids
