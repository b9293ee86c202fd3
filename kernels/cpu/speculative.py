"""Acceptance of drafted tokens: the decisions of ``reference/exact/speculative.py`` for rows of many windows at once.

Every row decides for itself; a window emits the tokens of its rows up to the first that did not accept
(:func:`emitted`). The last row of a window judges nothing: its draft is :data:`NO_DRAFT`, and it draws.

Products of masses and sums take two uint64 words, high and low; ``reference/exact/speculative.py`` says why that is
enough. The lists may come from any device's sampler, as NumPy arrays.
"""

import numpy as np
import numpy.typing as npt

from qsa.reference.exact.sampler import U_BITS
from qsa.reference.sampler import ACCEPT, PICK, RESIDUAL

from .common.jit import kernel
from .common.philox import uniform
from .sampler import Lists, check_tokens, integers
from .sampler_row import draw

NO_DRAFT = -1

_LOW, _HALF, _ONE = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(1)
_LOW_U, _U_SHIFT, _U_REST = np.uint64((1 << U_BITS) - 1), np.uint64(U_BITS), np.uint64(64 - U_BITS)


@kernel
def _product(a, b):
    """(high, low) of the uint64 product."""
    a0, a1, b0, b1 = a & _LOW, a >> _HALF, b & _LOW, b >> _HALF
    low, m0, m1 = a0 * b0, a0 * b1, a1 * b0
    middle = (low >> _HALF) + (m0 & _LOW) + (m1 & _LOW)
    return a1 * b1 + (m0 >> _HALF) + (m1 >> _HALF) + (middle >> _HALF), middle << _HALF | low & _LOW


@kernel
def _times(x, u):
    """(high, low) of x = (high, low) times ``u``, below 2^128."""
    carry, low = _product(x[1], u)
    return x[0] * u + carry, low


@kernel
def _less(x, y):
    return x[0] < y[0] or (x[0] == y[0] and x[1] < y[1])


@kernel
def _sum(x, y):
    low = x[1] + y[1]
    return x[0] + y[0] + (_ONE if low < x[1] else np.uint64(0)), low


@kernel
def _residual(p, q, p_sum, q_sum):
    """max(0, p * q_sum - q * p_sum) as (high, low)."""
    ours, theirs = _product(p, q_sum), _product(q, p_sum)
    if not _less(theirs, ours):
        return np.uint64(0), np.uint64(0)
    return ours[0] - theirs[0] - (_ONE if ours[1] < theirs[1] else np.uint64(0)), ours[1] - theirs[1]


@kernel
def _total(masses):
    total = np.uint64(0)
    for mass in masses:
        total += mass
    return total


@kernel
def _find(ids, masses, token):
    """Mass of ``token``, 0 where it is not listed."""
    for i in range(ids.size):
        if ids[i] == token:
            return masses[i]
    return np.uint64(0)


@kernel
def _drawn_residual(ids, p, p_sum, q, q_sum, u):
    """The token drawn from the residual; ``q`` [k] are the drafter's masses of ``ids``."""
    high, low = np.uint64(0), np.uint64(0)
    for i in range(ids.size):
        high, low = _sum((high, low), _residual(p[i], q[i], p_sum, q_sum))
    # floor(u * total / 2^24) without the product, which may need more than two words.
    upper = (high >> _U_SHIFT, high << _U_REST | low >> _U_SHIFT)
    limit = _sum(_times(upper, u), (np.uint64(0), ((low & _LOW_U) * u) >> _U_SHIFT))
    high, low = _residual(p[0], q[0], p_sum, q_sum)
    i = 0
    while not _less(limit, (high, low)):
        i += 1
        high, low = _sum((high, low), _residual(p[i], q[i], p_sum, q_sum))
    return ids[i]


@kernel
def _order(ids):
    """Words uint64 of id, then place, in ascending order. The sort of the sampler's words, which is compiled anyway."""
    words = np.empty(ids.size, np.uint64)
    for i in range(ids.size):
        words[i] = np.uint64(ids[i]) << _HALF | np.uint64(i)
    words.sort()
    return words


@kernel
def _place(words, token):
    """The place of ``token`` in what :func:`_order` sorted; -1 where it is not listed."""
    wanted, first, stop = np.uint64(token) << _HALF, 0, words.size
    while first < stop:
        middle = (first + stop) // 2
        if words[middle] < wanted:
            first = middle + 1
        else:
            stop = middle
    if first < words.size and words[first] >> _HALF == np.uint64(token):
        return np.int64(words[first] & _LOW)
    return np.int64(-1)


@kernel
def _judge(ids, p, draft, q_ids, q_masses, u_accept, u_residual):
    """(accepted, token) of one row."""
    p_sum, q_sum, q_draft = _total(p), _total(q_masses), _find(q_ids, q_masses, draft)
    point = q_draft == np.uint64(0)
    if point:
        q_draft, q_sum = _ONE, _ONE
    p_draft = _find(ids, p, draft)
    if _less(_times(_product(q_draft, p_sum), u_accept), _times(_product(p_draft, q_sum), _ONE << _U_SHIFT)):
        return True, draft
    q = np.zeros(ids.size, np.uint64)
    if point:
        for i in range(ids.size):
            q[i] = _ONE if ids[i] == draft else np.uint64(0)
    else:
        order = _order(q_ids)
        for i in range(ids.size):
            place = _place(order, ids[i])
            if place >= 0:
                q[i] = q_masses[place]
    return False, _drawn_residual(ids, p, p_sum, q, q_sum, u_residual)


@kernel
def _judge_rows(own, drafts, listed, seeds, positions, accepted, tokens):
    ids, masses, counts = own
    q_ids, q_masses, q_counts = listed
    for row in range(len(tokens)):
        n, m, draft = counts[row], q_counts[row], drafts[row]
        accepted[row] = False
        if n < 0:
            tokens[row] = n
        elif draft == NO_DRAFT:
            tokens[row] = ids[row, draw(masses[row, :n], uniform(seeds[row], positions[row], PICK))]
        else:
            u_accept = uniform(seeds[row], positions[row], ACCEPT)
            u_residual = uniform(seeds[row], positions[row], RESIDUAL)
            p, q = (ids[row, :n], masses[row, :n]), (q_ids[row, :m], q_masses[row, :m])
            accepted[row], tokens[row] = _judge(p[0], p[1], draft, q[0], q[1], u_accept, u_residual)


def judge(
    own: Lists, drafts: npt.ArrayLike, listed: Lists, seeds: npt.ArrayLike, positions: npt.ArrayLike
) -> tuple[np.ndarray, np.ndarray]:
    """Rejection sampling: a decision for each row.

    own        :class:`Lists`: what the rows' chains left, from ``sample(..., lists=own)``
    drafts     int32 [rows]: the token that the row judges, or :data:`NO_DRAFT`: the row draws, with PICK
    listed     :class:`Lists`: from which each draft was drawn; a count of 0 or less, or no mass for the draft: a point
               mass at the draft. As the sampler made them: distinct ids, masses of at most 2^40
    seeds      an integer or [rows], below 2^64
    positions  an integer or [rows], the rows' own, not negative where a row is in use

    Returns (accepted bool [rows], tokens int32 [rows]): the draft where accepted, otherwise what is emitted in its
    place; a failed row's error code. Raises ValueError on mismatched arguments.
    """
    rows = len(own.counts)
    drafts = integers("drafts", drafts, rows, np.int32, NO_DRAFT, 2**31 - 1)
    seeds = integers("seeds", seeds, rows, np.uint64, 0, 2**64 - 1)
    positions = integers("positions", positions, rows, np.int64, -(2**63), 2**63 - 1)
    if len(listed.counts) != rows:
        raise ValueError(f"listed: {len(listed.counts)} rows: must be {rows}")
    accepted, tokens = np.empty(rows, np.bool_), np.empty(rows, np.int32)
    listed = Lists(listed.ids, listed.masses, np.maximum(listed.counts, 0))
    _judge_rows(tuple(own), drafts, tuple(listed), seeds, positions, accepted, tokens)
    return accepted, tokens


def match(tokens: npt.ArrayLike, drafts: npt.ArrayLike) -> np.ndarray:
    """Exact match, and greedy: accepted bool [rows], where the row's own token is the draft it judges."""
    return np.asarray(tokens) == np.asarray(drafts)


def emitted(accepted: np.ndarray, tokens: np.ndarray) -> tuple[int, list[int]]:
    """(accepted drafts, tokens emitted: a list of one more) of one window's rows, as the reference's forms give them.

    Raises ValueError when a row that is emitted failed.
    """
    n = len(tokens) - 1
    count = next((t for t in range(n) if not accepted[t]), n)
    check_tokens(tokens[: count + 1])
    return count, [int(token) for token in tokens[: count + 1]]
