"""Hashes of source trees: what tells whether a record still speaks of today's sources.

Names are relative and sorted, contents have their line ends made ``\\n``, so a checkout on another system hashes alike.
"""

from pathlib import Path, PurePosixPath

import xxhash

from qsa.kernels.sources import content, content_hash, reachable

TREES = ("kernels", "reference")
"""Folders whose files a record covers, under these names: the kernels, and the reference they are held to."""

STARTS = ("kernels", "reference/exact")
"""Where the covered files are looked for. What these import is covered too: the constants that a kernel freezes."""

LEFT_OUT = ("kernels/tests/", "kernels/cpu/", "kernels/cuda/simulat")
"""Files by the beginning of their names that say nothing about a run on a device."""


def tree_hash(folder):
    """xxh3_128 over the names, sizes and contents of the Python files under ``folder``: 32 hexadecimal digits."""
    folder = Path(folder)
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.py"))
    return content_hash({name: content(folder / name) for name in names if not _is_test(name)})


def covered(where=None):
    """Name such as ``kernels/ops.py`` -> content of every file that a record covers, in the order of names.

    where  folder of the project, the one that runs unless given
    """
    return reachable(STARTS, where, lambda name: _is_test(name) or name.startswith(LEFT_OUT))


def fingerprint(where=None):
    """Dict of a hash for each tree, and ``files``: name -> xxh3_64, so that a change can be named.

    where  folder of the project, the one that runs unless given
    """
    files = covered(where)
    found = {
        tree: content_hash({name: source for name, source in files.items() if name.startswith(f"{tree}/")})
        for tree in TREES
    }
    found["files"] = {name: xxhash.xxh3_64_hexdigest(source) for name, source in files.items()}
    return found


def changed(old, new):
    """What differs between two results of :func:`fingerprint`, a line a file; empty when they are equal."""
    before, after = _files(old), _files(new)
    words = {(True, True): "changed", (True, False): "removed", (False, True): "added"}
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return [f"{words[name in before, name in after]} {name}" for name in names]


def _files(found):
    """``files`` of a fingerprint. The first records covered ``reference/exact`` alone and left ``exact/`` out."""
    files = found["files"]
    if any(name.startswith("reference/exact/") for name in files):
        return files
    return {name.replace("reference/", "reference/exact/", 1): source for name, source in files.items()}


def _is_test(name):
    return PurePosixPath(name).name.startswith("test_")
