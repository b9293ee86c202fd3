"""Forms of ids: what a backend's ``select`` gives as cells, and what its ``attend`` takes.

A backend may give ids in any order, of any integer type, in an array or a list of rows, as cells or as blocks without
the tail. Negative entries are padding wherever they stand. Of the others a row's first ``width`` count (of blocks the
first min(512, n_bid)), as a reader that knows the row's count reads them.
"""

import numpy as np

from qsa.reference.geometry import REAL, Geometry

from .kernel import UnsupportedError


def to_cells(rows: list[np.ndarray], steps: np.ndarray, form: str, geometry: Geometry = REAL) -> np.ndarray:
    """int64 [rows, cap]: the cells of every row, ascending, with multiplicity, then -1.

    ``rows`` are arrays of integers of any type. Raises ValueError on another dtype or a wrong number of rows.
    """
    if len(rows) != len(steps):
        raise ValueError(f"select: gave {len(rows)} rows of ids: must be {len(steps)}")
    found = []
    for row, (_, n_kv, n_bid, width) in zip(rows, steps.tolist(), strict=True):
        if row.dtype.kind not in "iu":
            raise ValueError(f"select: ids are {row.dtype}: must be integers")
        if row.dtype.kind == "u":
            # Unsigned padding is the largest value, -1 as a signed one.
            row = row.view(f"i{row.dtype.itemsize}")
        row = row.ravel().astype(np.int64)
        row = row[row >= 0]
        if form == "blocks":
            tail = np.arange(n_bid * geometry.ratio, n_kv) if width else np.arange(0)
            blocks = row[: min(geometry.top_blocks, n_bid) if width else 0]
            row = np.concatenate([(blocks[:, None] * geometry.ratio + np.arange(geometry.ratio)).ravel(), tail])
        else:
            row = row[:width]
        found.append(np.sort(row))
    cap = max([geometry.max_width, *map(len, found)])
    cells = np.full((len(found), cap), -1, np.int64)
    for number, row in enumerate(found):
        cells[number, : len(row)] = row
    return cells


def to_blocks(ids: np.ndarray, steps: np.ndarray, geometry: Geometry = REAL) -> np.ndarray:
    """int32 [rows, 512]: the blocks of every row's cells, then -1; the tail is left out.

    Raises UnsupportedError where the cells are not whole blocks and the tail: they have no such form.
    """
    ratio = geometry.ratio
    blocks = np.full((len(ids), geometry.top_blocks), -1, np.int32)
    for row, (_, n_kv, n_bid, width) in enumerate(steps.tolist()):
        cells = np.sort(ids[row, :width])
        tail = np.arange(n_bid * ratio, n_kv)
        whole = cells[: width - len(tail)]
        first = whole[::ratio]
        same = len(whole) % ratio == 0 and np.array_equal(whole, (first[:, None] + np.arange(ratio)).ravel())
        aligned = same and not (first % ratio).any() and not (first < 0).any() and len(first) <= geometry.top_blocks
        if not aligned or not np.array_equal(cells[len(whole) :], tail):
            raise UnsupportedError(
                "attend: the cells are not whole blocks and the tail: it takes block ids (attend_ids)"
            )
        blocks[row, : len(first)] = first // ratio
    return blocks
