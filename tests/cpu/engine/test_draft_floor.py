"""The draft floor under rejection sampling: how long a chain grows does not bend what is emitted."""

from types import SimpleNamespace

import numpy as np
import pytest

from qsa.engine import Drafting, Request, Sampling
from qsa.engine.draft import DraftRequest, LayerDrafter, Proposal
from qsa.engine.draws import sampling
from qsa.model import Output
from qsa.reference.exact.sampler import distribution
from qsa.reference.sampler import GREEDY
from support.chi_square import chi_square_fails

VOCAB, TEXT, TRIALS = 4, 3, 5000
"""The least of the mistakes below, ``position 0``, moves the texts by sum (p' - p)^2 / p = 0.068 (20,000 trials). The
statistic of 5,000 then has a mean of 395 and a standard deviation of 38 (non-central chi-square, 54 degrees of
freedom), where a right engine stays below 92 in 99.9 % of all cases."""
MODEL = np.random.default_rng(5).normal(0, 1.2, (VOCAB, VOCAB)).astype(np.float32)
"""Logits of a Markov model: row i predicts the token after token i."""
OWN = (MODEL + np.random.default_rng(6).normal(0, 2.0, MODEL.shape)).astype(np.float32)
"""Logits of the draft layer, in the same form."""

OPTIONS = Sampling(temperature=1.1)


class Layer:
    """A runner whose draft layer is :data:`OWN`."""

    def draft(self, streams, next_ids, starts, counts, slots):
        return Output(OWN[next_ids], np.zeros((len(next_ids), 1), np.float32))

    def logits(self, x):
        return x


def share(token, distribution):
    """Probability with which a draft was drawn."""
    ids, masses = distribution
    return int(masses[ids == token][0]) / int(masses.sum())


def dropped(proposal, floor):
    """A mistake: an improbable draft is not verified, so that whether it is judged depends on which token it is."""
    tokens, distributions = proposal.tokens, proposal.distributions
    if share(tokens[-1], distributions[-1]) < floor:
        return Proposal(tokens[:-1], distributions[:-1])
    return proposal


KINDS = [(OPTIONS, "rejection"), (OPTIONS, "exact_match"), (GREEDY, "greedy"), (GREEDY, "rejection")]


@pytest.mark.parametrize("floor, drafts", [(0.25, 3), (0.2500001, 1)])
@pytest.mark.parametrize("options, acceptance", KINDS)
def test_a_draft_as_probable_as_the_floor_is_followed_by_another(monkeypatch, options, acceptance, floor, drafts):
    """Of four equal tokens each has exactly a quarter."""
    monkeypatch.setitem(globals(), "OWN", np.zeros_like(OWN))
    request = Request([0], 9, options, 1, acceptance, Drafting(4, min_p=floor))
    slot = SimpleNamespace(
        draft=SimpleNamespace(last_output=(OWN[0], np.zeros((1, 1), np.float32)), incomplete=False, n=0)
    )
    assert len(LayerDrafter(Layer()).propose([DraftRequest(request, slot, 3)])[0].tokens) == drafts


def emitted(request, proposal, mistake):
    """What the engine's acceptance makes of one window. ``position 0``, a mistake: every window draws with the numbers
    of the text's first positions, as if none had come before it."""
    last = request.sequence[-1]
    if mistake == "position 0":
        request = Request([last], TEXT, OPTIONS, request.seed, "rejection", request.drafting)
    return sampling.accept(request, MODEL[[last, *proposal.tokens]], proposal.tokens, proposal.distributions)[1]


CASES = [(0.0, None), (0.35, None), (1.0, None), (0.35, "dropped"), (0.35, "position 0")]


@pytest.mark.parametrize("floor, mistake", CASES)
def test_a_floor_leaves_the_distribution_alone(floor, mistake):
    """The drafter and the acceptance as the engine has them, windows of up to three rows until three tokens stand."""
    drafter, drafting = LayerDrafter(Layer()), Drafting(3, min_p=floor)
    texts, lengths = np.empty(TRIALS, np.int64), set()
    for seed in range(TRIALS):
        request = Request([0], TEXT, OPTIONS, seed, "rejection", drafting)
        while not request.reason:
            output = OWN[request.sequence[-1]], np.zeros((1, 1), np.float32)
            slot = SimpleNamespace(
                draft=SimpleNamespace(last_output=output, incomplete=False, n=len(request.sequence) - 1)
            )
            count = min(drafting.rows, TEXT - len(request.tokens)) - 1
            proposal = drafter.propose([DraftRequest(request, slot, count)])[0] if count else Proposal()
            drafts = zip(proposal.tokens[:-1], proposal.distributions, strict=False)
            assert all(share(token, distribution) >= floor for token, distribution in drafts)
            if count and mistake == "dropped":
                proposal = dropped(proposal, floor)
            lengths.add((count, len(proposal.tokens)))
            request.emit(emitted(request, proposal, mistake))
        texts[seed] = np.ravel_multi_index(request.tokens, (VOCAB,) * TEXT)
    assert {(2, 1), (2, 2)} & lengths == {(2, 2)} if floor == 0 else (2, 1) in lengths
    lists = [distribution(row, (), OPTIONS) for row in MODEL]
    steps = np.zeros((VOCAB, VOCAB))
    for row, (ids, masses) in zip(steps, lists, strict=True):
        row[ids] = masses / masses.sum()
    expected = np.einsum("a,ab,bc->abc", steps[0], steps, steps).reshape(-1)
    assert chi_square_fails(texts, expected) == bool(mistake)
