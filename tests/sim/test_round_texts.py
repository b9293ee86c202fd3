"""Captured rounds over the CPU's kernels, with the simulator between them: the texts and states of the host's way."""

from types import SimpleNamespace

import numpy as np
import pytest

from cases.model_cases import NARROW_CONFIG
from cases.round_texts import JOBS, Rounds, check, texts
from qsa.engine import Drafting
from qsa.engine.draws import sampling
from qsa.engine.programs import graph_runner
from qsa.engine.programs.round_graph import RoundGraph
from qsa.engine.runner import Runner
from qsa.kernels import cpu
from qsa.model import ExactModel
from qsa.reference.exact.sampler import NOT_FINITE
from qsa.reference.model.random_model import random_model
from qsa.reference.sampler import DRAFTER
from support import round_backend


@pytest.fixture(scope="module")
def model():
    return ExactModel.from_model(random_model(NARROW_CONFIG, 5, draft=True), backend=cpu)


@pytest.fixture
def on_device(model):
    return ExactModel(model.config, model.stored, backend=round_backend.make())


@pytest.mark.parametrize("name", JOBS)
def test_a_text_alone(model, on_device, monkeypatch, name):
    round_backend.draw_on_the_host(monkeypatch)
    runner = check(model, on_device, 1, [name])
    assert runner.calls == (name != "plain")  # the prompt's cells alone come from the host


@pytest.mark.parametrize("slots", [3, 8])
def test_texts_in_batches(model, on_device, monkeypatch, slots):
    round_backend.draw_on_the_host(monkeypatch)
    check(model, on_device, slots)


@pytest.mark.parametrize("name", ["greedy", "rejection", "drawn"])
def test_the_draft_layer_says_the_same_of_every_draft(model, on_device, monkeypatch, name):
    """Its logits, to the bit: a cell at another position would hardly change a draft of so small a model."""
    launches, asked, propose = round_backend.draw_on_the_host(monkeypatch), [], sampling.propose
    monkeypatch.setattr(
        sampling, "propose", lambda request, logits, drafts: (asked.append(logits), propose(request, logits, drafts))[1]
    )
    texts(model, Runner(model), 1, [name])
    texts(on_device, Rounds(on_device), 1, [name])
    drawn = [row for purpose, logits in launches if purpose == DRAFTER for row in logits]
    assert len(drawn) == len(asked) > 9
    assert all(mine.tobytes() == theirs.tobytes() for mine, theirs in zip(drawn, asked, strict=True))


def test_drafts_end_before_one_that_cannot_be_drawn(model, on_device, monkeypatch):
    """The window ran with another token in its place: its row is not judged, and it is rolled back."""
    round_backend.draw_on_the_host(monkeypatch)
    drawn, launch = [0], round_backend.lanes.launch

    def failing(kernel, grid, block, arguments):
        launch(kernel, grid, block, arguments)
        if arguments[-1][-1] == DRAFTER:
            drawn[0] += 1
            if drawn[0] % 3 == 2:
                arguments[8][:], arguments[11][:] = NOT_FINITE, NOT_FINITE

    monkeypatch.setattr(round_backend.lanes, "launch", failing)
    for name in ("greedy", "greedy, penalised", "rejection, greedy"):
        want = texts(model, Runner(model), 1, [name], drafting=None, acceptance=None)[1][name]
        _, requests = texts(on_device, Rounds(on_device), 1, [name])
        got, counted = requests[name], requests[name].statistics
        assert got.error is None and got.tokens == want.tokens
        assert counted.draft_failures and "NaN" in str(got.draft_error) and counted.rollbacks and not counted.reruns
        assert counted.drafted < JOBS[name]["drafting"].rows * counted.rounds


class Failing(Rounds):
    """Raises in every fifth call of ``append_kv`` of a round, when half of the layers have advanced."""

    calls_of_rounds, in_round = 0, False

    def round(self, parts):
        # A window of one row that fails is the end of its request, in a round or not.
        self.in_round = sum(part.rows for part in parts) > 1
        return super().round(parts)

    def run(self, ids, slots, journal=None):
        self.in_round = False
        return super().run(ids, slots, journal)

    def append_kv(self, *arguments):
        self.calls_of_rounds += self.in_round
        if self.in_round and self.calls_of_rounds % 5 == 0:
            raise ValueError("append_kv: no scale")
        return cpu.append_kv(*arguments)


@pytest.mark.parametrize("slots, names", [(1, ["greedy"]), (3, ["greedy", "drawn", "plain"])])
def test_a_round_that_fails_leaves_the_states_and_is_run_by_the_host(model, monkeypatch, slots, names):
    round_backend.draw_on_the_host(monkeypatch)
    on_device = ExactModel(model.config, model.stored, backend=round_backend.make())
    runner = Failing(on_device)
    on_device.backend.append_kv = runner.append_kv
    want = texts(model, Runner(model), slots, names)[1]
    _, got = texts(on_device, runner, slots, names)
    assert all(got[name].error is None and got[name].tokens == want[name].tokens for name in names)
    assert sum(request.statistics.reruns for request in got.values())


def test_windows_of_another_drafter_or_with_a_floor_are_the_hosts(model, on_device, monkeypatch):
    round_backend.draw_on_the_host(monkeypatch)
    runner = Rounds(on_device)
    texts(on_device, runner, 1, ["greedy"], drafting=Drafting(4, min_p=0.3))
    assert not runner.rounds and runner.calls > 1
    runner.sampler = SimpleNamespace(MOST_VOCAB=31, takes=round_backend.lanes.takes)
    assert not runner.captures_rounds
    assert np.array_equal(
        texts(model, Runner(model), 1, ["drawn"])[1]["drawn"].tokens,
        texts(on_device, Rounds(on_device), 1, ["drawn"], drafting=Drafting(8))[1]["drawn"].tokens,
    )


def test_programs_serve_rounds_of_fewer_slots_and_rows(model, on_device, monkeypatch):
    """Texts of one, two and three slots end one after another, the last rounds with fewer rows than drafts ask for.
    Programs are made as the slots come, and none when they go."""
    round_backend.draw_on_the_host(monkeypatch)
    asked = []

    class Asked(Rounds):
        def round(self, parts):
            asked.append(tuple((id(part.slot), part.rows) for part in parts))
            return super().round(parts)

    runner, names = Asked(on_device), ["greedy", "rejection", "drawn"]
    want = texts(model, Runner(model), 3, names)[1]
    _, got = texts(on_device, runner, 3, names)
    assert all(got[name].tokens == want[name].tokens for name in names)
    made = [graph for graph in runner.graphs.values() if isinstance(graph, RoundGraph)]
    assert len(made) <= 3 and len(set(asked)) > 2 * len(made)
    assert max(map(len, asked)) == 3 and len(asked[-1]) < 3


def test_rounds_that_last_get_programs_of_their_own(model, on_device, monkeypatch):
    round_backend.draw_on_the_host(monkeypatch)
    made = {}
    for after in (1000, 0):
        monkeypatch.setattr(graph_runner, "OWN_AFTER", after)
        runner = Rounds(on_device)
        engine, _ = texts(on_device, runner, 3, ["greedy", "drawn", "plain"])
        graphs = [graph for graph in runner.graphs.values() if isinstance(graph, RoundGraph)]
        made[after] = {frozenset(map(engine.slots.index, graph.slots)) for graph in graphs}
        assert len(made[after]) == len(graphs)
    assert made[1000] < made[0]
