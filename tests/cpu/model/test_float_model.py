"""The float arithmetic of a whole model: float64 agrees on the same weights, int8 weights and the split cost little."""

import ast
import copy
import inspect
from dataclasses import replace

import numpy as np
import pytest

from qsa.engine import Drafting, generate, score
from qsa.kernels import cpu
from qsa.kernels.switches import override
from qsa.model import ExactModel, FloatModel, float_layers
from qsa.model.arithmetic import Arithmetic
from qsa.model.float_layers import FloatLayers
from qsa.reference import Model, exact
from qsa.reference.exact import layers as exact_layers
from qsa.reference.model.random_model import random_tensors
from support.arrays import generator
from support.exact_models import SMALL_CONFIG, int8, round_kv, small_model
from support.layer_problems import PROBLEMS

N = 150


def fp16(x):
    """x float64 as an fp16 cache gives it back."""
    return x.astype(np.float16).astype(np.float64)


@pytest.fixture(scope="module")
def reference():
    return small_model(draft=True)


@pytest.fixture(scope="module")
def model(reference):
    return FloatModel(reference.config, reference.tensors, backend=cpu)


@pytest.fixture(scope="module")
def ids():
    out = (np.random.PCG64(5).random_raw(N) % np.uint64(SMALL_CONFIG.vocab_size)).astype(np.int64)
    out[[11, 22, 64]] = SMALL_CONFIG.eos_token_id
    return out


def error(got, want):
    """Per row: norm of the difference over the norm."""
    return np.linalg.norm(got - want, axis=-1) / np.linalg.norm(want, axis=-1)


def nll(logits, ids):
    """Per position, nats of the token that follows."""
    logits = np.asarray(logits, np.float64)[:-1]
    logits = logits - logits.max(axis=1, keepdims=True)
    return np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(logits)), ids[1:]]


def run(model, ids, lengths, kv_format="int8"):
    """Logits of a sequence in chunks of ``lengths``."""
    state, logits, begin = model.init_state(len(ids), kv_format=kv_format), [], 0
    for length in lengths:
        logits.append(model.forward(ids[begin : begin + length], state)[0])
        begin += length
    assert begin == len(ids) == state.n
    return np.concatenate(logits)


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_layer_gives_what_the_exact_one_gives(name):
    """An exact layer is off by some 1e-7 of its row, so is a float32 one; sums of 600 terms and gates that multiply
    their roundings add up to ten of them. ``decay`` goes through exp of up to 20 times a rounded number: 1e-6 of it."""
    rows = PROBLEMS[name].rows(generator(3), 9)
    got, want = (PROBLEMS[name].run(layers, *rows) for layers in (FloatLayers(), exact_layers))
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert np.linalg.norm(a.astype(np.float64) - b) <= 2e-6 * np.linalg.norm(b)


def test_every_layer_has_its_name():
    assert not [name for name in exact_layers.__all__ if not callable(getattr(FloatLayers(), name, None))]


def test_experts_by_gathered_weights_are_the_experts():
    """The form that CuPy takes for few rows, on NumPy's arrays; two orders of 24 to 48 additions."""
    rng, layers = generator(6), FloatLayers()
    x, gate_up, down = (rng.normal(size=size).astype(np.float32) for size in ((5, 48), (7, 2 * 24, 48), (7, 48, 24)))
    ids, shares = layers.route(rng.normal(size=(5, 7)).astype(np.float32), 3)
    gathered, looped = layers._gathered(x, ids, shares, gate_up, down), layers.experts(x, ids, shares, gate_up, down)
    assert np.linalg.norm(gathered - looped) <= 1e-6 * np.linalg.norm(looped)


def test_every_function_of_the_array_module_is_also_cupys():
    """The layers run on CuPy's arrays as they stand: nothing is asked of the module that CuPy does not have."""
    cupy = pytest.importorskip("cupy", reason="cupy: extra cuda12 or cuda13")
    tree = ast.parse(inspect.getsource(float_layers))
    of_xp = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and ((isinstance(node.value, ast.Name) and node.value.id == "xp") or ast.unparse(node.value) == "self.xp")
    }
    assert {"exp", "unique", "argsort"} <= of_xp
    assert not [name for name in of_xp if not hasattr(cupy, name)]


@pytest.mark.parametrize("kv_format, rounded", [("int8", int8), ("fp16", fp16)])
def test_logits_are_those_of_float64_on_the_same_weights(model, reference, ids, monkeypatch, kv_format, rounded):
    """float64 rounds its K and V as the cache does. Every layer adds some 1e-7: 2e-6 in rows that see nothing worse.
    A K or V next to the middle between two codes may take the other one: one dim of one cell is then off by 1/127 of
    its group (fp16: 2^-11 of itself), and rows that select the cell by at most 1e-3. Measured: median 4e-7, 7e-7."""
    round_kv(monkeypatch, rounded)
    got, want = run(model, ids, [N], kv_format), reference.logits(ids)
    off = error(got, want)
    assert np.quantile(off, 0.1) <= 2e-6 and off.max() <= 1e-3
    # A logit's error is off * norm / sqrt(vocab), here about off itself; a mean over 149 positions is far below it.
    assert abs((nll(got, ids) - nll(want, ids)).mean()) <= 1e-5


def test_chunks_windows_and_batches_differ_by_rounding_alone(model, ids):
    """No byte is promised: matrix products of another height add in another order. The bounds are those above."""
    whole = run(model, ids, [N])
    off = error(run(model, ids, [1, 2, 61, 8, 8, 8, 62]), whole)
    assert np.quantile(off, 0.1) <= 2e-6 and off.max() <= 1e-3
    states = [model.init_state(N), model.init_state(N)]
    output = model.run([ids[:50], ids[:20]], states)
    off = error(model.logits(output.x), np.concatenate([whole[:50], whole[:20]]))
    assert np.quantile(off, 0.1) <= 2e-6 and off.max() <= 1e-3


def test_the_draft_layer_is_that_of_float64(model, reference, ids, monkeypatch):
    round_kv(monkeypatch)
    n = SMALL_CONFIG.indexer_budget
    streams = reference.forward(ids[:n], reference.init_state()).streams
    want, _ = reference.draft.forward(streams, ids[1 : n + 1], reference.draft.init_state())
    state = model.draft.init_state(n)
    x, _ = model.draft.forward(streams.astype(np.float32), ids[1 : n + 1], [0], [n], [state])
    off = error(model.logits(x), want)
    assert np.quantile(off, 0.1) <= 2e-6 and off.max() <= 1e-3


def test_int8_weights_cost_little(model, reference, ids):
    """A weight is off by at most half a code of 127, 0.3 % rms of a normal weight; a sum of products is off by as much
    of itself, and layers add up: some 1 % of a logit row. The mean NLL differs by far less than the 0.005 nats that a
    change of rounding may cost. Measured: median 1.1 %, mean difference -2e-5 nats."""
    exact_model = ExactModel.from_model(reference, backend=Arithmetic(cpu, "exact"))
    got, want = run(exact_model, ids, [N]), run(model, ids, [N])
    assert 1e-3 < np.median(error(got, want)) <= 3e-2
    assert abs((nll(got, ids) - nll(want, ids)).mean()) < 0.005


def test_the_split_switch_differs_by_rounding():
    """Up to 20 chunks of 64 cells a split is a chunk, so it takes more than 1,280 selected cells to hear a difference:
    a sum of partial sums in another order, some 1e-7 of an attention row."""
    config = replace(SMALL_CONFIG, indexer_budget=2048)
    model = FloatModel(config, random_tensors(config, 3), backend=cpu)
    ids = (np.random.PCG64(6).random_raw(1400) % np.uint64(97)).astype(np.int64)
    # fp16: an int8 code that falls the other way would be a larger difference than any rounding.
    cuts = [1280, *[8] * 15]
    plain = run(model, ids, cuts, "fp16")
    with override(split_attn=True):
        split = run(model, ids, cuts, "fp16")
    assert np.array_equal(plain[:1280], split[:1280]) and not np.array_equal(plain[1280:], split[1280:])
    off = error(split[1280:], plain[1280:])
    assert np.median(off) <= 2e-6 and off.max() <= 1e-3
    assert abs((nll(split, ids) - nll(plain, ids)).mean()) <= 1e-6


def test_the_split_switch_leaves_prompts_alone():
    """More rows than a window has are a prompt's."""
    config = replace(SMALL_CONFIG, indexer_budget=2048)
    model = FloatModel(config, random_tensors(config, 3), backend=cpu)
    ids = (np.random.PCG64(6).random_raw(1400) % np.uint64(97)).astype(np.int64)
    plain = run(model, ids, [1400], "fp16")
    with override(split_attn=True):
        assert np.array_equal(plain, run(model, ids, [1400], "fp16"))


def test_text_with_drafts_and_rollbacks(model, ids):
    """A row's logits differ by some 1e-6 of their norm from window to window, so no byte is promised; the two largest
    of these rows lie further apart than that, which is held too, and so the texts are equal."""
    plain = generate(model, ids[:40], max_tokens=30)
    drafted = generate(model, ids[:40], max_tokens=30, drafting=Drafting(4))
    assert drafted.tokens == plain.tokens and drafted.statistics.rollbacks > 0
    assert drafted.statistics.draft_failures == 0
    rows = run(model, np.concatenate([ids[:40], plain.tokens]), [70])[39:-1]
    second, best = np.partition(rows, -2, axis=1)[:, -2:].T
    assert ((best - second) > 1e-5 * np.linalg.norm(rows, axis=1)).all()


def test_scores_through_windows(model, reference, ids):
    exact_model = ExactModel.from_model(reference, backend=Arithmetic(cpu, "exact"))
    got, want = score(model, ids), score(exact_model, ids)
    assert abs(got.mean - want.mean) < 0.005 and np.mean(got.top == want.top) > 0.9


def test_the_switch_does_not_change_a_models_arithmetic(model, reference, ids):
    exact_model = ExactModel.from_model(reference, backend=Arithmetic(cpu, "exact"))
    want = run(exact_model, ids, [N]), run(model, ids, [N])
    for arithmetic in ("exact", "float"):
        with override(arithmetic=arithmetic):
            got = run(exact_model, ids, [N]), run(model, ids, [N])
        assert np.array_equal(want[0], got[0]) and np.array_equal(want[1], got[1])
    assert np.array_equal(want[0], run(ExactModel.from_model(reference, backend=exact), ids, [N]))


def test_a_backend_in_an_arithmetic_is_still_that_backend():
    backend = copy.copy(Arithmetic(cpu, "float"))
    assert backend.select is cpu.select and backend.layers is cpu.layers and not hasattr(backend, "to_device")


def test_quantised_weights_are_multiplied_as_what_they_stand_for(reference, ids):
    stored = ExactModel.from_model(reference).stored
    got = run(FloatModel(reference.config, stored, backend=cpu), ids, [N])
    plain = ExactModel.from_model(reference).dequantised().tensors
    assert np.array_equal(got, run(FloatModel(reference.config, plain, backend=cpu), ids, [N]))


def test_dequantised_is_the_model_of_the_same_weights(model, reference, ids):
    again = model.dequantised()
    assert isinstance(again, Model) and np.array_equal(again.logits(ids[:9]), reference.logits(ids[:9]))


def test_a_kv_format_that_the_arithmetic_does_not_take(model, reference):
    with pytest.raises(ValueError, match="kv_format = 'f64': the float arithmetic takes int8, q4_0, k8v4, fp16"):
        model.init_state(8, kv_format="f64")
    with pytest.raises(ValueError, match="kv_format = 'fp16': the exact arithmetic takes int8, q4_0, k8v4"):
        ExactModel.from_model(reference).init_state(8, kv_format="fp16")


def test_a_weight_that_is_not_finite_names_its_tensor(reference):
    head = np.array(reference.tensors["lm_head.weight"])
    head[3, 4] = np.nan
    with pytest.raises(ValueError, match=r"tensor lm_head\.weight: values must be finite"):
        FloatModel(reference.config, reference.tensors | {"lm_head.weight": head}, backend=cpu)
