"""Hashes of source trees: what tells whether a record still speaks of today's sources.

Names are relative and sorted, contents have their line ends made ``\\n``, so a checkout on another system hashes alike.
"""

import importlib.util
from pathlib import Path

import xxhash

TREES = {"kernels": "qsa.kernels", "reference": "qsa.reference.exact"}
"""Name in a record -> package whose files it covers: the kernels, and the exact arithmetic they are held to."""

LEFT_OUT = ("tests/", "cpu/", "cuda/simulator/", "cuda/ptxcheck/")
"""Folders of a tree, and files by the beginning of their names, that say nothing about a run on a device."""


def sources(folder):
    """(relative name, bytes) of every Python file under ``folder`` in the order of names, but those left out."""
    folder = Path(folder)
    for path in sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).as_posix()):
        name = path.relative_to(folder).as_posix()
        if not path.name.startswith("test_") and not name.startswith(LEFT_OUT):
            yield name, path.read_bytes().replace(b"\r\n", b"\n")


def tree_hash(folder):
    """xxh3_128 over the names, sizes and contents of the Python files under ``folder``: 32 hexadecimal digits."""
    hasher = xxhash.xxh3_128()
    for name, source in sources(folder):
        hasher.update(f"{name} {len(source)}\n".encode() + source)
    return hasher.hexdigest()


def folders():
    """Name -> folder of :data:`TREES`. Nothing is imported but the packages' parents."""
    return {name: Path(importlib.util.find_spec(package).origin).parent for name, package in TREES.items()}


def fingerprint(where=None):
    """Dict of a hash for each tree, and ``files``: ``tree/relative name`` -> xxh3_64, so that a change can be named.

    where  name -> folder, :func:`folders` unless given
    """
    where = folders() if where is None else where
    found = {name: tree_hash(folder) for name, folder in where.items()}
    found["files"] = {
        f"{tree}/{name}": xxhash.xxh3_64_hexdigest(source) for tree in where for name, source in sources(where[tree])
    }
    return found


def changed(old, new):
    """What differs between two results of :func:`fingerprint`, a line a file; empty when they are equal."""
    before, after = old["files"], new["files"]
    words = {(True, True): "changed", (True, False): "removed", (False, True): "added"}
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return [f"{words[name in before, name in after]} {name}" for name in names]
