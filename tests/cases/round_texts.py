"""Texts whose drafts are made and judged on the device: tokens, counts and states of the host's way, byte for byte."""

import numpy as np

from qsa.engine import Drafting, Engine, Sampling
from qsa.engine.programs.graph_runner import GraphRunner
from qsa.engine.programs.round_graph import RoundGraph
from qsa.engine.runner import Runner

WARM = Sampling(temperature=1.5, top_k=25, top_p=0.97)
HOT = Sampling(temperature=9.0, top_k=60)
JOBS = {
    "greedy": {"max_tokens": 15, "drafting": Drafting(4)},
    "greedy, penalised": {
        "max_tokens": 14,
        "sampling": Sampling(temperature=0, repeat=1.5, frequency=0.2, last_n=-1),
        "drafting": Drafting(8),
    },
    "drawn": {"max_tokens": 13, "sampling": WARM, "seed": 11, "drafting": Drafting(3, window=9)},
    "rejection": {
        "max_tokens": 17,
        "sampling": HOT,
        "seed": 2**64 - 1,
        "acceptance": "rejection",
        "drafting": Drafting(5),
    },
    "rejection, penalised": {
        "max_tokens": 16,
        "sampling": Sampling(9.0, 25, 0.98, 0.01, 2, 5, 1.4, 0.3, 0.2),
        "seed": 3,
        "acceptance": "rejection",
        "drafting": Drafting(8),
    },
    "rejection, greedy": {"max_tokens": 12, "acceptance": "rejection", "drafting": Drafting(4)},
    "plain": {"max_tokens": 11, "sampling": WARM, "seed": 5},
    "a stop": {"max_tokens": 15, "sampling": HOT, "seed": 8, "acceptance": "rejection", "drafting": Drafting(6)},
}
"""Name -> options of ``submit``: every rule of acceptance, and a text without drafts among them."""


class Rounds(GraphRunner):
    """Counts captured rounds, and the draft layer's calls that came from the host."""

    def __init__(self, model):
        super().__init__(model)
        self.rounds = self.calls = 0

    def round(self, parts):
        """As the runner's."""
        self.rounds += 1
        return super().round(parts)

    def draft(self, streams, next_ids, starts, counts, slots):
        """As the runner's."""
        self.calls += 1
        return super().draft(streams, next_ids, starts, counts, slots)


def texts(model, runner, slots, names=tuple(JOBS), stop=(), turns=1, **changes):
    """The engine, and name -> request of the jobs, run to their ends ``turns`` times; the last turn's requests."""
    engine = Engine(model, slots, 64, runner=runner)
    rng = np.random.default_rng(4)
    prompts = {name: rng.integers(1, model.config.vocab_size, 4 + 3 * i).tolist() for i, name in enumerate(JOBS)}
    for _ in range(turns):
        requests = {
            name: engine.submit(prompts[name], **JOBS[name] | changes, stop=stop if name == "a stop" else ())
            for name in names
        }
        engine.run()
    return engine, requests


def summary(engine, requests):
    """What must be equal: tokens and counts of every text, digests and the draft layer's output of every slot."""
    found = []
    for name, request in requests.items():
        assert request.error is None, (name, request.error)
        counted = request.statistics
        counts = counted.drafted, counted.accepted, counted.rounds, counted.rollbacks, counted.draft_failures
        found.append((name, request.reason, request.tokens, counts, counted.reruns))
    for slot in engine.slots:
        logits, streams = slot.draft.last_output or (np.zeros(1), np.zeros(1))
        host = engine.runner.host
        found.append((slot.digest(), slot.draft.n, np.asarray(logits).tobytes(), host(streams).tobytes()))
    return found


def check(host_model, model, slots, names=tuple(JOBS), turns=1):
    """Rounds on the device of ``model`` give what the calls of ``host_model`` give one by one. Returns the runner."""
    stop = texts(host_model, Runner(host_model), 1, ["a stop"])[1]["a stop"].tokens[7:8]
    want = summary(*texts(host_model, Runner(host_model), slots, names, stop, turns))
    runner = Rounds(model)
    got = summary(*texts(model, runner, slots, names, stop, turns))
    for mine, theirs in zip(got, want, strict=True):
        assert mine == theirs
    if len(names) > 1:
        accepted, rollbacks = (sum(counts[3][i] for counts in want if len(counts) == 5) for i in (1, 3))
        assert accepted and rollbacks
    assert runner.rounds and any(isinstance(graph, RoundGraph) for graph in runner.graphs.values())
    return runner
