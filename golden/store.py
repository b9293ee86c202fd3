"""A folder of goldens: read, check, regenerate into pending files, accept by name and with a reason.

One file each, ``<name>.json``, with sorted keys and a line per value, so that a change reads well in a diff. What
``regenerate`` finds different goes to ``<name>.pending.json`` beside it; nothing but ``accept`` writes a golden. Every
write is one step (:mod:`files`), so a killed run leaves no half-written file.
"""

import json
from pathlib import Path

from qsa.reference.exact import CONTRACT

from . import case, files
from .record import GoldenError, check_name, check_record, differences, make, sealed, today

RECORDS = Path(__file__).parent / "records"
"""The goldens of this repository."""

_PENDING = ".pending.json"


def read_json(path):
    """What the JSON file ``path`` holds. Raises GoldenError when it is damaged, and OSError."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise GoldenError(f"{path}: is not JSON: {error}") from error


def json_text(value):
    """``value`` as the text of a file of this folder: sorted keys, a line per value. Raises ValueError on NaN."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=True, allow_nan=False) + "\n"


def write_json(path, value):
    """Write ``value`` to ``path`` as :func:`files.write` does. Raises OSError, ValueError on NaN."""
    files.write(path, json_text(value))


class Store:
    """The goldens in ``folder``, which is made when the first one is written."""

    def __init__(self, folder=RECORDS):
        self.folder = Path(folder)

    def names(self):
        """Names of all goldens, ascending. Raises GoldenError on a file whose name is none."""
        found = sorted(path.name for path in self.folder.glob("*.json") if not path.name.endswith(_PENDING))
        return [check_name(name.removesuffix(".json")) for name in found]

    def pending(self):
        """Names with a pending file, ascending."""
        found = sorted(path.name for path in self.folder.glob(f"*{_PENDING}"))
        return [check_name(name.removesuffix(_PENDING)) for name in found]

    def _path(self, name, ending=".json"):
        return self.folder / f"{check_name(name)}{ending}"

    def load(self, name):
        """The record ``name``. Raises GoldenError when it is missing or damaged; the message names file and field."""
        path = self._path(name)
        if not path.is_file():
            raise GoldenError(f"{path}: there is no golden {name!r}")
        return check_record(read_json(path), path, name)

    def check(self, name, produce):
        """What differs between the golden ``name`` and what ``produce`` gives, a line each; empty when equal.

        produce  function(family, recipe) -> :class:`qsa.golden.record.Produced`: the reference, or a kernel under test
                 on the inputs that the recipe stands for

        Raises GoldenError as :meth:`load` does.
        """
        record = self.load(name)
        got = make(name, record["case"], CONTRACT, produce(*case.parse(record["case"])))
        return differences(record, got)

    def regenerate(self, cases, produce):
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
            reasons = old["provenance"]["reasons"] if old else []
            new = make(name, text, CONTRACT, produce(*case.parse(text)), reasons)
            lines = differences(old, new) if old else ["new"]
            if lines:
                write_json(pending, {"differences": lines, "record": new})
                found[name] = lines
            else:
                pending.unlink(missing_ok=True)
        return found

    def accept(self, name, because):
        """Make the pending record of ``name`` the golden, with ``because`` added to its reasons. Returns the record.

        Raises GoldenError when nothing is pending, the pending file is damaged, or the reason is empty.
        """
        path = self._path(name, _PENDING)
        if not because.strip():
            raise GoldenError(f"{name}: because: an empty reason: say why the golden changes")
        if not path.is_file():
            raise GoldenError(f"{path}: nothing is pending for {name!r}: run `qsa golden regen {name}` first")
        content = read_json(path)
        if not isinstance(content, dict) or content.keys() != {"differences", "record"}:
            raise GoldenError(f"{path}: top: must hold differences and record")
        record = check_record(content["record"], path, name)
        provenance = record["provenance"]
        reasons = [*provenance["reasons"], {"because": because.strip(), "date": today()}]
        record = sealed({**record, "provenance": {**provenance, "reasons": reasons}})
        write_json(self._path(name), record)
        path.unlink()
        return record
