"""What the reference gave for a golden, kept so that an unchanged golden is not computed again.

An entry is a file of JSON: the key under which it was made, the seconds that it took, and a sealed record. It counts
only under an equal key and with a whole seal; anything else in the file is as if there were none. The key holds all
that can change a result: the recipe, the sources of ``golden/`` and ``reference/`` with every file that they import,
the golden model's files, the versions of Python, NumPy, BLAS and the other packages, the processor, the system, and
the environment variables that choose instructions.
"""

import contextlib
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
from msgspec import Struct

from qsa.kernels.sources import content_hash, reachable, root
from qsa.reference.validation import InvalidError, convert

from .record import GoldenError, Record, check_record
from .store import read_json, write_json

STARTS = ("golden", "reference")
"""Folders whose sources, with what they import, are part of the key."""

MODEL = Path(__file__).parent / "model"
"""Files that the goldens of texts read."""

PACKAGES = ("numpy", "numba", "llvmlite", "ml-dtypes", "msgspec", "safetensors", "xxhash")
"""Packages that those sources import, and the compiler behind numba."""

VARIABLES = ("NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES", "OPENBLAS_CORETYPE", "NUMBA_CPU_NAME")
"""Environment variables that choose between instructions. Those that set a number of threads are not among them: a
golden is always computed with one (``recompute.py``)."""

KEPT = 4
"""Entries of one golden that are kept, those used last: two environments on one machine do not push each other out."""

Key = dict[str, str]
"""Part -> what it was."""


class Entry(Struct, frozen=True, forbid_unknown_fields=True):
    """What a file of the cache holds; ``record`` is checked when it is used."""

    key: Key
    seconds: float
    record: dict[str, Any]


def default_folder() -> Path:
    """Folder of the entries: ``$QSA_CACHE/goldens``, else in a checkout ``build/cache/goldens``, else
    ``qsa-parity/goldens`` in the user's folder of caches."""
    chosen = os.environ.get("QSA_CACHE")
    if chosen:
        return Path(chosen) / "goldens"
    if (root() / "pyproject.toml").is_file():
        return root() / "build" / "cache" / "goldens"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qsa-parity" / "goldens"


def sources_hash(where: str | Path | None = None) -> str:
    """Hash of the sources of :data:`STARTS` and of all that they import; ``where`` as in ``sources.reachable``."""
    return content_hash(reachable(STARTS, where))


def files_hash(folder: str | Path = MODEL) -> str:
    """Hash of the names and contents of all files in ``folder``."""
    paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    return content_hash({path.relative_to(folder).as_posix(): path.read_bytes() for path in paths})


def blas() -> str:
    """NumPy's BLAS: name, version and how it was built."""
    found = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return " ".join(str(found.get(key, "")) for key in ("name", "version", "openblas configuration")).strip()


def packages() -> str:
    """Versions of :data:`PACKAGES`."""
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)


def processor() -> str:
    """The processor: architecture, model and a hash of its features where the system tells them."""
    parts = [platform.machine(), platform.processor()]
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return " ".join(filter(None, parts))
    # The first processor's. Its clock changes from moment to moment and is no part of what it is.
    first = lines[: lines.index("")] if "" in lines else lines
    found = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first)}
    parts += [found.get(name, "") for name in ("vendor_id", "model name", "CPU part", "stepping")]
    features = found.get("flags", found.get("Features", ""))
    return " ".join([*filter(None, parts), xxhash.xxh3_64_hexdigest(" ".join(sorted(features.split())).encode())])


def system() -> str:
    """The system and its C library, whose functions Python and NumPy call."""
    return " ".join(filter(None, [platform.system(), *platform.libc_ver()]))


def environment() -> str:
    """The values of :data:`VARIABLES`."""
    return ", ".join(f"{name}={os.environ.get(name, '')}" for name in VARIABLES)


def common_key() -> Key:
    """The part of the key that all goldens share; takes about a second."""
    return {
        "sources": sources_hash(),
        "weights": files_hash(),
        "python": f"{sys.implementation.name} {sys.version}",
        "numpy": np.__version__,
        "blas": blas(),
        "packages": packages(),
        "processor": processor(),
        "system": system(),
        "environment": environment(),
    }


class Cache:
    """The entries in ``folder``, which is made when the first one is written.

    common  the key's shared part, :func:`common_key` unless given
    """

    def __init__(self, folder: str | Path | None = None, common: Mapping[str, str] | None = None) -> None:
        self.folder = default_folder() if folder is None else Path(folder)
        self.common = dict(common_key() if common is None else common)
        self.trouble = ""
        """Why results could not be stored; empty when they could."""

    def key(self, recipe: str) -> Key:
        """The key of the case string ``recipe``."""
        return {"recipe": recipe, **self.common}

    def path(self, name: str, recipe: str) -> Path:
        """File of the golden ``name`` under today's key."""
        text = json.dumps(self.key(recipe), sort_keys=True)
        return self.folder / f"{name}.{xxhash.xxh3_64_hexdigest(text.encode())}.json"

    def load(self, name: str, recipe: str) -> Record | None:
        """The record that the reference gave under today's key, or None: nothing usable is stored."""
        path = self.path(name, recipe)
        try:
            entry = convert(read_json(path), Entry)
            record = check_record(entry.record, path, name)
        except (GoldenError, InvalidError, OSError):
            return None
        if entry.key != self.key(recipe) or record.case != recipe:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used last: it is the last to be removed
        return record

    def store(self, record: Record, seconds: float) -> None:
        """Keep ``record``, which took ``seconds``. A folder that cannot be written is told in :attr:`trouble`."""
        entry = Entry(self.key(record.case), round(seconds, 3), msgspec.to_builtins(record))
        try:
            write_json(self.path(record.name, record.case), msgspec.to_builtins(entry))
            for path in self._entries(record.name)[KEPT:]:
                path.unlink(missing_ok=True)
        except OSError as error:
            self.trouble = f"{self.folder}: results could not be stored: {error.strerror or error}"

    def seconds(self, name: str) -> float | None:
        """Seconds that the golden took when it was last computed, under whatever key; None when that is not known."""
        for path in self._entries(name):
            try:
                return convert(read_json(path), Entry).seconds
            except (GoldenError, InvalidError, OSError):
                continue
        return None

    def _entries(self, name: str) -> list[Path]:
        """Files of the golden ``name``, the one used last first."""
        found = [path for path in self.folder.glob(f"{name}.*.json") if path.name.count(".") == name.count(".") + 2]
        return sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)
