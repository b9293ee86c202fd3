"""``block_scores``, exact: float32 in the lane tree, or integer dots of encoded keys (index format ``int16``)."""

from collections.abc import Iterable

import numpy as np

from ..block_scores import TAIL_BONUS, check_scores
from ..index import Index
from ..key_codes import CODE_BITS, NOT_FINITE, encode
from .scalar import NAN, lane_sum, one_nan, scale

CHUNK = 4096
"""Blocks scored at a time: bounds the products held to 4096 * heads * dim floats (8 MiB)."""


def _added(dots: Iterable[np.ndarray]) -> np.ndarray:
    """relu of every head's ``dots`` [keys] float32, added in ascending order."""
    total: np.ndarray | None = None
    for dot in dots:
        dot = np.where(dot <= 0, np.float32(0), dot)
        total = dot if total is None else total + dot
    assert total is not None, "an index has at least one head"
    return total


def _score(keys: np.ndarray, q: np.ndarray) -> np.ndarray:
    return _added(lane_sum(keys * head) for head in q)


def coded_dots(codes: np.ndarray, exponents: np.ndarray, q: np.ndarray) -> np.ndarray:
    """float32 [heads, keys]: dots of encoded keys (int16 [keys, dim], exponents [keys]) and queries ``q`` [heads, dim]
    float32, which are encoded here.

    The dot of the codes is an exact integer, below 2^53 and so exact in a float64 matrix product; float32 of it is the
    one rounding, then the powers of two. NaN where key or query is not finite.
    """
    q_codes, q_exponents = encode(q)
    dots = (q_codes.astype(np.float64) @ codes.astype(np.float64).T).astype(np.float32)
    power = q_exponents[:, None].astype(np.int64) + exponents - 2 * CODE_BITS
    lost = (q_exponents[:, None] == NOT_FINITE) | (exponents == NOT_FINITE)
    return np.where(lost, NAN, scale(dots, np.where(lost, 0, power)))


def _scores(keys: np.ndarray, exponents: np.ndarray | None, q: np.ndarray) -> np.ndarray:
    return _score(keys, q) if exponents is None else _added(coded_dots(keys, exponents, q))


def block_scores(q_idx: np.ndarray, index: Index, steps: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Scores of every block for every row: lane tree per head, relu per head, heads added in ascending order. Keys of
    the format ``int16`` have :func:`coded_dots` instead of the lane tree.

    q_idx  [rows, idx_heads, idx_dim] float32, normed and rotated at the row's own position
    index  its ``pooled`` and ``dead`` are read: float32, or int16 with their exponents
    steps  [rows, 4] int32

    Returns float32 [rows, max_blocks] (or ``out``): blocks 0 to n_bid are written, later ones are left as they are
    (-inf when the array is new), and a row with n_kv 0 is left whole. Block n_bid has the dead key, and 1e9 more
    (rounded) when it holds cells. relu(x) is 0 where x <= 0, so -0 becomes +0 and a NaN stays, as the one NaN. Raises
    ValueError on mismatched shapes or a block beyond the index.
    """
    check_scores(q_idx, index, steps, out)
    q_idx = np.asarray(q_idx, np.float32)
    if out is None:
        out = np.full((len(q_idx), index.max_blocks), -np.inf, np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for row, (_, n_kv, n_bid, _) in enumerate(steps.tolist()):
            if n_kv == 0:
                continue
            for start in range(0, n_bid, CHUNK):
                stop = min(n_bid, start + CHUNK)
                exponents = None if index.pooled_exponent is None else index.pooled_exponent[start:stop]
                out[row, start:stop] = one_nan(_scores(index.pooled[start:stop], exponents, q_idx[row]))
            dead = _scores(index.dead[None], index.dead_exponent, q_idx[row])
            if n_kv % index.geometry.ratio:
                dead = dead + np.float32(TAIL_BONUS)
            out[row, n_bid : n_bid + 1] = one_nan(dead)
    return out
