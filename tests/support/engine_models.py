"""Small exact models for tests of the engine, and drafters with scripted drafts."""

from functools import cache
from types import SimpleNamespace

import numpy as np

from qsa.engine import Drafting, generate
from qsa.engine.draft import Proposal
from qsa.engine.runner import Runner
from qsa.engine.window import run_window
from qsa.kernels import cpu
from qsa.model import ExactModel
from qsa.reference.exact import sampler
from qsa.reference.sampler import DRAFTER
from support.exact_models import small_model

VOCAB = 97


@cache
def engine_model(backend=cpu, draft=True, **options):
    """A random model with a draft layer whose drafts are hardly ever right; selection is at work from cell 36 on."""
    return ExactModel.from_model(small_model(draft=draft), backend=backend, **options)


def prompt(n, seed=1):
    """``n`` random ids."""
    return np.random.default_rng(seed).integers(0, VOCAB, n).tolist()


@cache
def plain(ids, max_tokens, **options):
    """The request of ``ids`` (a tuple) decoded alone and token by token; finished."""
    return generate(engine_model(), list(ids), max_tokens=max_tokens, **options)


class Scripted:
    """Drafts the true continuation, ``truth``: prompt tuple -> the text that follows it. The tokens at the indices in
    ``wrong`` of that text are drafted wrong, and every ``rest``-th proposal is empty."""

    def __init__(self, truth, wrong=(), rest=0):
        self.truth, self.wrong, self.rest, self.calls, self.committed = truth, set(wrong), rest, 0, []

    def on_commit(self, committed):
        self.committed += [(rows.request, rows.start, len(rows.next_ids)) for rows in committed]

    def propose(self, requests):
        self.calls += 1
        return [self._proposal(draft_request) for draft_request in requests]

    def _proposal(self, draft_request):
        proposal = Proposal()
        if self.rest and self.calls % self.rest == 0:
            return proposal
        request, done = draft_request.request, len(draft_request.request.tokens)
        truth = self.truth[tuple(request.ids)][done : done + draft_request.max_drafts]
        for index, token in enumerate(truth, done):
            proposal.add((token + 1) % VOCAB if index in self.wrong else token)
        return proposal


class Mirror:
    """Drafts the model's own next tokens, from a fork of the slot and the model's own distribution, so that no draft is
    rejected."""

    def __init__(self, model):
        self.runner = Runner(model)

    def on_commit(self, committed):
        pass

    def propose(self, requests):
        return [self._proposal(*draft_request) for draft_request in requests]

    def _proposal(self, request, slot, count):
        proposal, fork = Proposal(), slot.fork()
        history = list(request.sequence)
        for _ in range(count):
            result = run_window(self.runner, [history[-1:]], [fork])[0]
            ids, masses = sampler.distribution(result.logits[0], history, request.sampling)
            purpose = DRAFTER if request.acceptance == "rejection" else sampler.PICK
            u = sampler.uniform(request.seed, len(history) - 1, purpose)[0]
            token = int(ids[sampler.draw(masses, u)])
            proposal.add(token, (ids, masses) if request.acceptance == "rejection" else None)
            history.append(token)
        return proposal


POISON = VOCAB - 1


def poisoned_model():
    """The model, but the embedding of one token is NaN: its K and V have no scale, and append_kv refuses them when the
    layers before it have already advanced."""

    def embed(ids, table):
        out = cpu.layers.embed(ids, table)
        if len(table.codes) == VOCAB:
            out[np.asarray(ids) == POISON] = np.nan
        return out

    layers = SimpleNamespace(**{name: getattr(cpu.layers, name) for name in dir(cpu.layers)} | {"embed": embed})
    names = "append_index", "append_kv", "attend", "block_scores", "select"
    backend = SimpleNamespace(layers=layers, **{name: getattr(cpu, name) for name in names})
    return ExactModel.from_model(small_model(draft=True), backend=backend)


DRAFTED = Drafting(spec=4)
