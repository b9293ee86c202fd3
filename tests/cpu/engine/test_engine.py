"""One text: nothing that speeds decoding up changes it, or the state it leaves."""

import numpy as np
import pytest

from qsa.engine import Drafting, Engine, Request, Sampling, Slot, generate
from qsa.engine.draws import sampling
from qsa.engine.runner import Runner
from qsa.kernels.switches import override
from qsa.model.generate import generate as token_by_token
from qsa.reference import exact
from qsa.reference.exact import sampler
from qsa.reference.sampler import DRAFTER
from support.engine_models import DRAFTED, VOCAB, Mirror, Scripted, engine_model, plain, prompt

IDS = tuple(prompt(45))
HOT = Sampling(temperature=1.5, top_k=20, top_p=0.95, min_p=0.02)
PENALISED = Sampling(temperature=1.2, top_k=8, repeat=1.7, presence=0.5, frequency=0.3, last_n=12)


@pytest.fixture(scope="module")
def model():
    return engine_model()


def finished(engine, ids=IDS, **options):
    """(request, digest of its slot without and with the draft layer's cells) of a text run alone in ``engine``."""
    request = engine.submit(list(ids), **options)
    engine.run()
    assert request.status == "finished", request.error
    slot = engine.slots[request.slot]
    return request, slot.digest(draft=False), slot.digest()


@pytest.fixture(scope="module")
def single(model):
    """(tokens, digest) of 40 tokens decoded one by one, per Sampling."""
    found = {}
    for options in (None, HOT, PENALISED):
        request, digest, _ = finished(Engine(model, capacity=90), max_tokens=40, sampling=options, seed=11)
        found[options] = request.tokens, digest
    return found


@pytest.mark.parametrize("chain", [None, HOT, PENALISED], ids=["greedy", "hot", "penalised"])
def test_the_text_is_that_of_the_plainest_loop(model, single, chain):
    options = {} if chain is None else {"options": chain}
    text = token_by_token(model, IDS, 40, seed=11, **options)
    assert single[chain][0] == text.tokens.tolist()


@pytest.mark.parametrize("chain", [None, HOT, PENALISED], ids=["greedy", "hot", "penalised"])
@pytest.mark.parametrize("spec, chunk, page_size", [(2, 1, 4), (4, 7, 64), (8, 1000, 1)])
def test_windows_chunks_and_pages_change_neither_text_nor_state(model, single, chain, spec, chunk, page_size):
    """Known faults A17, A18, C6. Drafts right and wrong at every row of a window, some windows without drafts."""
    tokens, digest = single[chain]
    drafter = Scripted({IDS: tokens}, wrong=range(2, 40, 5), rest=6)
    engine = Engine(model, 1, 90, page_size, chunk=chunk, drafter=drafter)
    request, own, _ = finished(engine, max_tokens=40, sampling=chain, seed=11, drafting=Drafting(spec))
    assert request.tokens == tokens and own == digest
    counts = request.statistics
    assert counts.accepted > 0 and counts.rollbacks > 0 and counts.rejected > 0 and counts.rounds < 39
    assert counts.tokens == 40 and counts.drafted == counts.accepted + counts.rejected
    assert engine.slots[0].n == len(IDS) + 39


@pytest.mark.parametrize("spec", [1, 2, 4, 8])
def test_the_draft_layer_changes_neither_text_nor_state(model, single, spec):
    request, digest, _ = finished(Engine(model, capacity=90), max_tokens=40, drafting=Drafting(spec))
    assert (request.tokens, digest) == single[None] and request.draft_error is None
    assert (request.statistics.rollbacks > 0) == (spec > 1)


@pytest.mark.parametrize("switch", ["split_attn", "batch_qsa_attn", "topk_scan", "scores_transposed", "merge_active"])
def test_switches_change_neither_text_nor_state(model, switch):
    def three():
        engine = Engine(model, 3, 90)
        requests = [engine.submit(prompt(40 + i, i), 12, drafting=DRAFTED) for i in range(3)]
        engine.run()
        return [(request.tokens, engine.slots[request.slot].digest()) for request in requests]

    before = three()
    with override(**{switch: True}):
        assert three() == before


def test_numpy_and_numba_give_the_same_text_and_state(single):
    drafter = Scripted({IDS: single[HOT][0]}, wrong=(3, 9, 10))
    engine = Engine(engine_model(exact), 1, 60, drafter=drafter)
    options = {"max_tokens": 12, "sampling": HOT, "seed": 11, "drafting": DRAFTED}
    request, _, digest = finished(engine, **options)
    drafter = Scripted({IDS: single[HOT][0]}, wrong=(3, 9, 10))
    other = finished(Engine(engine_model(), 1, 90, drafter=drafter), **options)
    assert request.tokens == other[0].tokens == single[HOT][0][:12] and digest == other[2]
    assert request.statistics.accepted == other[0].statistics.accepted > 0


@pytest.mark.parametrize("acceptance", ["rejection", "exact_match", "greedy"])
def test_a_drafter_that_is_the_model_is_never_rejected(model, acceptance):
    """Known fault B1: its forks, the indexer's keys included, say what the slot itself will say."""
    chain = None if acceptance == "greedy" else HOT
    engine = Engine(model, 1, 90, drafter=Mirror(model))
    options = {"max_tokens": 33, "sampling": chain, "seed": 3, "acceptance": acceptance}
    request, *_ = finished(engine, drafting=Drafting(8), **options)
    counts = request.statistics
    assert counts.accepted == counts.drafted == 28 and counts.rounds == 4 and counts.tokens_per_round == 8


def test_rejection_sampling_keeps_to_the_accepted_text(model):
    """What a window leaves under rejection sampling is the state of its own text decoded row by row."""
    request, digest, _ = finished(
        Engine(model, capacity=90), max_tokens=40, sampling=HOT, seed=5, acceptance="rejection", drafting=DRAFTED
    )
    assert request.statistics.accepted > 0 and request.statistics.rollbacks > 0
    slot, runner = Slot(model, 90), Runner(model)
    runner.run([list(IDS)], [slot])
    for token in request.tokens[:-1]:
        runner.run([[token]], [slot])
    assert slot.digest(draft=False) == digest


@pytest.mark.parametrize("acceptance, temperature", [("greedy", 0), ("exact_match", 1.3), ("rejection", 1.3)])
def test_every_row_of_a_window_has_its_history(model, acceptance, temperature):
    """Known fault A17: with a penalty that forbids what has been said no token comes twice, drafts or none."""
    once = Sampling(temperature=temperature, presence=1e9, last_n=-1)
    ids, options = prompt(20, seed=4), {"sampling": once, "seed": 2, "max_tokens": 60}
    truth, *_ = finished(Engine(model, 1, 90), ids, **options)
    drafter = None if acceptance == "rejection" else Scripted({tuple(ids): truth.tokens}, wrong=range(2, 60, 5))
    engine = Engine(model, 1, 90, drafter=drafter)
    request, *_ = finished(engine, ids, drafting=Drafting(8), acceptance=acceptance, **options)
    assert len(set(request.tokens)) == 60 and not set(request.tokens) & set(ids)
    assert request.statistics.accepted > 0 and request.statistics.rollbacks > 0


def test_stop_tokens_end_a_text_wherever_they_stand_in_a_window(model, single):
    """The stop token is emitted; drafts accepted behind it are not, and leave no trace."""
    tokens, _ = single[None]
    for index in range(3, 11):
        stop = tokens[index]
        first = tokens.index(stop)
        digests = set()
        for drafter, drafting in ((None, None), (Scripted({IDS: tokens}), Drafting(8))):
            engine = Engine(model, 1, 90, drafter=drafter)
            request, digest, _ = finished(engine, max_tokens=40, stop=[stop], drafting=drafting)
            assert request.tokens == tokens[: first + 1] and request.reason == "stop"
            assert engine.slots[0].n == len(IDS) + first and request.statistics.accepted <= first
            digests.add(digest)
        assert len(digests) == 1


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 8, 9, 10])
def test_a_text_has_its_length_and_no_more_drafts_than_fit(model, single, max_tokens):
    engine = Engine(model, 1, len(IDS) + max_tokens - 1, drafter=Scripted({IDS: single[None][0]}))
    request, *_ = finished(engine, max_tokens=max_tokens, drafting=Drafting(8))
    assert request.tokens == single[None][0][:max_tokens] and request.reason == "length"
    assert (
        request.statistics.drafted == request.statistics.accepted == max(0, max_tokens - 1 - request.statistics.rounds)
    )


def test_a_seed_makes_a_text_and_another_one_another(model, single):
    texts = [generate(model, IDS, max_tokens=20, sampling=HOT, seed=seed).tokens for seed in (11, 11, 12)]
    assert texts[0] == texts[1] == single[HOT][0][:20] != texts[2]


def test_statistics_tell_what_happened(model, single):
    drafter = Scripted({IDS: single[None][0]}, wrong=(2,))
    request, *_ = finished(Engine(model, 1, 90, chunk=20, drafter=drafter), max_tokens=10, drafting=DRAFTED)
    counts = request.statistics
    # The windows emit tokens 1 and 2, where the draft was wrong; 3 to 6; 7 to 9, for which two drafts are enough.
    assert (counts.prompt_tokens, counts.tokens, counts.rounds) == (45, 10, 3)
    assert (counts.drafted, counts.accepted, counts.rejected, counts.rollbacks) == (8, 6, 2, 1)
    assert counts.tokens_per_round == 3 and counts.acceptance == 0.75
    assert counts.prompt_seconds > 0 and counts.ms_per_round == pytest.approx(1000 * counts.decode_seconds / 3)
    assert counts.tokens_per_second == pytest.approx(9 / counts.decode_seconds)
    # The drafter was given every cell once, in order: chunk by chunk, then window by window.
    assert [(start, rows) for _, start, rows in drafter.committed] == [
        (0, 20),
        (20, 20),
        (40, 5),
        (45, 2),
        (47, 4),
        (51, 3),
    ]


def test_nothing_is_asked_that_cannot_be(model):
    engine = Engine(model, 1, 50)
    bare = Engine(engine_model(draft=False), 1, 50)
    good = {"ids": [1, 2], "max_tokens": 4}
    for change, message in (
        ({"ids": []}, "ids: shape"),
        ({"ids": [1, VOCAB]}, f"ids: {VOCAB}: 0 to {VOCAB - 1}"),
        ({"ids": [0.5]}, "ids: dtype"),
        ({"ids": list(IDS), "max_tokens": 7}, "51 cells: capacity = 50"),
        ({"max_tokens": 0}, "max_tokens = 0"),
        ({"max_tokens": True}, "max_tokens = True"),
        ({"sampling": 0.7}, "sampling = 0.7"),
        ({"sampling": Sampling(repeat=1e-320)}, "repeat = 1e-320"),
        ({"acceptance": "lenient"}, "acceptance = 'lenient': allowed are greedy, exact_match, rejection"),
        ({"acceptance": "greedy", "sampling": HOT}, "temperature = 1.5"),
        ({"seed": -1}, "seed = -1"),
        ({"stop": [VOCAB]}, f"stop = {VOCAB}"),
        ({"stop": 0}, "stop = 0: must be a collection"),
        ({"drafting": 4}, "drafting = 4"),
    ):
        with pytest.raises(ValueError, match=message):
            engine.submit(**good | change)
    with pytest.raises(ValueError, match="no draft layer"):
        bare.submit(**good, drafting=DRAFTED)
    assert engine.idle and bare.idle
    bare.submit(**good, drafting=Drafting(1))
    bare.run()
    for options, message in (
        ({"slots": 0}, "slots = 0"),
        ({"slots": 4, "groups": 3}, "groups = 3: must divide slots = 4"),
        ({"capacity": 0}, "capacity = 0"),
        ({"page_size": 0}, "page_size = 0"),
        ({"chunk": 0}, "chunk = 0"),
        ({"kv_format": "fp16"}, "kv_format = 'fp16'"),
    ):
        with pytest.raises(ValueError, match=message):
            Engine(model, **{"capacity": 8} | options)
    for options in ({"spec": 0}, {"spec": 9}, {"max_t": 0}, {"min_p": 1.1}, {"min_p": float("nan")}, {"window": 0}):
        (name,) = options
        with pytest.raises(ValueError, match=f"{name} = "):
            Drafting(**options)
    for options, message in (
        ({"capacity": 50, "max_tokens": 7}, "51 cells"),
        ({"max_tokens": "7"}, "max_tokens = '7'"),
        ({"ids": 5}, "ids: shape"),
    ):
        with pytest.raises(ValueError, match=message):
            generate(model, **{"ids": list(IDS)} | options)


def test_logits_do_not_depend_on_what_is_sampled_from_them(model):
    """The helper's plain runs and the engine's agree, so that other tests may lean on them."""
    assert plain(IDS, 10).tokens == plain(IDS, 30).tokens[:10]
    assert np.unique(plain(IDS, 30).tokens).size > 10


def test_a_prompt_of_many_chunks_reads_as_any_other(model):
    """Known faults A20 and B8: 4,096 tokens and what follows, three times, in chunks that a page and a block divide and
    in chunks that they do not."""
    ids = prompt(4096, seed=7)
    found = set()
    for chunk, drafting in ((1024, DRAFTED), (1024, None), (999, DRAFTED)):
        request, digest, _ = finished(Engine(model, 1, 4200, chunk=chunk), ids, max_tokens=6, drafting=drafting)
        found.add((*request.tokens, digest))
    assert len(found) == 1


@pytest.mark.parametrize("drawn_instead, right", [(False, True), (True, False)], ids=["judged", "control"])
def test_a_draft_that_makes_its_window_fail_is_judged_all_the_same(model, drawn_instead, right):
    """2,000 seeds of one row whose drafter proposes token 2, which cannot run, in every other draw: what is emitted has
    the model's distribution. Were the row to draw for itself whenever the draft is token 2, it would not (control)."""
    chances, drafter = np.array([0.3, 0.25, 0.2, 0.15, 0.1]), np.array([1, 2, 8, 4, 1], np.uint64)
    logits, options = np.log(chances).astype(np.float32)[None], Sampling(max_candidates=0)
    seen = np.zeros(5)
    for seed in range(2000):
        request = Request([0], 9, options, seed, "rejection", DRAFTED)
        draft = sampler.draw(drafter, sampler.uniform(seed, 0, DRAFTER)[0])
        drafts = [] if drawn_instead and draft == 2 else [draft]
        rows = logits if draft == 2 else np.concatenate([logits, logits])
        emitted = sampling.accept(request, rows, drafts, [(np.arange(5), drafter)] * len(drafts))[1]
        assert len(emitted) <= len(rows)
        seen[emitted[0]] += 1
    statistic = ((seen - 2000 * chances) ** 2 / (2000 * chances)).sum()
    # Chi-square of 4 degrees of freedom at 99.9 %.
    assert (statistic < 18.47) == right
