"""Reading checkpoints: every layout that is accepted, and tensors that are not the model's."""

import json

import ml_dtypes
import numpy as np
import pytest

from qsa.reference import Config, Model, load_checkpoint
from qsa.reference.model.checkpoint import CheckpointError
from support.checkpoint_folders import EXPERTS, FIELDS, IDS, TABLE, cast, expected, same, tensors, write

__all__ = ["expected", "tensors"]  # fixtures are used by their names


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
