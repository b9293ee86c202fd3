"""A folder of goldens: read, check, regenerate into pending files, accept by name and with a reason.

One file each, ``<name>.json``, with sorted keys and a line per value, so that a change reads well in a diff. What
``regenerate`` finds different goes to ``<name>.pending.json`` beside it; nothing but ``accept`` writes a golden. Every
write is one step (:mod:`files`), so a killed run leaves no half-written file.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs

from qsa.reference.exact import CONTRACT
from qsa.reference.validation import InvalidError, convert

from . import case, files
from .record import GoldenError, Produced, Reason, Record, check_name, check_record, differences, make, sealed, today

RECORDS = Path(__file__).parent / "records"
"""The goldens of this repository."""

_PENDING = ".pending.json"

Produce = Callable[[str, dict], Produced]
"""(family, recipe) -> what the recipe gives."""


def read_json(path: str | Path) -> object:
    """What the JSON file ``path`` holds. Raises GoldenError when it is damaged, and OSError."""
    try:
        return msgspec.json.decode(Path(path).read_bytes())
    except (msgspec.DecodeError, RecursionError) as error:
        raise GoldenError(f"{path}: is not JSON: {error}") from error


def json_text(value: object) -> str:
    """``value`` as the text of a file of this folder: sorted keys, a line per value. Raises ValueError on NaN."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=True, allow_nan=False) + "\n"


def write_json(path: str | Path, value: object) -> None:
    """Write ``value`` to ``path`` as :func:`files.write` does. Raises OSError, ValueError on NaN."""
    files.write(path, json_text(value))


class Pending(Struct, frozen=True, forbid_unknown_fields=True):
    """What a pending file holds: the lines of :func:`differences`, and a record that is checked when it is accepted."""

    differences: list[str]
    record: dict[str, Any]


class Store:
    """The goldens in ``folder``, which is made when the first one is written."""

    def __init__(self, folder: str | Path = RECORDS) -> None:
        self.folder = Path(folder)

    def names(self) -> list[str]:
        """Names of all goldens, ascending. Raises GoldenError on a file whose name is none."""
        found = sorted(path.name for path in self.folder.glob("*.json") if not path.name.endswith(_PENDING))
        return [check_name(name.removesuffix(".json")) for name in found]

    def pending(self) -> list[str]:
        """Names with a pending file, ascending."""
        found = sorted(path.name for path in self.folder.glob(f"*{_PENDING}"))
        return [check_name(name.removesuffix(_PENDING)) for name in found]

    def _path(self, name: str, ending: str = ".json") -> Path:
        return self.folder / f"{check_name(name)}{ending}"

    def load(self, name: str) -> Record:
        """The record ``name``. Raises GoldenError when it is missing or damaged; the message names file and field."""
        path = self._path(name)
        if not path.is_file():
            raise GoldenError(f"{path}: there is no golden {name!r}")
        return check_record(read_json(path), path, name)

    def check(self, name: str, produce: Produce) -> list[str]:
        """What differs between the golden ``name`` and what ``produce`` gives, a line each; empty when equal.

        produce  function(family, recipe) -> :class:`qsa.golden.record.Produced`: the reference, or a kernel under test
                 on the inputs that the recipe stands for

        Raises GoldenError as :meth:`load` does.
        """
        record = self.load(name)
        got = make(name, record.case, CONTRACT, produce(*case.parse(record.case)))
        return differences(record, got)

    def regenerate(self, cases: Mapping[str, str], produce: Produce) -> dict[str, list[str]]:
        """Make the goldens anew and leave a pending file for each that is new or differs.

        cases    name -> case string
        produce  function(family, recipe) -> Produced, from the reference

        Returns name -> list of lines, what differs, for the names that do. An equal golden keeps its file, and a
        pending file that it may have is removed. Raises GoldenError on a damaged golden.
        """
        found = {}
        for name, text in cases.items():
            pending = self._path(name, _PENDING)
            old = self.load(name) if self._path(name).is_file() else None
            reasons = old.provenance.reasons if old else []
            new = make(name, text, CONTRACT, produce(*case.parse(text)), reasons)
            lines = differences(old, new) if old else ["new"]
            if lines:
                write_json(pending, msgspec.to_builtins(Pending(lines, msgspec.to_builtins(new))))
                found[name] = lines
            else:
                pending.unlink(missing_ok=True)
        return found

    def accept(self, name: str, because: str) -> Record:
        """Make the pending record of ``name`` the golden, with ``because`` added to its reasons. Returns the record.

        Raises GoldenError when nothing is pending, the pending file is damaged, or the reason is empty.
        """
        path = self._path(name, _PENDING)
        if not because.strip():
            raise GoldenError(f"{name}: because: an empty reason: say why the golden changes")
        if not path.is_file():
            raise GoldenError(f"{path}: nothing is pending for {name!r}: run `qsa golden regen {name}` first")
        try:
            pending = convert(read_json(path), Pending)
        except InvalidError as error:
            raise GoldenError(f"{path}: {error}") from error
        record = check_record(pending.record, path, name)
        reasons = [*record.provenance.reasons, Reason(because.strip(), today())]
        record = sealed(structs.replace(record, provenance=structs.replace(record.provenance, reasons=reasons)))
        write_json(self._path(name), msgspec.to_builtins(record))
        path.unlink()
        return record
