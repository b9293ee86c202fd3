"""The source files that a part of this project can read, found by following imports.

A compiled kernel holds the values of constants that other files define, and a stored result speaks of the sources that
gave it. Both are out of date when one of those files changes, so the files are found and not listed by hand.
"""

import ast
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

import xxhash

PROJECT = "qsa"
"""Name that absolute imports of this project begin with."""


def root() -> Path:
    """Folder that holds the folders of the project, ``kernels`` and ``reference`` among them."""
    return Path(importlib.util.find_spec(f"{PROJECT}.kernels").origin).parent.parent


def content(path: Path) -> bytes:
    """What ``path`` holds, its line ends made ``\\n``: a checkout on another system has the same content."""
    return path.read_bytes().replace(b"\r\n", b"\n")


def content_hash(files: Mapping[str, bytes]) -> str:
    """xxh3_128 over the names, sizes and contents of ``files``, name -> content, in their order: 32 hex digits."""
    hasher = xxhash.xxh3_128()
    for name, source in files.items():
        hasher.update(f"{name} {len(source)}\n".encode() + source)
    return hasher.hexdigest()


def reachable(
    folders: Iterable[str], where: Path | None = None, left_out: Callable[[str], bool] = lambda name: False
) -> dict[str, bytes]:
    """Every Python file under ``folders``, and every file of the project that these import, directly or through others.

    folders   names relative to ``where``, such as ``kernels/cpu``; their subfolders belong to them
    where     folder of the project, :func:`root` unless given
    left_out  says of a name whether the file is neither taken nor followed

    Returns name relative to ``where`` -> :func:`content`, in the order of names. Of a package that is imported its
    ``__init__.py`` counts. An import that finds no file gives none: Python says so where it is carried out.
    Raises ValueError on a folder without a Python file, and SyntaxError on a file that is no Python.
    """
    where = root() if where is None else Path(where)
    pending = []
    for folder in folders:
        paths = sorted((where / folder).rglob("*.py"))
        if not paths:
            raise ValueError(f"folders: {folder!r}: a folder with Python files in {where} is required")
        pending += paths
    found = {}
    while pending:
        path = pending.pop()
        name = path.relative_to(where).as_posix()
        if name in found or left_out(name):
            continue
        found[name] = content(path)
        pending += _imported(path, found[name], where)
    return dict(sorted(found.items()))


def _imported(path: Path, source: bytes, where: Path) -> Iterator[Path]:
    """Files under ``where`` that the file ``path`` of this ``source`` imports."""
    folders = path.parent.relative_to(where).parts
    for level, module, names in _imports(source):
        parts = tuple(module.split(".")) if module else ()
        if not level:
            if parts[0] != PROJECT:
                continue
            parts = parts[1:]
        elif level - 1 > len(folders):
            continue
        else:
            parts = folders[: len(folders) - level + 1] + parts
        # ``import a.b`` makes a readable too; ``from a import b`` takes b from the package a, or else the module a.b.
        modules = [parts[:end] for end in range(1, len(parts) + 1)] if names is None else [parts]
        for one in (*modules, *((*parts, name) for name in names or ())):
            target = where.joinpath(*one)
            for file in (target.with_suffix(".py"), target / "__init__.py"):
                if one and file.is_file():
                    yield file


@lru_cache(maxsize=1024)
def _imports(source: bytes) -> tuple:
    """(level, module, names) of every import statement of ``source``; names is None for ``import module``."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(0, alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.level, node.module, tuple(alias.name for alias in node.names)))
    return tuple(found)
