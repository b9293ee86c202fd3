"""Kernels like those of other engines: narrow types, their own storage, fused calls, a domain that ends somewhere."""

import ml_dtypes
import numpy as np

from qsa.parity.contract import rounded
from qsa.parity.ports import numpy_float
from support.float_kernel import FloatKernel


class Narrow(FloatKernel):
    """Queries come, and results go, in a narrow type; sums and products are float32."""

    def __init__(self, kind):
        self.kind, self.dtype = kind, {"bf16": np.dtype(ml_dtypes.bfloat16), "fp16": np.dtype(np.float16)}[kind]
        stages = ("query", "output", "index_query", "index_scores", "raw_keys")
        self.declaration = {"types": dict.fromkeys(stages, kind)}

    def attend(self, q, kv, ids, steps):
        assert q.dtype == self.dtype
        return super().attend(q.astype(np.float32), kv, ids, steps).astype(self.dtype)

    def block_scores(self, q_idx, index, steps):
        assert q_idx.dtype == self.dtype
        return super().block_scores(q_idx.astype(np.float32), index, steps).astype(self.dtype)

    def index_append(self, index, raw, positions):
        assert raw.dtype == self.dtype
        super().index_append(index, raw.astype(np.float32), positions)

    def select(self, scores, steps, rule):
        assert scores.dtype == self.dtype
        return super().select(scores.astype(np.float32), steps, rule)


class Stored(FloatKernel):
    """K and V in another storage: ``put`` makes of vectors [n, 2, 256] what is kept, ``get`` numbers of it."""

    def __init__(self, put, get, storage_error):
        self.put, self.get, self.declaration = put, get, {"storage_error": storage_error}

    def cache(self, capacity):
        return {}

    def append(self, cache, k, v, positions):
        for cell, *vectors in zip(positions.tolist(), k, v, strict=True):
            cache[cell] = [self.put(x) for x in vectors]

    def read(self, cache, positions):
        return tuple(np.stack([self.get(cache[cell][side]) for cell in positions.tolist()]) for side in (0, 1))

    def attend(self, q, kv, ids, steps):
        cells = sorted(kv)
        dense = np.zeros((2, max(cells) + 1, 2, 256), np.float32)
        dense[:, cells] = self.read(kv, np.array(cells))
        return super().attend(q, dense, ids, steps)


def _int8(x, groups):
    x = x.reshape(2, groups, -1)
    scale = np.maximum(np.abs(x).max(axis=-1, keepdims=True) / np.float32(127), np.float32(1e-30))
    return np.rint(x / scale).astype(np.int8), scale.astype(np.float32)


def _int8_back(stored):
    return (stored[0] * stored[1]).reshape(2, 256)


def _as(dtype):
    return lambda x: x.astype(dtype), lambda stored: stored.astype(np.float32)


def _fp8(scale):
    """fp8 with one scale for everything, as engines have it per tensor."""
    return (
        lambda x: (x / np.float32(scale)).astype(ml_dtypes.float8_e4m3fn),
        lambda stored: stored.astype(np.float32) * np.float32(scale),
    )


STORAGES = {
    "8 scales a head": (lambda x: _int8(x, 8), _int8_back, 0.012),
    "one scale a head": (lambda x: _int8(x, 1), _int8_back, 0.015),
    "bf16": (*_as(ml_dtypes.bfloat16), 2.0**-8),
    "fp16": (*_as(np.float16), 2.0**-10),
    "fp8": (*_as(ml_dtypes.float8_e4m3fn), 2.0**-4),
    "fp8, a scale per tensor": (*_fp8(0.03), 2.0**-4),
}


class Fused(FloatKernel):
    """Indexer, and indexer with attention, as one call each; the separate operations of the index are not there."""

    index_cache = block_scores = select = None
    late = 0

    def indexer(self, q_idx, raw, weight, rope, steps, rule):
        return numpy_float.indexer(q_idx, np.roll(raw, self.late, axis=0), weight, rope, steps, rule)

    def sparse_attention(self, q, q_idx, raw, weight, rope, kv, steps, rule):
        return numpy_float.attend(q, kv, self.indexer(q_idx, raw, weight, rope, steps, rule), steps)

    def attend_gated(self, q, gate, kv, ids, steps):
        return self.attend(q, kv, ids, steps) / (1 + np.exp(-gate))


class Strict(FloatKernel):
    """Reads outside its memory on anything unusual, as a kernel may: here it says what it met."""

    def attend(self, q, kv, ids, steps):
        assert np.isfinite(q).all() and (steps >= 0).all()
        assert all((ids[row, :width] >= 0).all() for row, width in enumerate(steps[:, 3]))
        return super().attend(q, kv, ids, steps)

    def block_scores(self, q_idx, index, steps):
        assert np.isfinite(q_idx).all() and np.isfinite(index["keys"]).all() and (steps >= 0).all()
        return super().block_scores(q_idx, index, steps)

    def select(self, scores, steps, rule):
        assert (steps >= 0).all()
        assert all(np.isfinite(row[:n]).all() for row, n in zip(scores, steps[:, 2], strict=True))
        return super().select(scores, steps, rule)


class Flush(FloatKernel):
    """Numbers below 2^-126 are 0, as in many libraries' products."""

    def block_scores(self, q_idx, index, steps):
        keys = index["keys"]
        keys = np.where(np.abs(keys) < np.finfo(np.float32).tiny, np.float32(0), keys)
        return super().block_scores(q_idx, index | {"keys": keys}, steps)


class HalfKeys(FloatKernel):
    """Raw indexer keys are kept in fp16, as llama.cpp and Strata keep them."""

    def index_append(self, index, raw, positions):
        super().index_append(index, rounded(raw, "fp16"), positions)
