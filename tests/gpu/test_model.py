"""The golden model's configuration on the device: logits and states are the CPU's bytes."""

import time

import numpy as np
import pytest

from cases.model_cases import GOLDEN_CONFIG, Scenario, check_same_results
from qsa.engine.programs.graph_runner import GraphRunner
from qsa.engine.runner import Runner
from qsa.kernels import cpu
from qsa.kernels.switches import override
from qsa.model import ExactModel
from qsa.reference.model.random_model import random_model

pytestmark = pytest.mark.gpu
backend = pytest.importorskip("qsa.kernels.cuda.backend", exc_type=ImportError)
CAPACITY = 2048


@pytest.fixture(scope="module")
def model():
    return ExactModel.from_model(random_model(GOLDEN_CONFIG, 1, draft=True), backend=cpu)


@pytest.fixture(scope="module")
def on_device(backend, model):
    return ExactModel(model.config, model.stored, backend=backend.module)


def windows(scenario):
    """Windows of 1 to 8 rows, kept whole and in part, each more than twice, so that it is captured and replayed."""
    for rows in range(1, 9):
        for keep in (rows, max(1, rows // 2), rows, 1, max(1, rows // 2), 1):
            scenario.window((rows, 0, 0), (keep, 0, 0))
        for _ in range(3):
            scenario.draft(0)
    return scenario


def batches(scenario):
    """Windows of three slots, of which one has hardly begun."""
    for counts, keeps in (((1, 1, 1), None), ((2, 3, 3), (1, 3, 2)), ((4, 0, 4), (2, 0, 1))):
        for _ in range(4):
            scenario.window(counts, keeps)
            scenario.draft(*(index for index, count in enumerate(counts) if count))
    return scenario


def run_all(scenario):
    """Prompts, one of 700 tokens in chunks, then windows and batches."""
    scenario.prompt(0, 256, 100, 300, 44)
    scenario.prompt(1, 9)
    scenario.prompt(2, 300, 7)
    scenario.digests()
    batches(windows(scenario)).digests()
    return scenario


@pytest.fixture(scope="module")
def expected(model):
    return run_all(Scenario(model, 3, CAPACITY))


@pytest.mark.parametrize("together", [False, True])
def test_graphs_give_the_same_bytes(expected, on_device, together):
    with override(batch_qsa_attn=together):
        scenario = Scenario(on_device, 3, CAPACITY)
        assert isinstance(scenario.runner, GraphRunner)
        check_same_results(run_all(scenario), expected)


def test_uncaptured_calls_give_the_same_bytes(expected, on_device):
    check_same_results(run_all(Scenario(on_device, 3, CAPACITY, runner=Runner(on_device))), expected)


@pytest.mark.parametrize("state", [None, False, True])
@pytest.mark.parametrize("switch", ["split_attn", "topk_scan", "scores_transposed"])
def test_switches_change_no_byte(expected, on_device, switch, state):
    with override(**{switch: state}):
        check_same_results(run_all(Scenario(on_device, 3, CAPACITY)), expected)


def test_a_replay_is_faster_than_launches(on_device):
    """Otherwise nothing was captured: a window of the golden model is some 250 launches."""
    seconds = {}
    for kind in (Runner, GraphRunner):
        scenario = Scenario(on_device, 1, CAPACITY, runner=kind(on_device))
        scenario.prompt(0, 300)
        for _ in range(3):
            scenario.window((1,))
        ids = [np.array([7])]
        begin = time.perf_counter()
        for _ in range(30):
            scenario.runner.logits(scenario.runner.run(ids, scenario.slots, []).x)
        seconds[kind] = time.perf_counter() - begin
    assert seconds[GraphRunner] < seconds[Runner] / 2, seconds
