"""The float arithmetic over the CUDA operations in the simulator: the model suits their arrays and containers."""

from types import SimpleNamespace

import numpy as np

from cases.model_cases import NARROW_CONFIG
from qsa.kernels import cpu
from qsa.kernels.cuda import simulator
from qsa.model.float_model import FloatModel
from qsa.reference.model.random_model import random_tensors

OPERATIONS = "append_kv", "append_index", "block_scores", "select", "attend"


def test_windows_of_two_sequences_and_a_draft_agree_with_the_cpu():
    """Both take the same float32 layers; the two float attentions add in another order, some 1e-7 of a row. K/V are
    fp16: no code of an int8 cache can fall the other way."""
    operations = {name: getattr(simulator.load(name), name) for name in OPERATIONS}
    lanes = SimpleNamespace(to_device=simulator.load("device").to_device, **operations)
    tensors = random_tensors(NARROW_CONFIG, 5, draft=True)
    ids = np.random.default_rng(2).integers(1, NARROW_CONFIG.vocab_size, (2, 16))
    found = []
    for backend in (lanes, cpu):
        model = FloatModel(NARROW_CONFIG, tensors, backend=backend)
        states = [model.init_state(20, kv_format="fp16") for _ in range(2)]
        said = []
        for cut in (slice(0, 14), slice(14, 16)):
            output = model.run([sequence[cut] for sequence in ids], states)
            said.append(model.logits(output.x))
        draft = model.draft.init_state(8, kv_format="fp16")
        said.append(model.logits(model.draft.forward(output.streams[:2], ids[0, :2], [0], [2], [draft])[0]))
        found.append(np.concatenate(said))
    got, want = found
    assert np.linalg.norm(got - want) <= 2e-6 * np.linalg.norm(want)
