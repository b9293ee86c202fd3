"""Small models with every part, for tests of the exact arithmetic."""

import numpy as np

from qsa.reference.formats import decode, encode_int8
from qsa.reference.model import qsa
from qsa.reference.model.config import Config
from qsa.reference.model.presets import TINY_CONFIG
from qsa.reference.model.random_model import random_model

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


def int8(x):
    """x [..., dim] float64 as an int8 cache gives it back."""
    return decode(*encode_int8(x.astype(np.float32)))


def round_kv(monkeypatch, rounded=int8):
    """Make every float64 model round its K and V as a cache does: ``rounded`` maps [n, heads, dim] to the same."""
    plain = qsa.append

    def append(x, weights, geometry, state):
        n = len(state.k)
        plain(x, weights, geometry, state)
        for side in (state.k, state.v):
            side[n:] = rounded(side[n:])

    monkeypatch.setattr(qsa, "append", append)
