"""K and V as ggml's formats q8_0 and q4_0, coded by the package ``gguf``; the rest as llama.cpp has it, in NumPy.

The rule is ``cells``. Raw indexer keys are kept in fp16 and pooled when they are read. An error of storage: a code of
q8_0 is off by half of 1/127 of the largest of its 32 values, one of q4_0 by up to 1/8 of it.
"""

from typing import Any, ClassVar

import numpy as np

from . import numpy_float
from .loading import library

quants, Type = library("gguf.quants"), library("gguf").GGMLQuantizationType
Array = np.ndarray


class Q8_0:
    """32 values in 34 bytes."""

    kind, bytes = Type.Q8_0, 34
    declaration: ClassVar[dict[str, Any]] = {
        "storage_error": 0.012,
        "rules": ["cells"],
        "types": {"raw_keys": "fp16"},
    }

    def cache(self, capacity: int) -> Array:
        return np.zeros((2, capacity, 2, 256 // 32 * self.bytes), np.uint8)

    def append(self, cache: Array, k: Array, v: Array, positions: Array) -> None:
        cache[:, positions] = quants.quantize(np.stack([k, v]), self.kind)

    def read(self, cache: Array, positions: Array) -> Array:
        return quants.dequantize(cache[:, positions], self.kind)

    def attend(self, q: Array, kv: Array, ids: Any, steps: Array) -> Array:
        out = np.empty_like(q)
        for row, width in enumerate(steps[:, 3]):
            values = self.read(kv, ids[row][:width])
            out[row] = numpy_float.attend(q[[row]], values, [np.arange(width)], steps[[row]])[0]
        return out

    def index_cache(self, max_blocks: int, weight: Array, rope: Array, rope0: Array) -> dict[str, Array]:
        return {"raw": np.zeros((max_blocks * 4, 128), np.float16), "weight": weight, "rope": rope}

    def index_append(self, index: dict[str, Array], raw: Array, positions: Array) -> None:
        index["raw"][positions] = raw

    def index_read(self, index: dict[str, Array], blocks: Array) -> Array:
        return numpy_float.index_read(self._wide(index), blocks)

    def block_scores(self, q_idx: Array, index: dict[str, Array], steps: Array) -> Array:
        return numpy_float.block_scores(q_idx, self._wide(index), steps)

    def _wide(self, index: dict[str, Array]) -> dict[str, Array]:
        return index | {"raw": index["raw"].astype(np.float32)}

    def select(self, scores: Array, steps: Array) -> list[Array]:
        return numpy_float.select(scores, steps, "cells")


class Q4_0(Q8_0):
    """32 values in 18 bytes."""

    kind, bytes = Type.Q4_0, 18
    declaration: ClassVar[dict[str, Any]] = Q8_0.declaration | {"storage_error": 0.13}
