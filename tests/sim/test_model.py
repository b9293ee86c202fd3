"""A whole model over the CUDA kernels in the simulator, and windows as programs; both give the CPU's bytes."""

import copy
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from cases.model_cases import NARROW_CONFIG, Scenario, check_same_results
from qsa.engine.programs.graph_runner import GraphRunner, make_runner
from qsa.engine.runner import Runner
from qsa.kernels import cpu
from qsa.kernels.cuda import simulator
from qsa.kernels.switches import override
from qsa.model import ExactModel, qsa
from qsa.reference.model.random_model import random_model

OPERATIONS = "append_kv", "append_index", "block_scores", "select", "attend"
PROGRAMS = {
    name: getattr(simulator.load("device.graphs"), name) for name in ("Program", "Staging", "pinned", "program_stream")
}
device = simulator.load("device")

WIDE = 32
"""Outputs beyond which the CPU's kernel multiplies: lane by lane the wide matrices alone would take a minute."""


def simulated_layers():
    """The layers in the simulator, but for the widest matrices."""
    simulated = simulator.load("layers")

    def load_linear(weight):
        wide = weight.codes.ndim == 2 and len(weight.codes) > WIDE
        return (cpu if wide else SimpleNamespace(layers=simulated)).layers.load_linear(weight)

    def linear(x, weight):
        return (cpu.layers if isinstance(weight, cpu.LoadedLinear) else simulated).linear(x, weight)

    names = {name: getattr(simulated, name) for name in simulated.__all__}
    return SimpleNamespace(**names | {"load_linear": load_linear, "linear": linear})


@pytest.fixture(scope="module")
def model():
    return ExactModel.from_model(random_model(NARROW_CONFIG, 5, draft=True), backend=cpu)


def on_device(state):
    """A copy of a model's state with its arrays on the device."""
    copied = copy.deepcopy(state)
    for layer in copied.attention:
        names = ("kv", "index") if isinstance(layer, qsa.State) else ("memory", "past")
        for name in names:
            setattr(layer, name, device.to_device(getattr(layer, name)))
    return copied


def arrays_of(state, to_host):
    """Every array of a model's state, its containers brought to the host."""
    for layer in state.attention:
        if isinstance(layer, qsa.State):
            kv, index = to_host(layer.kv), to_host(layer.index)
            yield from (kv.pool.k.codes, kv.pool.k.scale, kv.pool.v.codes, kv.pool.v.scale)
            yield from (index.tail, index.dead, index.pooled)
        else:
            yield from (layer.memory, layer.past)
    yield from (array for ple in state.ple if ple is not None for array in (ple.tokens, ple.past))


def test_a_window_of_two_sequences_and_a_draft(model):
    """One sequence selects, the other attends to all it has; then rows of the draft layer. Bytes of the CPU's run."""
    operations = {name: getattr(simulator.load(name), name) for name in OPERATIONS}
    backend = SimpleNamespace(layers=simulated_layers(), to_device=device.to_device, **operations)
    simulated = ExactModel(model.config, model.stored, backend=backend)
    simulated.batch_windows = True
    rng = np.random.default_rng(1)
    states = [model.init_state(24), model.init_state(24)]
    model.run([rng.integers(1, 32, 14), rng.integers(1, 32, 2)], states)
    others = [on_device(state) for state in states]
    ids = [rng.integers(1, 32, 2), rng.integers(1, 32, 1)]
    want, got = model.run(ids, states), simulated.run(ids, others)
    assert got.streams.tobytes() == want.streams.tobytes()
    assert simulated.logits(got.x).tobytes() == model.logits(want.x).tobytes()
    for state, other in zip(states, others, strict=True):
        assert state.n == other.n
        for a, b in zip(arrays_of(state, lambda x: x), arrays_of(other, device.to_host), strict=True):
            assert a.dtype == b.dtype and a.tobytes() == b.tobytes()
    drafts = [m.draft.forward(want.streams[2:], [5], [0], [1], [m.draft.init_state(8)]) for m in (model, simulated)]
    assert all(a.tobytes() == b.tobytes() for a, b in zip(*drafts, strict=True))


class Counting:
    """The CPU's kernels with copies to and from a device; ``calls`` counts the calls of each operation."""

    def __init__(self):
        self.calls, self.layers = Counter(), cpu.layers
        self.to_device = self.to_host = copy.deepcopy

    def __getattr__(self, name):
        if name in PROGRAMS:
            return PROGRAMS[name]
        if name not in OPERATIONS:
            raise AttributeError(name)

        def call(*arguments, **keywords):
            self.calls[name] += 1
            return getattr(cpu, name)(*arguments, **keywords)

        return call


def run_all(scenario):
    """Prompts before and beyond the budget; windows of 1 to 8 rows, kept whole and in part; batches; drafts."""
    for index, chunks in enumerate(((9, 30), (3,), (12,))):
        scenario.prompt(index, *chunks)
    for rows in range(1, 9):
        for keep in (rows, (rows + 1) // 2, 1):
            scenario.window((rows, 0, 0), (keep, 0, 0))
        scenario.draft(0)
    for counts, keeps in (((1, 1, 1), None), ((2, 3, 3), (1, 3, 2)), ((4, 0, 4), (4, 0, 1)), ((1, 2, 1), (1, 1, 1))):
        for _ in range(2):
            scenario.window(counts, keeps)
        scenario.draft(*(index for index, count in enumerate(counts) if count))
    scenario.digests()
    return scenario


@pytest.mark.parametrize("together", [False, True])
def test_programs_change_no_byte(model, together):
    other = ExactModel(model.config, model.stored, backend=Counting())
    with override(batch_qsa_attn=together):
        assert isinstance(make_runner(other), GraphRunner) and type(make_runner(model)) is Runner
        check_same_results(run_all(Scenario(other, 3, 256)), run_all(Scenario(model, 3, 256)))
        assert other.batch_windows == together


def test_a_call_whose_slots_have_new_arrays_is_made_anew_and_a_bad_one_changes_nothing(model):
    other = ExactModel(model.config, model.stored, backend=Counting())
    want, got = Scenario(model, 1, 64), Scenario(other, 1, 64)
    for scenario in (want, got):
        scenario.prompt(0, 9)
        scenario.window((3,), (2,))
        scenario.slots[0].state.attention[0].memory = scenario.slots[0].state.attention[0].memory.copy()
        scenario.window((3,), (1,))
        for bad in ([[99]], [[]]):
            with pytest.raises(ValueError, match=r"99: 0 to 31|non-empty"):
                scenario.runner.run(bad, scenario.slots)
        with pytest.raises(ValueError, match="the state holds 64"):
            scenario.prompt(0, 60)
        scenario.window((3,), (3,))
        scenario.digests()
    check_same_results(got, want)


def test_no_more_calls_are_kept_than_asked_for(model):
    other = ExactModel(model.config, model.stored, backend=Counting())
    scenario = Scenario(other, 1, 64, runner=GraphRunner(other, max_graphs=2))
    for rows in (1, 2, 3, 1):
        scenario.window((rows,))
    assert len(scenario.runner.graphs) == 2


@pytest.mark.parametrize("together", [False, True])
def test_the_batch_switch_selects_and_attends_once_for_all_slots(model, together):
    """Scores once a slot either way; the model has one QSA layer."""
    backend = Counting()
    other = ExactModel(model.config, model.stored, backend=backend)
    with override(batch_qsa_attn=together):
        scenario = Scenario(other, 3, 64)
        for index in range(3):
            scenario.prompt(index, 13)
        backend.calls.clear()
        scenario.window((1, 2, 1))
    once = 1 if together else 3
    expected = {"append_kv": 1, "append_index": 3, "block_scores": 3, "select": once, "attend": once}
    assert backend.calls == expected
