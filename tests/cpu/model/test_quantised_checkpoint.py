"""Checkpoints with int8 weights: what is written is found again; every way in which codes and scales may not fit."""

import json
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from qsa.engine.load import load_model
from qsa.model.checkpoint import read_quantised, write_quantised
from qsa.model.weights import quantise_tensors
from qsa.reference import REAL_CONFIG, TINY_CONFIG, Config, load_checkpoint
from qsa.reference.exact.layers.linear import GROUP, QuantisedLinear
from qsa.reference.model.checkpoint import CheckpointError, read_tensors
from qsa.reference.model.config import QUANTISATION
from qsa.reference.model.random_model import random_tensors
from support.exact_models import SMALL_CONFIG

HEAD = "lm_head.weight"
NORM = "mtp.pre_fc_norm_embedding.weight"


@pytest.fixture(scope="module")
def tensors():
    return random_tensors(SMALL_CONFIG, 4, draft=True)


@pytest.fixture
def folder(tmp_path, tensors):
    write_quantised(tmp_path, SMALL_CONFIG, tensors)
    return tmp_path


def parts(tensor):
    return tensor if isinstance(tensor, tuple) else (tensor,)


def test_what_is_written_is_found_again(folder, tensors):
    config, found = read_quantised(folder)
    assert config == SMALL_CONFIG
    want = quantise_tensors(tensors)
    assert found.keys() == want.keys()
    for name in want:
        assert type(found[name]) is type(want[name]) or not isinstance(want[name], QuantisedLinear), name
        for got, true in zip(parts(found[name]), parts(want[name]), strict=True):
            assert got.dtype == true.dtype and np.array_equal(got, true), name
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1


def test_what_is_quantised_is_written_as_it_is(folder, tmp_path_factory):
    again = tmp_path_factory.mktemp("again") / "deep" / "model"
    write_quantised(again, *read_quantised(folder))
    assert (again / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_what_is_written_says_how_it_is_stored(folder):
    """The one quantisation that a configuration may name is the one that is written, and no other is read."""
    fields = json.loads((folder / "config.json").read_text())
    assert fields["quantization_config"] == QUANTISATION and QUANTISATION["group_size"] == GROUP
    fields["quantization_config"]["group_size"] = 32
    (folder / "config.json").write_text(json.dumps(fields))
    for read in (read_quantised, load_model):
        with pytest.raises(ValueError, match=r"config: quantization_config.group_size = 32: only 64 is supported"):
            read(folder)


@pytest.mark.parametrize("config", [REAL_CONFIG, TINY_CONFIG, SMALL_CONFIG])
def test_a_configuration_survives_its_file(config):
    assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_a_published_checkpoint_is_read_too(tmp_path, tensors):
    stored = {name: x if x.dtype == np.int64 else x.astype(np.float16) for name, x in tensors.items()}
    (tmp_path / "config.json").write_text(json.dumps(SMALL_CONFIG.to_dict()))
    save_file(stored, tmp_path / "model.safetensors")
    _, found = read_quantised(tmp_path)
    assert found.keys() == tensors.keys() and found[HEAD].dtype == np.float16


def test_the_reference_asks_for_floats(folder):
    with pytest.raises(CheckpointError, match="dtype I8: allowed are F64"):
        load_checkpoint(folder)


def drop(name):
    return lambda stored: stored.pop(name)


def put(name, change):
    return lambda stored: stored.__setitem__(name, change(stored[name]))


WRONG = {
    "scales missing": (drop(HEAD + "_scale"), f"{HEAD}: int8 codes: {HEAD}_scale in float16"),
    "scales in float32": (put(HEAD + "_scale", np.float32), f"{HEAD}: int8 codes: {HEAD}_scale in float16"),
    "codes missing": (drop(HEAD), f"missing tensor: {HEAD}"),
    "scales beside floats": (put(HEAD, lambda codes: codes.astype(np.float32)), f"extra tensor: {HEAD}_scale"),
    "codes misshapen": (put(HEAD, lambda codes: codes[:, :-1].copy()), rf"{HEAD}: shape \(97, 95\)"),
    "another tensor": (lambda stored: stored.__setitem__("head.weight_scale", np.zeros(3, np.float16)), "extra tensor"),
}


@pytest.mark.parametrize("change, message", WRONG.values(), ids=WRONG)
def test_codes_and_scales_that_do_not_belong_together(folder, change, message):
    stored = load_file(folder / "model.safetensors")
    change(stored)
    save_file(stored, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        read_quantised(folder)


def test_what_cannot_be_stored_leaves_the_files_alone(folder, tensors):
    before = (folder / "model.safetensors").read_bytes()
    norm = tensors[NORM].copy()
    codes = QuantisedLinear(np.rint(norm).astype(np.int8), norm[:2].astype(np.float16))
    norm[3] = np.inf
    for broken, message in (
        (tensors | {NORM: norm}, f"tensor {NORM}: values must be finite"),
        (tensors | {"extra.weight": norm}, "extra tensor: extra.weight"),
        (tensors | {NORM: codes}, f"tensor {NORM}: int8"),
    ):
        with pytest.raises(ValueError, match=message):
            write_quantised(folder, SMALL_CONFIG, broken)
    assert (folder / "model.safetensors").read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_quantising_takes_no_memory_beside_the_codes(tmp_path):
    """Experts one by one in float32, 128 MiB: the codes are a quarter, and a piece of 2^22 weights with what its
    rounding needs is four arrays of 16 MiB; one more is allowed. A stack as a whole would need four of 64 MiB."""
    experts, rows, inputs = 32, 512, 1024
    stem = "model.layers.0.mlp.experts."
    stored = {
        f"{stem}{number}.{kind}_proj.weight": np.full(
            (rows, inputs) if kind == "down" else (rows // 2, inputs), 0.5
        ).astype(np.float32)
        for number in range(experts)
        for kind in ("gate", "up", "down")
    }
    (tmp_path / "config.json").write_text(json.dumps(SMALL_CONFIG.to_dict()))
    save_file(stored, tmp_path / "model.safetensors")
    del stored
    tracemalloc.start()
    _, found = read_tensors(tmp_path)
    kept = quantise_tensors(found)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    codes = sum(tensor.codes.nbytes + tensor.scale.nbytes for tensor in kept.values())
    assert codes == 2 * experts * rows * inputs * 33 // 32
    assert peak <= codes + 5 * (16 << 20)
