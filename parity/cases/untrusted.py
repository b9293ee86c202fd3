"""Files that somebody else wrote: JSON of limited size, and paths that do not leave their folder.

Nothing here leads to the judge's own arithmetic, so a backend in a process of its own may use it.
"""

import json
from pathlib import Path
from typing import Any


def inside(root: Path, relative: str) -> Path:
    """The path ``relative`` in the folder ``root``, whether or not it exists.

    Raises ValueError where it is absolute, has ``..`` or a part that is none, or leads out of the folder by a link.
    """
    parts = relative.split("/")
    if any(part in ("", ".", "..") or set(part) & set("\\:\0") for part in parts):
        raise ValueError(f"path {relative!r}: must be relative, with plain names between the slashes")
    path = root.joinpath(*parts)
    if not path.resolve().is_relative_to(root.resolve()):
        raise ValueError(f"path {relative!r}: a link leads out of the folder")
    return path


def read_json(path: Path, largest: int) -> Any:
    """What the JSON file ``path`` of at most ``largest`` bytes holds. Raises ValueError on a larger one, on what is no
    JSON (NaN and a name given twice among it), and OSError."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    size = path.stat().st_size
    if size > largest:
        raise ValueError(f"{path.name}: {size} bytes: allowed are {largest}")
    with path.open("rb") as file:
        text = file.read(size)
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name}: is not JSON: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name appears twice in an object")
    return found


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")
