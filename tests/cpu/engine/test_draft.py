"""The draft layer: its cells, its chain, its window, and that nothing it does reaches the text."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest

from qsa.engine import Drafting, Engine, Sampling, Slot
from qsa.engine.draft import CommittedRows, DraftRequest, LayerDrafter, Proposal
from qsa.engine.draws import sampling
from qsa.engine.runner import Runner
from qsa.engine.slots import draft_cache
from qsa.kernels import cpu
from qsa.kernels.switches import override
from qsa.reference.exact import sampler
from qsa.reference.sampler import DRAFTER
from support.engine_models import DRAFTED, engine_model, plain, prompt

IDS = tuple(prompt(45))
HOT = Sampling(temperature=1.3, top_k=12)


@pytest.fixture(scope="module")
def model():
    return engine_model()


def request_of(model, ids, tokens, **options):
    """(request, slot) of a text that has come to ``tokens``, the draft layer's cells caught up in one piece."""
    engine = Engine(model, 1, 120)
    request = engine.submit(list(ids), 60, **{"drafting": Drafting(8)} | options)
    slot, runner, drafter = engine.slots[0], engine.runner, engine.drafter
    sequence = [*ids, *tokens]
    output = runner.run([sequence[:-1]], [slot])
    request.tokens, request.sequence = list(tokens), sequence
    drafter.on_commit([CommittedRows(request, slot, 0, output.streams, sequence[1:])])
    return request, slot, drafter


def by_hand(model, request, slot, count):
    """The drafts that the layer's own loop gives, in cells of its own: (tokens, probabilities)."""
    streams = model.run([request.sequence[:-1]], [model.init_state(120)]).streams
    state = model.draft.init_state(120)
    n = len(request.sequence) - 1
    x, own = model.draft.forward(streams, np.array(request.sequence[1:]), [0], [n], [state])
    tokens, shares = [], []
    for step in range(count):
        logits = model.logits(x[-1:])[0]
        tokens.append(int(logits.argmax()))
        weight = np.exp(logits.astype(np.float64) - logits.max())
        shares.append(weight[tokens[-1]] / weight.sum())
        x, own = model.draft.forward(own[-1:], np.array(tokens[-1:]), [n + step], [1], [state])
    return tokens, shares


@pytest.mark.parametrize("window", [32768, 8])
@pytest.mark.parametrize("tokens", [1, 9])
def test_a_chain_is_the_layers_own_loop(window, tokens):
    """Also where the cells of a prompt that lie a window behind its end have been left out."""
    model = engine_model(draft_window=window)
    request, slot, drafter = request_of(model, IDS, plain(IDS, tokens).tokens)
    tokens, shares = by_hand(model, request, slot, 7)
    for _ in range(2):  # A proposal leaves nothing behind.
        proposal = drafter.propose([DraftRequest(request, slot, 7)])[0]
        assert proposal.tokens == tokens and proposal.distributions == [None] * 7
    logits = slot.draft.last_output[0]
    assert sampling.probability(logits, tokens[0]) == pytest.approx(shares[0], rel=1e-6)


def test_a_draft_is_the_last_one_when_it_is_improbable(model):
    request, slot, drafter = request_of(model, IDS, plain(IDS, 9).tokens)
    tokens, shares = by_hand(model, request, slot, 7)
    for min_p in (0, 0.5 * min(shares), *(share * 1.001 for share in shares), 1):
        request.drafting = Drafting(8, min_p=min_p)
        count = next((length for length, share in enumerate(shares, 1) if share < min_p), 7)
        assert drafter.propose([DraftRequest(request, slot, 7)])[0].tokens == tokens[:count]


@pytest.mark.parametrize("spec, max_t, most", [(1, 8, 0), (4, 8, 3), (8, 3, 2), (8, 8, 7), (8, 1, 0)])
def test_spec_and_max_t_bound_a_window(model, spec, max_t, most):
    engine = Engine(model, 1, 120)
    request = engine.submit(list(IDS), 30, drafting=Drafting(spec, max_t=max_t))
    engine.run()
    counts = request.statistics
    assert request.tokens == plain(IDS, 30).tokens
    assert counts.drafted <= most * counts.rounds and (counts.drafted > (most - 1) * counts.rounds or not most)


@pytest.mark.parametrize("chunk, windows", [(1, [1] * 12), (7, [4, 1, 8, 3]), (64, [8, 8])])
def test_cells_are_the_same_however_a_text_came_about(model, chunk, windows):
    """Chunks, windows and what was rejected leave the draft layer the cells of its whole text read at once."""
    runner, drafter = Runner(model), LayerDrafter(Runner(model))
    text = [*IDS, *prompt(20, seed=6)]
    slot, request = Slot(model, 90), SimpleNamespace(ids=list(IDS), drafts=True)
    at = 0
    pieces = [chunk] * (45 // chunk) + [45 % chunk] * bool(45 % chunk)
    for rows, keep in [(n, n) for n in pieces] + [(8, keep) for keep in windows]:
        before = slot.state.snapshot()
        ids = text[at : at + keep] + [5] * (rows - keep)
        output, journal = runner.run([ids], [slot], journal := []), journal
        if keep < rows:
            runner.restore(slot, before)
            runner.replay(journal, slice(0, keep), slot)
        drafter.on_commit([CommittedRows(request, slot, at, output.streams[:keep], text[at + 1 : at + keep + 1])])
        at += keep
        assert slot.draft.n == slot.n == at
    whole = Slot(model, 90)
    output = runner.run([text[:at]], [whole])
    drafter.on_commit([CommittedRows(request, whole, 0, output.streams, text[1 : at + 1])])
    assert slot.digest() == whole.digest() != whole.digest(draft=False)
    assert np.array_equal(slot.draft.last_output[0], whole.draft.last_output[0])


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_an_engine_tells_the_layer_what_it_read_and_said(model, chunk):
    """Cell i pairs the streams at i with token i + 1, in the prompt, at its end and in windows."""
    engine = Engine(model, 1, 120, chunk=chunk)
    request = engine.submit(list(IDS), 9, drafting=DRAFTED)
    engine.run()
    _, slot, _ = request_of(model, IDS, request.tokens)
    assert engine.slots[0].digest() == slot.digest()
    assert np.array_equal(engine.slots[0].draft.last_output[0], slot.draft.last_output[0])


def drafts_of(model, capacity=200, **drafting):
    """(drafted tokens in order, digest with cells, text) of a long text."""
    engine = Engine(model, 1, capacity, chunk=33)
    drafted, propose = [], engine.drafter.propose

    def recorded(requests):
        proposals = propose(requests)
        drafted.extend(proposals[0].tokens)
        return proposals

    engine.drafter.propose = recorded
    request = engine.submit(list(prompt(80, seed=8)), 90, drafting=Drafting(4, **drafting))
    engine.run()
    assert request.draft_error is None
    return drafted, engine.slots[0].digest(), request.tokens


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_a_ring_of_pages_is_as_good_as_all_of_them(monkeypatch, page_size):
    """A window of 16 cells in a text of 169: the pages behind it are used again."""
    model = engine_model(draft_window=16)
    whole = drafts_of(model)
    monkeypatch.setattr(draft_cache, "DRAFT_ROWS", 8)
    monkeypatch.setattr("qsa.engine.draft.DRAFT_ROWS", 8)
    slot = Slot(model, 200, page_size)
    assert slot.draft.state.kv.pool.n_pages == -(-24 // page_size) + 1
    assert drafts_of(model) == whole


class Apart:
    """The CPU's operations behind a device's manners: what lies there shares no memory with the host's."""

    def __init__(self):
        self.to_device = self.to_host = copy.deepcopy

    def __getattr__(self, name):
        if name not in cpu.__all__:
            raise AttributeError(name)
        return getattr(cpu, name)


@pytest.mark.parametrize("backend", [cpu, Apart()], ids=["host", "device"])
@pytest.mark.parametrize("extra", range(4))
def test_a_fork_and_a_saved_slot_have_the_ring(monkeypatch, backend, extra):
    """Wherever in a page the text stands: the next draft may need a page, or none."""
    model = engine_model(backend, draft_window=16)
    monkeypatch.setattr(draft_cache, "DRAFT_ROWS", 8)
    monkeypatch.setattr("qsa.engine.draft.DRAFT_ROWS", 8)
    request, slot, drafter = request_of(model, IDS, prompt(37 + extra, seed=5))
    other = Slot(model, 99, page_size=3)
    other.restore(slot.save())
    for copied in (slot.fork(), other):
        assert copied.digest() == slot.digest()
        again = drafter.propose([DraftRequest(request, copied, 7)])[0]
        assert again.tokens == drafter.propose([DraftRequest(request, slot, 7)])[0].tokens != []


def test_a_slot_moves_to_a_model_with_a_smaller_window(monkeypatch, model):
    """The last cells are all that has room there, and all that is looked at."""
    monkeypatch.setattr(draft_cache, "DRAFT_ROWS", 8)
    monkeypatch.setattr("qsa.engine.draft.DRAFT_ROWS", 8)
    request, slot, drafter = request_of(model, IDS, prompt(40, seed=5))
    other = Slot(engine_model(draft_window=16), 99, page_size=3)
    other.restore(slot.save())
    slot.draft.window = 16
    assert other.digest() == slot.digest()
    requests = [DraftRequest(request, target, 7) for target in (slot, other)]
    assert drafter.propose(requests[:1])[0].tokens == drafter.propose(requests[1:])[0].tokens != []


def test_capacity_is_no_part_of_a_slot(model):
    """Slots of any capacity have one digest, and a text that moves into a larger one goes on as if begun there."""
    slots = []
    for capacity in (len(IDS) + 8, 150):
        engine = Engine(model, 1, capacity)
        engine.submit(list(IDS), 9, drafting=DRAFTED)
        engine.run()
        slots.append(engine.slots[0])
    small, large = slots
    assert small.digest() == large.digest() and small.draft.n == small.n == small.capacity
    moved = Slot(model, 200)
    moved.restore(small.save())
    assert moved.digest() == large.digest() and moved.draft.window == large.draft.window == model.draft.window


def test_a_window_is_the_requests_own(model):
    """A window of 8 cells gives the drafts of a layer built with one, and other drafts than a wide one."""
    narrow, built = drafts_of(model, window=8), drafts_of(engine_model(draft_window=8))
    wide = drafts_of(model)
    assert narrow[0] == built[0] != wide[0] and narrow[2] == wide[2]


def test_a_slot_that_did_not_draft_is_restored_without_drafts(model):
    engine = Engine(model, 1, 90)
    engine.submit(list(IDS), 5)
    engine.run()
    other = Slot(model, 90)
    other.restore(engine.slots[0].save())
    request, _, drafter = request_of(model, IDS, [1])
    assert other.draft.incomplete and drafter.propose([DraftRequest(request, other, 3)])[0] == Proposal()
    other.reset()
    assert not other.draft.incomplete


def test_a_slot_that_has_not_begun_drafts_once_it_is_restored(model):
    other = Slot(model, 90)
    other.restore(Slot(model, 50).save())
    assert other.n == 0 and not other.draft.incomplete and other.digest() == Slot(model, 90).digest()


def test_under_rejection_sampling_drafts_come_from_a_list(model):
    request, slot, drafter = request_of(model, IDS, [4, 7], sampling=HOT, acceptance="rejection", seed=9)
    proposal = drafter.propose([DraftRequest(request, slot, 5)])[0]
    ids, masses = sampler.distribution(slot.draft.last_output[0], request.sequence, HOT)
    u = sampler.uniform(9, len(request.sequence) - 1, DRAFTER)[0]
    assert proposal.tokens[0] == ids[sampler.draw(masses, u)]
    for token, (ids, masses) in zip(proposal.tokens, proposal.distributions, strict=True):
        assert token in ids and len(ids) == len(masses) == 12
    greedy = drafter.propose([DraftRequest(request_of(model, IDS, [4, 7])[0], slot, 5)])[0]
    assert greedy.distributions == [None] * 5 and greedy.tokens != proposal.tokens


@pytest.mark.parametrize("acceptance, temperature", [("greedy", 0), ("exact_match", 1.3), ("rejection", 0.05)])
def test_drafts_heed_the_penalties(model, acceptance, temperature):
    """A draft that the penalties forbid, for a token of the text or for an earlier draft, would never be accepted."""
    request, slot, drafter = request_of(model, IDS, [4])
    first = drafter.propose([DraftRequest(request, slot, 1)])[0].tokens[0]
    strict = Sampling(temperature=temperature, presence=1e9, last_n=-1)
    options = {"sampling": strict, "acceptance": acceptance}
    request, slot, drafter = request_of(model, (*IDS, first), [4], **options)
    tokens = drafter.propose([DraftRequest(request, slot, 7)])[0].tokens
    assert len(set(tokens)) == 7 and not set(tokens) & set(request.sequence)


@pytest.mark.parametrize("split", [False, True])
def test_draft_attention_takes_the_split_schedule_when_its_switch_is_set(model, monkeypatch, split):
    """Through the backend's own switch: the chain's rows are cut into parts; the prompt's, in both layers, are not."""
    cut = []
    kernel = cpu.attend.__globals__["attend_exact"].attend_rows
    monkeypatch.setattr(
        "qsa.kernels.cpu.attend_exact.attend_rows",
        lambda q, kv, rows, ids, widths, splits, out: (
            cut.append(splits) or kernel(q, kv, rows, ids, widths, splits, out)
        ),
    )
    with override(split_attn=split):
        request, slot, drafter = request_of(model, IDS, [4])
        assert len(drafter.propose([DraftRequest(request, slot, 3)])[0].tokens) == 3
    assert cut == [None, None] + [2 if split else None] * 2
