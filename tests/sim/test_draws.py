"""Tokens drawn on the device: an engine's texts are the CPU's, and no logits are copied to the host."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest

from cases.draw_cases import DEVICE_JOBS, HOST_JOBS, CountingRunner, ExpectedTexts
from cases.model_cases import NARROW_CONFIG
from qsa.engine.draws import sampling
from qsa.engine.draws.device_sampling import DrawParameters, draw_arrays
from qsa.engine.request import Request
from qsa.engine.runner import Runner
from qsa.kernels import cpu, ops
from qsa.kernels.cpu.sampler import sample
from qsa.kernels.cuda import simulator
from qsa.model import ExactModel
from qsa.reference.exact.sampler import NOT_FINITE, Constants
from qsa.reference.model.random_model import random_model
from qsa.reference.sampler import GREEDY, Sampling

lanes, program = simulator.load("sampler"), simulator.load("device.graphs")
OPERATIONS = "append_kv", "append_index", "block_scores", "select", "attend", "layers"
PROGRAMS = {name: getattr(program, name) for name in ("Program", "Staging", "pinned", "program_stream")}


def device(**changes):
    """The CPU's kernels with copies to and from a device, and the sampler of the CUDA backend."""
    moves = {"to_device": copy.deepcopy, "to_host": copy.deepcopy, "row_sampler": lanes}
    return SimpleNamespace(**{name: getattr(cpu, name) for name in OPERATIONS} | PROGRAMS | moves | changes)


@pytest.fixture(scope="module")
def model():
    return ExactModel.from_model(random_model(NARROW_CONFIG, 5, draft=True), backend=cpu)


@pytest.fixture(scope="module")
def expected(model):
    return ExpectedTexts(model, [*DEVICE_JOBS, *HOST_JOBS])


@pytest.fixture
def on_device(model):
    return ExactModel(model.config, model.stored, backend=device())


@pytest.fixture
def rows(monkeypatch):
    """Launches of the sampler: the rows of each that are in use. The CPU's kernel does the work of every launch, on the
    arrays that the host's side has checked: a row in the simulator takes a second."""
    seen = []

    def launch(_kernel, grid, _block, arguments):
        logits, options, history, slots, lengths, seeds, positions, _scratch, tokens, *_ = arguments
        assert grid[0] == len(logits)
        seen.append(int((positions >= 0).sum()))
        sample(logits, options, history, lengths, seeds, positions, slots=slots, tokens=tokens)

    monkeypatch.setattr(lanes, "launch", launch)
    return seen


@pytest.mark.parametrize("slots", [1, 3, 6])
@pytest.mark.parametrize("drafting", [False, True])
def test_texts_are_the_cpus_and_no_logits_come_to_the_host(expected, on_device, rows, slots, drafting):
    runner = CountingRunner(on_device)
    requests = expected.check(on_device, runner, slots, DEVICE_JOBS, drafting)
    assert runner.logits_copied == 0
    # Every row that ran drew: those of the windows, and one for each prompt.
    statistics = [request.statistics for request in requests.values()]
    assert sum(rows) == sum(each.drafted + each.rounds + 1 for each in statistics)
    if slots == 1:
        assert len(rows) == sum(each.rounds + 1 for each in statistics)
    else:
        assert len(rows) < sum(each.rounds for each in statistics)  # one launch for all slots of a window


def test_a_runner_without_programs_draws_on_the_device(expected, on_device, rows):
    class Plain(Runner):
        def logits(self, x):
            raise AssertionError("logits came to the host")

    expected.check(on_device, Plain(on_device), 3, DEVICE_JOBS)
    assert rows


def test_long_lists_and_rejection_sampling_are_drawn_on_the_host(expected, on_device, rows):
    before = ops.refusals().get(("sample", "capacity"), 0)
    runner = CountingRunner(on_device)
    expected.check(on_device, runner, 4)
    assert runner.logits_copied and rows
    assert ops.refusals()[("sample", "capacity")] > before
    rows.clear()
    expected.check(on_device, CountingRunner(on_device), 2, HOST_JOBS)
    assert not rows


def test_a_vocabulary_beyond_the_device_is_drawn_on_the_host(expected, on_device, rows, monkeypatch):
    monkeypatch.setattr(lanes, "MOST_VOCAB", 31)
    runner = CountingRunner(on_device)
    expected.check(on_device, runner, 3, DEVICE_JOBS)
    assert runner.logits_copied and not rows


def test_a_batch_in_the_simulator(expected, on_device):
    """The kernel itself, lane by lane: windows of one to four rows over three slots."""
    launched, runner = simulator.launches().get("sample", 0), CountingRunner(on_device)
    expected.shortened(["greedy, penalised", "drawn", "penalised"], 5).check(on_device, runner, 3)
    assert simulator.launches()["sample"] > launched and runner.logits_copied == 0


def test_rows_of_a_window_draw_after_the_drafts_before_them():
    """The third row's history ends with both drafts; a slot without a draw has rows that are not in use."""
    first = DrawParameters(GREEDY, [5, 6, 7, 8], 2, 9, 40)
    draws = [first, None, DrawParameters(Sampling(top_k=3), [1] * 17, 17, 2**64 - 1, 0)]
    got = draw_arrays(draws, [3, 2, 1])
    assert got["history"].shape == (3, 32) and got["history"][0, :5].tolist() == [5, 6, 7, 8, 0]
    assert got["slots"].tolist() == [0, 0, 0, 1, 1, 2] and got["lengths"].tolist() == [2, 3, 4, 0, 0, 17]
    assert got["positions"][[0, 1, 2, 5]].tolist() == [40, 41, 42, 0] and (got["positions"][3:5] < 0).all()
    assert got["seeds"].tolist() == [9, 9, 9, 0, 0, 2**64 - 1]
    assert got["options"][:, Constants._fields.index("limit")].tolist() == [1, 1, 1, 1, 1, 3]


def test_a_row_that_cannot_be_drawn_fails_unless_one_before_it_has_settled_the_text():
    request = Request([1, 2], 9)
    tokens = np.array([5, NOT_FINITE], np.int32)
    assert sampling.accept(request, None, [6], [None], tokens) == (0, [5])
    with pytest.raises(ValueError, match="row 1: logits: NaN"):
        sampling.accept(request, None, [5], [None], tokens)
    # The drafts' rows did not run: the only row judges the first of them.
    assert sampling.accept(request, None, [5, 6], [None] * 2, tokens[:1]) == (1, [5])
    assert sampling.accept(request, None, [4, 6], [None] * 2, tokens[:1]) == (0, [5])
