"""What the kernels emit keeps the model's own distribution, whatever drafts: a million draws a case, at 99.9 %.

The lists, the draws of model and drafter and the decisions are those of ``kernels/cpu/sampler.py`` and ``accept.py``;
nothing of them is repeated here. A vocabulary of 16 tokens, so that every cell sees thousands of draws.
"""

from functools import cache

import numpy as np
import pytest

from qsa.kernels.cpu import sampler as sample
from qsa.kernels.cpu import speculative as accept
from qsa.reference.exact import sampler as exact
from qsa.reference.sampler import DRAFTER, GREEDY, PICK, Sampling
from support.chi_square import chi_square_fails

VOCAB = 16
DRAWS = 1_000_000
CHUNK = 1 << 17
SEED = 20264
NO_HISTORY = np.zeros((1, 1), np.int32)

CHAINS = {
    "plain": Sampling(),
    "cut": Sampling(top_k=9, top_p=0.95, min_p=0.05),
    "hot": Sampling(temperature=1.6, top_k=6),
}

_RNG = np.random.default_rng(12)
MODEL = _RNG.normal(0, 1.5, VOCAB).astype(np.float32)
NOISE = _RNG.normal(0, 1.0, VOCAB).astype(np.float32)


def drafter(kind, chain):
    """(logits, options, whether the acceptance is told of the list) of a drafter of the model under ``chain``.

    ``disjoint``: nothing of what it drafts is in the model's list, or with a chain that cuts nothing, the half of the
    tokens that the model likes least. ``point mass``: one token, of which no list is told.
    """
    if kind == "equal":
        return MODEL, CHAINS[chain], True
    if kind == "perturbed":
        return MODEL + NOISE, CHAINS[chain], True
    if kind == "wider":
        return MODEL + NOISE, Sampling(temperature=2.0), True
    if kind == "point mass":
        return NOISE + MODEL, GREEDY, False
    ids, _ = exact.distribution(MODEL, (), CHAINS[chain])
    excluded = np.setdiff1d(np.arange(VOCAB), ids) if ids.size < VOCAB else np.argsort(MODEL)[: VOCAB // 2]
    row = np.full(VOCAB, -np.inf, np.float32)
    row[excluded] = NOISE[excluded]
    return row, Sampling(), True


def drawn(logits, options, positions, purpose):
    """(tokens, lists) of one row of logits, or of [n] of them, at [n] positions."""
    n = len(positions)
    lists = sample.new_lists(n, VOCAB)
    rows, table = np.broadcast_to(logits, (n, VOCAB)), exact.option_rows(options, 1).repeat(n, 0)
    given = {"slots": 0, "purpose": purpose, "lists": lists}
    tokens = sample.sample(rows, table, NO_HISTORY, 0, SEED, positions, **given)
    sample.check_tokens(tokens)
    return tokens, lists


def chunks(draws=DRAWS):
    """Slices of so many trials."""
    return [slice(first, min(first + CHUNK, draws)) for first in range(0, draws, CHUNK)]


def dense(ids, masses):
    """Probabilities [VOCAB]."""
    full = np.zeros(VOCAB)
    full[ids] = masses / masses.sum()
    return full


@cache
def million(logits, options, purpose):
    """(tokens [DRAWS] of one row at positions 0, 1, ...; the row's list, as often as a chunk has trials)."""
    tokens = np.empty(DRAWS, np.int32)
    for at in reversed(chunks()):
        tokens[at], lists = drawn(np.array(logits), options, np.arange(at.start, at.stop), purpose)
    return tokens, lists


def exact_match(own, tokens, drafts, listed, positions):
    """(accepted, tokens) of rows that judge ``drafts``; ``tokens``: what the rows draw themselves."""
    return accept.match(tokens, drafts), tokens


def rejection(own, tokens, drafts, listed, positions):
    """The same by rejection sampling."""
    return accept.judge(own, drafts, listed, SEED, positions)


def always_accept(own, tokens, drafts, listed, positions):
    """A mistake: the drafter's word is taken."""
    return np.ones(len(drafts), bool), drafts


def uncorrected(own, tokens, drafts, listed, positions):
    """A mistake: the acceptance is right, but what replaces a rejected draft comes from p, not from max(0, p - q)."""
    accepted, judged = rejection(own, tokens, drafts, listed, positions)
    return accepted, np.where(accepted, judged, tokens)


def another_list(own, tokens, drafts, listed, positions):
    """A mistake: the draft is the drafter's best, but the decision is told the list from which it draws otherwise."""
    best = listed.of(0)[0][0]  # the entries behind a row's list are not written
    return rejection(own, tokens, np.full_like(drafts, best), listed, positions)


def run(form, kind, chain, draws=DRAWS):
    """(emitted tokens, accepted [draws], drafts, p, q dense)."""
    logits, options, told = drafter(kind, chain)
    tokens, own = million(tuple(MODEL), CHAINS[chain], PICK)
    drafts, listed = million(tuple(logits), options, DRAFTER)
    emitted, accepted = np.empty(draws, np.int32), np.empty(draws, bool)
    for at in chunks(draws):
        n = at.stop - at.start
        some, theirs = (type(own)(*(array[:n] for array in lists)) for lists in (own, listed))
        if not told:
            theirs = theirs._replace(counts=np.zeros(n, np.int32))
        accepted[at], emitted[at] = form(some, tokens[at], drafts[at], theirs, np.arange(at.start, at.stop))
    return emitted, accepted, drafts[:draws], dense(*own.of(0)), dense(*listed.of(0))


KINDS = ("equal", "perturbed", "disjoint", "point mass", "wider")


def test_lists_are_the_references():
    """What the cases compare with is not the kernels' own."""
    for options in CHAINS.values():
        _, lists = drawn(MODEL, options, np.arange(1), PICK)
        for got, expected in zip(lists.of(0), exact.distribution(MODEL, (), options), strict=True):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", [exact_match, rejection])
def test_the_distribution_is_the_models(form, kind, chain):
    emitted, accepted, drafts, p, q = run(form, kind, chain)
    assert (emitted[accepted] == drafts[accepted]).all()
    assert not chi_square_fails(emitted, p)
    # Two independent draws meet in sum p q; rejection accepts sum min(p, q), without a list p(draft), which is the same
    # sum of products as q is 1 at one token. 4.5 standard errors: a right sampler leaves them once in 150,000 cases.
    expected = np.minimum(p, q).sum() if form is rejection and kind != "point mass" else p @ q
    assert abs(accepted.mean() - expected) <= 4.5 * (expected * max(0, 1 - expected) / DRAWS) ** 0.5 + 1e-6


@pytest.mark.parametrize("wrong", [always_accept, uncorrected, another_list])
@pytest.mark.parametrize("chain", ["plain", "cut"])
def test_controls_must_fail(wrong, chain):
    """The mistakes that a sampler can make are seen, in fewer draws than the cases have."""
    emitted, *_, p, _ = run(wrong, "perturbed", chain, draws=DRAWS // 4)
    assert chi_square_fails(emitted, p)


TABLE = np.random.default_rng(8).normal(0, 1.2, (VOCAB, VOCAB)).astype(np.float32)
OWN = TABLE + np.random.default_rng(9).normal(0, 0.8, TABLE.shape).astype(np.float32)


@pytest.mark.parametrize("drafts_of_a_window", [1, 2])
@pytest.mark.parametrize("form", [exact_match, rejection])
def test_two_tokens_keep_their_joint_distribution(form, drafts_of_a_window):
    """The first two tokens after token 0 of a Markov model, as an engine's windows emit them, two positions a trial.

    Numbers of neighbouring positions and of other purposes must not know each other. With two drafts the second row
    judges one as well, and what it sees of the first decision must not bend its token.
    """
    options = Sampling(top_k=8)
    lists = [dense(*exact.distribution(row, (), options)) for row in TABLE]
    joint = lists[0][:, None] * np.array(lists)
    emitted, share = np.empty(DRAWS, np.int64), 0.0

    def second_row(drafts, positions):
        if drafts_of_a_window == 1:
            return drawn(TABLE[drafts], options, positions, PICK)[0]
        second, listed = drawn(OWN[drafts], options, positions, DRAFTER)
        tokens, own = drawn(TABLE[drafts], options, positions, PICK)
        return form(own, tokens, second, listed, positions)[1]

    for at in chunks():
        positions = 2 * np.arange(at.start, at.stop)
        drafts, listed = drawn(OWN[0], options, positions, DRAFTER)
        tokens, own = drawn(TABLE[0], options, positions, PICK)
        accepted, one = form(own, tokens, drafts, listed, positions)
        # Where the draft falls, the next window's first row draws the second token, at the same position.
        next_window, _ = drawn(TABLE[one], options, positions + 1, PICK)
        emitted[at] = VOCAB * one + np.where(accepted, second_row(drafts, positions + 1), next_window)
        share += accepted.sum() / DRAWS
    assert 0.1 < share < 0.9
    assert not chi_square_fails(emitted, joint.reshape(-1))
