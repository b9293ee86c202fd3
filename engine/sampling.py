"""The sampler as the engine calls it: what a window's rows emit, and what the drafter draws.

Everything between the engine and a sampler passes through here. The rules are those of ``reference/exact/sampler.py``
and ``reference/exact/speculative.py``: integer masses, so a token never depends on where it was drawn. Greedy and
exact-match tokens may come from the device (``draws``); rejection sampling and drafts are drawn here.
"""

from dataclasses import replace

import numpy as np

from ..kernels.cpu.accept import NO_DRAFT, emitted, match
from ..kernels.cpu.sample import check_tokens, sample
from ..reference.exact import speculative
from ..reference.exact.sampler import MASS_BITS, distribution, draw, uniform
from ..reference.exact.scalar import LOG2_E, SCORE_LIMIT, exp2, rounded
from ..reference.sampler import DRAFTER
from .draws import Draw

ACCEPTANCES = "greedy", "exact_match", "rejection"


def _recent(history, options):
    """The end of ``history`` that the penalties look at."""
    if options.repeat == 1 and options.frequency == 0 and options.presence == 0:
        return []
    return history if options.last_n < 0 else history[max(0, len(history) - options.last_n) :]


def asked_draw(request, drafts):
    """What the rows after the sequence and each of its ``drafts`` draw with: a :class:`~qsa.engine.draws.Draw`. None
    under rejection sampling, which needs their logits."""
    if request.acceptance == "rejection":
        return None
    recent, position = _recent(request.sequence, request.sampling), len(request.sequence) - 1
    return Draw(request.sampling, [*recent, *drafts], len(recent), request.seed, position)


def _drawn(request, logits, drafts):
    """The tokens int32 [rows] that the rows of ``logits`` draw, or error codes."""
    one, rows = asked_draw(request, drafts), np.arange(len(logits))
    line = np.array([one.line], np.int32)
    return sample(logits, one.options, line, one.length + rows, one.seed, one.position + rows, slots=0)


def accept(request, logits, drafts, lists, tokens=None):
    """Which of a window's drafts stand, and what it emits.

    logits  [rows, vocab] float32 on the host, of the last token and the drafts; None where ``tokens`` are given
    drafts  ids; lists: what each was drawn from, (ids, masses) or None. One for each row but the last, or more: those
            whose rows did not run
    tokens  int32 [rows], what :func:`asked_draw`'s rows have drawn on the device, or error codes; None: drawn here

    Returns (accepted drafts, emitted ids: one for each of them and one more, at most one for each row). Row t's
    position is that of its own token, so what it draws depends on no window. Raises ValueError on a row's logits that
    are NaN or +inf, unless an earlier row has settled what is emitted.
    """
    own = logits if tokens is None else tokens
    rows = len(own)
    if len(drafts) >= rows:
        # The last row judges the first draft that did not run. Were it to draw instead, a draft would be judged or not
        # by what it is, and rejection sampling would emit what runs more often than the model does. The row that would
        # follow is a stand-in: nothing that it says is emitted.
        own, drafts, lists = np.concatenate([own, own[-1:]]), drafts[:rows], lists[:rows]
    if request.acceptance == "rejection":
        history, position = _recent(request.sequence, request.sampling), len(request.sequence) - 1
        accepted, said = speculative.rejection(own, drafts, lists, history, request.sampling, request.seed, position)
    else:
        tokens = _drawn(request, own, drafts) if tokens is None else own
        accepted, said = emitted(match(tokens, [*drafts, NO_DRAFT]), tokens)
    return accepted, said[:rows]


def propose(request, logits, drafts):
    """The next draft after ``drafts``, from the draft layer's ``logits`` [vocab] float32 on the host.

    Under rejection sampling it is drawn from the drafter's own chain, and comes with the list; otherwise it is the most
    probable token, whatever the temperature: a draw of its own would meet the model's less often.

    Returns (id, list or None, probability of the draft). Raises ValueError on logits that are NaN or +inf.
    """
    options = request.sampling
    if request.acceptance == "rejection" and not options.greedy:
        ids, masses = distribution(logits, _recent(request.sequence + drafts, options), options)
        position = len(request.sequence) - 1 + len(drafts)
        place = draw(masses, uniform(request.seed, position, DRAFTER)[0])
        return int(ids[place]), (ids, masses), int(masses[place]) / int(masses.sum())
    line = np.array([_recent(request.sequence + drafts, options)], np.int32)
    tokens = sample(logits[None], replace(options, temperature=0.0), line, line.shape[1], 0, 0, slots=0)
    check_tokens(tokens)
    return int(tokens[0]), None, probability(logits, int(tokens[0]))


def probability(logits, token):
    """The softmax's share of ``token`` in one row of finite or -inf ``logits`` [vocab] float32: a quotient of integer
    masses, the same number everywhere."""
    with np.errstate(over="ignore"):
        s = np.fmax((logits - logits.max()) * LOG2_E, -SCORE_LIMIT)
    r, n = exp2(s)
    masses = rounded(r, MASS_BITS + n)
    return int(masses[token]) / int(masses.sum())
