"""Acceptance of drafted tokens in the exact arithmetic: the forms of ``reference/speculative.py``, decided in integers.

A row's list and the drafter's list are (ids, masses) with sums S_p and S_q. With u a whole number of 24 bits a draft d
stands when u * q_d * S_p < p_d * S_q * 2^24; the residual of token i is max(0, p_i * S_q - q_i * S_p), on the scale
S_p * S_q that both lists share. All of it is exact, so two corners of the float rule do not exist here: a residual of
nothing means that the lists are equal, and then every u has accepted.

With masses of at most 2^40 and sums of at most 2^62 every product stays below 2^127, which kernels carry in two words.
"""

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from .. import speculative
from ..sampler import ACCEPT, PICK, RESIDUAL, Sampling
from ..speculative import check_window
from .sampler import MOST_TOKENS, U_BITS, UNIT, distribution, draw, sample, uniform

exact_match = partial(speculative.exact_match, draw=sample)
"""``reference.speculative.exact_match`` with the exact sampler."""

greedy = partial(speculative.greedy, draw=sample)
"""``reference.speculative.greedy`` with the exact sampler."""


def check_list(listed: tuple[npt.ArrayLike, npt.ArrayLike]) -> tuple[np.ndarray, np.ndarray]:
    """``listed`` as (ids int64 [k], masses uint64 [k]).

    Raises ValueError unless ids are distinct, and masses are integers from 0 to 2^40, not all 0.
    """
    ids, masses = np.asarray(listed[0], np.int64), np.asarray(listed[1])
    if ids.ndim != 1 or ids.shape != masses.shape or ids.size > MOST_TOKENS or np.unique(ids).size != ids.size:
        raise ValueError(f"lists: shapes {ids.shape} and {masses.shape}: must be distinct ids [k] and their masses [k]")
    if masses.dtype.kind not in "iu" or not masses.any() or not 0 <= masses.min() <= masses.max() <= UNIT:
        raise ValueError(f"lists: masses {masses.dtype}: must be integers from 0 to 2^40, not all 0")
    return ids, masses.astype(np.uint64)


def judge(
    ids: np.ndarray,
    masses: Sequence[int] | np.ndarray,
    draft: int,
    listed: tuple[npt.ArrayLike, npt.ArrayLike] | None,
    u_accept: int,
    u_residual: int,
) -> tuple[bool, int]:
    """One decision of rejection sampling.

    ids, masses  what the row's own chain leaves, as :func:`qsa.reference.exact.sampler.distribution` gives it
    draft        the token to be judged
    listed       (ids, masses) from which the drafter drew, or None
    u_accept     an integer of 24 bits, for the acceptance
    u_residual   an integer of 24 bits, for the draw from the residual in the order of ``ids``

    Without a list, or with one that does not give the draft a mass, the drafter is a point mass at the draft. Returns
    (accepted, token). Raises ValueError on a malformed list.
    """
    p = [int(m) for m in masses]
    of = {}
    if listed is not None:
        of = {int(token): int(m) for token, m in zip(*check_list(listed), strict=True)}
    if not of.get(draft, 0):
        of = {draft: 1}
    p_sum, q_sum = sum(p), sum(of.values())
    p_draft = sum(m for token, m in zip(ids, p, strict=True) if token == draft)
    if int(u_accept) * of[draft] * p_sum < p_draft * q_sum << U_BITS:
        return True, draft
    residual = [max(0, m * q_sum - of.get(int(token), 0) * p_sum) for token, m in zip(ids, p, strict=True)]
    return False, int(ids[draw(residual, u_residual)])


def rejection(
    logits: npt.ArrayLike,
    drafts: Iterable[int],
    lists: Sequence[tuple[npt.ArrayLike, npt.ArrayLike] | None],
    history: Iterable[int],
    options: Sampling,
    seed: int,
    position: int,
) -> tuple[int, list[int]]:
    """Rejection sampling over a window.

    lists  [rows - 1], for each draft the (ids [k], masses [k]) it was drawn from, or None

    The other arguments, the result, the errors and the uniform numbers as ``reference.speculative.rejection``.
    """
    logits, drafts = check_window(logits, drafts)
    if len(lists) != len(drafts):
        raise ValueError(f"lists: {len(lists)} given: must be one for each of {len(drafts)} drafts")
    history = list(history)
    positions = np.arange(position, position + len(logits))
    u = {purpose: uniform(seed, positions, purpose) for purpose in (PICK, ACCEPT, RESIDUAL)}
    for t, (draft, listed) in enumerate(zip(drafts, lists, strict=True)):
        ids, masses = distribution(logits[t], history + drafts[:t], options)
        accepted, token = judge(ids, masses, draft, listed, u[ACCEPT][t], u[RESIDUAL][t])
        if not accepted:
            return t, [*drafts[:t], token]
    ids, masses = distribution(logits[-1], history + drafts, options)
    return len(drafts), [*drafts, int(ids[draw(masses, u[PICK][-1])])]
