"""Tokens drawn on the device: an engine's texts are the CPU's, and only tokens come to the host."""

import numpy as np
import pytest

from cases.draw_cases import DEVICE_JOBS, CountingRunner, ExpectedTexts
from cases.model_cases import GOLDEN_CONFIG
from qsa.engine import Engine, Sampling, generate
from qsa.engine.runner import Runner
from qsa.kernels import cpu
from qsa.kernels.cuda.toolchain.host import launches
from qsa.model import ExactModel, FloatModel
from qsa.reference.model.random_model import random_model, random_tensors

pytestmark = pytest.mark.gpu
backend = pytest.importorskip("qsa.kernels.cuda.backend", exc_type=ImportError)


@pytest.fixture(scope="module")
def model():
    return ExactModel.from_model(random_model(GOLDEN_CONFIG, 1, draft=True), backend=cpu)


@pytest.fixture(scope="module")
def expected(model):
    return ExpectedTexts(model, DEVICE_JOBS)


@pytest.fixture(scope="module")
def on_device(backend, model):
    return ExactModel(model.config, model.stored, backend=backend.module)


@pytest.mark.parametrize("slots", [1, 3, 6])
@pytest.mark.parametrize("drafting", [False, True])
def test_texts_are_the_cpus_and_no_logits_come_to_the_host(expected, on_device, slots, drafting):
    before, runner = launches().get("sample", 0), CountingRunner(on_device)
    for _ in range(3):  # the same slots again, whose windows and draws are replays by then
        expected.check(on_device, runner, slots, DEVICE_JOBS, drafting)
    assert runner.logits_copied == 0 and launches()["sample"] > before


def test_draws_are_replayed(on_device):
    """A window of a text under way launches nothing but its graphs."""
    runner = CountingRunner(on_device)
    engine = Engine(on_device, 1, 64, runner=runner)
    options = Sampling(temperature=1.2, repeat=1.3, top_p=0.9)
    request = engine.submit([1, 2, 3], 40, options, seed=5)
    while len(request.tokens) < 25:
        engine.step()
    # The history's line has outgrown its first sizes, and will not outgrow 32 before token 29.
    before = launches()
    while len(request.tokens) < 28:
        engine.step()
    assert launches() == before and runner.logits_copied == 0
    engine.run()
    assert request.error is None and len(request.tokens) == 40


def test_a_runner_without_programs_draws_on_the_device(expected, on_device):
    class Plain(Runner):
        def logits(self, x):
            raise AssertionError("logits came to the host")

    expected.check(on_device, Plain(on_device), 3, DEVICE_JOBS)


def test_the_float_arithmetic_draws_on_the_device(backend):
    """Of the same logits the device draws what the host draws."""
    float_model = FloatModel(GOLDEN_CONFIG, random_tensors(GOLDEN_CONFIG, 5), backend=backend.module, xp=backend.xp)
    ids = np.random.default_rng(5).integers(1, 256, 40)
    options = {"max_tokens": 12, "sampling": Sampling(1.3, 20, 0.95, 0.02, repeat=1.3), "seed": 7}
    on_host, before = Runner(float_model), launches().get("sample", 0)
    on_host.sampler = None
    want = generate(float_model, ids, runner=on_host, **options).tokens
    assert launches().get("sample", 0) == before
    assert generate(float_model, ids, **options).tokens == want
    assert launches()["sample"] == before + 12
