"""Evidence: one JSON file for a run on a real device, ``<device>-<date>.json`` in ``golden/evidence/``.

==================  ==================================================================================================
``name``            of the record, also of its file
``version``         of this form of the record
``contract``        version of the arithmetic, ``exact-1``
``date``            of the last addition, UTC
``device``          ``name``, ``compute_capability``, ``multiprocessors``, ``memory`` and ``l2`` (bytes)
``versions``        package or ``python`` -> version; ``toolkit`` is that of the CUDA runtime
``sources``         ``sources.fingerprint``: hash of the kernels, of the reference, and of every file that these read
``sections``        name -> ``status`` and ``steps``; a step has ``name``, ``date``, ``driver``, ``status``, ``reason``,
                    ``seconds``, ``command`` and ``results``
``seal``            hash of all the rest; a record changed by hand has another one
==================  ==================================================================================================

A status is ``passed``, ``failed`` or ``unsupported``. A step that crashed or ran past its time is ``failed`` and its
reason says so. A benchmark's results hold ``rows``, see :data:`ROW`, or ``switches``, see :data:`SWITCH`. Those of
other steps hold, where there are any: a number of cases per status, ``failures`` (list of ``case`` and ``reason``; the
first ones), ``reasons`` (why unsupported -> number of cases) and ``verdict`` (list of lines).
"""

import math
import re
from pathlib import Path

from . import sources
from .record import GoldenError, check_name, sealed, today
from .store import read_json, write_json

FOLDER = Path(__file__).parent / "evidence"
"""The evidence of this repository."""

VERSION = 1
STATUSES = ("passed", "failed", "unsupported")
NOT_STARTED = "not started: the time of the run was spent"
"""Reason of a step that a run did not come to."""

ROW = {
    "case": str,
    "contract": str,
    "correct": bool,
    "median_us": float,
    "p10_us": float,
    "p90_us": float,
    "limit": str,
    "limit_us": float,
    "share": float,
}
"""Fields of a benchmark's row. ``contract``: hot or cold, graph or launch, the median of how many. ``limit``: what was
measured in the same run as the case's limit; ``share`` = limit_us / median_us. The four times and the share are None in
a row whose result was not correct: a wrong kernel has no speed."""

SWITCH = {"switch": str, "what": str, "contexts": list, "off_us": list, "on_us": list}
"""Fields of a row about a switch: for each of its contexts (cells) the microseconds of what is timed, off and on. The
two sides gave the same bytes, or there is no row."""

_HEX = re.compile(r"[0-9a-f]{32}")
_NUMBERED = re.compile(r"(.*?)(?:\.([0-9]+))?")
_FAILURE = {"case": str, "reason": str}
_DEVICE = {"name": str, "compute_capability": str, "multiprocessors": int, "memory": int, "l2": int}
_STEP = {
    "name": str,
    "date": str,
    "driver": str,
    "status": str,
    "reason": str,
    "seconds": float,
    "command": str,
    "results": dict,
}
_SECTION = {"status": str, "steps": list}
_RECORD = {
    "name": str,
    "version": int,
    "contract": str,
    "date": str,
    "device": dict,
    "versions": dict,
    "sources": dict,
    "sections": dict,
    "seal": str,
}


class EvidenceError(GoldenError):
    """Evidence that is missing, damaged, or cannot be used as asked; the message names the file and the field."""


def overall(statuses):
    """The status of a whole: ``failed`` when a part failed, ``passed`` when one passed, else ``unsupported``."""
    statuses = list(statuses)
    return next((status for status in ("failed", "passed") if status in statuses), "unsupported")


def section(steps):
    """A section of the record, made of its steps."""
    return {"status": overall(step["status"] for step in steps), "steps": steps}


def default_name(device):
    """``h200-2026-11-30`` for the device ``NVIDIA H200`` on that day."""
    words = re.sub(r"[^a-z0-9]+", "-", device["name"].lower().replace("nvidia", "")).strip("-") or "device"
    return check_name(f"{words}-{today()}")


def make(name, contract, device, versions, fingerprint, sections):
    """A sealed record of today."""
    record = {
        "name": check_name(name),
        "version": VERSION,
        "contract": contract,
        "date": today(),
        "device": device,
        "versions": versions,
        "sources": fingerprint,
        "sections": sections,
    }
    return sealed(record)


def merged(old, new):
    """One record with the steps of two runs; a step of ``new`` takes the place of its namesake in ``old``, unless it
    was not started.

    Raises EvidenceError when the two are of different devices, sources, contracts or versions: together they would
    prove nothing.
    """
    for field in ("version", "contract", "device", "versions"):
        if old[field] != new[field]:
            raise EvidenceError(f"{old['name']}: {field}: {old[field]} and {new[field]}: must be equal to merge")
    lines = sources.changed(old["sources"], new["sources"])
    if lines:
        raise EvidenceError(f"{old['name']}: sources: must be equal to merge: {', '.join(lines)}")
    sections = dict(old["sections"])
    for name, found in new["sections"].items():
        steps = {step["name"]: step for step in sections.get(name, {"steps": []})["steps"]}
        for step in found["steps"]:
            if step["reason"] != NOT_STARTED or step["name"] not in steps:
                steps[step["name"]] = step
        sections[name] = section(list(steps.values()))
    return make(new["name"], new["contract"], new["device"], new["versions"], new["sources"], sections)


def renamed(record, name):
    """``record`` under another name, as a file of that name must hold it."""
    return sealed({**record, "name": check_name(name)})


def write(path, record):
    """Write ``record`` to ``path`` in one step. Raises EvidenceError when ``load`` would refuse it, and OSError."""
    path = Path(path)
    write_json(path, check(record, path, record["name"]))


def load(path):
    """The record in the file ``path``. Raises EvidenceError naming the file and the field when it is missing or
    damaged."""
    path = Path(path)
    if not path.is_file():
        raise EvidenceError(f"{path}: there is no such evidence")
    try:
        content = read_json(path)
    except GoldenError as error:
        raise EvidenceError(str(error)) from error
    return check(content, path, path.stem)


def records(folder=FOLDER):
    """Every record of ``folder``, the oldest first: by date, those of one day by the number at the end of the name (the
    first has none). Raises EvidenceError on a damaged one."""

    def age(record):
        name, number = _NUMBERED.fullmatch(record["name"]).groups()
        return record["date"], name, int(number or 1)

    return sorted((load(path) for path in sorted(Path(folder).glob("*.json"))), key=age)


def newest(records):
    """The newest record of every device, device name -> record; ``records`` the oldest first."""
    return {record["device"]["name"]: record for record in records}


def stale(record, fingerprint=None):
    """Why ``record`` does not speak of today's sources, a line a file; empty when it is fresh.

    fingerprint  of today, :func:`qsa.golden.sources.fingerprint` unless given
    """
    return sources.changed(record["sources"], sources.fingerprint() if fingerprint is None else fingerprint)


def failed(record):
    """(``SECTION/STEP``, reason) of every step of ``record`` that failed."""
    return [
        (f"{name}/{step['name']}", step["reason"])
        for name, found in record["sections"].items()
        for step in found["steps"]
        if step["status"] == "failed"
    ]


def rows(record):
    """Rows of the record's benchmark, case -> row; empty without one."""
    return {row["case"]: row for row in _benchmark(record, "rows")}


def switches(record):
    """Rows of the record's benchmark about switches, in order; empty without one."""
    return _benchmark(record, "switches")


def _benchmark(record, key):
    steps = record["sections"].get("benchmark", {"steps": []})["steps"]
    return [row for step in steps for row in step["results"].get(key, [])]


def _require(condition, where, field, rule):
    if not condition:
        raise EvidenceError(f"{where}: {field}: {rule}")


def _is(value, kind):
    if kind is float:
        return type(value) in (int, float) and math.isfinite(value)
    return type(value) is kind


def _check_fields(value, fields, where, prefix):
    _require(isinstance(value, dict), where, prefix or "top", "must be an object")
    dot = f"{prefix}." if prefix else ""
    for key in sorted(fields.keys() - value.keys()):
        _require(False, where, f"{dot}{key}", "is missing")
    for key, kind in fields.items():
        rule = f"is {value[key]!r}: must be a {'finite number' if kind is float else kind.__name__}"
        _require(_is(value[key], kind), where, f"{dot}{key}", rule)
    if "status" in fields:
        rule = f"is {value['status']!r}: must be {', '.join(STATUSES)}"
        _require(value["status"] in STATUSES, where, f"{dot}status", rule)


def check_row(row, where, prefix):
    """``row`` of a benchmark, or EvidenceError that names the file and the field."""
    _require(isinstance(row, dict), where, prefix, "must be an object")
    wrong = row.get("correct") is False
    times = [key for key, kind in ROW.items() if kind is float]
    if wrong:
        for key in times:
            _require(row.get(key) is None, where, f"{prefix}.{key}", "must be null where the result is not correct")
    _check_fields(row, {key: kind for key, kind in ROW.items() if not (wrong and kind is float)}, where, prefix)
    for key in times:
        _require(wrong or row[key] > 0, where, f"{prefix}.{key}", f"is {row[key]}: must be above 0")
    return row


def check_switch(row, where, prefix):
    """``row`` about a switch, or EvidenceError that names the file and the field."""
    _check_fields(row, SWITCH, where, prefix)
    for key, kind in (("contexts", int), ("off_us", float), ("on_us", float)):
        good = len(row[key]) == len(row["contexts"]) and all(_is(value, kind) and value > 0 for value in row[key])
        _require(good, where, f"{prefix}.{key}", f"is {row[key]}: must be a number above 0 for each context")
    return row


def check_results(results, where, prefix):
    """``results`` of a step, or EvidenceError that names the file and the field: what is printed of any step."""
    for key, kind in (("failures", list), ("reasons", dict), ("verdict", list)):
        rule = f"is {results.get(key)!r}: must be {'an object' if kind is dict else 'a list'}"
        _require(_is(results.get(key, kind()), kind), where, f"{prefix}.{key}", rule)
    failures = results.get("failures", [])
    for at, one in enumerate(failures):
        _check_fields(one, _FAILURE, where, f"{prefix}.failures[{at}]")
    if failures:
        # Only the first are in the list, so what is printed of the rest comes from the number.
        count = results.get("failed")
        rule = f"is {count!r}: must be the number of failures, at least {len(failures)}"
        _require(_is(count, int) and count >= len(failures), where, f"{prefix}.failed", rule)
    for reason, times in results.get("reasons", {}).items():
        good = _is(times, int) and times > 0
        _require(good, where, f"{prefix}.reasons.{reason}", f"is {times!r}: must be a number of cases above 0")
    for at, line in enumerate(results.get("verdict", [])):
        _require(_is(line, str), where, f"{prefix}.verdict[{at}]", f"is {line!r}: must be a string")
    return results


def check(record, where, name):
    """``record`` as read from the file ``where``, or EvidenceError that names the file and the first bad field."""
    _check_fields(record, _RECORD, where, "")
    _require(record["name"] == name, where, "name", f"is {record['name']!r}: must be {name!r}, as the file is called")
    _require(record["version"] == VERSION, where, "version", f"is {record['version']}: must be {VERSION}")
    _check_fields(record["device"], _DEVICE, where, "device")
    for key, value in record["versions"].items():
        _require(isinstance(value, str), where, f"versions.{key}", "must be a string")
    _check_fields(record["sources"], {**dict.fromkeys(sources.TREES, str), "files": dict}, where, "sources")
    for tree in sources.TREES:
        good = _HEX.fullmatch(record["sources"][tree]) is not None
        _require(good, where, f"sources.{tree}", "must be 32 hexadecimal digits")
    for key, value in record["sections"].items():
        field = f"sections.{key}"
        _check_fields(value, _SECTION, where, field)
        for place, step in enumerate(value["steps"]):
            _check_fields(step, _STEP, where, f"{field}.steps[{place}]")
            prefix = f"{field}.steps[{place}].results"
            check_results(step["results"], where, prefix)
            for kind, check_one in (("rows", check_row), ("switches", check_switch)) if key == "benchmark" else ():
                found = step["results"].get(kind, [])
                _require(isinstance(found, list), where, f"{prefix}.{kind}", f"is {found!r}: must be a list")
                for at, row in enumerate(found):
                    check_one(row, where, f"{prefix}.{kind}[{at}]")
    rule = "does not fit the other fields: the file was changed by hand; run `qsa evidence run` on the device"
    _require(record == sealed(record), where, "seal", rule)
    return record
