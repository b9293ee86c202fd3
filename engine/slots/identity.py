"""Identity of a model, which a saved slot must match before it is restored.

Two models have the same identity when their configurations and weights are equal, so that every row they compute is
equal. The form of the checkpoint (whole or in shards, published or quantised) and the backend do not matter.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_type_hints
from weakref import WeakKeyDictionary

import numpy as np
import xxhash

from qsa.model import TextModel
from qsa.reference.exact.layers.linear import QuantisedLinear, dequantise
from qsa.reference.model.checkpoint import INTEGERS, Shards

PIECE = 1 << 22
"""Values converted at a time: a whole table in float32 may not fit into memory."""


class Identity(NamedTuple):
    """``arithmetic``: its name. ``configuration`` and ``weights``: xxh3_128 in hexadecimal over their whole content."""

    arithmetic: str
    configuration: str
    weights: str


_identities: WeakKeyDictionary[TextModel, Identity] = WeakKeyDictionary()


def identity(model: TextModel) -> Identity:
    """:class:`Identity` of ``model``. It is computed at the first call and cached, so the weights must not be changed
    in place afterwards."""
    if model not in _identities:
        weights = weights_digest(model.stored, model.arithmetic)
        _identities[model] = Identity(model.arithmetic, configuration_digest(model), weights)
    return _identities[model]


def configuration_digest(model: TextModel) -> str:
    """xxh3_128 in hexadecimal over the model's configuration, geometry, selection rule and draft norm."""
    config = model.config
    # A file may write a whole number as 10000 or as 10000.0.
    kinds = get_type_hints(type(config))
    values = {
        field.name: float(getattr(config, field.name)) if kinds[field.name] is float else getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.repr
    }
    return xxhash.xxh3_128_hexdigest(f"{values} {model.geometry} {model.rule} {model.draft_norm}".encode())


def weights_digest(stored: Mapping[str, Any], arithmetic: str) -> str:
    """xxh3_128 in hexadecimal over names, shapes and every byte of a model's tensors.

    stored      name -> tensor, as in ``TextModel.stored``
    arithmetic  ``exact`` hashes codes and scales; ``float`` hashes the float32 values, whatever form a table has
    """
    digest = xxhash.xxh3_128()
    for name, tensor in sorted(stored.items()):
        for array, dtype in _arrays(name, tensor, arithmetic):
            digest.update(f"{name} {np.dtype(dtype).str} {tuple(map(int, array.shape))}\n".encode())
            for piece in _pieces(array, dtype):
                digest.update(piece.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _arrays(name: str, tensor: Any, arithmetic: str) -> list[tuple[Any, Any]]:
    """(array, dtype in which its bytes are hashed) of each array of a tensor."""
    if name.endswith(INTEGERS):
        return [(tensor, np.int64)]
    if arithmetic == "exact" and isinstance(tensor, QuantisedLinear):
        return [(tensor.codes, np.int8), (tensor.scale, np.float16)]
    return [(tensor, np.float32)]


def _pieces(tensor: Any, dtype: Any) -> Iterator[np.ndarray]:
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
