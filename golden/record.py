"""One golden as a record: making it from arrays, comparing arrays with it, checking what a file holds.

==================  ==================================================================================================
``name``            of the golden, also of its file
``case``            the case string: family and recipe on one line (``golden/case.py``)
``contract``        version of the arithmetic, ``exact-1``
``inputs``          input name -> hash
``outputs``         output name -> ``dtype``, ``shape``, ``hash``, ``axes``, ``blocks`` (``canonical.block_digests``),
                    ``statistics``
``provenance``      ``reference`` (hash of the reference's sources), ``numpy``, ``date``, ``reasons`` (list of ``date``
                    and ``because``, one for each acceptance)
``seal``            hash of all the rest; a record changed by hand has another one
==================  ==================================================================================================
"""

import datetime
import json
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

import qsa.reference

from . import case
from .canonical import block_digests, differing_blocks, digest, statistics
from .sources import tree_hash

_NAME = re.compile(r"[a-z0-9]+([-_.][a-z0-9]+)*")
_HASH = re.compile(r"[0-9a-f]{32}")
_SHOWN = 8


class GoldenError(ValueError):
    """A golden that is missing, damaged, or cannot be used as asked; the message names the file and the field."""


class Produced(NamedTuple):
    """What a recipe gives: ``inputs`` and ``outputs``, name -> array; ``axes``, output name -> leading axes that count
    its blocks (1 unless given)."""

    inputs: dict
    outputs: dict
    axes: dict


def check_name(name):
    """``name``, or GoldenError unless it is lower-case letters and digits joined by single - _ or . characters."""
    if not isinstance(name, str) or len(name) > 120 or not _NAME.fullmatch(name) or name.endswith(".pending"):
        raise GoldenError(
            f"name {name!r}: must be lower-case letters and digits, joined by single - _ or ., at most 120"
        )
    return name


def reference_hash():
    """xxh3_128 over the names and contents of the reference's source files, in the order of their names."""
    return tree_hash(Path(qsa.reference.__file__).parent)


def today():
    """The date in UTC, YYYY-MM-DD."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def _seal(record):
    body = {key: value for key, value in record.items() if key != "seal"}
    return xxhash.xxh3_128_hexdigest(json.dumps(body, sort_keys=True, ensure_ascii=True).encode())


def sealed(record):
    """``record`` with the seal of its other fields."""
    return {**record, "seal": _seal(record)}


def make(name, text, contract, produced: Produced, reasons=()):
    """The record of what the recipe ``text``, a case string, gave."""
    outputs = {}
    for key, array in produced.outputs.items():
        axes = produced.axes.get(key, 1)
        outputs[key] = {
            "dtype": np.asarray(array).dtype.name,
            "shape": list(np.shape(array)),
            "hash": digest(array),
            "axes": axes,
            "blocks": block_digests(array, axes),
            "statistics": statistics(array),
        }
    return sealed(
        {
            "name": check_name(name),
            "case": text,
            "contract": contract,
            "inputs": {key: digest(array) for key, array in produced.inputs.items()},
            "outputs": outputs,
            "provenance": {
                "reference": reference_hash(),
                "numpy": np.__version__,
                "date": today(),
                "reasons": list(reasons),
            },
        }
    )


def _differing_outputs(old, new):
    for key in sorted(old.keys() | new.keys()):
        if key not in new or key not in old:
            yield f"output {key}: {'no longer given' if key not in new else 'not in the golden'}"
            continue
        a, b = old[key], new[key]
        if (a["dtype"], a["shape"]) != (b["dtype"], b["shape"]):
            yield f"output {key}: {a['dtype']} {a['shape']} became {b['dtype']} {b['shape']}"
        elif a["hash"] != b["hash"]:
            place = ""
            if a["axes"] == b["axes"]:
                bad = differing_blocks(a["blocks"], b["blocks"], a["shape"], a["axes"])
                count = int(np.prod(a["shape"][: a["axes"]]))
                shown = ", ".join(str(list(block)) for block in bad[:_SHOWN])
                more = ", ..." if len(bad) > _SHOWN else ""
                place = f"; {len(bad)} of {count} blocks differ: {shown}{more}"
            yield f"output {key}: hash {a['hash']} became {b['hash']}{place}"


def differences(old, new):
    """What differs between two records of one golden, a line each; empty when they are equal.

    Provenance and statistics do not count. Differing inputs are named first: with them, outputs prove nothing.
    """
    lines = [f"{key}: {old[key]} became {new[key]}" for key in ("case", "contract") if old[key] != new[key]]
    for key in sorted(old["inputs"].keys() | new["inputs"].keys()):
        a, b = old["inputs"].get(key, "none"), new["inputs"].get(key, "none")
        if a != b:
            lines.append(f"input {key}: hash {a} became {b}")
    return lines + list(_differing_outputs(old["outputs"], new["outputs"]))


def _require(condition, where, field, rule):
    if not condition:
        raise GoldenError(f"{where}: {field}: {rule}")


def _is_hash(value):
    return isinstance(value, str) and _HASH.fullmatch(value) is not None


def _check_output(value, where, field):
    keys = {"dtype", "shape", "hash", "axes", "blocks", "statistics"}
    _require(isinstance(value, dict) and value.keys() == keys, where, field, f"must hold {', '.join(sorted(keys))}")
    shape, axes, rows = value["shape"], value["axes"], value["blocks"]
    natural = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
    _require(natural, where, f"{field}.shape", "must be a list of sizes")
    _require(_is_hash(value["hash"]), where, f"{field}.hash", "must be 32 hexadecimal digits")
    _require(type(axes) is int and 1 <= axes <= len(shape), where, f"{field}.axes", "must count leading axes")
    text = isinstance(rows, list) and all(isinstance(row, str) for row in rows)
    _require(
        text and len(" ".join(rows).split()) == int(np.prod(shape[:axes])),
        where,
        f"{field}.blocks",
        "must hold a hash for each block",
    )


def check_record(record, where, name):
    """``record`` as read from the file ``where``, or GoldenError that names the file and the first bad field."""
    keys = {"name", "case", "contract", "inputs", "outputs", "provenance", "seal"}
    _require(isinstance(record, dict), where, "top", "must be an object")
    for key in sorted(keys ^ record.keys()):
        _require(False, where, key, "is missing" if key in keys else "is not a field of a golden")
    _require(record["name"] == name, where, "name", f"is {record['name']!r}: must be {name!r}, as the file is called")
    _require(isinstance(record["case"], str), where, "case", "must be a case string")
    try:
        case.parse(record["case"])
    except case.CaseError as error:
        raise GoldenError(f"{where}: case: {error}") from error
    _require(isinstance(record["contract"], str), where, "contract", "must be a string")
    inputs, outputs = record["inputs"], record["outputs"]
    _require(isinstance(inputs, dict), where, "inputs", "must be an object")
    for key, value in inputs.items():
        _require(_is_hash(value), where, f"inputs.{key}", "must be 32 hexadecimal digits")
    _require(isinstance(outputs, dict) and outputs, where, "outputs", "must be an object with at least one output")
    for key, value in outputs.items():
        _check_output(value, where, f"outputs.{key}")
    provenance = record["provenance"]
    good = isinstance(provenance, dict) and provenance.keys() == {"reference", "numpy", "date", "reasons"}
    _require(good, where, "provenance", "must hold reference, numpy, date, reasons")
    _require(isinstance(provenance["reasons"], list), where, "provenance.reasons", "must be a list")
    rule = "does not fit the other fields: the file was changed by hand; restore it, or remove it, `regen` and `accept`"
    _require(record["seal"] == _seal(record), where, "seal", rule)
    return record
