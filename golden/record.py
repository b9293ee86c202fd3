"""One golden as a record: making it from arrays, comparing arrays with it, checking what a file holds."""

import datetime
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import msgspec
import numpy as np
import xxhash
from msgspec import Meta, Struct, structs

import qsa.reference
from qsa.reference.validation import convert

from . import case
from .canonical import block_digests, differing_blocks, digest, statistics
from .sources import Hash, tree_hash

_NAME = re.compile(r"[a-z0-9]+([-_.][a-z0-9]+)*")
_SHOWN = 8

Sealed = TypeVar("Sealed", bound=Struct)


class GoldenError(ValueError):
    """A golden that is missing, damaged, or cannot be used as asked; the message names the file and the field."""


class Statistics(Struct, frozen=True, forbid_unknown_fields=True):
    """Small facts about an array for a reader, see :func:`canonical.statistics`. None without finite elements."""

    min: int | float | None
    max: int | float | None
    mean: int | float | None
    rms: int | float | None
    zeros: int
    nonfinite: int
    first: list[int | float | str]


class Output(Struct, frozen=True, forbid_unknown_fields=True):
    """One output array: its hash, and ``blocks``, short hashes of the blocks that its first ``axes`` axes count
    (:func:`canonical.block_digests`)."""

    dtype: str
    shape: Annotated[
        list[Annotated[int, Meta(ge=0, description="a size, an integer from 0 on")]],
        Meta(description="a list of sizes"),
    ]
    hash: Hash
    axes: Annotated[int, Meta(ge=1, description="a number of leading axes")]
    blocks: list[str]
    statistics: Statistics

    def validate(self, field: str) -> None:
        """Raises ValueError, which names ``field``, unless ``axes`` and ``blocks`` fit the shape."""
        if self.axes > len(self.shape):
            raise ValueError(f"{field}.axes: is {self.axes}: must be from 1 to the {len(self.shape)} axes of the shape")
        hashes, blocks = len(" ".join(self.blocks).split()), int(np.prod(self.shape[: self.axes]))
        if hashes != blocks:
            raise ValueError(f"{field}.blocks: holds {hashes} hashes: must be one for each of the {blocks} blocks")


class Reason(Struct, frozen=True, forbid_unknown_fields=True):
    """Why a golden was accepted, and the day (UTC, YYYY-MM-DD)."""

    because: str
    date: str


class Provenance(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a golden is from: the hash of the reference's sources, NumPy's version, the day, and a reason for each
    acceptance."""

    reference: str
    numpy: str
    date: str
    reasons: list[Reason]


class Record(Struct, frozen=True, forbid_unknown_fields=True):
    """One golden.

    ``name`` is also the file's. ``case`` is the case string: family and recipe on one line (``golden/case.py``).
    ``contract`` is the version of the arithmetic, ``exact-1``. ``inputs``: input name -> hash. ``seal`` is the hash of
    all the rest: a record changed by hand has another one.
    """

    name: str
    case: str
    contract: str
    inputs: dict[str, Hash]
    outputs: Annotated[dict[str, Output], Meta(min_length=1, description="an object with at least one output")]
    provenance: Provenance
    seal: str

    def validate(self, name: str) -> None:
        """Raises ValueError, which names the field, unless this is the whole and unchanged record of the golden
        ``name``."""
        if self.name != name:
            raise ValueError(f"name: is {self.name!r}: must be {name!r}, as the file is called")
        try:
            case.parse(self.case)
        except case.CaseError as error:
            raise ValueError(f"case: {error}") from error
        for key, output in self.outputs.items():
            output.validate(f"outputs.{key}")
        if self.seal != seal_of(self):
            raise ValueError(
                "seal: does not fit the other fields: the file was changed by hand; restore it, or remove it, `regen` "
                "and `accept`"
            )


class Produced(NamedTuple):
    """What a recipe gives: ``inputs`` and ``outputs``, name -> array; ``axes``, output name -> leading axes that count
    its blocks (1 unless given)."""

    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    axes: dict[str, int]


def check_name(name: str) -> str:
    """``name``, or GoldenError unless it is lower-case letters and digits joined by single - _ or . characters."""
    if not isinstance(name, str) or len(name) > 120 or not _NAME.fullmatch(name) or name.endswith(".pending"):
        raise GoldenError(
            f"name {name!r}: must be lower-case letters and digits, joined by single - _ or ., at most 120"
        )
    return name


def reference_hash() -> str:
    """xxh3_128 over the names and contents of the reference's source files, in the order of their names."""
    return tree_hash(Path(qsa.reference.__file__).parent)


def today() -> str:
    """The date in UTC, YYYY-MM-DD."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def seal_of(record: Struct) -> str:
    """xxh3_128 over all fields of ``record`` but its seal, as JSON with sorted keys."""
    body = {key: value for key, value in msgspec.to_builtins(record).items() if key != "seal"}
    return xxhash.xxh3_128_hexdigest(json.dumps(body, sort_keys=True, ensure_ascii=True).encode())


def sealed(record: Sealed) -> Sealed:
    """``record`` with the seal of its other fields."""
    return structs.replace(record, seal=seal_of(record))


def make(name: str, text: str, contract: str, produced: Produced, reasons: Sequence[Reason] = ()) -> Record:
    """The record of what the recipe ``text``, a case string, gave."""
    outputs = {}
    for key, array in produced.outputs.items():
        axes = produced.axes.get(key, 1)
        outputs[key] = Output(
            dtype=np.asarray(array).dtype.name,
            shape=list(np.shape(array)),
            hash=digest(array),
            axes=axes,
            blocks=block_digests(array, axes),
            statistics=Statistics(**statistics(array)),
        )
    record = Record(
        name=check_name(name),
        case=text,
        contract=contract,
        inputs={key: digest(array) for key, array in produced.inputs.items()},
        outputs=outputs,
        provenance=Provenance(reference=reference_hash(), numpy=np.__version__, date=today(), reasons=list(reasons)),
        seal="",
    )
    return sealed(record)


def _differing_outputs(old: dict[str, Output], new: dict[str, Output]) -> Iterator[str]:
    for key in sorted(old.keys() | new.keys()):
        if key not in new or key not in old:
            yield f"output {key}: {'no longer given' if key not in new else 'not in the golden'}"
            continue
        a, b = old[key], new[key]
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            yield f"output {key}: {a.dtype} {a.shape} became {b.dtype} {b.shape}"
        elif a.hash != b.hash:
            where = ""
            if a.axes == b.axes:
                bad = differing_blocks(a.blocks, b.blocks, a.shape, a.axes)
                count = int(np.prod(a.shape[: a.axes]))
                shown = ", ".join(str(list(block)) for block in bad[:_SHOWN])
                more = ", ..." if len(bad) > _SHOWN else ""
                where = f"; {len(bad)} of {count} blocks differ: {shown}{more}"
            yield f"output {key}: hash {a.hash} became {b.hash}{where}"


def differences(old: Record, new: Record) -> list[str]:
    """What differs between two records of one golden, a line each; empty when they are equal.

    Provenance and statistics do not count. Differing inputs are named first: with them, outputs prove nothing.
    """
    pairs = {"case": (old.case, new.case), "contract": (old.contract, new.contract)}
    lines = [f"{key}: {a} became {b}" for key, (a, b) in pairs.items() if a != b]
    for key in sorted(old.inputs.keys() | new.inputs.keys()):
        a, b = old.inputs.get(key, "none"), new.inputs.get(key, "none")
        if a != b:
            lines.append(f"input {key}: hash {a} became {b}")
    return lines + list(_differing_outputs(old.outputs, new.outputs))


def check_record(data: object, where: object, name: str) -> Record:
    """``data``, the JSON of the file ``where``, as the record ``name``.

    Raises GoldenError that names the file and the first bad field.
    """
    try:
        record = convert(data, Record)
        record.validate(name)
    except ValueError as error:
        raise GoldenError(f"{where}: {error}") from error
    return record
