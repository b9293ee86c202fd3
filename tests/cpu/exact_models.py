"""Small models of real proportions for tests of the exact arithmetic: every part is there."""

from qsa.reference.config import TINY_CONFIG, Config
from qsa.reference.random_model import random_model

SMALL_CONFIG = Config(
    **{
        field: getattr(TINY_CONFIG, field)
        for field in TINY_CONFIG.__dataclass_fields__
        if field not in ("hidden_size", "head_dim", "indexer_head_dim", "rope_theta", "ple_embed_dim", "indexer_budget")
    },
    hidden_size=96,
    head_dim=64,
    indexer_head_dim=32,
    indexer_budget=32,
    rope_theta=1e7,
    ple_embed_dim=64,
)
"""TINY_CONFIG with the groups that int8 needs; 96 inputs are a group and a half, experts have 24."""


def small_model(seed=3, draft=False, **options):
    """A random float64 model of SMALL_CONFIG."""
    return random_model(SMALL_CONFIG, seed, draft, **options)
