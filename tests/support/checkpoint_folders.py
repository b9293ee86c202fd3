"""Checkpoint folders for tests: a small model's tensors, written as a test wants them."""

import json
import struct

import numpy as np
import pytest
from safetensors.numpy import save_file

from qsa.reference import Config, Model, load_checkpoint
from qsa.reference.model.random_model import random_tensors

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
