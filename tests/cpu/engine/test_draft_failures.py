"""Drafters and draft layers that fail: their failures cost drafts and nothing else."""

import numpy as np
import pytest

from qsa.engine import Engine, Sampling
from qsa.engine.draft import Proposal
from qsa.kernels import cpu
from qsa.model import ExactModel
from support.engine_models import DRAFTED, VOCAB, engine_model, plain, prompt
from support.exact_models import small_model

IDS = tuple(prompt(45))
HOT = Sampling(temperature=1.3, top_k=12)


@pytest.fixture(scope="module")
def model():
    return engine_model()


class Careless:
    """A drafter with the given methods, which need not keep to the protocol."""

    def __init__(self, propose, on_commit=lambda committed: None):
        self.propose, self.on_commit = propose, on_commit


def _fails(_):
    raise RuntimeError("no drafts today")


@pytest.mark.parametrize(
    "drafter",
    [
        Careless(_fails),
        Careless(lambda requests: [Proposal() for _ in requests], _fails),
        Careless(lambda requests: []),
        Careless(lambda requests: [None for _ in requests]),
        Careless(lambda requests: [Proposal(["word"], [None]) for _ in requests]),
    ],
    ids=["propose", "on_commit", "too few", "none", "no ids"],
)
def test_whatever_a_drafter_raises_costs_drafts_alone(model, drafter):
    engine = Engine(model, 2, 90, drafter=drafter)
    requests = [engine.submit(list(IDS), 12, drafting=DRAFTED), engine.submit(list(IDS), 12)]
    engine.run()
    assert [request.tokens for request in requests] == [plain(IDS, 12).tokens] * 2
    assert requests[0].statistics.draft_failures > 0 and requests[0].draft_error is not None
    assert requests[1].statistics.draft_failures == 0 and requests[0].statistics.drafted == 0


@pytest.mark.parametrize("listed", [([3, 3], [1, 1]), ([3], [0.5]), ([3, 4], [1]), "list"])
def test_so_does_a_list_that_is_none(model, listed):
    engine = Engine(model, 1, 90, drafter=Careless(lambda requests: [Proposal([3], [listed])]))
    options = {"sampling": HOT, "seed": 1, "drafting": DRAFTED}
    request = engine.submit(list(IDS), 5, acceptance="rejection", **options)
    other = engine.submit(list(IDS), 5, **options)
    engine.run()
    assert request.tokens == other.tokens == plain(IDS, 5, sampling=HOT, seed=1).tokens
    assert request.statistics.draft_failures == 3 and other.statistics.draft_failures == 0


@pytest.mark.parametrize("junk", [[VOCAB], [-1], [3] * 20, [3, VOCAB, 3]])
def test_drafts_that_are_no_tokens_or_too_many_are_left_out(model, junk):
    engine = Engine(model, 1, 90, drafter=Careless(lambda requests: [Proposal(junk, [None] * len(junk))]))
    request = engine.submit(list(IDS), 12, drafting=DRAFTED)
    engine.run()
    assert request.tokens == plain(IDS, 12).tokens
    good = len([t for t in junk[:3] if t == 3]) if VOCAB not in junk else junk.index(VOCAB)
    assert request.statistics.drafted <= good * request.statistics.rounds and request.status == "finished"


def failing_layer(what, cell):
    """A model whose draft layer raises, or says NaN, at cell ``cell`` of the text that begins with token 1."""
    model = ExactModel.from_model(small_model(draft=True), backend=cpu)
    forward = model.draft.forward

    def failing(streams, next_ids, starts, counts, states, windows=None):
        x, own = forward(streams, next_ids, starts, counts, states, windows)
        ends = np.cumsum(counts)
        for end, start, count, state in zip(ends, starts, counts, states, strict=True):
            if state is failing.victim and start <= cell < start + count:
                if what == "raises":
                    raise ValueError("int8: values must be finite")
                x[end - count + cell - start] = np.nan
        return x, own

    failing.victim, model.draft.forward = None, failing
    return model, failing


@pytest.mark.parametrize("what", ["raises", "NaN"])
@pytest.mark.parametrize("cell", [20, 44, 45, 46, 52])
def test_a_draft_layer_that_fails_in_one_slot_drafts_on_in_the_other(what, cell):
    model, failing = failing_layer(what, cell)
    engine = Engine(model, 2, 90)
    failing.victim = engine.slots[0].draft.state
    other = tuple(prompt(31, seed=12))
    requests = [engine.submit(list(ids), 16, drafting=DRAFTED) for ids in (IDS, other)]
    engine.run()
    assert [request.tokens for request in requests] == [plain(ids, 16).tokens for ids in (IDS, other)]
    bad, good = (request.statistics for request in requests)
    assert good.draft_failures == 0 and good.drafted >= 15
    # A NaN inside the prompt is in a row whose logits are not used.
    assert (bad.draft_failures > 0) == (what == "raises" or cell >= 44)
    if what == "raises" and cell <= 44:
        # Without that cell every later draft would differ from the layer's own, so nothing is drafted.
        assert bad.drafted == 0 and bad.draft_failures == 1 and engine.slots[0].draft.incomplete
    failing.victim = None
    again = engine.submit(list(IDS), 16, drafting=DRAFTED)
    engine.run()
    assert again.slot == 0 and again.statistics.draft_failures == 0 and again.statistics.drafted > 16
