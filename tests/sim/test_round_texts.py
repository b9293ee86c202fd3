"""Captured rounds over the CPU's kernels, with the simulator between them: the texts and states of the host's way."""

import pytest

from cases.model_cases import NARROW_CONFIG
from cases.round_texts import JOBS, check
from qsa.kernels import cpu
from qsa.model import ExactModel
from qsa.reference.model.random_model import random_model
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
