"""The configuration of the golden model."""

from qsa.reference.model.config import Config

CONFIG = Config(
    vocab_size=256,
    eos_token_id=0,
    hidden_size=256,
    num_hidden_layers=8,
    layer_types=(("linear_attention",) * 3 + ("indexed_attention",)) * 2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=256,
    partial_rotary_factor=0.25,
    rope_theta=1e6,
    linear_num_key_heads=4,
    linear_num_value_heads=8,
    linear_key_head_dim=64,
    linear_value_head_dim=64,
    moe_intermediate_size=32,
    shared_expert_intermediate_size=128,
    num_experts=16,
    num_experts_per_tok=4,
    indexer_n_heads=4,
    indexer_head_dim=128,
    indexer_budget=256,
    indexer_compress_ratio=4,
    hc_lowrank=32,
    ple_layer_ids=(2,),
    ple_embed_dim=256,
    ngram_size=3,
    heads_per_ngram=4,
    ngram_vocab_size_base=4096,
    output_gate_type="sigmoid",
)
"""The golden model: 256 bytes are its vocabulary, NUL ends a document."""
