"""Rounds of drafts on the device: the host's decisions and hashes, and the texts and states of the host's way."""

import numpy as np
import pytest

from cases.model_cases import GOLDEN_CONFIG
from cases.round_cases import copies, hashed, judged
from cases.round_texts import Rounds, check
from qsa.engine import Drafting, Engine, Sampling
from qsa.kernels import cpu
from qsa.kernels.cuda.toolchain.host import launches
from qsa.model import ExactModel
from qsa.reference.model.random_model import random_model

pytestmark = pytest.mark.gpu
pytest.importorskip("qsa.kernels.cuda.backend", exc_type=ImportError)


@pytest.fixture(scope="module")
def model():
    return ExactModel.from_model(random_model(GOLDEN_CONFIG, 1, draft=True), backend=cpu)


@pytest.fixture(scope="module")
def on_device(backend, model):
    return ExactModel(model.config, model.stored, backend=backend.module)


@pytest.fixture
def rounds(backend):
    return backend.module.rounds


def placed(backend, x):
    """Arrays, and tuples of them, on the device."""
    return tuple(placed(backend, part) for part in x) if isinstance(x, tuple) else backend.to_device(x)


@pytest.mark.parametrize("rows", [1, 8, 700])
def test_rows_are_judged_as_on_the_host(backend, rounds, rows):
    arguments, accepted, expected = judged(rows, seed=rows)
    own, drawn, drafts, listed, which, seeds, positions = placed(backend, arguments)
    lists = backend.module.row_sampler.Lists
    tokens, stood = (backend.to_device(np.full(rows, 77, np.int32)) for _ in range(2))
    rounds.judge(lists(*own), drawn, drafts, lists(*listed), which, seeds, positions, tokens, stood)
    assert backend.to_host(tokens).tolist() == expected.tolist()
    assert backend.to_host(stood).astype(bool).tolist() == accepted.tolist()


def test_ngrams_of_ids_that_the_host_has_not_seen(backend, rounds):
    ids, before, places, constants, expected = hashed(GOLDEN_CONFIG, 0)
    table = rounds.hash_table(constants, GOLDEN_CONFIG.eos_token_id)
    found = rounds.ngram_rows(*placed(backend, (ids, before, places)), table)
    assert backend.to_host(found).tolist() == expected.tolist()


def test_copies_of_every_length_and_of_chosen_rows(backend, rounds):
    copies(rounds, backend.to_device, backend.to_host)


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_texts_and_states_are_those_of_the_host(model, on_device, slots):
    """Three turns over the same slots, so that rounds have been captured and replayed."""
    check(model, on_device, slots, turns=3)


def test_a_round_is_three_replays(on_device):
    """A text under way launches nothing but its programs: the host calls the draft layer for the prompt alone."""
    runner = Rounds(on_device)
    engine = Engine(on_device, 1, 128, runner=runner)
    options = {"sampling": Sampling(9.0, 25), "acceptance": "rejection", "drafting": Drafting(5), "seed": 3}
    request = engine.submit([1, 2, 3], 100, **options)
    while len(request.tokens) < 40:
        engine.step()
    before, rounds_before = launches(), runner.rounds
    while len(request.tokens) < 60:
        engine.step()
    assert launches() == before and runner.rounds > rounds_before and runner.calls == 1
    assert request.statistics.accepted and request.statistics.rollbacks
    assert request.statistics.device_seconds and request.statistics.host_seconds
