"""Several texts at a time: joining, ending, cancelled, failing at any step, each has the bytes that it has alone."""

from functools import cache
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qsa.engine import Drafting, Engine, Sampling
from qsa.engine.runner import Runner
from qsa.kernels import cpu
from qsa.kernels.switches import override
from qsa.model import ExactModel, qsa
from support.engine_models import POISON, Scripted, engine_model, poisoned_model, prompt
from support.exact_models import small_model

HOT = Sampling(temperature=1.5, top_k=20)
PENALISED = Sampling(temperature=1.1, repeat=1.5, last_n=10)
JOBS = [
    (tuple(prompt(n, seed=20 + i)), {"max_tokens": m, "sampling": sampling, "seed": i, "drafting": drafting})
    for i, (n, m, sampling, drafting) in enumerate(
        [
            (50, 12, None, Drafting(4)),
            (3, 15, HOT, None),
            (38, 9, PENALISED, Drafting(8)),
            (1, 14, None, Drafting(2)),
            (64, 6, HOT, Drafting(3, max_t=2)),
            (20, 1, None, None),
            (33, 13, None, None),
        ]
    )
]
"""(prompt, options of submit): different lengths, samplings and drafts."""


@cache
def alone(job):
    """(tokens, digest) of a job that runs by itself, row by row."""
    ids, options = JOBS[job]
    engine = Engine(engine_model(), capacity=80)
    request = engine.submit(list(ids), **options | {"drafting": None})
    engine.run()
    return request.tokens, engine.slots[0].digest(draft=False)


def scripted():
    return Scripted({ids: alone(job)[0] for job, (ids, _) in enumerate(JOBS)}, wrong=(2, 3, 7, 11), rest=4)


class Watched:
    """An engine whose every step is looked at: a finished text must be that of its job alone, state included."""

    def __init__(self, engine):
        self.engine, self.jobs, self.finished = engine, {}, 0

    def submit(self, job):
        ids, options = JOBS[job]
        request = self.engine.submit(list(ids), **options)
        self.jobs[request] = job
        return request

    def step(self):
        before = {request: len(request.tokens) for request in self.jobs}
        gained = [request for request in self.engine.step() if request in self.jobs]
        assert {request for request in self.jobs if len(request.tokens) > before[request]} == set(gained)
        active = [request for request in self.jobs if request.status in ("prompt", "decoding")]
        assert len({request.slot for request in active}) == len(active) <= len(self.engine.slots)
        for request in gained:
            tokens, digest = alone(self.jobs[request])
            assert request.tokens == tokens[: len(request.tokens)]
            if request.status == "finished":
                assert request.tokens == tokens
                assert self.engine.slots[request.slot].digest(draft=False) == digest
                self.finished += 1

    def cancel(self, index):
        running = [request for request in self.jobs if not request.ended]
        if running:
            request = running[index % len(running)]
            assert self.engine.cancel(request) and request.status == "cancelled"

    def run(self):
        while not self.engine.idle:
            self.step()
        cancelled = sum(request.status == "cancelled" for request in self.jobs)
        assert self.finished + cancelled == len(self.jobs)


actions = st.one_of(
    st.tuples(st.just("submit"), st.integers(0, len(JOBS) - 1)),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    st.tuples(st.just("step"), st.integers(1, 6)),
)
shapes = st.sampled_from([(1, 1), (2, 1), (3, 3), (4, 2), (6, 1)])


@given(shapes, st.sampled_from([5, 16, 1000]), st.lists(actions, min_size=3, max_size=14))
@settings(max_examples=40)
def test_any_schedule_gives_every_text_its_own_bytes(shape, chunk, schedule):
    slots, groups = shape
    watched = Watched(Engine(engine_model(), slots, 80, 4, chunk=chunk, groups=groups, drafter=scripted()))
    for action, number in schedule:
        if action == "step":
            for _ in range(number):
                watched.step()
        else:
            getattr(watched, action)(number)
    watched.run()


def test_a_switch_is_followed_from_the_next_step_on():
    """Set and unset while texts run: windows attend to their slots' pools at once or slot by slot, and no byte
    changes."""
    pools = []

    def attend(q, kv, *rest):
        pools.append(len(kv) if isinstance(kv, list) else 1)
        return cpu.attend(q, kv, *rest)

    names = "append_index", "append_kv", "block_scores", "select", "layers"
    backend = SimpleNamespace(attend=attend, **{name: getattr(cpu, name) for name in names})
    model = ExactModel.from_model(small_model(draft=True), backend=backend)
    watched = Watched(Engine(model, 2, 80, drafter=scripted()))
    requests = [watched.submit(job) for job in (0, 2)]
    while any(request.status != "decoding" for request in requests):
        watched.step()
    seen = []
    for together in (False, True, False, True):
        pools.clear()
        with override(batch_qsa_attn=together):
            watched.step()
        seen.append(set(pools))
    watched.run()
    assert seen == [{1}, {2}, {1}, {2}]


def test_a_long_prompt_does_not_stop_the_texts_beside_it():
    engine = Engine(engine_model(), 2, 200, chunk=10)
    text = engine.submit(prompt(5), 40)
    engine.step()
    reading = engine.submit(prompt(150), 2)
    before = len(text.tokens)
    for _ in range(20):
        engine.step()
    assert reading.prefilled == 100 and len(text.tokens) == before + 10
    other = engine.submit(prompt(150), 2)
    engine.cancel(text)
    again = engine.submit(prompt(20), 1)
    engine.step()
    assert other.status == "prompt" and again.status == "waiting"
    engine.run()
    assert [request.status for request in (text, reading, other, again)] == ["cancelled"] + ["finished"] * 3


def test_slots_share_no_memory():
    """Known fault A13 in the engine's terms: no two slots have a page, an index or a memory in common."""

    def arrays(slot):
        qsa_states = [state for state in slot.state.attention if isinstance(state, qsa.State)]
        for state in qsa_states:
            yield from (state.index.pooled, state.index.tail, state.index.dead)
        for state in [*qsa_states, slot.draft.state]:
            yield from (*state.kv.pool.k[1:], *state.kv.pool.v[1:], state.kv.table)
        yield from slot.state.overwritten()

    engine = Engine(engine_model(), 3, 40)
    for slot, other in combinations([*engine.slots, engine.slots[0].fork()], 2):
        assert not any(np.shares_memory(a, b) for a in arrays(slot) for b in arrays(other))


def test_cancelling_at_every_stage():
    watched = Watched(Engine(engine_model(), 2, 80, chunk=16, drafter=scripted()))
    engine = watched.engine
    reading, decoding, waiting, last = (watched.submit(job) for job in (0, 1, 2, 3))
    watched.step()
    watched.step()
    watched.step()
    assert [request.status for request in (reading, decoding, waiting)] == ["prompt", "decoding", "waiting"]
    for request in (reading, decoding, waiting):
        assert engine.cancel(request)
    assert engine.cancel(reading) is False and waiting.slot is None
    watched.run()
    assert last.status == "finished" and engine.cancel(last) is False and last.status == "finished"
    with pytest.raises(ValueError, match="not one of this engine"):
        engine.cancel(Engine(engine_model(), 1, 80).submit([1], 5))
    for no_request in (None, 3):
        with pytest.raises(ValueError, match=f"request = {no_request}: must be a Request"):
            engine.cancel(no_request)
    assert engine.step() == []


class NaNLogits(Runner):
    """A runner whose logits after one token are NaN."""

    def run(self, ids, slots, journal=None):
        self.bad = np.concatenate(ids) == POISON
        return super().run(ids, slots, journal)

    def logits(self, x):
        out = super().logits(x)
        out[self.bad[len(self.bad) - len(out) :]] = np.nan
        return out


class Poisonous(Scripted):
    """Drafts the poison for the requests in ``victims``, and the scripted tokens for the others."""

    victims = ()

    def _proposal(self, draft_request):
        proposal = super()._proposal(draft_request)
        if draft_request.request in self.victims and proposal.tokens:
            proposal.tokens[-1] = POISON
        return proposal


@pytest.mark.parametrize("kind", ["K/V without a scale", "NaN logits"])
@pytest.mark.parametrize("where", ["prompt", "decoding", "draft"])
def test_a_request_that_fails_frees_its_slot_and_harms_nobody(kind, where):
    model = poisoned_model() if kind == "K/V without a scale" else engine_model()
    runner = NaNLogits(model) if kind == "NaN logits" else Runner(model)
    drafter = Poisonous(scripted().truth, wrong=(2, 3, 7))
    watched = Watched(Engine(model, 3, 80, chunk=16, drafter=drafter, runner=runner))
    for job in (0, 1):
        watched.submit(job)
    ids = prompt(38, seed=99)
    victim = watched.engine.submit(ids + [POISON] * (where == "prompt"), 9, drafting=Drafting(4))
    drafter.truth = drafter.truth | {tuple(ids): [5] * 9}
    if where == "draft":
        drafter.victims = (victim,)
    for job in (2, 3, 4):
        watched.submit(job)
    while victim.status in ("waiting", "prompt"):
        watched.step()
    if where == "decoding":
        # As if the model had drawn it.
        victim.sequence[-1] = victim.tokens[-1] = POISON
    watched.run()
    assert watched.finished == 5
    if kind == "K/V without a scale" and where != "prompt":
        # The requests in the same window ran again.
        rerun = [request for request in watched.jobs if request.statistics.reruns]
        assert rerun and all("finite" in str(request.window_error) for request in rerun)
    else:
        assert not any(request.statistics.reruns for request in watched.jobs)
    if where == "draft":
        # The row of a draft that is not taken may be anything.
        plain = Engine(engine_model(), 1, 80)
        want = plain.submit(ids, 9)
        plain.run()
        assert victim.status == "finished" and victim.tokens == want.tokens
    else:
        assert victim.status == "failed" and isinstance(victim.error, ValueError)
        assert ("finite" in str(victim.error)) and len(victim.tokens) == (where == "decoding")


def test_an_interrupt_ends_what_was_being_served_and_nothing_else():
    class Interrupted(Runner):
        armed = False

        def logits(self, x):
            if self.armed:
                raise KeyboardInterrupt
            return super().logits(x)

    runner = Interrupted(engine_model())
    watched = Watched(Engine(engine_model(), 3, 80, groups=3, drafter=scripted(), runner=runner))
    first, *others = (watched.submit(job) for job in (0, 1, 2, 3))
    while first.status != "decoding" or others[0].status != "decoding":
        watched.step()
    runner.armed = True
    with pytest.raises(KeyboardInterrupt):
        watched.engine.step()
    runner.armed = False
    failed = [request for request in (first, *others) if request.status == "failed"]
    assert len(failed) == 1 and isinstance(failed[0].error, KeyboardInterrupt)
    del watched.jobs[failed[0]]
    watched.run()
    assert watched.finished == 3
