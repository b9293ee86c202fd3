"""Saved slots as bytes: a safetensors file of a slot's arrays that says who made it, and a digest of all that it holds.

What comes back is checked before anybody writes it anywhere: a state with a wrong byte would go on as a text that
nobody's model says, and nothing later would notice.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import xxhash
from msgspec import Struct, structs
from safetensors import SafetensorError
from safetensors.numpy import load, save

from .identity import Identity

VERSION = 3
"""Of the file's layout and of what it says of its model. Up to 2 the weights were compared in part."""

MADE_BY, DIGEST = "made_by", "digest"


class Maker(Struct, frozen=True):
    """What a file says of its maker: only a slot of which all this is true reads it. Its text has a space between."""

    version: str
    arithmetic: str
    kv_format: str
    configuration: str
    weights: str

    def __str__(self) -> str:
        return " ".join(structs.astuple(self))


_DIFFERS = {
    "arithmetic": "saved with arithmetic {0!r}: this slot has {1!r}",
    "kv_format": "saved with K/V format {0!r}: this slot has {1!r}",
    "configuration": "saved with another configuration: identity {0}, this model has {1}",
    "weights": "saved with other weights: identity {0}, this model has {1}",
}
"""Field -> the error where the file has {0} and the slot that reads it has {1}."""


def digest_of(arrays: Mapping[str, np.ndarray]) -> str:
    """xxh3_128, in hexadecimal, over names, dtypes, shapes and bytes of ``arrays`` (name -> NumPy array) in their
    order."""
    digest = xxhash.xxh3_128()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()


def maker_of(identity: Identity, kv_format: str) -> Maker:
    """What a file says of a slot's model and K/V format."""
    return Maker(str(VERSION), identity.arithmetic, kv_format, identity.configuration, identity.weights)


def _check_maker(made_by: str, own: Maker) -> None:
    """Raises ValueError, saying what differs, unless a file ``made_by`` is one that ``own`` reads."""
    words, fields = made_by.split(" "), own.__struct_fields__
    if words[0] != own.version:
        raise ValueError(f"saved: format version {words[0][:100]!r}: only version {own.version!r} is read")
    if len(words) != len(fields):
        raise ValueError(f"saved: no state of a slot: made_by = {made_by[:100]!r}: {len(fields)} fields are required")
    found = Maker(*words)
    for name, message in _DIFFERS.items():
        there, here = getattr(found, name), getattr(own, name)
        if there != here:
            raise ValueError("saved: " + message.format(there[:100], here))


def _text(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)


def pack(arrays: Mapping[str, np.ndarray], maker: Maker | str) -> bytes:
    """The file of ``arrays`` (name -> NumPy array); ``maker``, or its text: who can read it."""
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()} | {MADE_BY: _text(str(maker))}
    # A file has an order of its own.
    return save(arrays | {DIGEST: _text(digest_of(dict(sorted(arrays.items()))))})


def unpack(saved: bytes, maker: Maker) -> dict[str, np.ndarray]:
    """The arrays that :func:`pack` was given for ``maker``.

    Raises ValueError when ``saved`` is no such file, is of another version, model or K/V format, or is not what was
    packed.
    """
    try:
        # A memoryview, since bytes() would take a number for a length.
        arrays = load(bytes(memoryview(saved)))
        made_by = arrays[MADE_BY].tobytes().decode()
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"saved: no state of a slot: {error}") from error
    _check_maker(made_by, maker)
    said = arrays.pop(DIGEST, np.empty(0, np.uint8)).tobytes()
    if said != digest_of(dict(sorted(arrays.items()))).encode():
        raise ValueError("saved: not what was saved: its digest is another one")
    del arrays[MADE_BY]
    return arrays


def checked_integers(arrays: Mapping[str, np.ndarray], name: str, count: int) -> list[int]:
    """The ``count`` integers of an entry, as a list. Raises ValueError when they are missing or no int64 [count]."""
    check_forms({name: arrays[name]} if name in arrays else {}, {name: ((count,), np.int64)})
    return arrays[name].tolist()


def check_forms(arrays: Mapping[str, np.ndarray], forms: Mapping[str, tuple[Sequence[int], type]]) -> None:
    """Raises ValueError unless ``arrays`` have the names, shapes and dtypes of ``forms``: name -> (shape, dtype)."""
    for what, names in (("missing", forms.keys() - arrays.keys()), ("unknown", arrays.keys() - forms.keys())):
        if names:
            raise ValueError(f"saved: {min(names)}: {what}")
    for name, (shape, dtype) in forms.items():
        array = arrays[name]
        if array.shape != tuple(shape) or array.dtype != dtype:
            raise ValueError(f"saved: {name}: {array.dtype} {array.shape}: must be {np.dtype(dtype)} {tuple(shape)}")
