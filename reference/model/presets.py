"""Two configurations: the published model's, and the same in small."""

from .config import Config

_EVERY_FOURTH = ("linear_attention",) * 3 + ("indexed_attention",)

REAL_CONFIG = Config(
    vocab_size=248_320,
    hidden_size=2560,
    num_hidden_layers=48,
    num_attention_heads=24,
    num_key_value_heads=2,
    head_dim=256,
    linear_num_key_heads=16,
    linear_num_value_heads=48,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    moe_intermediate_size=640,
    shared_expert_intermediate_size=640,
    num_experts=512,
    num_experts_per_tok=10,
    indexer_n_heads=4,
    indexer_head_dim=128,
    indexer_budget=2048,
    indexer_compress_ratio=4,
    rope_theta=1e7,
    partial_rotary_factor=0.25,
    layer_types=_EVERY_FOURTH * 12,
    ple_layer_ids=(2,),
    eos_token_id=248_044,
    output_gate_type="sigmoid",
)
"""Qwen3.8-Flash-Next."""

TINY_CONFIG = Config(
    vocab_size=97,
    hidden_size=48,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
    moe_intermediate_size=24,
    shared_expert_intermediate_size=24,
    num_experts=8,
    num_experts_per_tok=3,
    indexer_n_heads=2,
    indexer_head_dim=16,
    indexer_budget=16,
    indexer_compress_ratio=4,
    rope_theta=1e4,
    partial_rotary_factor=0.25,
    layer_types=_EVERY_FOURTH,
    ple_layer_ids=(2,),
    eos_token_id=3,
    ple_embed_dim=32,
    output_gate_type="sigmoid",
    hc_lowrank=12,
    heads_per_ngram=4,
    ngram_vocab_size_base=50,
    make_ngram_vocab_size_divisible_by=16,
)
"""The same model in small, for tests: every part is there, and a row selects at most 16 cells and the tail."""
