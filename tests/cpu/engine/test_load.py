"""Loading models: every form of a checkpoint gives the same model; float64 agrees; every error names what is wrong."""

import importlib.util
import json
import shutil

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from qsa.engine.load import load_model, save_quantised
from qsa.engine.slots.identity import identity
from qsa.kernels import cpu
from qsa.kernels.switches import override
from qsa.model import ExactModel, FloatModel
from qsa.reference import exact, load_checkpoint
from qsa.reference.model.random_model import random_tensors
from support.exact_models import SMALL_CONFIG, round_kv

N = 60
HEAD = "lm_head.weight"
PLE = "model.layers.1.ple.ple_embedding."


@pytest.fixture(scope="module")
def ids():
    return (np.random.PCG64(7).random_raw(N) % np.uint64(SMALL_CONFIG.vocab_size)).astype(np.int64)


def cast(dtype):
    tensors = random_tensors(SMALL_CONFIG, 3, draft=True)
    return {name: x if x.dtype == np.int64 else x.astype(dtype) for name, x in tensors.items()}


def write(folder, tensors, shards=1):
    (folder / "config.json").write_text(json.dumps(SMALL_CONFIG.to_dict()))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    where = {}
    for part in range(shards):
        file = f"model-{part + 1:05d}-of-{shards:05d}.safetensors"
        names = sorted(tensors)[part::shards]
        save_file({name: np.ascontiguousarray(tensors[name]) for name in names}, folder / file)
        where |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    return write(tmp_path_factory.mktemp("published"), cast(np.float32))


@pytest.fixture(scope="module")
def quantised(tmp_path_factory, published):
    folder = tmp_path_factory.mktemp("quantised")
    save_quantised(load_model(published, "reference"), folder)
    return folder


@pytest.fixture
def copy(tmp_path, published):
    """A copy of the published checkpoint that a test may break."""
    return shutil.copytree(published, tmp_path / "copy")


def logits(model, ids):
    return model.forward(ids, model.init_state(N))[0]


def same_weights(first, other):
    assert first.keys() == other.keys()
    for name in first:
        pair = (x if isinstance(x, tuple) else (x,) for x in (first[name], other[name]))
        assert all(np.array_equal(a, b) for a, b in zip(*pair, strict=True)), name


@pytest.fixture(scope="module")
def want(published, ids):
    return logits(load_model(published, "reference"), ids)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("form", ["published", "quantised"])
def test_every_form_and_backend_gives_the_same_bytes(form, backend, request, ids, want):
    model = load_model(request.getfixturevalue(form), backend)
    assert isinstance(model, ExactModel) and model.draft is not None and model.config == SMALL_CONFIG
    assert np.array_equal(logits(model, ids).view(np.uint32), want.view(np.uint32))


def stored_one_by_one(tensors):
    """Experts one by one and the n-gram table in four parts, under a multimodal checkpoint's names."""
    found = {}
    for name, value in tensors.items():
        prefixed = name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name
        if name.endswith("experts.gate_up_proj"):
            stem = prefixed.removesuffix("gate_up_proj")
            for expert, (gate, up) in enumerate(zip(*np.split(value, 2, axis=1), strict=True)):
                found |= {f"{stem}{expert}.gate_proj.weight": gate, f"{stem}{expert}.up_proj.weight": up}
        elif name.endswith("experts.down_proj"):
            stem = prefixed.removesuffix("down_proj")
            found |= {f"{stem}{expert}.down_proj.weight": down for expert, down in enumerate(value)}
        elif name.endswith("ngram_embedding.weight"):
            stem = prefixed.removesuffix("weight")
            found |= {f"{stem}shard_{part}.weight": rows for part, rows in enumerate(np.split(value, 4))}
        else:
            found[prefixed] = value
    found["model.visual.patch_embed.weight"] = np.zeros((2, 2), np.float32)
    return found


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda dtype: dtype.__name__)
def test_layouts_and_dtypes_of_published_checkpoints(dtype, tmp_path, ids):
    tensors = cast(dtype)
    model = load_model(write(tmp_path, stored_one_by_one(tensors), shards=3))
    lifted = {name: x if x.dtype == np.int64 else x.astype(np.float64) for name, x in tensors.items()}
    same_weights(model.stored, ExactModel(SMALL_CONFIG, lifted).stored)
    float_model = load_model(tmp_path, arithmetic="float")
    assert np.array_equal(logits(float_model, ids[:9]), logits(FloatModel(SMALL_CONFIG, lifted, backend=cpu), ids[:9]))


def test_float64_agrees_on_the_dequantised_weights(quantised, ids, monkeypatch):
    """The bounds of test_exact_model.py, where their reasons stand: 2e-6 in rows that see nothing worse than rounding,
    1e-3 where a K or V takes the code beside. The reference rounds its K and V to int8 as the cache does."""
    model = load_model(quantised)
    round_kv(monkeypatch)
    true = model.dequantised().logits(ids)
    off = np.linalg.norm(logits(model, ids) - true, axis=1) / np.linalg.norm(true, axis=1)
    assert np.quantile(off, 0.1) <= 2e-6 and off.max() <= 1e-3


def test_the_reference_reads_the_published_weights_themselves(published, ids):
    true = load_checkpoint(published).logits(ids)
    off = np.linalg.norm(logits(load_model(published, arithmetic="float"), ids) - true, axis=1)
    # fp16 would be off by 5e-4 of a value and int8 by 3e-3: this is int8 K/V alone, as test_exact_model.py measures it.
    assert np.median(off / np.linalg.norm(true, axis=1)) <= 1e-3


def test_a_model_saved_and_loaded_is_the_same(published, tmp_path):
    for arithmetic in ("exact", "float"):
        model = load_model(published, "cpu", arithmetic)
        save_quantised(model, tmp_path / arithmetic)
    same = (tmp_path / arithmetic / "model.safetensors" for arithmetic in ("exact", "float"))
    assert next(same).read_bytes() == next(same).read_bytes()
    same_weights(load_model(tmp_path / "exact").stored, load_model(published).stored)


@pytest.mark.parametrize("arithmetic", ["exact", "float"])
def test_every_form_of_equal_weights_has_one_identity(arithmetic, published, tmp_path):
    """Loaded twice, in shards with experts one by one, saved quantised and loaded again, on any backend: a saved slot
    is restored into each of them. A changed weight is another identity."""
    for name in ("shards", "changed"):
        (tmp_path / name).mkdir()
    shards = write(tmp_path / "shards", stored_one_by_one(cast(np.float32)), shards=3)
    found = [identity(load_model(folder, "cpu", arithmetic)) for folder in (published, published, shards)]
    if arithmetic == "exact":
        save_quantised(load_model(published), tmp_path / "quantised")
        found += [identity(load_model(tmp_path / "quantised", backend)) for backend in ("cpu", "reference")]
    assert len(set(found)) == 1
    tensors = cast(np.float32)
    tensors["model.layers.0.mlp.experts.down_proj"][-1] *= -1
    other = identity(load_model(write(tmp_path / "changed", tensors), "cpu", arithmetic))
    assert other.configuration == found[0].configuration and other.weights != found[0].weights


def test_a_float_model_of_codes_and_one_of_their_values_have_one_identity(quantised, tmp_path):
    """Their tables stay in the form in which they come; the rows that they give are the same."""
    values = load_model(quantised).dequantised().tensors
    values = {name: x if x.dtype == np.int64 else x.astype(np.float32) for name, x in values.items()}
    lifted = load_model(write(tmp_path, values), arithmetic="float")
    assert identity(load_model(quantised, arithmetic="float")) == identity(lifted)


def test_weights_are_hashed_when_they_are_loaded(published, monkeypatch):
    model = load_model(published)
    monkeypatch.setattr("qsa.engine.slots.identity.weights_digest", None)
    assert len(identity(model).weights) == 32


def test_the_switch_names_the_arithmetic(published):
    assert load_model(published).arithmetic == "exact"
    with override(arithmetic="float"):
        assert load_model(published).arithmetic == "float"
        assert load_model(published, arithmetic="exact").arithmetic == "exact"


def test_options_reach_the_model(published):
    model = load_model(published, rule="cells", draft_norm="streams", draft_window=9)
    assert (model.rule, model.draft_norm, model.draft.window) == ("cells", "streams", 9)


def test_a_checkpoint_without_a_draft_layer(tmp_path, ids, want):
    tensors = {name: x for name, x in cast(np.float32).items() if not name.startswith("mtp.")}
    model = load_model(write(tmp_path, tensors))
    assert model.draft is None and np.array_equal(logits(model, ids), want)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "gpu"}, "backend = 'gpu': allowed are cpu, cuda, reference"),
        ({"arithmetic": "fast"}, "arithmetic = 'fast': allowed are exact, float"),
        ({"backend": "reference", "arithmetic": "float"}, "arithmetic = 'float': the reference backend"),
        ({"rule": "rows"}, "rule = 'rows': allowed are blocks, cells"),
        ({"draft_norm": "none"}, "draft_norm = 'none': allowed are whole, streams"),
        ({"draft_window": 0}, "draft_window = 0: must be at least 1"),
    ],
)
def test_arguments_that_are_not_allowed(published, options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        load_model(published, **options)


def test_cuda_without_a_device_says_so(published, monkeypatch):
    # numba brings a numba.cuda of its own, which is not the one that the kernels need.
    if importlib.util.find_spec("numba_cuda") is None:
        with pytest.raises(ValueError, match=r"^backend = 'cuda': the CUDA backend needs the extra cuda12 or cuda13"):
            load_model(published, "cuda")
        return
    from numba import cuda

    monkeypatch.setattr(cuda, "is_available", lambda: False)
    monkeypatch.setattr(cuda, "cuda_error", lambda: "the driver is too old\nand more")
    with pytest.raises(ValueError, match=r"^backend = 'cuda': no device: the driver is too old$"):
        load_model(published, "cuda")


def test_folders_and_files_that_are_not_there(tmp_path, copy):
    with pytest.raises(FileNotFoundError, match=r"directory = '.*nowhere': there is no such folder"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        load_model(copy / "config.json")
    (copy / "model.safetensors").rename(copy / "model-1.safetensors")
    with pytest.raises(FileNotFoundError, match=r"neither model\.safetensors nor model\.safetensors\.index\.json"):
        load_model(copy)
    index = {"weight_map": {HEAD: "model-2.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(FileNotFoundError, match=r"model-2\.safetensors"):
        load_model(copy)
    (copy / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"copy: no config\.json"):
        load_model(copy)


def put(name, change):
    return lambda stored: stored.__setitem__(name, change(stored[name]))


def spoilt(values):
    values = values.copy()
    values.reshape(-1)[5] = np.nan
    return values


WRONG = {
    "missing": (lambda stored: stored.pop(HEAD), f"missing tensor: {HEAD}"),
    "extra": (lambda stored: stored.__setitem__("model.norm.weight", np.zeros(3, np.float32)), "extra tensor: model.n"),
    "shape": (put(HEAD, lambda x: np.ascontiguousarray(x.T)), rf"tensor {HEAD}: shape \(96, 97\)"),
    "dtype": (
        put(HEAD, lambda x: x.astype(np.int32)),
        f"tensor {HEAD}: dtype I32: allowed are F64, F32, F16, BF16, I8",
    ),
    "codes without scales": (put(HEAD, lambda x: x.astype(np.int8)), f"tensor {HEAD}: int8 codes: {HEAD}_scale"),
    "not finite": (put(HEAD, spoilt), f"tensor {HEAD}: int8: values must be finite"),
    "a norm that is not finite": (
        put("mtp.pre_fc_norm_embedding.weight", spoilt),
        "norm_embedding.weight: values must",
    ),
    "hash constants": (put(PLE + "layer_multipliers", lambda x: x + 2), "layer_multipliers: stored"),
}


@pytest.mark.parametrize("change, message", WRONG.values(), ids=WRONG)
def test_tensors_that_are_not_the_models(copy, change, message):
    stored = load_file(copy / "model.safetensors")
    change(stored)
    save_file(stored, copy / "model.safetensors")
    with pytest.raises(ValueError, match=f"copy: .*{message}"):
        load_model(copy)


def test_a_configuration_that_is_not_supported(copy):
    for fields, message in (
        ({"model_type": "llama"}, "config: model_type = 'llama'"),
        ({"output_gate_type": "relu"}, "config: output_gate_type = 'relu': 'sigmoid' or 'silu' is required"),
    ):
        (copy / "config.json").write_text(json.dumps(SMALL_CONFIG.to_dict() | fields))
        with pytest.raises(ValueError, match=f"copy: .*{message}"):
            load_model(copy)


def test_the_reference_backend_is_the_exact_arithmetic_in_numpy(published):
    assert load_model(published, "reference").backend is exact
