"""``select``, exact: the same rule over float32 scores through integer keys, as kernels carry it out."""

import numpy as np
import numpy.typing as npt

from ..geometry import REAL, Geometry
from ..select import check_select


def selection_key(scores: npt.ArrayLike) -> np.ndarray:
    """uint32 keys of float32 ``scores``, greater key = preferred: NaN 0, then -inf to +inf, -0 equal to +0."""
    scores = np.asarray(scores, np.float32) + np.float32(0)
    bits = scores.view(np.uint32)
    key = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))
    return np.where(np.isnan(scores), np.uint32(0), key)


def last_cells(steps: np.ndarray, cap: int) -> np.ndarray:
    """Ids [n, cap] int32 of the last cells of every row, itself among them: as many as its step's width, then -1.

    steps [n, 4] int32; a row with a width beyond ``cap`` gets the first ``cap`` of them.
    """
    first, offset = steps[:, 1:2] - steps[:, 3:4], np.arange(cap, dtype=np.int32)
    return np.where(offset < steps[:, 3:4], first + offset, np.int32(-1))


def select(
    scores: np.ndarray,
    steps: np.ndarray,
    ids: np.ndarray | None = None,
    *,
    rule: str = "blocks",
    geometry: Geometry = REAL,
) -> np.ndarray:
    """The selected cells of every row, ascending and unique; arguments, result and errors as ``reference.select``.

    Blocks above the threshold key whole, then blocks at it in ascending order until the width is reached, the last one
    perhaps in part.
    """
    ids = check_select(scores, steps, ids, rule, geometry)
    ratio = geometry.ratio
    for row, (_, n_kv, n_bid, width) in enumerate(steps.tolist()):
        budget = width - n_kv % ratio
        key = selection_key(scores[row, :n_bid])
        cells = np.zeros(n_bid, np.int64)
        if budget:
            whole = -(-budget // ratio)
            threshold = np.partition(key, n_bid - whole)[n_bid - whole]
            cells[key > threshold] = ratio
            equal = np.flatnonzero(key == threshold)
            left = budget - int(cells.sum())
            cells[equal] = np.clip(left - ratio * np.arange(len(equal)), 0, ratio)
        offset = np.arange(ratio)
        chosen = (np.arange(n_bid)[:, None] * ratio + offset)[offset < cells[:, None]]
        ids[row, :width] = np.concatenate([chosen, np.arange(n_bid * ratio, n_kv)])
    return ids
