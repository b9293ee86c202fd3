"""Random models for tests, from raw generator words through a formula of our own."""

from typing import Any

import numpy as np

from . import ple
from .config import Config
from .text_model import Model, shapes


def uniform(words: np.ndarray, scale: float) -> np.ndarray:
    """((word >> 40) / 2^24 - 0.5) · scale: float64 values that float32 holds too when ``scale`` is a power of two."""
    return ((words >> np.uint64(40)).astype(np.float64) / 2**24 - 0.5) * scale


def random_tensors(config: Config, seed: int, draft: bool = False) -> dict[str, np.ndarray]:
    """Tensors by name, float64 (the stored hash constants int64), for :class:`Model`.

    The words are those of PCG64(seed), taken tensor by tensor in sorted order of the names. Every value fits float32.
    A matrix is scaled by the power of two next to sqrt(12 / inputs), which keeps the variance of what passes through
    it; a norm's weight lies within 0.25 of its neutral value; decays of Gated DeltaNet lie on both sides of 1/2.
    """
    generator, tensors = np.random.PCG64(seed), {}
    constants = {}
    for index, layer in enumerate(config.ple_layer_ids):
        for name, value in ple.buffers(config, index).items():
            constants[f"model.layers.{layer - 1}.ple.{name}"] = value
    for name, shape in sorted(shapes(config, draft).items()):
        if name in constants:
            tensors[name] = constants[name]
            continue
        words = generator.random_raw(int(np.prod(shape, dtype=np.int64))).reshape(shape)
        if name.endswith("linear_attn.norm.weight"):
            # The sum needs a bit more than float32 has.
            tensors[name] = (1.0 + uniform(words, 0.5)).astype(np.float32).astype(np.float64)
        elif len(shape) == 1:
            tensors[name] = uniform(words, 2.0 if name.endswith(("A_log", "dt_bias")) else 0.5)
        else:
            # Embedding rows are looked up, not summed over.
            inputs = 1 if name.endswith(("embed_tokens.weight", "ngram_embedding.weight")) else shape[-1]
            tensors[name] = uniform(words, 2.0 ** round(np.log2(12 / inputs) / 2))
    return tensors


def random_model(config: Config, seed: int, draft: bool = False, **options: Any) -> Model:
    """A random :class:`Model`; ``draft`` gives it a draft layer, ``options`` go to :class:`Model`."""
    return Model(config, random_tensors(config, seed, draft), **options)
