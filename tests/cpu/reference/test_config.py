"""Reading the published configuration: what is accepted, and what every refusal says.

One file: most of it are tables of fields and messages, which are read beside one another.
"""

import dataclasses
import json
import math
import re

import pytest

from qsa.reference import REAL_CONFIG, TINY_CONFIG, Config
from qsa.reference.geometry import REAL
from qsa.reference.model.config import QUANTISATION
from qsa.reference.model.config_fields import ONLY, ROPE_OBJECTS, SCALING, UNSUPPORTED

# The text fields of the published config.json of Qwen3.8-Flash-Next that change a result.
PUBLISHED = {
    "model_type": "qwen4_exp_text",
    "vocab_size": 248320,
    "hidden_size": 2560,
    "num_hidden_layers": 48,
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_act": "silu",
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
    "partial_rotary_factor": 0.25,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "moe_intermediate_size": 640,
    "shared_expert_intermediate_size": 640,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "eos_token_id": 248044,
    "hc_count": 4,
    "hc_lowrank": 320,
    "ple_layer_ids": [2],
    "ple_embed_dim": 2560,
    "ple_conv_kernel_size": 4,
    "ngram_size": 3,
    "heads_per_ngram": 8,
    "ngram_vocab_size_base": 20000000,
    "make_ngram_vocab_size_divisible_by": 128,
    "split_ngram_parts": 128,
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 128,
    "indexer_budget": 2048,
    "indexer_compress_ratio": 4,
    "output_gate_type": "sigmoid",
}


THETA = {"rope_theta": 1e7, "partial_rotary_factor": 0.25}


def changed(**fields):
    """PUBLISHED with ``fields`` changed; a field set to ... is left out."""
    data = {**PUBLISHED, **fields}
    return {name: value for name, value in data.items() if value is not ...}


def rope(**fields):
    return {"rope_parameters": {**PUBLISHED["rope_parameters"], **fields}}


def around(text=PUBLISHED, **fields):
    """A multimodal file around the text model's object ``text``, with ``fields`` at its top."""
    return {"model_type": "qwen4_exp", "vision_config": {"hidden_size": 1152}, "text_config": text, **fields}


def test_the_published_fields_give_the_real_preset():
    assert Config.from_dict(PUBLISHED) == REAL_CONFIG


def test_multimodal_files_nest_the_text_model():
    data = {"model_type": "qwen4_exp", "text_config": PUBLISHED, "vision_config": {"hidden_size": 1152}}
    assert Config.from_dict(data) == REAL_CONFIG


def test_geometry_is_the_real_one():
    assert REAL_CONFIG.geometry == REAL
    assert TINY_CONFIG.geometry.max_width == 19


SAME = {
    "layer types from the interval": changed(layer_types=..., full_attention_interval=4),
    "layer types from the default interval": changed(layer_types=None),
    "layer types under the code's own name": changed(
        layer_types=(["linear_attention"] * 3 + ["indexed_attention"]) * 12
    ),
    "a list of one end of text id": changed(eos_token_id=[248044]),
    "our own quantisation": changed(quantization_config=QUANTISATION),
    "no quantisation": changed(quantization_config=None),
    "rope fields at the top": changed(rope_parameters=..., rope_theta=1e7),
    "a repeated PLE layer": changed(ple_layer_ids=[2, 2]),
    "class defaults left out": changed(rms_norm_eps=..., hc_lowrank=None, ngram_size=..., ple_embed_dim=None),
    "a default rope under both names": changed(rope_scaling=PUBLISHED["rope_parameters"]),
    "a default rope under the old key": changed(rope_parameters=..., rope_scaling={"type": "default", **THETA}),
    "a default rope per layer type": changed(
        rope_parameters={"full_attention": PUBLISHED["rope_parameters"], "linear_attention": {"type": "default"}}
    ),
    "a rope scaled by 1": changed(**rope(factor=1.0, attention_factor=None)),
    # known-faults E2: a text token's three positions are equal, so no sections change it.
    "sections that are not the rotated dims": changed(**rope(mrope_section=[2, 1, 1])),
    "sections of other codes": changed(**rope(mrope_section=[16, 24, 24, 0], mrope_interleaved=False)),
    "a window that is off": changed(use_sliding_window=False, sliding_window=4096, max_window_layers=28),
    "fields that say what is done": changed(
        mlp_only_layers=[], decoder_sparse_step=1, attn_output_gate=True, qkv_bias=False, sliding_window=None
    ),
    "a multimodal file that repeats fields": around(
        rms_norm_eps=1e-6,
        rope_theta=1e7,
        tie_word_embeddings=False,
        rope_scaling=PUBLISHED["rope_parameters"],
        eos_token_id=5,
    ),
    "fields that change no result": changed(initializer_range=0.5, dtype="bfloat16", use_cache=False),
}


WRONG = [
    10**400,
    -(10**400),
    2**63,
    math.inf,
    math.nan,
    -1,
    0,
    True,
    "a",
    ["a"],
    [[]],
    [{}],
    {},
    {"a": 10**400},
    [10**400],
    [None],
    1.5,
]
"""Values that a file may hold where they make no sense."""

FIELDS = {field.name for field in dataclasses.fields(Config)} | set(ONLY) | set(UNSUPPORTED) | set(ROPE_OBJECTS)
FIELDS |= {"sliding_window", "full_attention_interval", "text_config", "model_type", "quantization_config"}
ROPE_FIELDS = ("rope_theta", "partial_rotary_factor", "mrope_section", "rope_type", "type", *SCALING)


@pytest.mark.parametrize("name", sorted(FIELDS | set(ROPE_FIELDS)))
def test_no_value_of_a_field_is_a_traceback(name):
    """known-faults E2: whatever a field holds, it is read or refused in one line of readable length."""
    for value in WRONG:
        for data in (
            changed(**{name: value}),
            around(**{name: value}),
            changed(**{"layer_types": ..., name: value}),
            changed(partial_rotary_factor=..., **rope(**{name: value})),
            changed(quantization_config={**QUANTISATION, name: value}),
        ):
            try:
                Config.from_dict(data).geometry  # noqa: B018 - it converts the numbers
            except ValueError as error:
                text = str(error)
                assert text.startswith("config: ") and "\n" not in text and len(text) < 400, text


@pytest.mark.parametrize("data", SAME.values(), ids=SAME)
def test_other_ways_to_say_the_same(data):
    assert Config.from_dict(data) == REAL_CONFIG


def test_output_gate_follows_hidden_act_when_unset():
    assert Config.from_dict(changed(output_gate_type=None)).output_gate_type == "silu"


def test_a_model_without_ple_needs_no_end_of_text():
    config = Config.from_dict(changed(ple_layer_ids=None, eos_token_id=None))
    assert config.ple_layer_ids == () and config.eos_token_id is None


def test_of_several_ends_of_text_the_first_cuts_and_each_ends():
    config = Config.from_dict(changed(eos_token_id=[248044, 248046, 7]))
    assert config.eos_token_id == 248044 and config.eos_token_ids == (248044, 248046, 7)
    assert dataclasses.replace(config, more_eos_token_ids=()) == REAL_CONFIG != config
    # They change nothing that is computed: a saved state of one is the other's.
    assert repr(config) == repr(Config.from_dict(PUBLISHED))
    again = config.to_dict()
    assert again["eos_token_id"] == [248044, 248046, 7] and Config.from_dict(again) == config
    assert REAL_CONFIG.eos_token_ids == (248044,) and REAL_CONFIG.to_dict()["eos_token_id"] == 248044
    assert Config.from_dict(changed(ple_layer_ids=None, eos_token_id=None)).eos_token_ids == ()
    assert Config.from_dict(changed(more_eos_token_ids=5)) == REAL_CONFIG  # a name of ours, not of the file's


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}

# Changed fields, and what the error must say: field, value, what is allowed.
REFUSED = [
    (changed(model_type="qwen3_next"), r"model_type = 'qwen3_next': allowed are qwen4_exp, qwen4_exp_text"),
    (changed(model_type=...), r"model_type = None: allowed"),
    (changed(**rope(rope_type="yarn")), r"rope_type = 'yarn': only 'default'"),
    (changed(**rope(rope_theta=1e6), rope_theta=1e7), r"rope_theta = \[10000000.0, 1000000.0\]: the same value"),
    (changed(**rope(mrope_section=["a"])), r"rope_parameters.mrope_section = \['a'\]: a list of 3 integers from 0 to"),
    (changed(**rope(mrope_section=[11, 11])), r"mrope_section = \[11, 11\]: a list of 3 integers"),
    (changed(**rope(mrope_section=[11, 11, -1])), r"mrope_section = \[11, 11, -1\]: a list of 3 integers"),
    (changed(**rope(mrope_section=32)), r"mrope_section = 32: a list of 3 integers"),
    (changed(rope_scaling={"mrope_section": [None] * 3}), r"rope_scaling.mrope_section = .*: a list of 3 integers"),
    (changed(ple_layer_ids=[[2]]), r"ple_layer_ids = \[2\]: integers"),
    (changed(ple_layer_ids=[{}]), r"ple_layer_ids = {}: integers"),
    (changed(rope_parameters=[1]), r"rope_parameters = \[1\]: an object"),
    (changed(**rope(partial_rotary_factor=0.75), partial_rotary_factor=...), r"head_dim . factor = 192 must"),
    (changed(**rope(partial_rotary_factor=1.5), partial_rotary_factor=1.5), r"factor = 1.5: at most 1"),
    (changed(**rope(rope_theta="big")), r"rope_theta = 'big': a positive number"),
    (changed(rope_parameters=...), r"rope_theta: missing"),
    (changed(hidden_act="gelu"), r"hidden_act = 'gelu': only 'silu'"),
    (changed(attention_bias=True), r"attention_bias = True: only False"),
    (changed(norm_topk_prob=False), r"norm_topk_prob = False: only True"),
    (changed(tie_word_embeddings=True), r"tie_word_embeddings = True: only False"),
    (changed(indexer_kv_heads=2), r"indexer_kv_heads = 2: only 1"),
    (changed(output_gate_type="tanh"), r"output_gate_type = 'tanh': 'sigmoid' or 'silu' is required"),
    (
        changed(layer_types=["linear_attention"]),
        r"layer_types = \['linear_attention'\]: num_hidden_layers = 48 entries",
    ),
    (changed(layer_types=["sliding_attention"] * 48), r"layer_types = 'sliding_attention': allowed are"),
    (changed(layer_types="full_attention"), r"layer_types = 'full_attention': a list"),
    (changed(layer_types=..., full_attention_interval=0), r"full_attention_interval = 0: a positive integer"),
    (changed(layer_types=..., num_hidden_layers="4"), r"num_hidden_layers = '4': an integer from 1"),
    (changed(num_hidden_layers=10**9), r"num_hidden_layers = 1000000000: an integer from 1 to 1024"),
    (changed(ple_layer_ids=[49]), r"ple_layer_ids = 49: 1 to num_hidden_layers = 48"),
    (changed(ple_layer_ids=[0]), r"ple_layer_ids = 0: 1 to"),
    (changed(ple_layer_ids=[4]), r"ple_layer_ids = 4: only linear_attention"),
    (changed(ple_layer_ids=2), r"ple_layer_ids = 2: a list"),
    (changed(ple_embed_dim=2561), r"ple_embed_dim = 2561: must be a multiple of the 16 n-gram heads"),
    (changed(ple_embed_dim=0), r"ple_embed_dim = 0: an integer from 1"),
    (changed(ngram_size=1), r"ngram_size = 1: at least 2"),
    (changed(eos_token_id=None), r"eos_token_id = None: 0 to 248319"),
    (changed(eos_token_id=248320), r"eos_token_id = 248320: 0 to 248319"),
    (changed(eos_token_id=[248044, 248320]), r"eos_token_id = 248320: 0 to 248319"),
    (changed(eos_token_id=[248044, None]), r"eos_token_id = None: 0 to 248319"),
    (changed(eos_token_id=-1, ple_layer_ids=None), r"eos_token_id = -1: 0 to 248319"),
    (changed(quantization_config=AWQ), r"quantization_config.quant_method = 'awq': only 'int8' is supported"),
    (changed(quantization_config={**QUANTISATION, "group_size": 32}), r"group_size = 32: only 64 is supported"),
    (changed(quantization_config={**QUANTISATION, "scale_dtype": "float32"}), r"'float32': only 'float16'"),
    (changed(quantization_config={**QUANTISATION, "scale_suffix": ".scale"}), r"'.scale': only '_scale'"),
    (changed(quantization_config={**QUANTISATION, "zero_point": True}), r"zero_point = True: is not supported"),
    (changed(quantization_config={"quant_method": "int8"}), r"group_size = None: only 64"),
    (changed(quantization_config="int8"), r"quantization_config = 'int8': an object"),
    (
        {"model_type": "qwen4_exp", "text_config": PUBLISHED, "quantization_config": {"quant_method": "fp8"}},
        r"quant_method = 'fp8': only 'int8'",
    ),
    (changed(eos_token_id=[]), r"eos_token_id = \[\]: at least one"),
    (changed(num_attention_heads=25), r"num_attention_heads = 25: must be a multiple of num_key_value_heads = 2"),
    (changed(linear_num_value_heads=40), r"linear_num_value_heads = 40: must be a multiple"),
    (changed(num_experts_per_tok=513), r"num_experts_per_tok = 513: at most num_experts = 512"),
    (changed(indexer_budget=2050), r"indexer_budget = 2050: must be a multiple of indexer_compress_ratio = 4"),
    (changed(indexer_budget=None), r"indexer_budget: missing"),
    (changed(hc_count=1), r"hc_count = 1: at least 2"),
    (changed(hidden_size=True), r"hidden_size = True: an integer"),
    (changed(hidden_size=2560.0), r"hidden_size = 2560.0: an integer"),
    (changed(hidden_size=-1), r"hidden_size = -1: an integer"),
    (changed(vocab_size=2**31), r"vocab_size = 2147483648: an integer from 1 to 2147483647"),
    (changed(vocab_size=...), r"vocab_size: missing"),
    (changed(rms_norm_eps=0), r"rms_norm_eps = 0: a positive number"),
    (changed(rms_norm_eps=float("nan")), r"rms_norm_eps = nan: a positive number"),
    (changed(seed=-1), r"seed = -1: an integer from 0"),
    ({"text_config": 3}, r"text_config = 3: an object"),
    ([], r"an object is required"),
]


@pytest.mark.parametrize("data, message", REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_refusals_name_field_value_and_what_is_allowed(data, message):
    with pytest.raises(ValueError, match=message):
        Config.from_dict(data)


DEFAULT = PUBLISHED["rope_parameters"]
YARN = {"factor": 4.0, "original_max_position_embeddings": 262144}

# E1: every spelling of a scaled rotary embedding: fields of the text model's object, place and value in the error.
SCALED = [
    ({"rope_parameters": {**DEFAULT, **YARN, "rope_type": "yarn"}}, "rope_parameters.rope_type = 'yarn'"),
    ({"rope_parameters": {**THETA, **YARN, "type": "yarn"}}, "rope_parameters.type = 'yarn'"),
    ({"rope_parameters": {**DEFAULT, **YARN, "type": "yarn"}}, "rope_parameters.type = 'yarn'"),
    ({"rope_parameters": ..., "rope_scaling": {**THETA, "rope_type": "linear"}}, "rope_scaling.rope_type = 'linear'"),
    ({"rope_parameters": ..., "rope_scaling": {**THETA, "type": "yarn"}}, "rope_scaling.type = 'yarn'"),
    ({"rope_parameters": ..., "rope_scaling": {"type": "dynamic"}, **THETA}, "rope_scaling.type = 'dynamic'"),
    ({"rope_scaling": {**YARN, "rope_type": "yarn"}}, "rope_scaling.rope_type = 'yarn'"),
    ({"rope_scaling": {**YARN, "type": "yarn"}}, "rope_scaling.type = 'yarn'"),
    (
        {"rope_parameters": {"full_attention": {**DEFAULT, "rope_type": "yarn"}}},
        "rope_parameters.full_attention.rope_type = 'yarn'",
    ),
    (
        {"rope_parameters": {"linear_attention": DEFAULT, "full_attention": {**THETA, "type": "yarn"}}},
        "rope_parameters.full_attention.type = 'yarn'",
    ),
    (
        {"rope_parameters": {**DEFAULT, "full_attention": {**THETA, "type": "yarn"}}},
        "rope_parameters.full_attention.type = 'yarn'",
    ),
    ({"rope_scaling": {"full_attention": {"type": "yarn"}}}, "rope_scaling.full_attention.type = 'yarn'"),
    ({"rope_scaling": {"all": {"deeper": {"type": "yarn"}}}}, "rope_scaling.all.deeper.type = 'yarn'"),
    ({"rope_parameters": {**DEFAULT, "factor": 4.0}}, "rope_parameters.factor = 4.0: only null or 1"),
    ({"rope_scaling": {"factor": 4.0}}, "rope_scaling.factor = 4.0: only null or 1"),
    ({"rope_scaling": {"attention_factor": 1.2}}, "rope_scaling.attention_factor = 1.2: only null or 1"),
    ({"rope_scaling": {"long_factor": [1.0, 2.0]}}, "rope_scaling.long_factor = [1.0, 2.0]: only null or 1"),
    ({"rope_type": "yarn"}, "rope_type = 'yarn'"),
    ({"rope_scaling": "yarn"}, "rope_scaling = 'yarn': an object is required"),
    ({"rope_scaling": 0}, "rope_scaling = 0: an object is required"),
]

# Other fields of the family's files: what changes a result and is not done.
NOT_DONE = [
    ({"hidden_act": "gelu"}, "hidden_act = 'gelu': only 'silu' is supported"),
    ({"attention_bias": True}, "attention_bias = True: only False is supported"),
    ({"norm_topk_prob": False}, "norm_topk_prob = False: only True is supported"),
    ({"tie_word_embeddings": True}, "tie_word_embeddings = True: only False is supported"),
    ({"indexer_kv_heads": 2}, "indexer_kv_heads = 2: only 1 is supported"),
    ({"qkv_bias": True}, "qkv_bias = True: only False is supported"),
    ({"attn_output_gate": False}, "attn_output_gate = False: only True is supported"),
    ({"decoder_sparse_step": 2}, "decoder_sparse_step = 2: only 1 is supported"),
    ({"mlp_only_layers": [0]}, "mlp_only_layers = [0]: only [] is supported"),
    ({"use_sliding_window": True}, "use_sliding_window = True: only False is supported"),
    ({"sliding_window": 4096}, "sliding_window = 4096: only null, or use_sliding_window = False, is supported"),
    ({"mtp_use_dedicated_embeddings": True}, "mtp_use_dedicated_embeddings = True: only False is supported"),
    ({"dual_chunk_attention_config": {"chunk_size": 8192}}, "dual_chunk_attention_config = {'chunk_size': 8192}: only"),
    ({"compression_config": {"quant_method": "gptq"}}, "compression_config = {'quant_method': 'gptq'}: only null"),
    ({"quantization_config": AWQ}, "quantization_config.quant_method = 'awq': only 'int8' is supported"),
]
EVERYWHERE = SCALED + NOT_DONE


@pytest.mark.parametrize(("fields", "message"), EVERYWHERE, ids=[message[:50] for _, message in EVERYWHERE])
def test_what_is_not_done_is_refused_wherever_it_stands(fields, message):
    with pytest.raises(ValueError, match="^config: " + re.escape(message)):
        Config.from_dict(changed(**fields))
    with pytest.raises(ValueError, match=r"^config: (text_config\.)?" + re.escape(message)):
        Config.from_dict(around(changed(**fields)))
    top = {name: value for name, value in fields.items() if value is not ...}
    with pytest.raises(ValueError, match="^config: " + re.escape(message)):
        Config.from_dict(around(**top))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            around(rms_norm_eps=1e-5),
            "rms_norm_eps = 1e-05: the same value is required in text_config, which holds 1e-06",
        ),
        (around(changed(rms_norm_eps=...), rms_norm_eps=1e-5), "rms_norm_eps = 1e-05: .* holds None"),
        (around(output_gate_type="silu"), "output_gate_type = 'silu': .* holds 'sigmoid'"),
        (around(rope_theta=1e4), "rope_theta = 10000.0: .* holds 10000000"),
        (around(rope_parameters={"rope_theta": 1e4}), "rope_theta = 10000.0: .* holds 10000000"),
        (around(rope_scaling={"partial_rotary_factor": 0.5}), "partial_rotary_factor = 0.5: .* holds 0.25"),
        (around(layer_types=["full_attention"] * 48), "layer_types = .* holds"),
        (around(changed(layer_types=...), full_attention_interval=2), "full_attention_interval = 2: .* holds None"),
        (changed(rope_scaling={"rope_theta": 1e4}), r"rope_theta = \[10000000, 10000.0\]: the same value"),
        (
            changed(rope_parameters={"full_attention": DEFAULT, "linear_attention": {"rope_theta": 1e4}}),
            r"rope_theta = \[10000000, 10000.0\]: the same value",
        ),
    ],
)
def test_places_that_disagree_are_refused(data, message):
    with pytest.raises(ValueError, match=f"^config: {message}"):
        Config.from_dict(data)


def test_from_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(PUBLISHED), encoding="utf-8")
    assert Config.from_file(path) == REAL_CONFIG
    for text in ("{", "[" * 100_000, "\x00"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=r"config\.json: no JSON"):
            Config.from_file(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"config\.json: no JSON"):
        Config.from_file(path)
