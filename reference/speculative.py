"""Acceptance of drafted tokens: how many of a verify window's drafts stand, and which tokens it emits.

A window of T rows holds the last accepted token and T - 1 drafts; row t's logits say what follows the row's token. All
three forms emit the accepted drafts and one token more, and none lets a drafter change what the model alone would say:

- :func:`greedy`: a draft stands while it is the row's largest logit;
- :func:`exact_match` (the default when sampling): each row draws its own token; a draft stands while it is that token.
  The text is the one that decoding token by token with the same seed gives;
- :func:`rejection`: a draft stands with probability min(1, p/q). Leviathan, Kalman and Matias, "Fast inference from
  transformers via speculative decoding" (2023), on the lists that the two chains leave. The text differs from the
  token-by-token one; its distribution does not.

Every row after the first rejection is ignored. Row t of a window is at ``position + t`` and its history ends with the
drafts before it: their tokens count for the penalties as accepted ones would.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .sampler import ACCEPT, GREEDY, PICK, RESIDUAL, Sampling, distribution, pick, sample, uniform


def check_window(logits: npt.ArrayLike, drafts: Iterable[int]) -> tuple[np.ndarray, list[int]]:
    """(logits, drafts as a list of ints) of a window; raises ValueError on mismatched shapes or an unknown draft."""
    logits = np.asarray(logits)
    if logits.ndim != 2 or not len(logits):
        raise ValueError(f"logits: shape {logits.shape}: must be [rows, vocab] with at least one row")
    drafts = [int(token) for token in drafts]
    if len(drafts) != len(logits) - 1:
        raise ValueError(f"drafts: {len(drafts)} tokens: a window of {len(logits)} rows has {len(logits) - 1}")
    for draft in drafts:
        if not 0 <= draft < logits.shape[1]:
            raise ValueError(f"drafts: token {draft}: the vocabulary has {logits.shape[1]} tokens")
    return logits, drafts


def exact_match(
    logits: npt.ArrayLike,
    drafts: Iterable[int],
    history: Iterable[int],
    options: Sampling,
    seed: int,
    position: int,
    draw: Callable[..., int] = sample,
) -> tuple[int, list[int]]:
    """Each row draws as :func:`qsa.reference.sampler.sample` does; a draft stands while it equals its row's draw.

    logits    [rows, vocab]
    drafts    [rows - 1] token ids
    history   [n] token ids up to the window's first one, that included, newest last
    position  of row 0
    draw      the sampler, with the arguments of ``sample``

    Returns (accepted drafts, emitted tokens: a list of accepted + 1). Raises ValueError on mismatched shapes or a draft
    outside the vocabulary, and as ``sample`` does.
    """
    logits, drafts = check_window(logits, drafts)
    history, emitted = list(history), []
    for t, row in enumerate(logits):
        emitted.append(draw(row, history + drafts[:t], options, seed, position + t))
        if t == len(drafts) or emitted[t] != drafts[t]:
            break
    return len(emitted) - 1, emitted


def greedy(
    logits: npt.ArrayLike,
    drafts: Iterable[int],
    history: Iterable[int] = (),
    options: Sampling = GREEDY,
    draw: Callable[..., int] = sample,
) -> tuple[int, list[int]]:
    """A draft stands while it is its row's largest logit after the penalties, ties to the lower id.

    Arguments and result as :func:`exact_match`; the temperature of ``options`` must be 0.
    """
    if not options.greedy:
        raise ValueError(f"temperature = {options.temperature!r}: must be 0 for greedy acceptance")
    return exact_match(logits, drafts, history, options, seed=0, position=0, draw=draw)


def _check_list(listed: tuple[npt.ArrayLike, npt.ArrayLike]) -> tuple[np.ndarray, np.ndarray]:
    ids, q = np.asarray(listed[0], np.int64), np.asarray(listed[1], np.float64)
    if ids.ndim != 1 or ids.shape != q.shape or np.unique(ids).size != ids.size:
        raise ValueError(
            f"lists: shapes {ids.shape} and {q.shape}: must be distinct ids [k] and their probabilities [k]"
        )
    # 1e-5: a float32 softmax over a list of 64 sums to 1 within 64 * 2^-24 = 4e-6; a list that was cut without being
    # renormalised misses by far more.
    if not (q >= 0).all() or abs(q.sum() - 1) > 1e-5:
        raise ValueError(f"lists: probabilities with sum {q.sum()}: must not be negative and sum to 1")
    return ids, q


def judge(
    ids: np.ndarray,
    probabilities: np.ndarray,
    draft: int,
    listed: tuple[npt.ArrayLike, npt.ArrayLike] | None,
    u_accept: npt.ArrayLike,
    u_residual: npt.ArrayLike,
) -> tuple[Any, Any]:
    """One decision of rejection sampling, for one number u of each kind or for arrays [n] of them.

    ids, probabilities  what the row's own chain leaves, as :func:`qsa.reference.sampler.distribution` gives it
    draft               the token to be judged
    listed              (ids, probabilities) from which the drafter drew, or None
    u_accept            accept when p(draft) > 0 and u * q(draft) < p(draft)
    u_residual          on rejection, the draw from max(0, p - q), in the order of ``ids``

    Without a list, or with a list that does not give the draft a probability, the drafter is taken as a point mass at
    the draft: q is 1 there and 0 elsewhere. Where p - q leaves nothing the draft is accepted, unless the row's chain
    excludes it: then the draw is from p.

    Returns (accepted bool, token int64), numbers or arrays [n]. Raises ValueError on a malformed list.
    """
    q = np.zeros(len(ids))
    q_draft = 0.0
    if listed is not None:
        listed_ids, listed_q = _check_list(listed)
        of = dict(zip(listed_ids.tolist(), listed_q.tolist(), strict=True))
        q = np.array([of.get(token, 0.0) for token in ids.tolist()])
        q_draft = of.get(draft, 0.0)
    if q_draft == 0:
        q, q_draft = (ids == draft).astype(np.float64), 1.0
    p_draft = probabilities[ids == draft].sum()
    accepted = np.asarray(u_accept) * q_draft < p_draft
    residual = np.maximum(0, probabilities - q)
    if residual.any():
        rejected = pick(ids, residual, u_residual)
    elif p_draft > 0:
        accepted, rejected = np.ones_like(accepted), draft
    else:
        rejected = pick(ids, probabilities, u_residual)
    return accepted, np.where(accepted, draft, rejected)


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

    lists  [rows - 1], for each draft the (ids [k], probabilities [k]) it was drawn from, or None

    The other arguments and the result as :func:`exact_match`. Row t uses the uniform numbers of purposes ACCEPT and
    RESIDUAL at position + t; the row after the last draft draws with PICK. Raises ValueError as ``exact_match`` and
    :func:`judge` do.
    """
    logits, drafts = check_window(logits, drafts)
    if len(lists) != len(drafts):
        raise ValueError(f"lists: {len(lists)} given: must be one for each of {len(drafts)} drafts")
    history = list(history)
    positions = np.arange(position, position + len(logits))
    u = {purpose: uniform(seed, positions, purpose) for purpose in (PICK, ACCEPT, RESIDUAL)}
    for t, (draft, listed) in enumerate(zip(drafts, lists, strict=True)):
        ids, probabilities = distribution(logits[t], history + drafts[:t], options)
        accepted, token = judge(ids, probabilities, draft, listed, u[ACCEPT][t], u[RESIDUAL][t])
        if not accepted:
            return t, [*drafts[:t], int(token)]
    ids, probabilities = distribution(logits[-1], history + drafts, options)
    return len(drafts), [*drafts, int(pick(ids, probabilities, u[PICK][-1]))]
