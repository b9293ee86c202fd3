"""Evidence: one JSON file for a run on a real device, ``<device>-<date>.json`` in ``golden/evidence/``."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, get_args

import msgspec
from msgspec import structs

from qsa.reference.validation import convert

from . import sources
from .evidence_structs import VERSION, Device, Evidence, Results, Row, Section, Status, Step, Switch
from .record import GoldenError, check_name, sealed, today
from .store import read_json, write_json

FOLDER = Path(__file__).parent / "evidence"
"""The evidence of this repository."""

STATUSES = get_args(Status)
NOT_STARTED = "not started: the time of the run was spent"
"""Reason of a step that a run did not come to."""


class EvidenceError(GoldenError):
    """Evidence that is missing, damaged, or cannot be used as asked; the message names the file and the field."""


def overall(statuses: Iterable[str]) -> Status:
    """The status of a whole: ``failed`` when a part failed, ``passed`` when one passed, else ``unsupported``."""
    statuses = list(statuses)
    return next((status for status in ("failed", "passed") if status in statuses), "unsupported")


def section(steps: Sequence[Step]) -> Section:
    """A section of the record, made of its steps."""
    return Section(overall(step.status for step in steps), list(steps))


def default_name(device: Device) -> str:
    """``h200-2026-11-30`` for the device ``NVIDIA H200`` on that day."""
    words = re.sub(r"[^a-z0-9]+", "-", device.name.lower().replace("nvidia", "")).strip("-") or "device"
    return check_name(f"{words}-{today()}")


def make(
    name: str,
    contract: str,
    device: Device,
    versions: Mapping[str, str],
    fingerprint: sources.Fingerprint,
    sections: Mapping[str, Section],
) -> Evidence:
    """A sealed record of today."""
    record = Evidence(
        name=check_name(name),
        version=VERSION,
        contract=contract,
        date=today(),
        device=device,
        versions=dict(versions),
        sources=fingerprint,
        sections=dict(sections),
        seal="",
    )
    return sealed(record)


def merged(old: Evidence, new: Evidence) -> Evidence:
    """One record with the steps of two runs; a step of ``new`` takes the place of its namesake in ``old``, unless it
    was not started.

    Raises EvidenceError when the two are of different devices, sources, contracts or versions: together they would
    prove nothing.
    """
    for field in ("version", "contract", "device", "versions"):
        a, b = getattr(old, field), getattr(new, field)
        if a != b:
            raise EvidenceError(f"{old.name}: {field}: {a} and {b}: must be equal to merge")
    lines = sources.changed(old.sources, new.sources)
    if lines:
        raise EvidenceError(f"{old.name}: sources: must be equal to merge: {', '.join(lines)}")
    sections = dict(old.sections)
    for name, found in new.sections.items():
        steps = {step.name: step for step in sections[name].steps} if name in sections else {}
        for step in found.steps:
            if step.reason != NOT_STARTED or step.name not in steps:
                steps[step.name] = step
        sections[name] = section(list(steps.values()))
    return make(new.name, new.contract, new.device, new.versions, new.sources, sections)


def renamed(record: Evidence, name: str) -> Evidence:
    """``record`` under another name, as a file of that name must hold it."""
    return sealed(structs.replace(record, name=check_name(name)))


def write(path: str | Path, record: Evidence) -> None:
    """Write ``record`` to ``path`` in one step. Raises EvidenceError when ``load`` would refuse it, and OSError."""
    path = Path(path)
    write_json(path, msgspec.to_builtins(check(record, path, record.name)))


def load(path: str | Path, any_file_name: bool = False) -> Evidence:
    """The record in the file ``path``. Raises EvidenceError naming the file and the field when it is missing or
    damaged.

    any_file_name  whether the file may be called otherwise than its record: a copy that is read and not kept
    """
    path = Path(path)
    if not path.is_file():
        raise EvidenceError(f"{path}: there is no such evidence")
    try:
        content = read_json(path)
    except GoldenError as error:
        raise EvidenceError(str(error)) from error
    own_name = content.get("name") if any_file_name and isinstance(content, dict) else None
    return check(content, path, own_name if isinstance(own_name, str) else path.stem)


def records(folder: str | Path = FOLDER) -> list[Evidence]:
    """Every record of ``folder``, the oldest first: by date, those of one day by the number at the end of the name (the
    first has none). Raises EvidenceError on a damaged one."""

    def age(record: Evidence) -> tuple[str, str, int]:
        # A name may have points of its own: only digits behind the last one are a number.
        name, _, number = record.name.rpartition(".")
        return (record.date, name, int(number)) if name and number.isdecimal() else (record.date, record.name, 1)

    return sorted((load(path) for path in sorted(Path(folder).glob("*.json"))), key=age)


def newest(records: Iterable[Evidence]) -> dict[str, Evidence]:
    """The newest record of every device, device name -> record; ``records`` the oldest first."""
    return {record.device.name: record for record in records}


def stale(record: Evidence, fingerprint: sources.Fingerprint | None = None) -> list[str]:
    """Why ``record`` does not speak of today's sources, a line a file; empty when it is fresh.

    fingerprint  of today, :func:`qsa.golden.sources.fingerprint` unless given
    """
    return sources.changed(record.sources, sources.fingerprint() if fingerprint is None else fingerprint)


def failed(record: Evidence) -> list[tuple[str, str]]:
    """(``SECTION/STEP``, reason) of every step of ``record`` that failed."""
    return [
        (f"{name}/{step.name}", step.reason)
        for name, found in record.sections.items()
        for step in found.steps
        if step.status == "failed"
    ]


def rows(record: Evidence) -> dict[str, dict]:
    """Rows of the record's benchmark, case -> row with the fields of :class:`Row`; empty without one."""
    return {row["case"]: row for row in _benchmark(record, "rows")}


def switches(record: Evidence) -> list[dict]:
    """Rows of the record's benchmark about switches, with the fields of :class:`Switch`; empty without one."""
    return _benchmark(record, "switches")


def _benchmark(record: Evidence, key: str) -> list[dict]:
    found = record.sections.get("benchmark")
    return [row for step in found.steps for row in step.results.get(key, [])] if found else []


Checked = TypeVar("Checked", Row, Switch, Results)


def _checked(data: object, kind: type[Checked], where: object, field: str) -> Checked:
    try:
        found = convert(data, kind, field)
        found.validate(field)
    except ValueError as error:
        raise EvidenceError(f"{where}: {error}") from error
    return found


def check_row(row: dict, where: object, field: str) -> dict:
    """``row`` of a benchmark, or EvidenceError that names the file ``where`` and the field."""
    _checked(row, Row, where, field)
    return row


def check_switch(row: dict, where: object, field: str) -> dict:
    """``row`` about a switch, or EvidenceError that names the file ``where`` and the field."""
    _checked(row, Switch, where, field)
    return row


def check_results(results: dict, where: object, field: str) -> dict:
    """``results`` of any step, or EvidenceError that names the step ``where`` and the field."""
    _checked(results, Results, where, field)
    return results


def check(data: object, where: object, name: str) -> Evidence:
    """``data``, a record or the JSON of one, as the record ``name``.

    Raises EvidenceError that names the file ``where`` and the first bad field.
    """
    try:
        record = convert(msgspec.to_builtins(data), Evidence)
        record.validate(name)
    except ValueError as error:
        raise EvidenceError(f"{where}: {error}") from error
    return record
