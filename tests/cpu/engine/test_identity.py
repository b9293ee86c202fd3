"""A saved slot is restored into the weights that it was saved with, and into no others."""

from functools import cache

import numpy as np
import pytest
from safetensors.numpy import load

from qsa.engine import Slot
from qsa.engine.runner import Runner
from qsa.engine.slots import identity
from qsa.engine.slots.serialization import ORIGIN, pack
from qsa.kernels import cpu
from qsa.model import ExactModel, FloatModel
from qsa.reference.exact.layers.linear import QuantisedLinear
from qsa.reference.model.checkpoint import INTEGERS
from qsa.reference.model.random_model import random_tensors
from support.engine_models import engine_model, prompt
from support.exact_models import SMALL_CONFIG

KIND = {"exact": ExactModel, "float": FloatModel}
EXPERTS = ".mlp.experts.gate_up_proj", ".mlp.experts.down_proj"


@cache
def tensors():
    return random_tensors(SMALL_CONFIG, 3, draft=True)


def made(arithmetic, changed=None, config=SMALL_CONFIG):
    """A model made in memory, with the tensors of ``changed`` in place of its own."""
    return KIND[arithmetic](config, tensors() | (changed or {}), backend=cpu)


def saved_by(model):
    slot = Slot(model, 20)
    Runner(model).run([prompt(7, seed=3)], [slot])
    return slot.save()


def refused(model, data, message):
    """``data`` is refused in one line, and the slot stays as it was."""
    slot = Slot(model, 20)
    before = slot.digest()
    with pytest.raises(ValueError, match=message) as error:
        slot.restore(data)
    assert "\n" not in str(error.value) and slot.digest() == before


def last_experts_negated():
    """The second half of every layer's experts, all of it beyond the first 4,096 numbers of the tensor."""
    changed = {}
    for name, tensor in tensors().items():
        if name.endswith(EXPERTS):
            half = len(tensor) // 2
            changed[name] = np.concatenate([tensor[:half], -tensor[half:]])
    # Both tensors of every layer, of the draft layer too.
    assert len(changed) == 2 * (SMALL_CONFIG.num_hidden_layers + 1)
    assert any(tensors()[name][: SMALL_CONFIG.num_experts // 2].size >= 4096 for name in changed)
    return changed


@pytest.mark.parametrize("arithmetic", KIND)
def test_a_model_with_other_experts_refuses_a_saved_slot(arithmetic):
    """Known fault E3: of stacked experts only the first was compared."""
    saved = saved_by(made(arithmetic))
    late = {name: tensor for name, tensor in last_experts_negated().items() if name.endswith(EXPERTS[0])}
    for changed in (last_experts_negated(), late):
        refused(made(arithmetic, changed), saved, "^saved: saved with other weights: identity [0-9a-f]{32}, this model")


def last_byte_changed(array):
    other = np.ascontiguousarray(array).copy()
    other.reshape(-1).view(np.uint8)[-1] ^= 1
    return other


@pytest.mark.parametrize("arithmetic", KIND)
def test_the_last_byte_of_every_tensor_counts(arithmetic):
    """Of codes, scales, norms, convolution taps, tables, hash constants and the draft layer: no two digests are
    equal."""
    stored = made(arithmetic).stored
    digests = [identity.weights_digest(stored, arithmetic)]
    for name, tensor in stored.items():
        parts = tensor if isinstance(tensor, QuantisedLinear) else (tensor,)
        for index, part in enumerate(parts):
            other = [*parts]
            other[index] = last_byte_changed(part)
            other = QuantisedLinear(*other) if isinstance(tensor, QuantisedLinear) else other[0]
            digests.append(identity.weights_digest(stored | {name: other}, arithmetic))
    assert len(set(digests)) == len(digests)
    for ending in ("norm.weight", "conv1d.weight", "embed_tokens.weight", "ngram_embedding.weight", *INTEGERS, "A_log"):
        assert any(name.endswith(ending) for name in stored), ending
    assert any(name.startswith("mtp.") for name in stored)


def test_names_and_shapes_count():
    """The same bytes under another name, or cut into other tensors, are other weights."""
    a, b = np.arange(4, dtype=np.float32), np.arange(4, 8, dtype=np.float32)
    forms = [{"a": a, "b": b}, {"a": b, "b": a}, {"a": a, "c": b}, {"a": a.reshape(2, 2), "b": b}, {"a": a}]
    forms += [{"a": np.concatenate([a, b])}, {"a": np.concatenate([a, b[:2]]), "b": b[2:]}]
    assert len({identity.weights_digest(form, "exact") for form in forms}) == len(forms)


@pytest.mark.parametrize("arithmetic", KIND)
def test_equal_weights_made_twice_restore_each_others_slots(arithmetic):
    """Also where an array lies otherwise in memory, and in one piece or in several."""
    first = made(arithmetic)
    turned = {name: np.asfortranarray(tensor) for name, tensor in tensors().items()}
    other = made(arithmetic, turned)
    assert identity.identity(first) == identity.identity(other)
    slot = Slot(other, 20)
    slot.restore(saved_by(first))
    assert slot.save() == saved_by(first)


def test_no_cut_into_pieces_changes_a_digest(monkeypatch):
    """A float table is converted in pieces: float64, float32 and a quantised one of equal values are one."""
    table = made("exact").stored["model.embed_tokens.weight"]
    lifted = made("exact").dequantised().tensors["model.embed_tokens.weight"]
    forms = [table, np.asarray(lifted, np.float32), np.asfortranarray(lifted), np.asarray(lifted, np.float64)]
    want = {identity.weights_digest({"embed_tokens.weight": form}, "float") for form in forms}
    assert len(want) == 1
    monkeypatch.setattr(identity, "PIECE", 1000)
    assert want == {identity.weights_digest({"embed_tokens.weight": form}, "float") for form in forms}


def test_weights_are_hashed_once(monkeypatch):
    model, hashed = made("exact"), []
    digest = identity.weights_digest
    monkeypatch.setattr(identity, "weights_digest", lambda *given: hashed.append(1) or digest(*given))
    saved = saved_by(model)
    for _ in range(3):
        slot = Slot(model, 20)
        slot.restore(saved)
        assert slot.save() == saved
    assert hashed == [1]


def test_what_differs_is_named():
    saved = saved_by(made("exact"))
    refused(made("float"), saved, "^saved: saved with arithmetic 'exact': this slot has 'float'")
    refused(engine_model(draft_norm="streams"), saved, "^saved: saved with another configuration")
    refused(engine_model(rule="cells"), saved, "^saved: saved with another configuration")
    eps = type(SMALL_CONFIG)(**{**vars(SMALL_CONFIG), "rms_norm_eps": 1e-5})
    refused(made("exact", config=eps), saved, "^saved: saved with another configuration")
    refused(engine_model(draft=False), saved, "^saved: saved with other weights")


def test_a_whole_number_in_the_configuration_may_be_written_as_integer():
    whole = type(SMALL_CONFIG)(**{**vars(SMALL_CONFIG), "rope_theta": 10_000_000})
    assert identity.identity(made("exact", config=whole)) == identity.identity(made("exact"))


@pytest.mark.parametrize("version", [1, 2])
def test_slots_saved_by_an_earlier_version_are_refused(version):
    """Their identity did not cover all weights: whether they are of this model cannot be known."""
    model = made("exact")
    arrays = load(saved_by(model))
    del arrays[ORIGIN], arrays["digest"]
    earlier = pack(arrays, f"{version} exact int8 {'0' * 32}")
    refused(model, earlier, f"^saved: format version '{version}': only version '4' is read")


@pytest.mark.parametrize("origin", ["3 exact int8", "3 exact int8 a b c", "3", "", "3  "])
def test_so_is_a_malformed_origin(origin):
    model = made("exact")
    arrays = load(saved_by(model))
    del arrays[ORIGIN], arrays["digest"]
    refused(model, pack(arrays, origin), "^saved: (format version|no state of a slot)")
