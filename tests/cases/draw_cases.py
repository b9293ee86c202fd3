"""Texts whose tokens an engine draws on the device: each must be the text that the CPU draws for it alone."""

import copy

import numpy as np

from qsa.engine import Drafting, Engine, Sampling, generate
from qsa.engine.draft import Proposal
from qsa.engine.programs.graph_runner import GraphRunner

CHAIN = Sampling(temperature=1.3, top_k=20, top_p=0.95, min_p=0.02)
DEVICE_JOBS = {
    "greedy": {"max_tokens": 14, "drafting": Drafting(4)},
    "greedy, penalised": {
        "max_tokens": 12,
        "sampling": Sampling(temperature=0, repeat=1.5, frequency=0.2),
        "drafting": Drafting(8),
    },
    "drawn": {"max_tokens": 13, "sampling": CHAIN, "seed": 11, "drafting": Drafting(3)},
    "drawn row by row": {"max_tokens": 9, "sampling": CHAIN, "seed": 2**64 - 1},
    "penalised": {
        "max_tokens": 15,
        "sampling": Sampling(1.5, 25, 0.98, 0.01, 2, 5, 1.4, 0.3, 0.2),
        "seed": 3,
        "drafting": Drafting(8),
    },
    "penalised by all": {
        "max_tokens": 12,
        "sampling": Sampling(temperature=2.0, repeat=1.2, presence=0.4, last_n=-1),
        "seed": 4,
        "drafting": Drafting(4),
    },
}
"""Name -> options of ``submit``; the device draws the tokens."""

HOST_JOBS = {
    "a long list": {"max_tokens": 7, "sampling": Sampling(max_candidates=0), "seed": 5, "drafting": Drafting(3)},
    "rejection": {"max_tokens": 7, "sampling": CHAIN, "seed": 6, "acceptance": "rejection", "drafting": Drafting(3)},
}
"""The same, but the host draws the tokens."""


def prompts(vocab, names):
    """Name -> token ids, 1 to 24 of them, so that the lines of the history have two sizes."""
    rng, lengths = np.random.default_rng(1), (9, 1, 17, 4, 12, 24, 6, 10)
    return {name: rng.integers(0, vocab, n).tolist() for name, n in zip(names, lengths, strict=False)}


class TextDrafter:
    """Drafts the tokens of ``texts`` (prompt as a tuple -> tokens), of which it makes every third one wrong."""

    def __init__(self, texts, vocab):
        self.texts, self.vocab = texts, vocab

    def on_commit(self, kept):
        pass

    def propose(self, asked):
        return [self._proposal(*draft_request) for draft_request in asked]

    def _proposal(self, request, slot, count):
        proposal, done = Proposal(), len(request.tokens)
        for index, token in enumerate(self.texts[tuple(request.ids)][done : done + count], done):
            proposal.add((token + 1) % self.vocab if index % 3 == 2 else token)
        return proposal


class CountingRunner(GraphRunner):
    """Counts the calls that copy logits to the host: ``logits_copied``."""

    logits_copied = 0

    def logits(self, x):
        self.logits_copied += 1
        return super().logits(x)


class ExpectedTexts:
    """``texts``, name -> tokens, that the CPU's ``model`` generates for each job of ``names`` alone, without drafts."""

    def __init__(self, model, names):
        self.jobs = {name: (DEVICE_JOBS | HOST_JOBS)[name] for name in names}
        self.ids = prompts(model.config.vocab_size, self.jobs)
        self.texts = {
            name: generate(model, self.ids[name], **options | {"drafting": None, "acceptance": None}).tokens
            for name, options in self.jobs.items()
        }
        self.drafter = TextDrafter(
            {tuple(self.ids[name]): text for name, text in self.texts.items()}, model.config.vocab_size
        )

    def shortened(self, names, tokens):
        """A copy with the jobs ``names`` alone and the first ``tokens`` tokens of their texts."""
        short = copy.copy(self)
        short.jobs = {name: self.jobs[name] | {"max_tokens": tokens} for name in names}
        short.texts = {name: self.texts[name][:tokens] for name in names}
        return short

    def check(self, model, runner, slots, names=None, drafting=True):
        """An engine with ``runner`` gives these texts; some of its drafts are accepted, some rejected.

        Of rejection sampling, whose text depends on the drafts, only the length is compared. Returns name -> request.
        """
        engine = Engine(model, slots, 64, drafter=self.drafter, runner=runner)
        names = list(self.jobs if names is None else names)
        plain = {} if drafting else {"drafting": None}
        requests = {name: engine.submit(self.ids[name], **self.jobs[name] | plain) for name in names}
        engine.run()
        for name, request in requests.items():
            assert request.error is None and not request.statistics.reruns, (name, request.error, request.window_error)
            if name == "rejection":
                assert len(request.tokens) == len(self.texts[name])
            else:
                assert request.tokens == self.texts[name], name
        statistics = [request.statistics for request in requests.values()]
        if drafting:
            assert sum(each.accepted for each in statistics) and sum(each.rollbacks for each in statistics)
        return requests
