"""The float arithmetic of a whole model on the device, on CuPy's arrays."""

import numpy as np
import pytest

from cases.model_cases import GOLDEN_CONFIG
from qsa.engine import Drafting, generate
from qsa.kernels import cpu
from qsa.kernels.switches import override
from qsa.model import FloatModel
from qsa.reference.model.random_model import random_tensors

pytestmark = pytest.mark.gpu
N = 700


@pytest.fixture(scope="module")
def tensors():
    return random_tensors(GOLDEN_CONFIG, 5, draft=True)


@pytest.fixture(scope="module")
def model(backend, tensors):
    return FloatModel(GOLDEN_CONFIG, tensors, backend=backend.module, xp=backend.xp)


def logits(model, ids):
    state = model.init_state(len(ids), kv_format="fp16")
    found = model.forward(ids, state)[0]
    return found if isinstance(found, np.ndarray) else found.get()


def test_logits_agree_with_the_cpus(model, tensors):
    """Sums in another order, some 1e-7 of a row and layer. Where two blocks' scores lie within that of each other the
    selections differ, and with them all later rows that look there: the median holds the rounding, the last bound a
    few cells of 256."""
    ids = np.random.default_rng(3).integers(1, 256, N)
    got, want = logits(model, ids), logits(FloatModel(GOLDEN_CONFIG, tensors, backend=cpu), ids)
    off = np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)
    assert np.median(off) <= 5e-6 and off.max() <= 2e-2


def test_the_split_switch_differs_by_rounding(model):
    ids = np.random.default_rng(4).integers(1, 256, N)
    plain = logits(model, ids)
    with override(split_attn=True):
        off = np.linalg.norm(logits(model, ids) - plain, axis=1) / np.linalg.norm(plain, axis=1)
    assert np.median(off) <= 5e-6 and off.max() <= 2e-2


def test_text_with_drafts(model):
    ids = np.random.default_rng(5).integers(1, 256, 40)
    request = generate(model, ids, max_tokens=12, drafting=Drafting(4))
    assert len(request.tokens) == 12 and request.statistics.drafted and not request.statistics.draft_failures
