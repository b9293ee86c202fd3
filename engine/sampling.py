"""The sampler as the engine calls it: what a window's rows emit, and what the drafter draws.

Everything between the engine and a sampler passes through here. The rules are those of ``reference/exact/sampler.py``
and ``reference/exact/speculative.py``: integer masses, so a token never depends on where it was drawn. Greedy and
exact-match tokens may come from the device (``draws``); rejection sampling and drafts are drawn here, by the CPU's
kernels: what a million draws of those are tested to keep is what a text has.
"""

from dataclasses import replace

import numpy as np

from qsa.kernels.cpu.sampler import check_tokens, new_lists, sample
from qsa.kernels.cpu.speculative import NO_DRAFT, emitted, judge, match
from qsa.reference.exact.sampler import MASS_BITS
from qsa.reference.exact.scalar import LOG2_E, SCORE_LIMIT, exp2, rounded
from qsa.reference.sampler import DRAFTER, PICK

from .device_sampling import Draw, option_row

ACCEPTANCES = "greedy", "exact_match", "rejection"


def _recent(history, options):
    """The end of ``history`` that the penalties look at."""
    if options.repeat == 1 and options.frequency == 0 and options.presence == 0:
        return []
    return history if options.last_n < 0 else history[max(0, len(history) - options.last_n) :]


def row_draw(request, drafts):
    """What the rows after the sequence and each of its ``drafts`` draw with: a :class:`~qsa.engine.draws.Draw`."""
    recent, position = _recent(request.sequence, request.sampling), len(request.sequence) - 1
    return Draw(request.sampling, [*recent, *drafts], len(recent), request.seed, position)


def asked_draw(request, drafts):
    """:func:`row_draw`, or None under rejection sampling, which needs the rows' logits."""
    return None if request.acceptance == "rejection" else row_draw(request, drafts)


def _drawn(logits, one, first=0, purpose=PICK, lists=None):
    """The tokens int32 [rows] that rows ``first``, ``first`` + 1, ... of a Draw draw from ``logits`` [rows, vocab], or
    error codes; fills ``lists`` where given."""
    rows = first + np.arange(len(logits))
    options, line = np.repeat(option_row(one.options), len(rows), 0), np.array([one.line], np.int32)
    given = {"slots": 0, "purpose": purpose, "lists": lists}
    return sample(logits, options, line, one.length + rows, one.seed, one.position + rows, **given)


def _room(logits, options):
    """Lists for what the chain can leave of ``logits`` [rows, vocab]."""
    rows, vocab = logits.shape
    return new_lists(rows, min(int(option_row(options)[0, 0]) or vocab, vocab))


def _told(lists, vocab):
    """The drafter's ``lists`` as the kernel takes them, and an empty one for the row behind the drafts."""
    counts = [0 if one is None else len(one[0]) for one in lists] + [0]
    told = new_lists(len(counts), max(counts))
    told.counts[:] = counts
    for row, one in enumerate(lists):
        if one is not None:
            ids = np.asarray(one[0], np.int64)
            # A drafter may list what is no token: its mass counts, and no row's list has it.
            told.ids[row, : counts[row]] = np.where((ids >= 0) & (ids < vocab), ids, NO_DRAFT)
            told.masses[row, : counts[row]] = one[1]
    return told


def _rejection(request, logits, drafts, lists):
    """(accepted drafts, emitted ids) of rejection sampling over the rows of ``logits``, one more than drafts."""
    one, own = row_draw(request, drafts), _room(logits, request.sampling)
    _drawn(logits, one, lists=own)
    positions = one.position + np.arange(len(logits))
    told = _told(lists, logits.shape[1])
    return emitted(*judge(own, [*drafts, NO_DRAFT], told, one.seed, positions))


def accept(request, logits, drafts, lists, tokens=None):
    """Which of a window's drafts stand, and what it emits.

    logits  [rows, vocab] float32 on the host, of the last token and the drafts; None where ``tokens`` are given
    drafts  ids of the vocabulary; lists: what each was drawn from, (ids, masses) that pass
            ``reference.exact.speculative.check_list``, or None. One for each row but the last, or more: those whose
            rows did not run
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
    if request.acceptance == "rejection" and drafts:
        accepted, said = _rejection(request, own, drafts, lists)
    else:
        tokens = _drawn(own, row_draw(request, drafts)) if tokens is None else own
        accepted, said = emitted(match(tokens, [*drafts, NO_DRAFT]), tokens)
    return accepted, said[:rows]


def propose(request, logits, drafts):
    """The next draft after ``drafts``, from the draft layer's ``logits`` [vocab] float32 on the host.

    Under rejection sampling it is drawn from the drafter's own chain, and comes with the list; otherwise it is the most
    probable token, whatever the temperature: a draw of its own would meet the model's less often.

    Returns (id, list or None, whether the draft is as probable as the request's floor). Raises ValueError on logits
    that are NaN or +inf.
    """
    floor, one = request.drafting.min_p, row_draw(request, drafts)
    if request.acceptance == "rejection" and not one.options.greedy:
        lists = _room(logits[None], one.options)
        tokens = _drawn(logits[None], one, len(drafts), DRAFTER, lists)
        check_tokens(tokens)
        token, (ids, masses) = int(tokens[0]), lists.of(0)
        return token, (ids, masses), not floor or int(masses[ids == token][0]) / int(masses.sum()) >= floor
    one = one._replace(options=replace(one.options, temperature=0.0))
    tokens = _drawn(logits[None], one, len(drafts))
    check_tokens(tokens)
    token = int(tokens[0])
    return token, None, not floor or probability(logits, token) >= floor


def probability(logits, token):
    """The softmax's share of ``token`` in one row of finite or -inf ``logits`` [vocab] float32: a quotient of integer
    masses, the same number everywhere."""
    with np.errstate(over="ignore"):
        s = np.fmax((logits - logits.max()) * LOG2_E, -SCORE_LIMIT)
    r, n = exp2(s)
    masses = rounded(r, MASS_BITS + n)
    return int(masses[token]) / int(masses.sum())
