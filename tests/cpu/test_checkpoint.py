"""Reading checkpoints: every layout that is accepted, and every lie that a file may tell. A list of lies, so longer
than most files."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from qsa.reference import Config, Model, load_checkpoint
from qsa.reference.checkpoint import CheckpointError, read_safetensors
from qsa.reference.random_model import random_tensors

# Two layers, one of each kind, PLE on the first.
FIELDS = {
    "model_type": "qwen4_exp_text",
    "vocab_size": 17,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
    "layer_types": ["linear_attention", "full_attention"],
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 4,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "moe_intermediate_size": 4,
    "shared_expert_intermediate_size": 4,
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "eos_token_id": 1,
    "hc_count": 2,
    "hc_lowrank": 4,
    "ple_layer_ids": [1],
    "ple_embed_dim": 8,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 10,
    "make_ngram_vocab_size_divisible_by": 8,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 8,
    "indexer_budget": 8,
    "indexer_compress_ratio": 4,
}
IDS = np.arange(16) * 5 % 17
TABLE = "model.layers.0.ple.ple_embedding.ngram_embedding."
EXPERTS = "model.layers.1.mlp.experts."


@pytest.fixture(scope="module")
def tensors():
    """float64 values that float32 holds exactly."""
    return random_tensors(Config.from_dict(FIELDS), 1, draft=True)


@pytest.fixture(scope="module")
def expected(tensors):
    return Model(Config.from_dict(FIELDS), tensors).logits(IDS)


def cast(tensors, dtype=np.float32):
    return {name: value if value.dtype == np.int64 else value.astype(dtype) for name, value in tensors.items()}


def write(folder, tensors, fields=FIELDS, file="model.safetensors"):
    (folder / "config.json").write_text(json.dumps(fields))
    save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, folder / file)
    return folder


def write_raw(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def entry(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def same(folder, expected, **options):
    model = load_checkpoint(folder, **options)
    # The same float64 values reach the same operations.
    assert np.array_equal(model.logits(IDS), expected)
    return model


def test_single_file(tmp_path, tensors, expected):
    model = same(write(tmp_path, cast(tensors)), expected)
    assert model.draft is not None and model.config == Config.from_dict(FIELDS)


def test_options_reach_the_model(tmp_path, tensors):
    model = load_checkpoint(write(tmp_path, cast(tensors)), rule="cells", draft_norm="streams")
    assert model.rule == "cells"
    assert model.trace(IDS).selected[1].sum(axis=1).max() == 11


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16], ids=lambda dtype: dtype.__name__)
def test_float_dtypes(tmp_path, tensors, dtype):
    stored = cast(tensors, dtype)
    lifted = {name: value if value.dtype == np.int64 else value.astype(np.float64) for name, value in stored.items()}
    same(write(tmp_path, stored), Model(Config.from_dict(FIELDS), lifted).logits(IDS))


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.", "language_model.model."])
def test_multimodal_names(tmp_path, tensors, expected, prefix):
    stored = {}
    for name, value in cast(tensors).items():
        name = prefix + name.removeprefix("model.") if name.startswith("model.") else name
        stored[name] = value
    stored["model.visual.blocks.0.attn.qkv.weight"] = np.zeros((3, 3), np.float32)
    stored["model.visual.pos_embed.scale"] = np.zeros(3, np.uint8)
    fields = {"model_type": "qwen4_exp", "text_config": FIELDS, "vision_config": {"depth": 1}}
    same(write(tmp_path, stored, fields), expected)


def test_head_below_the_prefix(tmp_path, tensors, expected):
    stored = cast(tensors)
    stored["language_model.lm_head.weight"] = stored.pop("lm_head.weight")
    same(write(tmp_path, stored), expected)


def test_sharded_index_with_table_in_parts(tmp_path, tensors, expected):
    stored = cast(tensors)
    table = stored.pop(TABLE + "weight")
    assert len(table) % 4 == 0
    stored |= {f"{TABLE}shard_{part}.weight": rows for part, rows in enumerate(np.split(table, 4))}
    names, where = sorted(stored), {}
    for part in range(3):
        file = f"model-{part + 1:05d}-of-00003.safetensors"
        write(tmp_path, {name: stored[name] for name in names[part::3]}, file=file)
        where |= dict.fromkeys(names[part::3], file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    same(tmp_path, expected)


def unstacked(tensors):
    stored = cast(tensors)
    gate_up, down = stored.pop(EXPERTS + "gate_up_proj"), stored.pop(EXPERTS + "down_proj")
    for expert in range(3):
        gate, up = np.split(gate_up[expert], 2)
        for kind, value in (("gate", gate), ("up", up), ("down", down[expert])):
            stored[f"{EXPERTS}{expert}.{kind}_proj.weight"] = value
    return stored


def test_experts_one_by_one(tmp_path, tensors, expected):
    same(write(tmp_path, unstacked(tensors)), expected)


def test_draft_layer_may_be_absent(tmp_path, tensors, expected):
    stored = {name: value for name, value in cast(tensors).items() if not name.startswith("mtp.")}
    assert same(write(tmp_path, stored), expected).draft is None


# What a checkpoint may lack or hold too much of. Each changes the stored tensors; the error names the tensor.


def drop(name):
    return lambda stored: stored.pop(name)


def put(name, value):
    return lambda stored: stored.__setitem__(name, value)


WRONG = {
    "missing": (drop("lm_head.weight"), "missing tensor: lm_head.weight"),
    "missing hash constant": (
        drop("model.layers.0.ple.ple_embedding.layer_multipliers"),
        "missing tensor: .*layer_multipliers",
    ),
    "a draft layer in part": (drop("mtp.fc_hidden.weight"), "missing tensor: mtp.fc_hidden.weight"),
    "extra": (put("model.norm.weight", np.zeros(8, np.float32)), "extra tensor: model.norm.weight"),
    "extra layer": (
        put("model.layers.2.mlp.gate.weight", np.zeros((3, 8), np.float32)),
        "extra tensor: model.layers.2",
    ),
    "transposed": (put("lm_head.weight", np.zeros((8, 17), np.float32)), r"lm_head.weight: shape \(8, 17\).*\(17, 8\)"),
    "of a dtype that is no weight": (put("lm_head.weight", np.zeros((17, 8), np.int8)), "lm_head.weight: dtype I8"),
    "integers for weights": (put("lm_head.weight", np.zeros((17, 8), np.int64)), "lm_head.weight: dtype I64: allowed"),
    "other hash constants": (
        put("model.layers.0.ple.ple_embedding.layer_multipliers", np.array([1, 3, 5])),
        r"layer_multipliers: stored \[1, 3, 5\]",
    ),
    "hash constants as floats": (
        put("model.layers.0.ple.ple_embedding.layer_multipliers", np.zeros(3, np.float32)),
        "layer_multipliers: dtype F32: allowed are I64",
    ),
    "twice": (put("model.language_model.embed_tokens.weight", np.zeros((17, 8), np.float32)), "embed_tokens.*two"),
}


@pytest.mark.parametrize("change, message", WRONG.values(), ids=WRONG)
def test_tensors_that_are_not_the_models(tmp_path, tensors, change, message):
    stored = cast(tensors)
    change(stored)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(write(tmp_path, stored))


@pytest.mark.parametrize("lost", ["gate", "up", "down"])
def test_an_expert_in_part(tmp_path, tensors, lost):
    stored = unstacked(tensors)
    del stored[f"{EXPERTS}2.{lost}_proj.weight"]
    with pytest.raises(CheckpointError, match=f"tensor {EXPERTS}0: every expert"):
        load_checkpoint(write(tmp_path, stored))


def test_a_table_in_unequal_or_missing_parts(tmp_path, tensors):
    stored = cast(tensors)
    table = stored.pop(TABLE + "weight")
    for numbers, cut, message in (((0, 1), 7, "of one shape"), ((1, 2), len(table) // 2, "shards from 0 on")):
        parts = {
            f"{TABLE}shard_{number}.weight": rows
            for number, rows in zip(numbers, (table[:cut], table[cut:]), strict=True)
        }
        with pytest.raises(CheckpointError, match=message):
            load_checkpoint(write(tmp_path, stored | parts))


# Files that lie about themselves. 24 bytes of data each.

HEADERS = {
    "shape larger than its bytes": ({"a": entry([7], 0, 24)}, r"tensor a: F32 \[7\] does not fill bytes 0 to 24"),
    "huge shape": ({"a": entry([2**62, 2**62], 0, 24)}, "tensor a: F32 .* does not fill"),
    "huge empty shape": ({"a": entry([2**40, 0, 2**40], 0, 0), "b": entry([6], 0, 24)}, "tensor a: shape"),
    "more dimensions than any tensor has": ({"a": entry([1] * 9, 0, 4)}, "tensor a: shape"),
    "huge shape and offsets": ({"a": entry([2**62], 0, 2**64)}, "the tensors take 18446744073709551616 bytes"),
    "data past the end": ({"a": entry([8], 0, 32)}, "take 32 bytes, the file has 24"),
    "data left over": ({"a": entry([5], 0, 20)}, "take 20 bytes, the file has 24"),
    "overlap": (
        {"a": entry([4], 0, 16), "b": entry([4], 8, 24)},
        "tensor b: begins at 8, the one before it ends at 16",
    ),
    "gap": ({"a": entry([2], 0, 8), "b": entry([2], 16, 24)}, "tensor b: begins at 16, the one before it ends at 8"),
    "the same bytes twice": ({"a": entry([6], 0, 24), "b": entry([6], 0, 24)}, "begins at 0, the one before"),
    "backwards": ({"a": entry([6], 24, 0)}, "tensor a: .* bytes 24 to 0"),
    "negative offset": ({"a": entry([6], -24, 0)}, "tensor a: .* bytes -24 to 0"),
    "negative sizes": ({"a": entry([-2, -3], 0, 24)}, r"shape \[-2, -3\]"),
    "sizes that are no integers": ({"a": entry([6.0], 0, 24)}, r"shape \[6.0\]"),
    "offsets that are no integers": ({"a": entry([6], 0, 24.0)}, "data_offsets"),
    "three offsets": ({"a": {"dtype": "F32", "shape": [6], "data_offsets": [0, 12, 24]}}, "two integers"),
    "unknown dtype": ({"a": entry([6], 0, 24, "F31")}, "dtype 'F31'"),
    "dtype that is no name": ({"a": entry([6], 0, 24, ["F32"])}, "dtype"),
    "no shape": ({"a": {"dtype": "F32", "data_offsets": [0, 24]}}, "tensor a: dtype, shape and data_offsets"),
    "entry that is no object": ({"a": 3}, "tensor a: dtype, shape"),
    "header that is no object": (b"[1]", "an object is required"),
    "no JSON": (b'{"a": ', "header: "),
    "nested without end": (b"[" * 100_000, "header: "),
    "no UTF-8": (b'{"\xff": 1}', "header: "),
    "one name twice": (b'{"a": 1, "a": 2}', "a name appears twice"),
}


@pytest.mark.parametrize("header, message", HEADERS.values(), ids=HEADERS)
def test_headers_that_lie(tmp_path, header, message):
    path = tmp_path / "model.safetensors"
    write_raw(path, header, bytes(24))
    with pytest.raises(CheckpointError, match=f"model.safetensors: .*{message}"):
        read_safetensors(path)


def test_a_file_cut_anywhere(tmp_path):
    path = tmp_path / "model.safetensors"
    write_raw(path, {"a": entry([6], 0, 24)}, bytes(24))
    whole = path.read_bytes()
    assert read_safetensors(path)["a"][1].tolist() == [0.0] * 6
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            read_safetensors(path)


@pytest.mark.parametrize("length", [0, 1, 25, 100_000_001, 2**63, 2**64 - 1])
def test_a_header_length_that_lies(tmp_path, length):
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", length) + bytes(24))
    with pytest.raises(CheckpointError, match=f"header of {length} bytes in a file of 32"):
        read_safetensors(path)


def test_data_that_is_not_aligned(tmp_path):
    """The format's writers pad the header; a reader may not rely on it."""
    path = tmp_path / "model.safetensors"
    values = np.array([1.5, -2.0, 0.25])
    for dtype, name in ((np.float64, "F64"), (ml_dtypes.bfloat16, "BF16")):
        data = values.astype(dtype).tobytes()
        header = {"a": entry([1], 0, 1, "U8"), "b": entry([3], 1, 1 + len(data), name)}
        write_raw(path, header, b"\x00" + data)
        assert np.asarray(read_safetensors(path)["b"][1], np.float64).tolist() == values.tolist()


def test_empty_tensors_and_metadata(tmp_path):
    path = tmp_path / "model.safetensors"
    write_raw(path, {"__metadata__": {"format": "pt"}, "a": entry([0, 3], 0, 0), "b": entry([], 0, 4)}, bytes(4))
    found = read_safetensors(path)
    assert found["a"][1].shape == (0, 3) and found["b"][1].shape == ()


@pytest.mark.parametrize("file", ["../a.safetensors", "/a.safetensors", "b/a.safetensors", "..\\a.safetensors", "a", 3])
def test_an_index_does_not_leave_the_folder(tmp_path, tensors, file):
    folder = tmp_path / "inner"
    folder.mkdir()
    write(folder, cast(tensors))
    save_file(cast(tensors), tmp_path / "a.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(tensors, file)}))
    with pytest.raises(CheckpointError, match=r"a plain file name ending in \.safetensors is required"):
        load_checkpoint(folder)


INDEXES = {
    "no JSON": ("{", "index.json: no JSON"),
    "no map": ("{}", "weight_map"),
    "empty map": ('{"weight_map": {}}', "weight_map"),
    "a tensor that its file lacks": ('{"weight_map": {"a": "a.safetensors", "c": "a.safetensors"}}', "c: missing"),
    "a tensor that the index lacks": ('{"weight_map": {"a": "a.safetensors"}}', "tensor b: not in the index"),
}


@pytest.mark.parametrize("text, message", INDEXES.values(), ids=INDEXES)
def test_an_index_that_lies(tmp_path, text, message):
    (tmp_path / "config.json").write_text(json.dumps(FIELDS))
    save_file({name: np.zeros(1, np.float32) for name in ("a", "b")}, tmp_path / "a.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(tmp_path)


def test_files_that_are_absent(tmp_path, tensors):
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(FIELDS))
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "b.safetensors"}}')
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path)
