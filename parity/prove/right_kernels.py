"""The right kernels of the exact arithmetic, as mutants are made of them: a call's arguments in one object.

What a call gives is kept by the content of its arguments: a mutant whose fault is not met costs no more than a hash.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from qsa.reference import exact

from ..checks.attend_inputs import exact_attend
from ..compare.remembered import remembered

_scores = remembered(exact.block_scores)
_select = remembered(exact.select)


def attend(a: Any) -> np.ndarray:
    """float32 [rows, heads, dim]."""
    return exact_attend(a.q, a.kv, a.ids, a.steps, a.slots).copy()


def block_scores(a: Any) -> np.ndarray:
    """float32 [rows, max_blocks]."""
    return _scores(a.q_idx, a.index, a.steps).copy()


def select(a: Any) -> np.ndarray:
    """int32 [rows, 2051]."""
    return _select(a.scores, a.steps, rule=a.rule, geometry=a.geometry).copy()


def append_kv(a: Any) -> bool:
    """True, after writing."""
    return exact.append_kv(a.k, a.v, a.kv, a.steps, a.slots)


def append_index(a: Any) -> bool:
    """True, after writing."""
    return exact.append_index(a.raw, a.steps, a.index)


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "attend": attend,
    "block_scores": block_scores,
    "select": select,
    "append_kv": append_kv,
    "append_index": append_index,
}
