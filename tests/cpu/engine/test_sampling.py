"""The engine's acceptance and drafts come from the kernels and equal those of the reference."""

import numpy as np
import pytest

from qsa.engine import Drafting, Engine, Request, Sampling
from qsa.engine.draws import sampling
from qsa.kernels.cpu import speculative as accept
from qsa.reference.exact import sampler, speculative
from qsa.reference.sampler import DRAFTER
from support.engine_models import DRAFTED, VOCAB, engine_model, prompt

CHAINS = {
    "plain": Sampling(),
    "penalised": Sampling(0.9, 7, 0.95, 0.01, repeat=1.3, frequency=0.2, presence=0.1, last_n=5),
    "whole": Sampling(1.4, 0, max_candidates=0, repeat=1.2, last_n=-1),
    "greedy": Sampling(temperature=0.0, repeat=1.5),
}


def window(rng, trial, options):
    """(request, logits [4, 12], 3 drafts, what each was drawn from)."""
    request = Request(rng.integers(0, 12, 1 + trial % 9).tolist(), 9, options, trial, "rejection", DRAFTED)
    logits = rng.normal(0, 1.5, (4, 12)).astype(np.float32)
    own = (logits + rng.normal(0, 1.0, logits.shape)).astype(np.float32)
    drafts, lists = [], []
    for row in own[:3]:
        ids, masses = sampler.distribution(row, (), Sampling(1.2))
        drafts.append(int(ids[sampler.draw(masses, int(rng.integers(1 << 24)))]))
        lists.append((ids, masses))
    return request, logits, drafts, lists


@pytest.mark.parametrize("chain", CHAINS)
def test_rejection_sampling_is_the_references(chain):
    """Windows with lists, without, with a draft that its list lacks, and with lists of what is no token."""
    rng, counts = np.random.default_rng(3), set()
    for trial in range(150):
        request, logits, drafts, lists = window(rng, trial, CHAINS[chain])
        if trial % 5 == 2:
            ids, masses = lists[1]
            strangers = [-3, 2**32 + drafts[1], 99], np.array([5, 1 << 40, 1 << 39], np.uint64)
            lists[1] = np.append(ids, strangers[0]), np.append(masses, strangers[1])
        if trial % 3 == 1:
            lists[trial % 2] = None
        if trial % 7 == 3:
            lists[2] = np.array([(drafts[2] + 1) % 12]), np.array([9])
        position = len(request.sequence) - 1
        want = speculative.rejection(logits, drafts, lists, request.sequence, request.sampling, request.seed, position)
        assert sampling.accept(request, logits, drafts, lists) == want
        counts.add(want[0])
        alone = speculative.rejection(logits[:1], [], [], request.sequence, request.sampling, request.seed, position)
        assert sampling.accept(request, logits[:1], [], []) == alone
    assert counts >= {0, 1, 2}


def test_a_row_that_cannot_be_judged_fails_unless_one_before_it_has_settled_the_text():
    rng, seen = np.random.default_rng(4), set()
    for trial in range(40):
        request, logits, drafts, lists = window(rng, trial, CHAINS["plain"])
        want = sampling.accept(request, logits, drafts, lists)
        logits[1, 3] = np.nan
        seen.add(want[0] > 0)
        if want[0] == 0:
            assert sampling.accept(request, logits, drafts, lists) == want
        else:
            with pytest.raises(ValueError, match="row 1: logits: NaN"):
                sampling.accept(request, logits, drafts, lists)
    assert seen == {False, True}


def test_every_draft_of_a_text_is_judged_by_the_kernel_that_is_tested(monkeypatch):
    """``test_acceptance_statistics`` draws a million times from ``accept.judge``: the engine has no other judge."""
    judged = []

    def judge(own, drafts, *rest):
        accepted, tokens = accept.judge(own, drafts, *rest)
        judged.extend(accepted[:-1].tolist())
        return accepted, tokens

    monkeypatch.setattr(sampling, "judge", judge)
    engine = Engine(engine_model(), 1, 90)
    options = {"sampling": Sampling(temperature=1.3, top_k=12), "acceptance": "rejection", "drafting": DRAFTED}
    request = engine.submit(prompt(45), 30, seed=5, **options)
    engine.run()
    counts = request.statistics
    assert len(judged) == counts.drafted > 30 and sum(judged) >= counts.accepted > 0


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("acceptance", ["rejection", "exact_match"])
def test_a_draft_is_the_references(chain, acceptance):
    """Drawn from the drafter's own stream with its list, or the best; the floor is held against its exact share."""
    rng, options = np.random.default_rng(5), CHAINS[chain]
    drawn = acceptance == "rejection" and not options.greedy
    best = Sampling(
        0.0, repeat=options.repeat, frequency=options.frequency, presence=options.presence, last_n=options.last_n
    )
    for trial in range(60):
        request, logits, drafts, _ = window(rng, trial, options)
        request.acceptance = acceptance
        history, row = request.sequence + drafts[:2], logits[2]
        ids, masses = sampler.distribution(row, history, options if drawn else best)
        u = sampler.uniform(trial, len(history) - 1, DRAFTER)[0]
        token = int(ids[sampler.draw(masses, u)])
        share = int(masses[ids == token][0]) / int(masses.sum()) if drawn else sampling.probability(row, token)
        for floor, likely in ((0.0, True), (share, True), (min(1.0, np.nextafter(share, 2)), share == 1)):
            request.drafting = Drafting(4, min_p=floor)
            got, distribution, probable = sampling.propose(request, row, drafts[:2])
            assert (got, probable) == (token, likely) and (distribution is not None) == drawn
            if drawn:
                assert np.array_equal(distribution[0], ids) and np.array_equal(distribution[1], masses)


def test_without_a_floor_no_probability_is_computed(monkeypatch):
    """The share of the best token takes the exponentials of the whole vocabulary."""
    row, calls = np.random.default_rng(6).normal(0, 1, VOCAB).astype(np.float32), []
    right = sampling.probability
    monkeypatch.setattr(sampling, "probability", lambda *given: calls.append(given) or right(*given))
    for floor in (0, 0.0, 0.5):
        request = Request([0], 9, drafting=Drafting(4, min_p=floor))
        assert sampling.propose(request, row, [])[0] == row.argmax()
    assert len(calls) == 1
