"""Identity of a model: what a saved slot is checked against before it is restored.

Two models have one identity when every row they compute is the same: equal configuration and equal weights, however the
checkpoint stored them (whole or in shards, published or quantised) and whatever the backend.
"""

import dataclasses
from typing import NamedTuple, get_type_hints
from weakref import WeakKeyDictionary

import numpy as np
import xxhash

from qsa.reference.exact.layers.linear import QuantisedLinear, dequantise
from qsa.reference.model.checkpoint import INTEGERS, Shards

PIECE = 1 << 22
"""Values converted at a time: a table may be larger than memory in float32."""


class Identity(NamedTuple):
    """``arithmetic``: its name. ``configuration``, ``weights``: xxh3_128 in hexadecimal of everything they hold."""

    arithmetic: str
    configuration: str
    weights: str


_identities = WeakKeyDictionary()


def identity(model):
    """:class:`Identity` of ``model`` (``reference.exact.model.TextModel``), computed at the first call and kept: the
    weights must not be changed in place afterwards."""
    if model not in _identities:
        weights = weights_digest(model.stored, model.arithmetic)
        _identities[model] = Identity(model.arithmetic, configuration_digest(model), weights)
    return _identities[model]


def configuration_digest(model):
    """xxh3_128, in hexadecimal, over the model's configuration, geometry, selection rule and draft norm."""
    config = model.config
    # A whole number may stand in the file as 10000 or as 10000.0.
    kinds = get_type_hints(type(config))
    values = {
        field.name: float(getattr(config, field.name)) if kinds[field.name] is float else getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.repr
    }
    return xxhash.xxh3_128_hexdigest(f"{values} {model.geometry} {model.rule} {model.draft_norm}".encode())


def weights_digest(stored, arithmetic):
    """xxh3_128, in hexadecimal, over names, shapes and every byte of a model's tensors.

    stored      name -> tensor, as ``TextModel.stored`` has them
    arithmetic  ``exact``: codes and scales count; ``float``: the float32 values do, in whatever form a table comes
    """
    digest = xxhash.xxh3_128()
    for name, tensor in sorted(stored.items()):
        for array, dtype in _arrays(name, tensor, arithmetic):
            digest.update(f"{name} {np.dtype(dtype).str} {tuple(map(int, array.shape))}\n".encode())
            for piece in _pieces(array, dtype):
                digest.update(piece.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _arrays(name, tensor, arithmetic):
    """(array, dtype in which its bytes count) of each array of a tensor."""
    if name.endswith(INTEGERS):
        return [(tensor, np.int64)]
    if arithmetic == "exact" and isinstance(tensor, QuantisedLinear):
        return [(tensor.codes, np.int8), (tensor.scale, np.float16)]
    return [(tensor, np.float32)]


def _pieces(tensor, dtype):
    """The values of ``tensor`` (an array, Shards or a QuantisedLinear) as contiguous arrays of ``dtype``, in the order
    of its rows."""
    if isinstance(tensor, Shards):
        for array in tensor.arrays:
            yield from _pieces(array, dtype)
        return
    if isinstance(tensor, np.ndarray) and tensor.dtype == dtype and tensor.flags.c_contiguous:
        yield tensor
        return
    step = max(1, PIECE // max(1, int(np.prod(tensor.shape[1:], dtype=np.int64))))
    for start in range(0, tensor.shape[0], step):
        rows = slice(start, start + step)
        piece = dequantise(tensor.part(rows)) if isinstance(tensor, QuantisedLinear) else tensor[rows]
        with np.errstate(over="ignore"):
            yield np.ascontiguousarray(piece, dtype)
