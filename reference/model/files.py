"""Small files of a checkpoint folder: JSON, and files that are not here because git-lfs keeps them elsewhere."""

import json
from pathlib import Path
from typing import Any

POINTER = b"version https://git-lfs.github.com/spec/"
"""How a file begins that stands for one which git-lfs has not fetched."""


def pointer_fault(path: Path) -> str | None:
    """What is wrong with the file when it is a git-lfs pointer; None when it is not."""
    with path.open("rb") as file:
        if file.read(len(POINTER)) != POINTER:
            return None
    size = path.stat().st_size
    return f"{path.name}: a git-lfs pointer of {size} bytes, not the file itself: git lfs pull fetches it"


def read_json(path: Path) -> Any:
    """The content of a JSON file. Raises ValueError that names the file when it is none, also when it is a git-lfs
    pointer."""
    fault = pointer_fault(path)
    if fault:
        raise ValueError(fault)
    try:
        # Python's own reader: published files are written by Python and may hold Infinity in a field not read here.
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name}: no JSON: {error}") from error
