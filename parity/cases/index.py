"""``index.json`` of exported cases as typed structs, and how it is read: nothing in it is believed unchecked."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from qsa.reference.validation import InvalidError, convert

from .. import suite
from ..contract import Declaration, declared
from ..contract.operations import FUNCTIONS
from .untrusted import read_json

NAME = "index.json"

LARGEST = 16 << 20
"""Bytes of an index at most. That of every case of the suite has about 1 MiB."""

INPUTS, EXPECTED, OUTPUTS = "inputs.safetensors", "expected.safetensors", "outputs.safetensors"
"""Files of a case's folder: what the engine reads, what the reference gives, what the engine writes."""

TEXTS = ("seven", "spec", "nll", "needle")
"""Modules that run a model: every call depends on the results of those before it."""

OF_MODELS = ("text", "score", "needle", "captured")
"""Families of goldens that run a model."""

Storage = Literal["ours", "own"]
Text = Annotated[str, Meta(min_length=1, max_length=1000, description="a string of 1 to 1000 characters")]
Count = Annotated[int, Meta(ge=0, description="an integer, 0 or more")]
Shape = Annotated[list[Count], Meta(max_length=8, description="at most 8 sizes")]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Part of an index: an unknown field is an error."""


class Input(_Part, frozen=True):
    """A tensor that a call gets: ``key`` in inputs.safetensors, where calls of equal tensors share one. ``xxh3_128``
    hashes dtype, shape and bytes (``tensors.digest``)."""

    key: Text
    dtype: Text
    shape: Shape
    xxh3_128: Text


class Output(_Part, frozen=True):
    """A tensor that the engine writes under ``key`` into outputs.safetensors, in one of the ``dtypes``.

    expected.safetensors has the reference's own under the same key. Where there is a ``measure``, it also has the
    float64 truth as ``KEY.truth`` and the bounds as ``KEY.bound``; ``measure`` says what is held to the bounds.
    """

    key: Text
    dtypes: list[Text]
    shape: Shape
    measure: str = ""


class Call(_Part, frozen=True):
    """One call of a function of the contract (``contract/operations.py``), in the order of the case.

    ``inputs`` and ``outputs`` map names (``q``, ``kv.k.codes``, ``kv.0.table``) to tensors; ``options`` are plain
    values. ``handles`` names storage of the engine's own by number; ``gives`` is the number of the storage that this
    call makes.
    """

    operation: Text
    inputs: dict[str, Input] = {}
    options: dict[str, bool | int | str] = {}
    handles: dict[str, Count] = {}
    gives: Count | None = None
    outputs: dict[str, Output] = {}


class Case(_Part, frozen=True):
    """A case of the suite: its case string, its folder, its calls."""

    case: Text
    folder: Annotated[str, Meta(pattern=r"^cases/[0-9]{1,6}$", description="cases/NUMBER")]
    calls: list[Call]


class LeftOut(_Part, frozen=True):
    """A case that is not exported, and why."""

    case: Text
    reason: str


class Index(_Part, frozen=True):
    """What ``index.json`` holds. ``operations`` are the functions that the engine has, ``schedules`` whether calls name
    schedules and splits, ``contract`` the version of the exact arithmetic."""

    kind: Literal["qsa-cases"]
    version: Literal[1]
    made_by: str
    contract: str
    arithmetic: Literal["exact", "float"]
    storage: Storage
    operations: list[Text]
    schedules: bool
    declaration: Declaration
    cases: list[Case]
    left_out: list[LeftOut] = []


def json_text(index: Index) -> str:
    """``index`` as the text of its file: a line per value, a list of numbers on one line."""
    text = json.dumps(msgspec.to_builtins(index), indent=1, allow_nan=False) + "\n"
    return re.sub(r"\[([\d\s,]+)\]", lambda found: f"[{' '.join(found[1].split())}]", text)


def read(folder: Path) -> Index:
    """The index of ``folder``. Raises ValueError that names the part which does not fit, and OSError."""
    index = convert_index(read_json(folder / NAME, LARGEST))
    for name in index.operations:
        if name not in FUNCTIONS:
            raise ValueError(f"{NAME}: operations: {name!r}: allowed are {', '.join(FUNCTIONS)}")
    declared_by(index)
    folders = [case.folder for case in index.cases]
    if len(set(folders)) != len(folders):
        raise ValueError(f"{NAME}: cases: two have one folder")
    for case in index.cases:
        try:
            parsed = suite.parse(case.case)
        except ValueError as error:
            raise ValueError(f"{NAME}: {error}") from None
        if runs_a_model(parsed):
            raise ValueError(f"{NAME}: case {case.case!r}: runs a model, and is never exported")
    return index


def runs_a_model(case: suite.Case) -> bool:
    """Whether a case runs a whole model."""
    return case.module in TEXTS or case.recipe.get("family") in OF_MODELS


def convert_index(data: object) -> Index:
    """``data``, plain values of JSON, as an :class:`Index`. Raises ValueError."""
    try:
        return convert(data, Index)
    except InvalidError as error:
        raise ValueError(f"{NAME}: {error}") from None


def declared_by(index: Index) -> Declaration:
    """The declaration of the engine, resolved. Raises ValueError."""
    return declared(SimpleNamespace(declaration=index.declaration))
