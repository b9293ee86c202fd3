"""Whether a call lies within what a backend declares: its shapes, its domain, its formats.

Every function here returns nothing, and raises UnsupportedError that names what is outside.
"""

from typing import Any

import numpy as np

from qsa.reference.index import Index
from qsa.reference.kv import PagedKV

from .declaration import Declaration
from .kernel import UnsupportedError
from .storage import OwnKV


def check_values(operation: str, declaration: Declaration, **arrays: np.ndarray) -> None:
    """NaN and infinities in named arrays of floats."""
    domain = declaration.domain
    for name, array in arrays.items():
        x = np.asarray(array)
        if not domain.nan and np.isnan(x).any():
            raise UnsupportedError(f"{operation}: NaN in {name}: not declared (domain.nan)")
        if not domain.infinity and np.isinf(x).any():
            raise UnsupportedError(f"{operation}: an infinity in {name}: not declared (domain.infinity)")


def check_steps(operation: str, declaration: Declaration, steps: np.ndarray) -> None:
    """Rows, contexts and unused rows of step records."""
    shapes = declaration.shapes
    if shapes.rows is not None and len(steps) > shapes.rows:
        raise UnsupportedError(f"{operation}: {len(steps)} rows: declared are {shapes.rows} at most (shapes.rows)")
    n_kv = int(steps[:, 1].max(initial=0))
    if shapes.context is not None and n_kv > shapes.context:
        text = f"{operation}: a context of {n_kv} cells: declared are {shapes.context} at most (shapes.context)"
        raise UnsupportedError(text)
    if not declaration.domain.unused_rows and (steps[:, 0] < 0).any():
        raise UnsupportedError(f"{operation}: an unused row: not declared (domain.unused_rows)")


def check_heads(operation: str, declaration: Declaration, n_head: int, n_head_kv: int, head_dim: int) -> None:
    """Heads and their dims."""
    shapes = declaration.shapes
    if shapes.heads is not None and (n_head, n_head_kv) not in shapes.heads:
        raise UnsupportedError(f"{operation}: {n_head} heads over {n_head_kv}: not declared (shapes.heads)")
    if shapes.head_dim is not None and head_dim not in shapes.head_dim:
        raise UnsupportedError(f"{operation}: head_dim {head_dim}: not declared (shapes.head_dim)")


def check_rule(operation: str, declaration: Declaration, rule: str) -> None:
    """The selection rule."""
    if rule not in declaration.rules:
        raise UnsupportedError(f"{operation}: rule {rule}: declared are {', '.join(declaration.rules)} (rules)")


def check_index(operation: str, declaration: Declaration, index: Index) -> None:
    """The format of an Index of ours."""
    if index.format not in declaration.index_formats:
        raise UnsupportedError(f"{operation}: index format {index.format}: not declared (index_formats)")


def check_pools(operation: str, declaration: Declaration, kvs: list[Any], arithmetic: str) -> None:
    """Slots, page sizes and formats of our pools; own storage has none of these but slots."""
    shapes = declaration.shapes
    if shapes.slots is not None and len(kvs) > shapes.slots:
        raise UnsupportedError(f"{operation}: {len(kvs)} slots: declared are {shapes.slots} at most (shapes.slots)")
    for kv in kvs:
        if isinstance(kv, OwnKV):
            continue
        pool = kv.pool
        if declaration.formats is not None and pool.format not in declaration.formats:
            raise UnsupportedError(f"{operation}: format {pool.format}: not declared (formats)")
        # Storing fp16 is the same in both arithmetics; attention over it is not.
        if arithmetic == "exact" and operation != "append_kv" and not kv.exact:
            raise UnsupportedError(f"{operation}: format {pool.format} is outside the exact arithmetic")
        if shapes.page_sizes is not None and pool.page_size not in shapes.page_sizes:
            raise UnsupportedError(f"{operation}: pages of {pool.page_size} cells: not declared (shapes.page_sizes)")


def check_ids(
    operation: str,
    declaration: Declaration,
    kvs: list[Any],
    ids: np.ndarray,
    steps: np.ndarray,
    slots: np.ndarray | None,
) -> None:
    """Absent ids and absent pages of attention."""
    domain = declaration.domain
    if domain.absent_ids and domain.absent_pages:
        return
    for row, width in enumerate(steps[:, 3].tolist()):
        cells = ids[row, :width]
        if not domain.absent_ids and (cells < 0).any():
            raise UnsupportedError(f"{operation}: -1 among the ids: not declared (domain.absent_ids)")
        kv = kvs[0 if slots is None else int(slots[row])]
        paged: PagedKV = kv.paged if isinstance(kv, OwnKV) else kv
        if not domain.absent_pages and width and (paged.locate(cells[cells >= 0])[0] < 0).any():
            raise UnsupportedError(f"{operation}: a selected cell of no page: not declared (domain.absent_pages)")
