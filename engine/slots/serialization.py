"""Saved slots as bytes: a safetensors file of a slot's arrays with its origin and a digest of its content.

Everything is checked before any array of the file is used. A state with one wrong byte would continue as a text that
the model does not produce, and no later step would detect it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xxhash
from msgspec import Struct, structs
from safetensors import SafetensorError
from safetensors.numpy import load, save

from .identity import Identity
from .kv_state import Spec

VERSION = 4
"""Version of the file's layout and origin. Version 3 had no index format, and up to version 2 the weights were compared
only in part."""

ORIGIN, DIGEST = "made_by", "digest"
"""Names of the file's entries for its origin and its digest."""


class Origin(Struct, frozen=True):
    """Origin of a saved slot: a file is read only by a slot with the same origin. The file holds its fields as text,
    separated by spaces."""

    version: str
    arithmetic: str
    kv_format: str
    index_format: str
    configuration: str
    weights: str

    def __str__(self) -> str:
        return " ".join(structs.astuple(self))


_ORIGIN_ERRORS = {
    "version": "format version {0!r}: only version {1!r} is read",
    "arithmetic": "saved with arithmetic {0!r}: this slot has {1!r}",
    "kv_format": "saved with K/V format {0!r}: this slot has {1!r}",
    "index_format": "saved with index format {0!r}: this slot has {1!r}",
    "configuration": "saved with another configuration: identity {0}, this model has {1}",
    "weights": "saved with other weights: identity {0}, this model has {1}",
}
"""Field of an origin -> error: {0} is the file's value, {1} that of the slot that reads it."""


def digest_of(arrays: Mapping[str, np.ndarray]) -> str:
    """xxh3_128 in hexadecimal over names, dtypes, shapes and bytes of ``arrays``, in their order."""
    digest = xxhash.xxh3_128()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()


def origin_of(identity: Identity, kv_format: str, index_format: str = "fp32") -> Origin:
    """The origin of the files of a slot with this model and these formats of K/V and index."""
    formats = kv_format, index_format
    return Origin(str(VERSION), identity.arithmetic, *formats, identity.configuration, identity.weights)


def _check_origin(found: str, own: Origin) -> None:
    """Raises ValueError that names the field in which the origin ``found`` in a file differs from the slot's own."""
    values, fields = found.split(" "), own.__struct_fields__
    if values[0] == own.version and len(values) != len(fields):
        required = f"{len(fields)} fields are required"
        raise ValueError(f"saved: no state of a slot: made_by = {found[:100]!r}: {required}")
    for field, in_file in zip(fields, values, strict=False):
        in_slot = getattr(own, field)
        if in_file != in_slot:
            raise ValueError("saved: " + _ORIGIN_ERRORS[field].format(in_file[:100], in_slot))


def _encoded(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)


def pack(arrays: Mapping[str, np.ndarray], origin: Origin | str) -> bytes:
    """The file of ``arrays`` (name -> NumPy array) with ``origin``, or its text."""
    entries = {name: np.ascontiguousarray(array) for name, array in arrays.items()} | {ORIGIN: _encoded(str(origin))}
    # Sorted: the file keeps an order of its own.
    return save(entries | {DIGEST: _encoded(digest_of(dict(sorted(entries.items()))))})


def unpack(saved: Any, origin: Origin) -> dict[str, np.ndarray]:
    """The arrays that :func:`pack` was given, from ``saved`` (bytes or any buffer) whose origin must be ``origin``.

    Raises ValueError when ``saved`` is no such file, has another origin (version, model or formats), or was changed
    after it was saved.
    """
    try:
        # A memoryview, since bytes() would take a number for a length.
        arrays = load(bytes(memoryview(saved)))
        found = arrays[ORIGIN].tobytes().decode()
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"saved: no state of a slot: {error}") from error
    _check_origin(found, origin)
    stored = arrays.pop(DIGEST, np.empty(0, np.uint8)).tobytes()
    if stored != digest_of(dict(sorted(arrays.items()))).encode():
        raise ValueError("saved: not what was saved: its digest is another one")
    del arrays[ORIGIN]
    return arrays


def checked_integers(arrays: Mapping[str, np.ndarray], name: str, count: int) -> list[int]:
    """The integers of entry ``name``. Raises ValueError when it is missing or not int64 [``count``]."""
    check_specs({name: arrays[name]} if name in arrays else {}, {name: ((count,), np.int64)})
    return arrays[name].tolist()


def check_specs(arrays: Mapping[str, np.ndarray], specs: Mapping[str, Spec]) -> None:
    """Raises ValueError unless ``arrays`` have exactly the names, shapes and dtypes of ``specs``."""
    for problem, names in (("missing", specs.keys() - arrays.keys()), ("unknown", arrays.keys() - specs.keys())):
        if names:
            raise ValueError(f"saved: {min(names)}: {problem}")
    for name, (shape, dtype) in specs.items():
        array = arrays[name]
        if array.shape != tuple(shape) or array.dtype != dtype:
            raise ValueError(f"saved: {name}: {array.dtype} {array.shape}: must be {np.dtype(dtype)} {tuple(shape)}")
