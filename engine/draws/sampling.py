"""Sampling and acceptance as the engine calls them: the tokens that a window emits, and the drafts of the draft layer.

The rules are those of ``reference/exact/sampler.py`` and ``reference/exact/speculative.py``. Masses are integers, so a
token does not depend on where it was drawn. Greedy and exact-match tokens may come from the device
(``device_sampling.py``), and all of a round's draws and decisions where it is captured (``round_graph.py``). Otherwise
rejection sampling and drafts use the CPU's kernels, whose distribution the tests check with a million draws.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from qsa.kernels.cpu.sampler import Lists, check_tokens, new_lists, sample
from qsa.kernels.cpu.speculative import NO_DRAFT, emitted, judge, match
from qsa.reference.exact.sampler import MASS_BITS
from qsa.reference.exact.scalar import LOG2_E, SCORE_LIMIT, exp2, rounded
from qsa.reference.sampler import DRAFTER, PICK, Sampling

from .device_sampling import DrawParameters, option_row

if TYPE_CHECKING:
    from ..request import Request

ACCEPTANCES = "greedy", "exact_match", "rejection"

Distribution = tuple[np.ndarray, np.ndarray]
"""Token ids, and the integer mass of each."""


def _recent(history: list[int], options: Sampling) -> list[int]:
    """The latest tokens of ``history`` that the penalties count."""
    if options.repeat == 1 and options.frequency == 0 and options.presence == 0:
        return []
    return history if options.last_n < 0 else history[max(0, len(history) - options.last_n) :]


def draw_parameters(request: "Request", drafts: Sequence[int]) -> DrawParameters:
    """The draw parameters of the rows after the request's sequence and after each of its ``drafts``."""
    recent, position = _recent(request.sequence, request.sampling), len(request.sequence) - 1
    return DrawParameters(request.sampling, [*recent, *drafts], len(recent), request.seed, position)


def device_draw(request: "Request", drafts: Sequence[int]) -> DrawParameters | None:
    """:func:`draw_parameters`, or None under rejection sampling, which needs the rows' logits on the host."""
    return None if request.acceptance == "rejection" else draw_parameters(request, drafts)


def _draw_rows(
    logits: np.ndarray, draw: DrawParameters, first: int = 0, purpose: int = PICK, lists: Lists | None = None
) -> np.ndarray:
    """Draw the tokens int32 [rows], or error codes, of the rows from ``first`` on from their ``logits`` [rows, vocab].
    ``lists``, where given, receives the rows' distributions."""
    rows = first + np.arange(len(logits))
    options, history = np.repeat(option_row(draw.options), len(rows), 0), np.array([draw.history], np.int32)
    positions = draw.position + rows
    return sample(
        logits, options, history, draw.length + rows, draw.seed, positions, slots=0, purpose=purpose, lists=lists
    )


def _new_lists(logits: np.ndarray, options: Sampling) -> Lists:
    """Empty lists that are long enough for the distributions of ``logits`` [rows, vocab] under ``options``."""
    rows, vocab = logits.shape
    return new_lists(rows, min(int(option_row(options)[0, 0]) or vocab, vocab))


def _drafter_lists(distributions: Sequence[Distribution | None], vocab: int) -> Lists:
    """The drafter's ``distributions`` in the kernel's form, with an empty one for the row after the last draft."""
    counts = [0 if distribution is None else len(distribution[0]) for distribution in distributions] + [0]
    lists = new_lists(len(counts), max(counts))
    lists.counts[:] = counts
    for row, distribution in enumerate(distributions):
        if distribution is not None:
            ids = np.asarray(distribution[0], np.int64)
            # A drafter may list ids outside the vocabulary: their masses count, and no row's own list contains them.
            lists.ids[row, : counts[row]] = np.where((ids >= 0) & (ids < vocab), ids, NO_DRAFT)
            lists.masses[row, : counts[row]] = distribution[1]
    return lists


def _rejection(
    request: "Request", logits: np.ndarray, drafts: Sequence[int], distributions: Sequence[Distribution | None]
) -> tuple[int, list[int]]:
    """(number of accepted drafts, emitted ids) of rejection sampling over ``logits``, one row more than drafts."""
    draw, own = draw_parameters(request, drafts), _new_lists(logits, request.sampling)
    _draw_rows(logits, draw, lists=own)
    positions = draw.position + np.arange(len(logits))
    lists = _drafter_lists(distributions, logits.shape[1])
    return emitted(*judge(own, [*drafts, NO_DRAFT], lists, draw.seed, positions))


def accept(
    request: "Request",
    logits: np.ndarray | None,
    drafts: Sequence[int],
    distributions: Sequence[Distribution | None],
    tokens: np.ndarray | None = None,
    judged: np.ndarray | None = None,
) -> tuple[int, list[int]]:
    """Decide which of a window's drafts are accepted, and which tokens the window emits.

    logits         [rows, vocab] float32 on the host, of the last token and the drafts; None when ``tokens`` are given
    drafts         token ids, one for each row but the last; or more, when the rows of the others did not run
    distributions  for each draft the distribution it was drawn from, which passes
                   ``reference.exact.speculative.check_list``, or None
    tokens         int32 [rows] that the device drew with :func:`device_draw`, or error codes; None: draw them here
    judged         bool [rows], whether each row's draft stands: the device has judged all drafts, and ``tokens`` are
                   what the rows emit; else None

    Returns (number of accepted drafts, emitted ids). One id is emitted for each accepted draft and one more, at most
    one for each row. Row t draws at the position of its own token, so its token does not depend on the window. Raises
    ValueError when a row's logits are NaN or +inf, unless an earlier row ended the window.
    """
    own = logits if tokens is None else tokens
    assert own is not None, "logits or tokens are required"
    if judged is not None:
        return emitted(judged, own)
    rows = len(own)
    if len(drafts) >= rows:
        # The last row judges the first draft that did not run. If it drew a token of its own instead, whether a draft
        # is judged would depend on which token it is, and rejection sampling would favour tokens that can run. The
        # copied row stands for the row after that draft; its token is never emitted.
        own, drafts, distributions = np.concatenate([own, own[-1:]]), drafts[:rows], distributions[:rows]
    if request.acceptance == "rejection" and drafts:
        accepted, ids = _rejection(request, own, drafts, distributions)
    else:
        tokens = _draw_rows(own, draw_parameters(request, drafts)) if tokens is None else own
        accepted, ids = emitted(match(tokens, [*drafts, NO_DRAFT]), tokens)
    return accepted, ids[:rows]


def propose(request: "Request", logits: np.ndarray, drafts: Sequence[int]) -> tuple[int, Distribution | None, bool]:
    """The next draft after ``drafts``, from the draft layer's ``logits`` [vocab] float32 on the host.

    Under rejection sampling the draft is drawn with the request's options, and its distribution is returned. Otherwise
    the draft is the most probable token whatever the temperature: a drawn one would match the model's less often.

    Returns (id, distribution or None, whether its probability reaches ``drafting.min_p``). Raises ValueError on logits
    that are NaN or +inf.
    """
    assert request.drafting is not None, "drafts are proposed for requests with a Drafting"
    floor, draw = request.drafting.min_p, draw_parameters(request, drafts)
    if request.acceptance == "rejection" and not draw.options.greedy:
        lists = _new_lists(logits[None], draw.options)
        tokens = _draw_rows(logits[None], draw, len(drafts), DRAFTER, lists)
        check_tokens(tokens)
        token, (ids, masses) = int(tokens[0]), lists.of(0)
        return token, (ids, masses), not floor or int(masses[ids == token][0]) / int(masses.sum()) >= floor
    draw = draw._replace(options=replace(draw.options, temperature=0.0))
    tokens = _draw_rows(logits[None], draw, len(drafts))
    check_tokens(tokens)
    token = int(tokens[0])
    return token, None, not floor or probability(logits, token) >= floor


def probability(logits: np.ndarray, token: int) -> float:
    """The softmax probability of ``token`` under finite or -inf ``logits`` [vocab] float32. It is a quotient of integer
    masses, so it is the same number on every machine."""
    with np.errstate(over="ignore"):
        s = np.fmax((logits - logits.max()) * LOG2_E, -SCORE_LIMIT)
    r, n = exp2(s)
    masses = rounded(r, MASS_BITS + n)
    return int(masses[token]) / int(masses.sum())
