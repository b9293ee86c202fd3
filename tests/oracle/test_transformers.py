"""Fresh random models against the published model code itself, in float64. Needs the extra `oracle`."""

import importlib.util
import json

import numpy as np
import pytest

from qsa.reference import Config, Model
from qsa.reference.model.random_model import random_tensors

MISSING = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(bool(MISSING), reason=f"{' and '.join(MISSING)} missing: pip install 'qsa-parity[oracle]'"),
]

# Other sizes than the stored oracle: two QSA layers, two PLE layers, silu gate, 5 indexer heads (fewer ties), 3
# streams, 4-grams, and heads that share keys 3 to 1.
FIELDS = {
    "model_type": "qwen4_exp_text",
    "vocab_size": 61,
    "hidden_size": 40,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 500.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 2, 2],
        "mrope_interleaved": True,
    },
    "layer_types": ["linear_attention", "linear_attention", "full_attention"] * 2,
    "linear_conv_kernel_dim": 3,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 28,
    "num_experts": 9,
    "num_experts_per_tok": 4,
    "eos_token_id": 5,
    "hc_count": 3,
    "hc_lowrank": 10,
    "ple_layer_ids": [1, 5],
    "ple_embed_dim": 36,
    "ple_conv_kernel_size": 3,
    "ngram_size": 4,
    "heads_per_ngram": 3,
    "ngram_vocab_size_base": 30,
    "make_ngram_vocab_size_divisible_by": 8,
    "seed": 77,
    "split_ngram_parts": 1,
    "indexer_n_heads": 5,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 12,
    "indexer_compress_ratio": 3,
    "output_gate_type": None,
}


@pytest.fixture
def published(monkeypatch):
    """``published(fields, tensors, ids)`` → logits [n, vocab], hidden streams (list), layer → bool [n, n] selected."""
    torch = pytest.importorskip("torch")
    from transformers.models.qwen4_exp import modeling_qwen4_exp as code
    from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig

    # The code casts to float32 in its norms, rope, router and delta rule; float64 has to stand in for each cast.
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch, "float", torch.float64)

    def run(fields, tensors, ids):
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            config = Qwen4ExpTextConfig(
                **json.loads(json.dumps(fields)), attn_implementation="eager", experts_implementation="eager"
            )
            model = code.Qwen4ExpForCausalLM(config).double().eval()
            model.load_state_dict({name: torch.from_numpy(value) for name, value in tensors.items()}, strict=True)
            hidden, selected = [], {}
            for index, layer in enumerate(model.model.layers):
                layer.register_forward_pre_hook(
                    lambda _, args, kwargs: hidden.append(args[0] if args else kwargs["hidden_states"]),
                    with_kwargs=True,
                )
                if hasattr(layer, "self_attn"):
                    layer.self_attn.indexer.register_forward_hook(
                        lambda _, args, out, index=index: selected.__setitem__(index, out[0, 0].numpy())
                    )
            with torch.no_grad():
                logits = model(torch.from_numpy(ids)[None], use_cache=False).logits[0].numpy()
            return logits, [streams[0].numpy() for streams in hidden], selected
        finally:
            torch.set_default_dtype(default)

    return run


@pytest.mark.parametrize("seed", [1, 2])
def test_fresh_model(published, follow_layers, seed):
    config = Config.from_dict(FIELDS)
    tensors = random_tensors(config, seed)
    ids = (np.random.PCG64(100 + seed).random_raw(90) % np.uint64(config.vocab_size)).astype(np.int64)
    ids[[30, 31, 57]] = config.eos_token_id
    logits, hidden, selected = published(FIELDS, tensors, ids)
    model = Model(config, tensors)
    tied = follow_layers(selected)
    trace = model.trace(ids)
    # Five indexer heads leave these seeds without a tie at the cut, so every selection is compared.
    assert not tied
    for layer, streams in enumerate(hidden):
        # As in test_tiny.py: float64 in another order on both sides; measured 4e-15.
        assert np.abs(trace.hidden[layer] - streams).max() <= 1e-9 * streams.std(), f"streams before layer {layer}"
    assert sorted(selected) == sorted(trace.selected) == [2, 5]
    for layer, cells in selected.items():
        assert np.array_equal(trace.selected[layer], cells)
    assert np.abs(model.logits(ids) - logits).max() <= 1e-9 * logits.std()
